"""Microseconds in decimal text to integer nanoseconds, many at once and exactly.

A Unix time in microseconds needs more bits than a float64 has left for its fraction (0.25 µs
steps), so a timestamp never passes through one: digits are summed as integers. Forms that
writers rarely use (signs, exponents, more than three decimals) go through `decimal.Decimal`.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_POW10 = 10 ** np.arange(4, dtype=np.int64)
_MAX_DIGITS = 18  # digits of value * 1000 that surely fit into int64
_INT64_MAX = 2**63 - 1
_NEWLINE, _POINT, _ZERO = 10, 46, 48


def to_ns(text: str) -> int | None:
    """One number of microseconds as nanoseconds, rounded half to even; None if it is no number.

    The slow and obvious way: the reference the fast one is tested against.
    """
    try:
        value = Decimal(text.strip().strip('"'))
        if not value.is_finite() or abs(value.adjusted()) > 30:
            return 0 if value.is_finite() and (value == 0 or value.adjusted() < 0) else None
        ns = int((value * 1000).to_integral_value(rounding=decimal.ROUND_HALF_EVEN))
    except decimal.InvalidOperation:
        return None
    return ns if -_INT64_MAX <= ns <= _INT64_MAX else None


def parse_us(pieces: Sequence[bytes]) -> tuple[Ints, Flags]:
    """Numbers separated by newlines (within and between pieces) as ns.

    Args:
        pieces: each holds at least one number (an absent one is an empty line).

    Returns:
        (ns, ok): int64 nanoseconds, and False where the text is no number (ns is 0 there).
    """
    if not pieces:
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    text = b"\n".join([*pieces, b""])
    ends, decimals, odd = _measure(text)
    rows = np.flatnonzero(odd).tolist()
    if not rows:
        return _scaled(text, decimals), np.ones(len(ends), np.bool_)
    lines = text.split(b"\n")
    values = [to_ns(lines[row].decode("ascii", "replace")) for row in rows]
    for row in rows:
        lines[row] = b"0"
    decimals[rows] = 0
    ns = _scaled(b"\n".join(lines), decimals)
    ns[rows] = [value or 0 for value in values]
    ok = np.ones(len(ends), np.bool_)
    ok[rows] = [value is not None for value in values]
    return ns, ok


def _measure(text: bytes) -> tuple[Ints, Ints, Flags]:
    """Per line its end, its number of decimals, and whether it is more than a plain short decimal."""
    raw = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(raw == _NEWLINE)
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    points = np.flatnonzero(raw == _POINT)
    length = ends - starts
    if len(points) == len(ends) and (points < ends).all() and (points >= starts).all():
        decimals = ends - points - 1
        length -= 1
        odd = decimals > 3
    else:
        owner = np.searchsorted(ends, points)
        decimals = np.zeros(len(ends), np.int64)
        decimals[owner] = ends[owner] - points - 1
        length -= np.bincount(owner, minlength=len(ends))
        odd = (decimals > 3) | (np.bincount(owner, minlength=len(ends)) > 1)
    strange = np.flatnonzero((raw - _ZERO > 9) & (raw != _NEWLINE) & (raw != _POINT))
    odd[np.searchsorted(ends, strange)] = True
    odd |= (length > _MAX_DIGITS - 3 + decimals) | (length == 0)
    return ends, decimals, odd


def _scaled(text: bytes, decimals: Ints) -> Ints:
    """Lines of at most 18 digits, the point anywhere, as integers of nanoseconds."""
    ns = np.fromstring(text.replace(b".", b""), np.int64, sep="\n")  # text mode: strtoll, exact
    ns *= _POW10[3 - decimals]
    return ns
