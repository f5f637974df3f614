"""What a check's verdict comes from: the part of the step, the layers and collectives, and what was around.

The rule. Each part's change and its uncertainty come from gate.explain.parts. In the direction in which the
step moved, the part to which a place in the code points (input wait or optimizer beyond their noise, layers
that stand out, collectives whose calls or bytes changed; of several the one that is sure of most) is the
cause if that makes up PLACE of the step's change and no other part certainly moved more; else the part that
moved most, if it makes up SHARE and is surer than SURE standard deviations. Two corrections: communication
that is nothing but waiting is a symptom where another part grew that can make ranks late; and surroundings
that can explain half of a slow-down go before code, unless the evidence points to a place in the code for
half of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfscope.gate.explain.collectives import CollectiveEvidence, collective_evidence
from perfscope.gate.explain.conditions import Around, around
from perfscope.gate.explain.layers import LayerEvidence, layer_evidence
from perfscope.gate.explain.parts import part_moves
from perfscope.gate.explain.sides import FEWEST, Shift, Sides, sides_of
from perfscope.gate.explain.story import Story, action, headline, notes
from perfscope.gate.explain.untraced import EXACT, STEP_NAMES, step_figure, trace_slowdown, traced_step
from perfscope.gate.metrics import DECIDES
from perfscope.gate.records import PARTS, RunFigures
from perfscope.gate.results import Explanation, MetricVerdict, Moved
from perfscope.messages.gate import explanation as words

SHARE = 0.4  # of the step's change that the cause must make up
SURE = 1.3  # standard deviations
PLACE = 0.3  # of the step's change: what must point to one place in the code to be believed without SURE
LOCAL = 0.5  # of the step's change that must point to a place in the code to go before the surroundings
LEAST = 0.01  # of the step: a change below explains nothing and needs no explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    step: Shift
    parts: tuple[Moved, ...]
    layers: LayerEvidence
    collectives: CollectiveEvidence
    around: Around
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Evidence that points to a place in the code: how much the step moved for it, and how much at least."""

    part: str
    change_ns: float
    least_ns: float


def explain(
    base: Sequence[RunFigures], head: Sequence[RunFigures], verdicts: Sequence[MetricVerdict]
) -> Explanation:
    """Names what moved between `base` and `head`.

    Args:
        base, head: the judged runs of each side, in any order.
        verdicts: the check's; that of step_p10 says whether there is something to explain.

    Raises:
        Nothing: what is not known is listed in `notes`.
    """
    sides = sides_of(base, head)
    surroundings = around(sides) if sides.base and sides.head else Around()
    figure = step_figure(sides)
    step = sides.shift(figure) if figure else None
    if step is None or figure is None or step.base <= 0:
        return Explanation(
            cause="unknown",
            headline=words.too_few_runs(FEWEST),
            action=words.MAKE_RUNS,
            surroundings=surroundings.differences,
        )
    deciding = next((verdict for verdict in verdicts if verdict.metric.id == DECIDES), None)
    step = _as_judged(step, deciding)
    traced = sides.shift(traced_step)
    slowdown = trace_slowdown(sides) if figure is not traced_step else 1.0
    layers = layer_evidence(sides, step.base, slowdown) if traced else LayerEvidence()
    collectives = collective_evidence(sides, slowdown) if traced else CollectiveEvidence()
    evidence = _Evidence(
        step=step,
        parts=part_moves(sides, figure, step, layers, collectives),
        layers=layers,
        collectives=collectives,
        around=surroundings,
        world_size=max((run.fingerprint.world_size or 1 for run in sides.runs), default=1),
    )
    direction = _direction(step, deciding)
    cause = _cause(evidence, direction) if direction else "unknown"
    waits_for = _waits_for(evidence, direction) if direction else ""
    story = Story(
        cause=cause,
        direction=direction,
        step=step,
        step_name=STEP_NAMES[figure],
        parts=evidence.parts,
        layers=layers,
        collectives=collectives,
        around=surroundings,
        slowdown=slowdown,
        waits_for=waits_for if waits_for == cause else "",
    )
    return _told(story, sides, verdicts)


def _told(story: Story, sides: Sides, verdicts: Sequence[MetricVerdict]) -> Explanation:
    return Explanation(
        cause=story.cause,
        headline=headline(story),
        action=action(story),
        parts=story.parts,
        layers=_along_first(story.layers.moves, story.direction),
        collectives=story.collectives.moves,
        surroundings=story.around.differences,
        notes=notes(story, sides, verdicts),
    )


def _along_first(moves: Sequence[Moved], direction: int) -> tuple[Moved, ...]:
    """What moved as the step did before what moved against it; else in the given order."""
    return tuple(sorted(moves, key=lambda move: move.change_ns * direction < 0))


