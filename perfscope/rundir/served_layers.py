"""Layers whose tensors one call of communication carries, as text: in the mark around the call, in a ledger.

``conv1=4704&fc=1024``: layer and bytes, in the form of a URL's query, because trace files lose quotes.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode


def encoded(layers: Mapping[str, int]) -> str:
    """Layer -> bytes as text; "" for none."""
    return urlencode(layers)


def decoded(text: str) -> dict[str, int]:
    """Layer -> bytes; {} for text that is not of this form."""
    pairs = parse_qsl(text, keep_blank_values=True)
    if not all(number.isdecimal() for _, number in pairs):
        return {}
    return {layer: int(number) for layer, number in pairs}
