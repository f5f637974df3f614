"""Layers whose tensors one call of communication carries, as text: in the mark around the call, in a ledger.

``conv1=4704&fc=1024``: layer and bytes, in the form of a URL's query, because trace files lose quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

_NUMBER = re.compile(r"[0-9]{1,18}")


def encoded(layers: Mapping[str, int]) -> str:
    """Layer -> bytes as text; "" for none."""
    return urlencode(layers)


def decoded(text: str) -> dict[str, int]:
    """Layer -> bytes (at least 1); {} for text that is not of this form."""
    pairs = parse_qsl(text, keep_blank_values=True)
    if not all(_NUMBER.fullmatch(number) for _, number in pairs):
        return {}
    return {layer: size for layer, number in pairs if (size := int(number))}