def _as_judged(step: Shift, deciding: MetricVerdict | None) -> Shift:
    """The step's change as the verdict has it, where the center of all differences contradicts a slow-down.

    The verdict looks at medians; in noise the two can differ in sign, and what was judged is to be explained.
    """
    judged = deciding.worse if deciding and deciding.state in ("worse", "unproven") else None
    if judged is None or judged <= 0 or step.change > 0:
        return step
    change = judged * step.base
    return replace(step, change=change, high=max(step.high, change))


def _direction(step: Shift, deciding: MetricVerdict | None) -> int:
    """1: slower, -1: faster, 0: nothing to explain."""
    state = deciding.state if deciding else ""
    if state in ("worse", "unproven") and step.change > 0:
        return 1
    if state == "better" and step.change < 0:
        return -1
    if state == "ok":
        return 0
    # It was not judged, so it must be clearer than an interval that leaves out zero.
    if abs(step.change) > max(LEAST * step.base, 3 * step.deviation) and step.is_certain:
        return 1 if step.change > 0 else -1
    return 0


def _cause(evidence: _Evidence, direction: int) -> str:
    share = _shares(evidence, direction)
    locations = _places(evidence, direction)
    located_share = sum(location.change_ns for location in locations) / abs(evidence.step.change)
    if direction > 0 and located_share < LOCAL and _is_surrounded(evidence):
        return "surroundings"
    timed_parts = [part for part in evidence.parts if part.what in PARTS]
    if not timed_parts:
        return "unknown"
    top = max(timed_parts, key=lambda part: share[part.what])
    waited = _waits_for(evidence, direction)
    if top.what == "exposed_comm" and waited:
        return waited
    large = [location for location in locations if location.change_ns >= PLACE * abs(evidence.step.change)]
    largest = max(large, key=lambda location: location.least_ns, default=None)
    rival = min(abs(top.low_ns), abs(top.high_ns)) if top.is_certain else 0.0
    if largest is not None and (top.what == largest.part or rival <= largest.change_ns):
        return largest.part
    deviation = max((top.high_ns - top.low_ns) / 3.92, 1.0)
    if share[top.what] < SHARE or direction * top.change_ns < SURE * deviation:
        return "unknown"
    return top.what


def _is_surrounded(evidence: _Evidence) -> bool:
    """Whether what was around can explain half of the slow-down, or differs in what has no figure."""
    slower = evidence.step.change / evidence.step.base
    return evidence.around.explained >= 0.5 * slower or bool(evidence.around.settings)


def _shares(evidence: _Evidence, direction: int) -> dict[str, float]:
    """Of each part, its change as a share of the step's; positive = in the step's direction."""
    step_ns = max(abs(evidence.step.change), 1.0)
    return {part.what: direction * part.change_ns / step_ns for part in evidence.parts}


def _places(evidence: _Evidence, direction: int) -> list[_Place]:
    """Places in the code that moved beyond doubt and in the step's direction."""
    locations = []
    for part in evidence.parts:
        if part.what in EXACT and part.is_certain and direction * part.change_ns > 0:
            least = min(abs(part.low_ns), abs(part.high_ns))
            locations.append(_Place(part=part.what, change_ns=abs(part.change_ns), least_ns=least))
        if part.what == "exposed_comm" and evidence.collectives.changed and direction * part.change_ns > 0:
            # That messages changed is certain; what they cost is not.
            surely = part.low_ns if direction > 0 else -part.high_ns
            least = max(0.5 * abs(part.change_ns), surely)
            locations.append(_Place(part=part.what, change_ns=abs(part.change_ns), least_ns=least))
    excess = direction * evidence.layers.excess_ns
    if excess > 0:
        least = excess - 2 * evidence.layers.deviation_ns
        locations.append(_Place(part="compute", change_ns=excess, least_ns=least))
    return locations


def _waits_for(evidence: _Evidence, direction: int) -> str:
    """The part for which ranks wait, if communication only got longer by waiting; "" if it did not.

    Parts are means over ranks: one rank of n that is late by t adds t / n to its part and makes the others
    wait t (n - 1) / n.
    """
    share = _shares(evidence, direction)
    if direction < 0 or not evidence.collectives.waiting or share.get("exposed_comm", 0.0) <= 0.1:
        return ""
    needed = 0.5 * share["exposed_comm"] / max(1, evidence.world_size - 1)
    late = {
        move.what: share[move.what]
        for move in evidence.parts
        if move.what in ("input_wait", "optimizer") and move.low_ns > 0
    }
    if any(move.change_ns > 0 for move in evidence.layers.moves):
        late["compute"] = evidence.layers.excess_ns / max(abs(evidence.step.change), 1.0)
    best = max(late, key=lambda part: late[part], default="")
    return best if best and late[best] >= needed and late[best] >= 0.1 else ""
