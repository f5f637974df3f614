"""Layers whose tensors one call of communication carries, as text: in the mark around the call, in a ledger.

``dp?conv1=4704&fc=1024``: axis of the mesh, layer and bytes, in the form of a URL, because trace files lose
quotes. Axis and question mark may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote_plus, urlencode

_NUMBER = re.compile(r"[0-9]{1,18}")


def encoded(layers: Mapping[str, int]) -> str:
    """Layer -> bytes as text; "" for none."""
    return urlencode(layers)


def axis_of(text: str) -> str:
    """The axis that a mark names; "" for none."""
    axis, is_named, _ = text.partition("?")
    return unquote_plus(axis) if is_named else ""


def decoded(text: str) -> dict[str, int]:
    """Layer -> bytes (at least 1); {} for text that is not of this form."""
    pairs = parse_qsl(text.rpartition("?")[2], keep_blank_values=True)
    if not all(_NUMBER.fullmatch(number) for _, number in pairs):
        return {}
    return {layer: size for layer, number in pairs if (size := int(number))}
