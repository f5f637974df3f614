"""Ways to damage a file: of its bytes, and of the values in it."""

from __future__ import annotations

import gzip
from copy import deepcopy
from random import Random
from typing import Any

from tests.support.trace_samples import Sample

_DEEP = 3000
HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 0.5, -0.0, 1e308, -1e308, 1e-320, float("nan"), float("inf"), float("-inf")),
    *(2**31, 2**53 + 1, 2**61, 2**63 - 1, -(2**63), 2**64, 2**200, -(2**200)),
    *("", " ", "7", "-1", "NaN", "x" * 2000, "\0", "\u202e", "\ud800", "/etc/passwd", "%s%n", "ä\n"),
    *([], {}, [[]], [None], [{}], {"": None}, {"rank": -1}, ["x"] * 60, [0] * 60, [[1, 2], ["3"]]),
)


def _bytes_changed(data: bytes, random: Random) -> bytes:
    """Truncation, flipped bits, lost, repeated, moved or foreign pieces, another encoding."""
    text = bytearray(data)
    at = random.randrange(len(text))
    end = min(len(text), at + random.choice((1, 2, 7, 64, 4096)))
    kind = random.randrange(9)
    if kind == 0:
        del text[at:]
    elif kind == 1:
        for _ in range(random.choice((1, 1, 8, 64))):
            place = random.randrange(len(text))
            text[place] ^= 1 << random.randrange(8)
    elif kind == 2:
        del text[at:end]
    elif kind == 3:
        text[at:end] = random.choice((b"\0", b"\xff", b"\x80", b"9", b'"', b"[", b"{", b" ")) * (end - at)
    elif kind == 4:
        text[at:at] = text[at:end] * random.choice((1, 3))
    elif kind == 5:
        text[at:at] = random.randbytes(random.choice((1, 9, 300)))
    elif kind == 6:
        text = text[at:] + text[:at]
    elif kind == 7:
        text += random.choice((b"\0" * 40, b"{}", b"]", random.randbytes(99), bytes(text[:at])))
    else:
        return _in_another_encoding(data, random)
    return bytes(text)


def _in_another_encoding(data: bytes, random: Random) -> bytes:
    text = data.decode("latin-1")
    encoding = random.choice(("utf-16", "utf-16-be", "utf-32", "utf-8-sig", "cp500"))
    return text.encode(encoding)


def _places(value: object, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(container, key) of every value inside `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        _places(inner, found)
    return found


def _values_changed(document: Any, random: Random) -> Any:
    """Some values replaced, removed or repeated."""
    places = _places(document, [])
    for _ in range(random.choice((1, 1, 2, 5, 40))):
        container, key = random.choice(places)
        if key in container if isinstance(container, dict) else key < len(container):
            _value_changed(container, key, places, random)
    return document


def _value_changed(container: Any, key: Any, places: list[tuple[Any, Any]], random: Random) -> None:
    kind = random.randrange(10)
    if kind == 0 and isinstance(container, dict):
        hostile = random.choice(HOSTILE)
        for other, name in places:
            if name == key and isinstance(other, dict):
                other[name] = deepcopy(hostile)
    elif kind < 7:
        container[key] = deepcopy(random.choice(HOSTILE))
    elif kind == 7:
        del container[key]
    elif isinstance(container, list):
        container.append(deepcopy(container[key]))
    else:
        container[random.choice(("", "x" * 3000, "name", "ts"))] = container.pop(key)


def _nested(data: bytes, random: Random) -> bytes:
    """One value nested deeper than any decoder goes."""
    marks = [at for at, byte in enumerate(data) if byte in b":,"]
    at = random.choice(marks or [0]) + 1
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return data[:at] + opening * _DEEP + b"1" + closing * _DEEP + b"," + data[at:]


def mutated(sample: Sample, random: Random, *, packed: bool) -> bytes:
    """A damaged copy of the sample.

    Args:
        packed: whether it is gzipped, before or after the damage.
    """
    data = sample.data
    kind = random.randrange(8)
    if sample.change is not None and kind < 5:
        data = sample.change(data, random)
    elif sample.load is not None and sample.dump is not None and kind < 5:
        data = sample.dump(_values_changed(sample.load(data), random))
    elif kind == 5 and sample.load is not None:
        data = _nested(data, random)
    elif packed and kind == 6:
        return _bytes_changed(gzip.compress(data, mtime=0), random)
    else:
        data = _bytes_changed(data, random)
    return gzip.compress(data, mtime=0) if packed else data
