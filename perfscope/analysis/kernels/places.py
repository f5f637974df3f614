"""Time of each place: layer, pass, type, launching operator and name; the boxes of the module icicle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64
from perfscope.analysis.kernels.results import PlaceTime
from perfscope.analysis.spans import BACKWARD, FORWARD
from perfscope.vocabulary.kernels import KernelType

MOST_PLACES = 300  # by time; the others of a layer stand together without a name
_TYPES = tuple(KernelType)


class Place(NamedTuple):
    """`layer`, `operator`: "" = none. `phase`: forward, backward or "". `name`: of a kernel, operator."""

    layer: str
    phase: str
    type: KernelType
    operator: str
    name: str


class PlaceSums(Struct):
    calls: int = 0
    ns: int = 0


class Coded(NamedTuple):
    """A text of each row: codes, -1 = none, into texts."""

    codes: NDArray[np.integer]
    texts: Sequence[str]

    def text(self, code: int) -> str:
        return self.texts[code] if code >= 0 else ""


def add_places(
    sums_by_place: dict[Place, PlaceSums],
    layer: Coded,
    operator: Coded,
    name: Coded,
    phase: NDArray[np.integer],
    types: NDArray[np.int64],
    ns: Int64,
) -> None:
    """Adds rows to their places; the arrays are equally long."""
    columns = np.column_stack([layer.codes, phase, types, operator.codes, name.codes]).astype(np.int64)
    keys, group, calls = np.unique(columns, axis=0, return_inverse=True, return_counts=True)
    totals = np.zeros(len(keys), dtype=np.int64)
    np.add.at(totals, group.ravel(), ns)
    for key, count, total in zip(keys.tolist(), calls.tolist(), totals.tolist(), strict=True):
        of_layer, of_phase, of_type, of_operator, of_name = key
        passed = {FORWARD: "forward", BACKWARD: "backward"}.get(of_phase, "")
        location = Place(
            layer.text(of_layer), passed, _TYPES[of_type], operator.text(of_operator), name.text(of_name)
        )
        sums = sums_by_place.setdefault(location, PlaceSums())
        sums.calls += count
        sums.ns += total


def merge_places(sums_by_place: dict[Place, PlaceSums], later: Mapping[Place, PlaceSums]) -> None:
    """Takes in the places of later ranks."""
    for location, sums in later.items():
        mine = sums_by_place.setdefault(location, PlaceSums())
        mine.calls += sums.calls
        mine.ns += sums.ns


def places_of(sums_by_place: Mapping[Place, PlaceSums]) -> tuple[PlaceTime, ...]:
    """Longest first; they add up to all time."""
    ordered = sorted(sums_by_place.items(), key=lambda item: (-item[1].ns, item[0]))
    rows = [
        PlaceTime(
            layer=location.layer or None,
            phase=location.phase or None,
            type=location.type,
            operator=location.operator or None,
            name=location.name,
            calls=sums.calls,
            total_ns=sums.ns,
        )
        for location, sums in ordered[:MOST_PLACES]
    ]
    left: dict[str, PlaceSums] = {}
    for location, sums in ordered[MOST_PLACES:]:
        of_layer = left.setdefault(location.layer, PlaceSums())
        of_layer.calls += sums.calls
        of_layer.ns += sums.ns
    rows += [
        PlaceTime(
            layer=layer or None,
            phase=None,
            type=None,
            operator=None,
            name=None,
            calls=sums.calls,
            total_ns=sums.ns,
        )
        for layer, sums in sorted(left.items(), key=lambda item: (-item[1].ns, item[0]))
    ]
    return tuple(rows)
