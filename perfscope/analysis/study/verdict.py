"""Plain sentences on settings side by side: which wins, by how much, why, and where the order would turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfscope.analysis.bench_bytes import LinkBytes
from perfscope.analysis.study.causes import common_cause, verdict_words
from perfscope.analysis.study.results import PARTS, BatchTurn, Pair, SchemeRow, SchemeVerdict, StudyRun, Turn
from perfscope.analysis.study.turning import FARTHEST, Modelled, batch_turns, model_of, turns_against
from perfscope.messages.sentences import capital
from perfscope.messages.study import faster_than, named, on_part, percent, times
from perfscope.units import format_bytes, format_ns
from perfscope.vocabulary.links import BETWEEN_HOSTS

NOTABLE = 0.02  # of the runner-up's step: smaller differences explain nothing
WIDE = 10.0  # an interval over more than that factor says nothing
CLOSE = 1.1  # of two settings with one run each: what noise may turn round
LOSS_APART = 0.05  # held-out losses that far apart are not the same training


_NO_TURNS: tuple[tuple[Turn, ...], tuple[BatchTurn, ...], str] = (
    (),
    (),
    "Where the order would turn is not modelled: the settings have other batches.",
)


def verdict_of(
    rows: Sequence[SchemeRow], pairs: Sequence[Pair], runs: Mapping[str, StudyRun]
) -> tuple[SchemeVerdict | None, tuple[Turn, ...], tuple[BatchTurn, ...]]:
    """Of rows that may be compared, fastest first, and their pairs; None of fewer than two."""
    if len(rows) < 2:
        return None, (), ()
    winner, second, last = rows[0], rows[1], rows[-1]
    pair = next(one for one in pairs if {one.a, one.b} == {winner.title, second.title})
    turns, by_batch, no_turn = _turns(rows, runs) if len({row.batch for row in rows}) == 1 else _NO_TURNS
    turning = [no_turn or _turn_sentence(turns, winner), *(one.sentence for one in by_batch[:1])]
    return (
        SchemeVerdict(
            winner=winner.title,
            runner_up=second.title,
            ratio=pair.ratio,
            level=pair.level,
            headline=_headline(rows, pair),
            why=f"{_why(winner, second, last)}{_cause(last, runs)}".strip(),
            turn=" ".join(turning),
            caution=_caution(rows),
            action=_action(rows, pair, runs),
        ),
        turns,
        by_batch,
    )


def _updates(rows: Sequence[SchemeRow]) -> list[int]:
    """Samples in one update, the distinct numbers that are known, least first."""
    return sorted({size for row in rows if (size := row.effective_batch or row.batch)})


def _unlike_updates(rows: Sequence[SchemeRow]) -> str:
    """What to say where updates are of unequal numbers of samples; "" where they are not."""
    sizes = _updates(rows)
    if len(sizes) < 2:
        return ""
    return f"One update averages {sizes[0]:,} to {sizes[-1]:,} samples: samples/s do not compare learning."


def _headline(rows: Sequence[SchemeRow], pair: Pair) -> str:
    winner, second, last = rows[0], rows[1], rows[-1]
    speeds = f"{winner.samples_per_s:,.4g} against {second.samples_per_s:,.4g} samples/s"
    if pair.interval is not None:
        within = f"ratio {pair.ratio:.2f}, 95 % interval {pair.interval.low:.2f} to {pair.interval.high:.2f}"
        noise = f"{within}, {pair.interval.num_repeats} repeats or more of each"
        if pair.interval.high > WIDE * pair.interval.low:
            noise = f"the {pair.interval.num_repeats} repeats or more of each lie too far apart to say more"
    else:
        noise = "one run of each, so that nothing says how much of this is noise"
    unlike = _unlike_updates(rows)
    if pair.level:
        text = f"{winner.title} and {second.title} are level: {speeds} ({noise})."
    else:
        # Who processes most has not won where an update is of other samples: it may learn less of each.
        verb = "processes the most samples" if unlike else "wins"
        text = f"{winner.title} {verb}: {speeds}, {faster_than(pair.ratio)} {second.title} ({noise})."
    text += f" {unlike}" if unlike else ""
    if last is not second and winner.samples_per_s and last.samples_per_s:
        longer = times(winner.samples_per_s / last.samples_per_s)
        text += f" The slowest, {last.title}, takes {longer} as long as {winner.title}."
    return text


def _why(winner: SchemeRow, second: SchemeRow, last: SchemeRow) -> str:
    text = _step_reason(winner, second)
    text += _bytes_reason(winner, second)
    if last is not second:
        text += _bytes_reason(winner, last, slowest=True)
    return text.strip()


def _cause(last: SchemeRow, runs: Mapping[str, StudyRun]) -> str:
    """What the report of the slowest says."""
    found = common_cause([runs[label] for label in last.runs])
    return f" {verdict_words(f'On {last.title}', *found)}" if found else ""


def _action(rows: Sequence[SchemeRow], pair: Pair, runs: Mapping[str, StudyRun]) -> str:
    """What to choose, and what would make the winner faster."""
    winner = rows[0]
    text = f"Use {winner.title}."
    if len(_updates(rows)) > 1:
        text = f"Compare losses after equally many samples before choosing {winner.title}."
    if pair.level:
        text = f"Use {pair.a} or {pair.b}: these repeats do not tell them apart."
    elif pair.interval is None and pair.ratio < CLOSE:
        text = f"Repeat {pair.a} and {pair.b} three times each before choosing: they are close."
    found = common_cause([runs[label] for label in winner.runs])
    if found is not None and found[1].action:
        text += f" What the report of {winner.title} advises: {found[1].action}"
    return text


def _step_reason(winner: SchemeRow, other: SchemeRow) -> str:
    """The part of the traced step in which the winner saves most."""
    if winner.composition is None or other.composition is None:
        lacking = [row.title for row in (winner, other) if row.composition is None]
        return f"Why is not known: no step of {named(lacking)} was traced."
    # Steps of other batches are other work: then time per sample is what compares.
    mine, theirs = (row.batch or 1 if winner.batch != other.batch else 1 for row in (winner, other))
    of = {part: getattr(winner.composition, part) / mine for part in PARTS}
    others = {part: getattr(other.composition, part) / theirs for part in PARTS}
    saved = {part: others[part] - of[part] for part in PARTS}
    part = max(PARTS, key=lambda one: saved[one])
    if saved[part] < NOTABLE * other.composition.step / theirs:
        return f"In the traced steps no part tells {winner.title} from {other.title}."
    unit = "" if winner.batch == other.batch else " per sample"
    text = (
        f"Of a traced step {winner.title} spends {format_ns(of[part])}{unit} on "
        f"{on_part(part)}, {other.title} {format_ns(others[part])}"
    )
    lost = min(PARTS, key=lambda one: saved[one])
    if -saved[lost] >= NOTABLE * other.composition.step / theirs:
        text += f"; it pays with {format_ns(-saved[lost])} more on {on_part(lost)}"
    return f"{text}."


def _bytes_reason(winner: SchemeRow, other: SchemeRow, slowest: bool = False) -> str:
    """Bytes over the dearest link that either uses."""
    classes = {link.link_class for link in (*winner.links, *other.links)}
    dearest = next((name for name in BETWEEN_HOSTS if name in classes), None) or next(
        iter(sorted(classes)), None
    )
    if dearest is None:
        return ""
    mine, theirs = _sent(winner.links, dearest), _sent(other.links, dearest)
    if mine is None or theirs is None:
        return ""
    who = f"the slowest, {other.title}," if slowest else other.title
    if not slowest and mine and abs(theirs / mine - 1) < NOTABLE:
        return f" Both send {format_bytes(mine)} a step over {dearest}."
    start = f" {winner.title} sends {format_bytes(mine)} a step over {dearest}, {who}"
    if slowest:
        return f" {capital(who)} sends {format_bytes(theirs)}" + (
            f" ({times(theirs / mine)} as much)." if mine and theirs > mine else "."
        )
    return f"{start} {format_bytes(theirs)}."


def _sent(links: Sequence[LinkBytes], link_class: str) -> float | None:
    """Bytes per step of all senders: recorded, else as predicted; 0 over a link that is not used."""
    for link in links:
        if link.link_class == link_class:
            return link.recorded if link.recorded is not None else link.predicted
    return 0.0 if links else None


def _turns(
    rows: Sequence[SchemeRow], runs: Mapping[str, StudyRun]
) -> tuple[tuple[Turn, ...], tuple[BatchTurn, ...], str]:
    """By bandwidth, by batch, and why neither can be told."""
    models = {row.title: model_of(row, runs[row.runs[0]]) for row in rows}
    winner = models[rows[0].title]
    if isinstance(winner, str):
        return (), (), f"Where the order would turn is not known: {rows[0].title}: {winner}."
    others = [model for row in rows[1:] if isinstance(model := models[row.title], Modelled)]
    if not others:
        why = models[rows[1].title]
        return (), (), f"Where the order would turn is not known: {rows[1].title}: {why}."
    return turns_against(winner, others), batch_turns(winner, others, rows[0].batch or 1), ""


def _turn_sentence(turns: Sequence[Turn], winner: SchemeRow) -> str:
    found = [turn for turn in turns if turn.bandwidth_factor is not None]
    if not found:
        return (
            f"No other setting would overtake {winner.title} on links up to {FARTHEST:.0f} times slower or "
            "faster (modelled: exposed communication changes with bandwidth, nothing else does)."
        )
    slower = next((one for one in found if (one.bandwidth_factor or 0) < 1), None)
    quicker = next((one for one in found if (one.bandwidth_factor or 0) > 1), None)
    return " ".join(one.sentence for one in (slower, quicker) if one is not None)


def _caution(rows: Sequence[SchemeRow]) -> str:
    """What samples/s leave out."""
    said = []
    if unlike := _unlike_updates(rows):
        said.append(unlike)
    winner = rows[0]
    known = [row for row in rows if row.held_out_loss is not None]
    best = min(known, key=lambda row: (row.held_out_loss or 0.0, row.title), default=None)
    if best is not None and winner.held_out_loss is not None and best.held_out_loss is not None:
        apart = winner.held_out_loss - best.held_out_loss
        if apart > LOSS_APART * abs(best.held_out_loss):
            said.append(
                f"{winner.title} ends at held-out loss {winner.held_out_loss:.3f}, {best.title} at "
                f"{best.held_out_loss:.3f}: the faster one has learned less."
            )
    diverged = [row.title for row in rows if row.num_diverged]
    if diverged:
        said.append(f"{named(diverged)} diverged.")
    disturbed = [row.title for row in rows if row.num_disturbed]
    if disturbed:
        share = sum(row.num_disturbed for row in rows) / sum(row.num_repeats for row in rows)
        said.append(f"{percent(share)} of the runs were disturbed ({named(disturbed)}).")
    return " ".join(said)
