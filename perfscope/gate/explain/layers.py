"""Which layers take longer.

Their times come from a handful of traced steps, and whole traces run faster or slower than others (a
neighbor, a cold cache). That pace hits all layers alike, so each run's layers are divided by its pace
first: the weighted median, over the layers, of the time against that layer's median in the base. What then
still moved, moved by itself. Layers' times hold only the operators that run in no layer further in, so a
slower block is not blamed on its children.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.gate.explain.sides import Shift, Sides, shift_of, weighted_median
from perfscope.gate.records import RunFigures
from perfscope.gate.results import Moved
from perfscope.messages.gate import explanation as words

FEWEST_LAYERS = 4  # of fewer, one slow layer would pass for the pace
CERTAIN = 2.5  # standard deviations that a layer must have moved by: there are many layers to be wrong about
LEAST = 0.005  # of the step; less is not worth naming
_LARGEST_WEIGHT = 0.25  # of one layer's in the pace
_MOST = 20  # moved layers that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEvidence:
    """What the layers say, in the time of untraced steps.

    Attributes:
        moves: layers that moved by themselves, most time first.
        excess_ns: their sum; `deviation_ns` its standard deviation.
        pace: how much slower all layers ran alike, head against base, as a share; None = too few layers.
        is_known: both sides have layer times.
    """

    moves: tuple[Moved, ...] = ()
    excess_ns: float = 0.0
    deviation_ns: float = 0.0
    pace: Shift | None = None
    is_known: bool = False


def layer_evidence(sides: Sides, step_ns: float, slowdown: float) -> LayerEvidence:
    """Layers that moved against the pace of their trace.

    Args:
        step_ns: the base's untraced step.
        slowdown: how many times longer traced steps take; layers' times are divided by it.
    """
    used = Sides(
        base=tuple(run for run in sides.base if run.layers),
        head=tuple(run for run in sides.head if run.layers),
        paired=sides.paired and all(run.layers for run in sides.runs),
    )
    phases = {"forward": _times(used, "forward_ns"), "backward": _times(used, "backward_ns")}
    names = list(dict.fromkeys(time.layer for run in used.runs for time in run.layers))
    if not names or not used.base or not used.head:
        return LayerEvidence()
    total = phases["forward"] + phases["backward"]  # (runs, layers)
    pace = _pace(total, len(used.base), names)
    middle = float(np.median(pace))
    scale = (middle / pace)[:, None] / slowdown
    num_base = len(used.base)
    moves, variance, excess = [], 0.0, 0.0
    for at, name in enumerate(names):
        column = (total * scale)[:, at]
        shift = _shift(column, num_base, used.paired)
        if shift is None:
            return LayerEvidence()
        if abs(shift.change) < max(LEAST * step_ns, CERTAIN * shift.deviation) or not shift.is_certain:
            continue
        excess += shift.change
        variance += shift.deviation**2
        moves.append(
            _moved(
                name, shift, {key: (phase * scale)[:, at] for key, phase in phases.items()}, num_base, used
            )
        )
    moves.sort(key=lambda moved: -abs(moved.change_ns))
    return LayerEvidence(
        moves=tuple(moves[:_MOST]),
        excess_ns=excess,
        deviation_ns=math.sqrt(variance),
        pace=_shift(pace / middle, num_base, used.paired) if len(names) >= FEWEST_LAYERS else None,
        is_known=True,
    )


def _times(sides: Sides, field: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Shape (runs, layers), base runs first; a layer that a run does not have takes no time in it."""
    names = list(dict.fromkeys(layer_time.layer for run in sides.runs for layer_time in run.layers))
    rows = []
    for run in sides.runs:
        times = {time.layer: float(getattr(time, field)) for time in run.layers}
        rows.append([times.get(name, 0.0) for name in names])
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(names))


def _pace(
    total: np.ndarray[tuple[int, ...], np.dtype[np.float64]], num_base: int, names: list[str]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """How slowly each run's layers ran against the base's medians, shape (runs,)."""
    usual = np.median(total[:num_base], axis=0)
    shared = [at for at in range(len(names)) if usual[at] > 0 and (total[:, at] > 0).all()]
    if len(shared) < FEWEST_LAYERS:
        return np.ones(len(total))
    roots = np.sqrt(usual[shared])
    capped = np.minimum(roots, _LARGEST_WEIGHT * roots.sum())
    weights = {str(at): float(weight) for at, weight in zip(shared, capped, strict=True)}
    return np.array(
        [weighted_median({str(at): float(row[at] / usual[at]) for at in shared}, weights) for row in total]
    )


def _shift(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], num_base: int, paired: bool
) -> Shift | None:
    return shift_of(values[:num_base].tolist(), values[num_base:].tolist(), paired)


def _moved(
    name: str,
    shift: Shift,
    phases: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]],
    num_base: int,
    sides: Sides,
) -> Moved:
    facts = []
    for phase, column in phases.items():
        phase_shift = _shift(column, num_base, sides.paired)
        if phase_shift is not None and abs(phase_shift.change) >= 0.1 * abs(shift.change):
            facts.append(words.moved(phase, phase_shift.change))
    if not _present(sides.base, name):
        facts.append(words.NOT_IN_BASE)
    if not _present(sides.head, name):
        facts.append(words.GONE)
    return Moved(
        kind="layer",
        what=name,
        title=_titled(name, sides.runs),
        base_ns=shift.base,
        head_ns=shift.head,
        change_ns=shift.change,
        low_ns=shift.low,
        high_ns=shift.high,
        note=", ".join(facts),
    )


def _titled(name: str, runs: Sequence[RunFigures]) -> str:
    """`features.3 (Conv2d)`: a number of nn.Sequential alone says nothing of what the layer does."""
    if not name.rpartition(".")[2].isdecimal():
        return name
    types = {time.module_type for run in runs for time in run.layers if time.layer == name}
    return f"{name} ({', '.join(sorted(types))})" if types and all(types) else name


def _present(runs: tuple[RunFigures, ...], name: str) -> bool:
    return any(time.layer == name for run in runs for time in run.layers)
