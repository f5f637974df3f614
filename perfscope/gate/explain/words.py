"""An explanation in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.gate.explain.collectives import CollectiveEvidence
from perfscope.gate.explain.layers import LayerEvidence, signed
from perfscope.gate.explain.sides import Shift, Sides
from perfscope.gate.explain.steady import EXACT, TITLES, phase_shift
from perfscope.gate.explain.surroundings import Around
from perfscope.gate.records import RunFigures
from perfscope.gate.results import MetricVerdict, Moved
from perfscope.messages.lists import counted
from perfscope.messages.sentences import in_sentence
from perfscope.units import format_ns, format_ratio

_NEARLY_ALL, _MOST = 0.85, 0.5
_WORTH = 0.01  # of the step: a part that moved by less is not worth a word
_CLEAR = 1.5  # half intervals
_FEW = 3  # layers that a sentence names


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All that an explanation says.

    Attributes:
        direction: 1 slower, -1 faster, 0 neither.
        step_name: which step time `step` is.
        slowdown: how many times longer traced steps take.
        waits_for: the cause, where communication got longer by nothing but waiting for it; else "".
    """

    cause: str
    direction: int
    step: Shift
    step_name: str
    parts: tuple[Moved, ...]
    layers: LayerEvidence
    collectives: CollectiveEvidence
    around: Around
    slowdown: float
    waits_for: str

    def part(self, what: str) -> Moved | None:
        return next((part for part in self.parts if part.what == what), None)


def headline(story: Story) -> str:
    """One sentence with figures."""
    if not story.direction:
        return _still_headline(story)
    if story.cause == "surroundings":
        return _surroundings_headline(story)
    part = story.part(story.cause)
    if part is None:
        return _unknown_headline(story)
    start = (
        f"{_takes(part.title, part.change_ns)} per step ({_share(part.change_ns, story.step.base)} of a step)"
    )
    waiting = story.part("exposed_comm")
    parts = [start, _details(story)]
    if story.waits_for and waiting is not None and waiting.change_ns >= _MOST * part.change_ns:
        parts.append(f"and late ranks make others wait in communication ({signed(waiting.change_ns)})")
    return f"{', '.join(clause for clause in parts if clause)}."


def _still_headline(story: Story) -> str:
    """The step is as it was; parts of it need not be."""
    moved = [
        f"{in_sentence(move.title)} {signed(move.change_ns)}"
        for move in story.parts
        if _is_plain(move, story.step.base)
    ]
    moved += [
        f"{move.title} {signed(move.change_ns)}"
        for move in story.layers.moves[:_FEW]
        if _is_plain(move, story.step.base)
    ]
    moved += [
        f"{move.title} ({move.note})"
        for move in story.collectives.moves[:_FEW]
        if move.what in story.collectives.changed
    ]
    if not moved and story.step.is_certain:
        return f"The {story.step_name} changed by {_change(story)}, which the check lets pass."
    if not moved:
        return f"Nothing moved beyond the noise: the {story.step_name} changed by {_change(story)}."
    judged = "which the check lets pass" if story.step.is_certain else "no more than the noise"
    return (
        f"The {story.step_name} changed by {_change(story)}, {judged}; what moved in it: {'; '.join(moved)}."
    )


def _is_plain(move: Moved, step: float) -> bool:
    """Nobody found the step slower, and there are many parts to look at: asks for more than an interval."""
    clear = abs(move.change_ns) > _CLEAR * (move.high_ns - move.low_ns) / 2
    return clear and abs(move.change_ns) >= _WORTH * step


def _takes(title: str, change: float) -> str:
    verb = "take" if title == "Copies" else "takes"
    return f"{title} {verb} {format_ns(abs(change))} {'longer' if change > 0 else 'less'}"


def _details(story: Story) -> str:
    if story.cause == "compute":
        return _layer_words(story)
    if story.cause == "exposed_comm":
        return _collective_words(story)
    return ""


def _layer_words(story: Story) -> str:
    along = [move for move in story.layers.moves if move.change_ns * story.direction > 0]
    part = story.part("compute")
    if not story.layers.known or part is None:
        return ""
    if not along:
        return "in no layer more than in the others"
    share = sum(move.change_ns for move in along) / (part.change_ns or 1.0)
    how = "nearly all of it" if share >= _NEARLY_ALL else "most of it" if share >= _MOST else "some of it"
    return f"{how} {_where(along)}"


def _where(moves: Sequence[Moved]) -> str:
    total = sum(abs(move.change_ns) for move in moves)
    named = [move for move in moves[:_FEW] if abs(move.change_ns) >= 0.15 * total] or list(moves[:1])
    listed = ", ".join(f"{move.title} ({move.note or signed(move.change_ns)})" for move in named)
    num_more = len(moves) - len(named)
    return f"in {listed}" + (f" and {counted(num_more, 'more layer')}" if num_more else "")


def _collective_words(story: Story) -> str:
    along = [move for move in story.collectives.moves if move.what in story.collectives.changed] or [
        move for move in story.collectives.moves if move.change_ns * story.direction > 0
    ]
    if along:
        return "; ".join(f"{move.title}: {move.note}" for move in along[:_FEW])
    return (
        "with the same calls and bytes: waiting for other ranks, or a slower link"
        if story.direction > 0
        else ""
    )


def _surroundings_headline(story: Story) -> str:
    weighty = [difference for difference in story.around.differences if difference.weighty]
    listed = "; ".join(difference.text.rstrip(".") for difference in weighty[:_FEW])
    return (
        f"The {story.step_name} takes {_change(story)}, and the surroundings differ: {listed}. "
        "Look at these before blaming code."
    )


