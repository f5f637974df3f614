"""Time of each place: layer, pass, type, launching operator and name; the boxes of the module icicle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64, distinct_pairs, exact_sums
from perfscope.analysis.kernels.results import PlaceTime
from perfscope.analysis.spans import BACKWARD, FORWARD
from perfscope.analysis.windows import in_order
from perfscope.rundir.schema import PHASES
from perfscope.vocabulary.kernels import KernelType

MOST_PLACES = 300  # by time; the others of a layer stand together without a name
_TYPES = tuple(KernelType)
_NUM_PHASES = len(PHASES) + 1  # -1 = not known
_PHASE_TEXTS = {FORWARD: "forward", BACKWARD: "backward"}


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

    def add(self, calls: int, ns: int) -> None:
        """Takes in more calls of the place."""
        self.calls += calls
        self.ns += ns


class Coded(NamedTuple):
    """A text of each row: codes, -1 = none, into texts."""

    codes: NDArray[np.integer]
    texts: Sequence[str]


def text_of(texts: Sequence[str], code: int) -> str:
    """The text of a code; "" for -1."""
    return texts[code] if code >= 0 else ""


def add_places(
    sums_by_place: dict[Place, PlaceSums],
    layer: Coded,
    operator: Coded,
    name: Coded,
    phase: NDArray[np.integer],
    types: NDArray[np.int64],
    ns: Int64,
    window: NDArray[np.int64],
) -> None:
    """Adds rows to their places; the arrays are equally long. `window`: of several, the one of each row."""
    launches, launch_of = distinct_pairs(operator.codes, name.codes)
    marks = ((layer.codes + 1).astype(np.int64) * _NUM_PHASES + phase + 1) * len(_TYPES) + types
    keys, group = distinct_pairs(marks, launch_of)
    calls, totals = np.bincount(group, minlength=len(keys)).tolist(), exact_sums(group, ns, len(keys))
    launched, marked = launches.tolist(), keys.tolist()
    for index in in_order(group, window, len(keys)):
        mark, launch = marked[index]
        of_operator, of_name = launched[launch]
        in_layer, of_type = divmod(mark, len(_TYPES))
        of_layer, of_phase = divmod(in_layer, _NUM_PHASES)
        location = Place(
            text_of(layer.texts, of_layer - 1),
            _PHASE_TEXTS.get(of_phase - 1, ""),
            _TYPES[of_type],
            text_of(operator.texts, of_operator),
            text_of(name.texts, of_name),
        )
        sums_by_place.setdefault(location, PlaceSums()).add(calls[index], totals[index])


def merge_places(sums_by_place: dict[Place, PlaceSums], later: Mapping[Place, PlaceSums]) -> None:
    """Takes in the places of later ranks."""
    for location, sums in later.items():
        sums_by_place.setdefault(location, PlaceSums()).add(sums.calls, sums.ns)


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
        left.setdefault(location.layer, PlaceSums()).add(sums.calls, sums.ns)
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
