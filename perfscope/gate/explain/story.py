"""What an explanation says: which sentence, with which figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.gate.explain.collectives import CollectiveEvidence
from perfscope.gate.explain.conditions import Around
from perfscope.gate.explain.layers import LayerEvidence
from perfscope.gate.explain.sides import Shift, Sides
from perfscope.gate.explain.untraced import EXACT, phase_shift
from perfscope.gate.records import RunFigures
from perfscope.gate.results import MetricVerdict, Moved
from perfscope.messages.gate import explanation as words
from perfscope.messages.sentences import capital, in_sentence
from perfscope.units import format_ratio

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
        return next((moved for moved in self.parts if moved.what == what), None)


def headline(story: Story) -> str:
    """One sentence with figures."""
    if not story.direction:
        return _still_headline(story)
    if story.cause == "surroundings":
        return _surroundings_headline(story)
    part = story.part(story.cause)
    if part is None:
        return _unknown_headline(story)
    waiting = story.part("exposed_comm")
    late = story.waits_for and waiting is not None and waiting.change_ns >= _MOST * part.change_ns
    return words.part_headline(
        part.what,
        part.title,
        part.change_ns,
        story.step.base,
        _details(story),
        waiting.change_ns if waiting is not None and late else None,
    )


def _still_headline(story: Story) -> str:
    """The step is as it was; parts of it need not be."""
    moved = [_part(part) for part in story.parts if _is_plain(part, story.step.base)]
    moved += [
        words.moved(move.title, move.change_ns)
        for move in story.layers.moves[:_FEW]
        if _is_plain(move, story.step.base)
    ]
    moved += [
        words.in_brackets(move.title, move.note)
        for move in story.collectives.moves[:_FEW]
        if move.what in story.collectives.changed
    ]
    is_certain = story.step.is_certain
    if moved:
        return words.moved_within(story.step_name, _change(story), moved, is_certain=is_certain)
    text = words.let_pass if is_certain else words.nothing_moved
    return text(story.step_name, _change(story))


def _part(moved: Moved) -> str:
    return words.moved(in_sentence(moved.title), moved.change_ns)


def _is_plain(move: Moved, step: float) -> bool:
    """The step was not found slower, and there are many parts to look at: asks for more than an interval."""
    clear = abs(move.change_ns) > _CLEAR * (move.high_ns - move.low_ns) / 2
    return clear and abs(move.change_ns) >= _WORTH * step


def _details(story: Story) -> str:
    if story.cause == "compute":
        return _layer_words(story)
    if story.cause == "exposed_comm":
        return _collective_words(story)
    return ""


def _layer_words(story: Story) -> str:
    along = [moved for moved in story.layers.moves if moved.change_ns * story.direction > 0]
    part = story.part("compute")
    if not story.layers.is_known or part is None:
        return ""
    if not along:
        return words.IN_NO_LAYER
    share = sum(move.change_ns for move in along) / (part.change_ns or 1.0)
    total = sum(abs(move.change_ns) for move in along)
    named = [move for move in along[:_FEW] if abs(move.change_ns) >= 0.15 * total] or along[:1]
    return words.in_layers(
        [words.in_brackets(move.title, move.note or words.signed(move.change_ns)) for move in named],
        len(along) - len(named),
        share=words.NEARLY_ALL if share >= _NEARLY_ALL else words.MOST if share >= _MOST else words.SOME,
    )


def _collective_words(story: Story) -> str:
    along = [moved for moved in story.collectives.moves if moved.what in story.collectives.changed] or [
        move for move in story.collectives.moves if move.change_ns * story.direction > 0
    ]
    if along:
        return "; ".join(words.noted(move.title, move.note) for move in along[:_FEW])
    return words.SAME_MESSAGES if story.direction > 0 else ""


def _surroundings_headline(story: Story) -> str:
    weighty = [difference.text for difference in story.around.differences if difference.weighty]
    return words.surroundings_headline(story.step_name, _change(story), weighty[:_FEW])


def _unknown_headline(story: Story) -> str:
    seen = [_part(moved) for moved in story.parts if moved.change_ns * story.direction > 0][:2]
    if not story.parts:
        return words.not_known_where(story.step_name, _change(story))
    text = words.most_likely if _is_traced(story) else words.not_traced
    return text(story.step_name, _change(story), seen)


def _is_traced(story: Story) -> bool:
    return any(moved.what == "compute" for moved in story.parts)


def action(story: Story) -> str:
    """What to do next, one sentence; "" where there is nothing to do."""
    if story.direction <= 0:
        return ""
    if story.cause == "surroundings":
        return words.MAKE_ALIKE
    also = next((difference.text for difference in story.around.differences if difference.weighty), "")
    if story.cause == "unknown":
        return words.check_again(also, traced=_is_traced(story))
    return words.look_at(story.cause, _first(story), also)


def _first(story: Story) -> str:
    moves = story.layers.moves if story.cause == "compute" else story.collectives.moves
    return next((moved.title for moved in moves if moved.change_ns * story.direction > 0), words.CHANGED_CODE)


def notes(story: Story, sides: Sides, verdicts: Sequence[MetricVerdict]) -> tuple[str, ...]:
    """What else a reader must know: what could not be seen, and where figures come from."""
    remarks = [_phases_note(sides) if story.direction else "", _code_note(story), _faults_note(story, sides)]
    if (story.layers.moves or story.collectives.moves) and story.slowdown > 1.05:
        remarks.append(words.traced_slower(story.slowdown))
    pace = story.layers.pace
    if story.direction and pace is not None and pace.is_certain and abs(pace.change) > 0.05:
        remarks.append(words.layers_alike(pace.change))
    remarks += [_missing(sides), *_others(verdicts)]
    return tuple(remark for remark in remarks if remark)


def _code_note(story: Story) -> str:
    """What points to the code though the surroundings explain more."""
    if story.cause != "surroundings":
        return ""
    moved = [
        _part(move)
        for move in story.parts
        if move.what in EXACT and move.is_certain and move.change_ns >= _WORTH * story.step.base
    ]
    along = [move for move in story.layers.moves if move.change_ns > 0]
    moved += [words.moved(move.title, move.change_ns) for move in along[:_FEW]]
    collectives = story.collectives
    moved += [
        words.noted(move.title, move.note) for move in collectives.moves if move.what in collectives.changed
    ]
    return words.moved_besides(moved) if moved else ""


def _faults_note(story: Story, sides: Sides) -> str:
    """Page faults that can be half of the slow-down."""
    slower = story.step.change / story.step.base
    faults = sides.shift(lambda run: run.surroundings.faults_per_step)
    if story.direction <= 0 or faults is None or story.around.faults < _MOST * slower:
        return ""
    return words.more_faults(faults.base, faults.head, story.around.faults, slower)


def _phases_note(sides: Sides) -> str:
    shifts = {name: phase_shift(sides, name) for name in ("input_wait", "backward", "optimizer", "rest")}
    moved = [
        words.moved(words.PARTS[name].lower(), shift.change)
        for name, shift in shifts.items()
        if shift is not None
    ]
    return words.untraced_parts(moved) if len(moved) > 1 else ""


def _missing(sides: Sides) -> str:
    num_runs = len(sides.runs)

    def lacking(have: Sequence[RunFigures]) -> str:
        return words.lacking_runs(num_runs - len(have), num_runs)

    traced = [run for run in sides.runs if run.composition]
    timed = [run for run in sides.runs if run.phases and run.phases.backward is not None]
    layered = [run for run in sides.runs if run.layers]
    clauses = []
    if len(traced) < num_runs:
        clauses.append(words.no_window(lacking(traced)))
    elif len(layered) < num_runs:
        clauses.append(words.no_layers(lacking(layered)))
    if len(timed) < num_runs:
        clauses.append(words.no_backward(lacking(timed)))
    return f"{capital('; '.join(clauses))}." if clauses else ""


def _others(verdicts: Sequence[MetricVerdict]) -> list[str]:
    """What is worse though no part of the median step shows it."""
    return [
        words.stalls(format_ratio(verdict.worse))
        for verdict in verdicts
        if verdict.metric.id == "stalls" and verdict.state == "worse"
    ]


def _change(story: Story) -> str:
    return words.change_of(story.step.change, story.step.base)