def _unknown_headline(story: Story) -> str:
    moved = [move for move in story.parts if move.change_ns * story.direction > 0][:2]
    seen = " and ".join(f"{in_sentence(move.title)} {signed(move.change_ns)}" for move in moved)
    lead = f"The {story.step_name} moved by {_change(story)}"
    if not story.parts:
        return f"{lead}; the runs do not say where in the step."
    if not any(part.what == "compute" for part in story.parts):
        return f"{lead}: {seen}. No window was traced, so computation and communication cannot be told apart."
    return f"{lead}; which part did is not certain (most likely {seen})."


def action(story: Story) -> str:
    """What to do next, one sentence; "" where there is nothing to do."""
    if story.direction <= 0:
        return ""
    weighty = [difference for difference in story.around.differences if difference.weighty]
    if story.cause == "surroundings":
        return "Make both sides alike in this, or run them interleaved (`--pairs`), and check again."
    also = f" Mind also: {weighty[0].text}" if weighty else ""
    if story.cause == "unknown":
        traced = any(part.what == "compute" for part in story.parts)
        more = "more windows (`--windows 8`)" if traced else "tracing (without `--no-trace`)"
        return f"Check again with {more} and more pairs (`--pairs 12`).{also}"
    return _NEXT[story.cause].format(where=_first(story)) + also


def _first(story: Story) -> str:
    moves = story.layers.moves if story.cause == "compute" else story.collectives.moves
    return next((move.title for move in moves if move.change_ns * story.direction > 0), "the changed code")


_NEXT = {
    "compute": "Look at what changed in {where}.",
    "exposed_comm": "Look at what changed around {where}: calls, sizes, and what they can overlap with.",
    "copy": "Look for new transfers between host and device (`.to`, `.item`, `.cpu`, pinned memory).",
    "input_wait": "Look at what changed in the data loader: transforms, workers, prefetching, storage.",
    "optimizer": "Look at what changed in the optimizer: its kind, `foreach` or `fused`, parameter groups.",
    "idle": "Look at what changed in Python code between operators: logging, synchronising, small operators.",
}


def notes(story: Story, sides: Sides, verdicts: Sequence[MetricVerdict]) -> tuple[str, ...]:
    """What else a reader must know: what could not be seen, and where figures come from."""
    notes_found = [_phases_note(story, sides) if story.direction else "", _code_note(story)]
    if (story.layers.moves or story.collectives.moves) and story.slowdown > 1.05:
        notes_found.append(
            "Layers and collectives are timed in traced steps, which took "
            f"{story.slowdown:.2f} times as long as the others; their times here are divided by that."
        )
    pace = story.layers.pace
    if story.direction and pace is not None and pace.is_certain and abs(pace.change) > 0.05:
        notes_found.append(
            f"In traced steps all layers ran {format_ratio(abs(pace.change), 0)} "
            f"{'slower' if pace.change > 0 else 'faster'} alike; single layers are told apart from that."
        )
    notes_found += [_missing(sides), *_others(verdicts)]
    return tuple(note for note in notes_found if note)


def _code_note(story: Story) -> str:
    """What points to the code though the surroundings explain more."""
    if story.cause != "surroundings":
        return ""
    details = [
        f"{in_sentence(move.title)} {signed(move.change_ns)}"
        for move in story.parts
        if move.what in EXACT and move.is_certain and move.change_ns >= _WORTH * story.step.base
    ]
    along = [move for move in story.layers.moves if move.change_ns > 0]
    details += [f"{move.title} {signed(move.change_ns)}" for move in along[:_FEW]]
    details += [
        f"{move.title}: {move.note}"
        for move in story.collectives.moves
        if move.what in story.collectives.changed
    ]
    return f"Beside the surroundings this moved by itself: {'; '.join(details)}." if details else ""


def _phases_note(story: Story, sides: Sides) -> str:
    shifts = []
    for name in ("input_wait", "backward", "optimizer", "rest"):
        shift = phase_shift(sides, name)
        if shift is not None:
            shifts.append(f"{TITLES[name].lower()} {signed(shift.change)}")
    return f"Median untraced step: {', '.join(shifts)}." if len(shifts) > 1 else ""


def _missing(sides: Sides) -> str:
    def lacking(have: Sequence[RunFigures]) -> str:
        return f"{len(sides.runs) - len(have)} of {len(sides.runs)} runs" if have else "the runs"

    traced = [run for run in sides.runs if run.composition]
    timed = [run for run in sides.runs if run.phases and run.phases.backward is not None]
    layered = [run for run in sides.runs if run.layers]
    reasons = []
    if len(traced) < len(sides.runs):
        reasons.append(
            f"{lacking(traced)} have no traced window: computation and communication cannot be told apart"
        )
    elif len(layered) < len(sides.runs):
        reasons.append(f"{lacking(layered)} do not name layers")
    if len(timed) < len(sides.runs):
        reasons.append(f"{lacking(timed)} do not time the backward pass")
    text = "; ".join(reasons)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _others(verdicts: Sequence[MetricVerdict]) -> list[str]:
    """What is worse though no part of the median step shows it."""
    return [
        f"Stalls are worse by {format_ratio(verdict.worse)}: single slow steps, which the median step "
        "does not show."
        for verdict in verdicts
        if verdict.metric.id == "stalls" and verdict.state == "worse"
    ]


def _change(story: Story) -> str:
    change = story.step.change
    return f"{signed(change)} ({_share(change, story.step.base)})"


def _share(change: float, base: float) -> str:
    return f"{'−' if change < 0 else '+'}{format_ratio(abs(change) / base)}"
