"""By how much each part of the step moved: everything that was measured, weighted by how well it is known.

The unknowns are the changes of the parts. What was seen of them:

- the step's own change, and those of input wait and optimizer: timed in every untraced step, known well;
- each traced part's share of what is left, run by run: unbiased, noisy (a handful of steps);
- layers: computation moved by what single layers moved, give or take UNIFORM of all computation, which may
  have changed for all layers alike;
- collectives: communication moved by what changed calls, bytes and transfers cost; where nothing of that
  changed, by those transfers give or take SLACK of the step, as waiting for other ranks is no message.

Weighted least squares (weights 1 / variance) under the condition that the parts add up to the step's change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.gate.explain.collectives import CollectiveEvidence
from perfscope.gate.explain.layers import LayerEvidence
from perfscope.gate.explain.sides import Figure, Shift, Sides
from perfscope.gate.explain.untraced import phase_parts, steady_parts
from perfscope.gate.records import PARTS
from perfscope.gate.results import Moved
from perfscope.messages.gate.explanation import PARTS as TITLES

UNIFORM = 0.05  # of computation: how far it may have moved in all layers alike
SLACK = 0.05  # of the step: how far waiting may move exposed communication when its messages stay the same
SIZE = 0.25  # of the moved layers' time: how far it may be off in untraced steps
_FLOOR = 0.002  # of the step: nothing is known better
_WIDE = 10.0  # steps: what was not measured may be anything
_TWO_SIDED = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One observation: the change of `part` is `value_ns`, give or take `deviation_ns`."""

    part: str
    value_ns: float
    deviation_ns: float


def part_moves(
    sides: Sides,
    step_of: Figure,
    step: Shift,
    layers: LayerEvidence,
    collectives: CollectiveEvidence,
) -> tuple[Moved, ...]:
    """Each part's change; they add up to `step.change`.

    Returns:
        One per name of records.PARTS; without traces "input_wait", "optimizer", "backward" and "rest", as
        far as they are known; () where nothing is known but the step.
    """
    shifts: dict[str, Shift] = {}
    for part in PARTS:
        shift = sides.shift(lambda run, part=part: steady_parts(run, step_of(run)).get(part))  # type: ignore[misc]
        if shift is not None:
            shifts[part] = shift
    if len(shifts) < len(PARTS):
        return _untraced_moves(sides, step_of, step)
    seen = [
        Seen(part=part, value_ns=shift.change, deviation_ns=math.hypot(shift.deviation, _FLOOR * step.base))
        for part, shift in shifts.items()
    ]
    if layers.is_known:
        excess = layers.excess_ns
        doubt = math.hypot(layers.deviation_ns, SIZE * excess, UNIFORM * shifts["compute"].base)
        seen.append(Seen(part="compute", value_ns=excess, deviation_ns=doubt))
    if collectives.is_known:
        slack = SLACK * step.base
        doubt = math.hypot(collectives.deviation_ns, slack)
        seen.append(Seen(part="exposed_comm", value_ns=collectives.cost_ns, deviation_ns=doubt))
    return _solved(shifts, seen, step)


def _untraced_moves(sides: Sides, step_of: Figure, step: Shift) -> tuple[Moved, ...]:
    shifts: dict[str, Shift] = {}
    for part in ("input_wait", "optimizer", "backward", "rest"):
        shift = sides.shift(lambda run, part=part: phase_parts(run, step_of(run)).get(part))  # type: ignore[misc]
        if shift is not None:
            shifts[part] = shift
    if len(shifts) < 2:
        return ()
    seen = [
        Seen(part=part, value_ns=shift.change, deviation_ns=math.hypot(shift.deviation, _FLOOR * step.base))
        for part, shift in shifts.items()
    ]
    return _solved(shifts, seen, step)


def _solved(shifts: dict[str, Shift], seen: Sequence[Seen], step: Shift) -> tuple[Moved, ...]:
    """Largest change first."""
    parts = list(shifts)
    precision = np.full(len(parts), (_WIDE * step.base) ** -2)
    weighted = np.zeros(len(parts))
    for seen_part in seen:
        precision[parts.index(seen_part.part)] += seen_part.deviation_ns**-2
        weighted[parts.index(seen_part.part)] += seen_part.value_ns * seen_part.deviation_ns**-2
    variance = 1 / precision
    free = weighted * variance
    # Each observation is of one part, so what is left over goes to the parts by their variances.
    change = free + variance * (step.change - free.sum()) / variance.sum()
    # Known sum, itself known to step.deviation: the variance that conditioning on it leaves.
    gain = variance / (variance.sum() + step.deviation**2)
    deviation = np.sqrt(np.maximum(variance * (1 - gain), 0.0))
    moves = [
        Moved(
            kind="part",
            what=part,
            title=TITLES[part],
            base_ns=shifts[part].base,
            head_ns=shifts[part].head,
            change_ns=float(change[at]),
            low_ns=float(change[at] - _TWO_SIDED * deviation[at]),
            high_ns=float(change[at] + _TWO_SIDED * deviation[at]),
        )
        for at, part in enumerate(parts)
    ]
    return tuple(sorted(moves, key=lambda move: -abs(move.change_ns)))
