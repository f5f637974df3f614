"""Settings side by side: which wins, by how much, why, and where the order would turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perfscope.analysis.bench_bytes import LinkBytes
from perfscope.analysis.study.causes import common_cause, verdict_of_report
from perfscope.analysis.study.crossover import FARTHEST, Modelled, batch_turns, model_of, turns_against
from perfscope.analysis.study.results import (
    PARTS,
    BatchTurn,
    LearningRanking,
    Pair,
    SchemeRow,
    SchemeVerdict,
    StudyRun,
    Turn,
)
from perfscope.analysis.study.step_results import StepDifference
from perfscope.messages.comparison import exposed as exposed_comm
from perfscope.messages.comparison import schemes as words
from perfscope.messages.comparison.doubt import REPEAT_QUIETLY, cannot_tell
from perfscope.vocabulary.comparison import SINGLE_RUNS_APART, CannotTell, RankBasis
from perfscope.vocabulary.links import BETWEEN_HOSTS

NOTABLE = 0.02  # of the runner-up's step: smaller differences explain nothing
WIDE = 10.0  # an interval over more than that factor says nothing
LOSS_APART = 0.05  # held-out losses that far apart are not the same training


def verdict_of(
    rows: Sequence[SchemeRow],
    pairs: Sequence[Pair],
    runs: Mapping[str, StudyRun],
    differences: Sequence[StepDifference] = (),
    ranking: LearningRanking | None = None,
) -> tuple[SchemeVerdict | None, tuple[Turn, ...], tuple[BatchTurn, ...]]:
    """The verdict, where the order would turn with bandwidth, and where with the batch.

    Args:
        rows: that may be compared, fastest first; no verdict of fewer than two.
        pairs: of all of them.
        runs: by label.
        differences: of the fastest row's step to those of others.
        ranking: by learning, which then decides; samples/s are said behind it.
    """
    if len(rows) < 2:
        return None, (), ()
    winner, second, last = rows[0], rows[1], rows[-1]
    pair = next(pair for pair in pairs if {pair.a, pair.b} == {winner.title, second.title})
    turns, by_batch, turn = _turns(rows, runs)
    doubt = _doubt(rows, pair)
    headline = _headline(rows, pair, is_doubtful=doubt is not None)
    verdict = SchemeVerdict(
        winner=winner.title,
        runner_up=second.title,
        ratio=pair.ratio,
        level=pair.level,
        headline=headline if doubt is None else cannot_tell(doubt, headline),
        cannot_tell=doubt,
        why=_why(winner, second, last, runs, differences),
        turn=" ".join([turn, *(batch_turn.sentence for batch_turn in by_batch[:1])]),
        caution=_caution(rows),
        action=REPEAT_QUIETLY if doubt is CannotTell.RUNS_DISTURBED else _action(rows, pair, runs),
    )
    if ranking is not None:
        verdict = _by_learning(verdict, headline, ranking, _unequal(rows))
    return verdict, turns, by_batch


def _doubt(rows: Sequence[SchemeRow], pair: Pair) -> CannotTell | None:
    """Why the samples/s say nothing of which of the first two is faster; None: they do.

    Of updates of unequal work no winner is named, whatever the noise.
    """
    if any(row.num_disturbed == row.num_repeats for row in rows[:2]):
        return CannotTell.RUNS_DISTURBED
    if _is_close(pair) and not _unequal(rows):
        return CannotTell.ONE_RUN_EACH
    return None


def _is_close(pair: Pair) -> bool:
    """Whether the noise of single runs, which is not known, may turn the two round."""
    return pair.interval is None and pair.ratio < SINGLE_RUNS_APART


def _by_learning(
    verdict: SchemeVerdict, speeds: str, ranking: LearningRanking, unequal: str
) -> SchemeVerdict:
    """The ranking's verdict; what samples/s say (`speeds`) follows as a reason.

    Goodput predicts, so that what is unequal (see _unequal) is still said, and losses decide.
    """
    action = ranking.action
    if ranking.basis is RankBasis.GOODPUT and unequal:
        ranking = replace(ranking, headline=f"{ranking.headline} {unequal}")
        if ranking.level is False:
            best = ranking.rows[0].title
            action = words.advice(best, (best, ""), is_level=False, is_close=False, is_unequal=True)
    # Of single runs the samples/s are in doubt; times to the target have intervals of their own.
    is_disturbed = verdict.cannot_tell is CannotTell.RUNS_DISTURBED
    doubt = verdict.cannot_tell if is_disturbed and ranking.basis is RankBasis.TIME else None
    headline = ranking.headline if doubt is None else cannot_tell(doubt, ranking.headline)
    return replace(
        verdict,
        winner="" if ranking.level is not False else ranking.rows[0].title,
        runner_up=ranking.rows[1].title,
        ratio=ranking.ratio,
        level=ranking.level,
        headline=headline,
        cannot_tell=doubt,
        why=" ".join(filter(None, (words.by_samples(speeds), ranking.note, verdict.why))),
        action=action if doubt is None else REPEAT_QUIETLY,
    )


def _unequal(rows: Sequence[SchemeRow]) -> str:
    """Why an update of one is not an update of another; "" where it is."""
    sizes = {size for row in rows if (size := row.effective_batch or row.batch)}
    return words.unequal_work(sizes, {row.axes.get("synchrony", "") for row in rows})


def _headline(rows: Sequence[SchemeRow], pair: Pair, *, is_doubtful: bool) -> str:
    winner, second, last = rows[0], rows[1], rows[-1]
    text = words.headline(
        winner.title,
        second.title,
        (winner.samples_per_s, second.samples_per_s),
        ratio=pair.ratio,
        is_level=bool(pair.level),
        is_doubtful=is_doubtful,
        noise=_noise(pair),
        unequal=_unequal(rows),
    )
    if last is not second and winner.samples_per_s and last.samples_per_s:
        text += f" {words.slowest(last.title, winner.title, winner.samples_per_s / last.samples_per_s)}"
    return text


def _noise(pair: Pair) -> str:
    interval = pair.interval
    if interval is None:
        return words.ONE_RUN_EACH
    is_wide = interval.high > WIDE * interval.low
    return words.noise_of(pair.ratio, interval.low, interval.high, interval.num_repeats, is_wide=is_wide)


def _why(
    winner: SchemeRow,
    second: SchemeRow,
    last: SchemeRow,
    runs: Mapping[str, StudyRun],
    differences: Sequence[StepDifference],
) -> str:
    """In which part, axis and layer, with which bytes, and what the report of the slowest says."""
    cause = common_cause([runs[label] for label in last.runs])
    sentences = [
        _step_reason(winner, second),
        *(_axis_reason(difference) for difference in differences if difference.after == second.title),
        _bytes_reason(winner, second),
        _bytes_reason(winner, last, slowest=True) if last is not second else "",
        verdict_of_report(f"On {last.title}", *cause) if cause else "",
    ]
    return " ".join(filter(None, sentences))


def _action(rows: Sequence[SchemeRow], pair: Pair, runs: Mapping[str, StudyRun]) -> str:
    """What to choose, and what would make the winner faster."""
    winner = rows[0]
    text = words.advice(
        winner.title,
        (pair.a, pair.b),
        is_level=bool(pair.level),
        is_close=_is_close(pair),
        is_unequal=bool(_unequal(rows)),
    )
    cause = common_cause([runs[label] for label in winner.runs])
    action = cause[1].text.action if cause is not None else ""
    if action:
        text += f" {words.advised(winner.title, action)}"
    return text


def _step_reason(winner: SchemeRow, other: SchemeRow) -> str:
    """The part of the traced step in which the winner saves most."""
    if winner.composition is None or other.composition is None:
        return words.not_traced([row.title for row in (winner, other) if row.composition is None])
    # Steps of other batches are other work: then time per sample is what compares.
    mine, theirs = (row.batch or 1 if winner.batch != other.batch else 1 for row in (winner, other))
    of = {part: getattr(winner.composition, part) / mine for part in PARTS}
    other_shares = {part: getattr(other.composition, part) / theirs for part in PARTS}
    saved = {part: other_shares[part] - of[part] for part in PARTS}
    part = max(PARTS, key=lambda part: saved[part])
    notable = NOTABLE * other.composition.step / theirs
    if saved[part] < notable:
        return words.no_part(winner.title, other.title)
    lost = min(PARTS, key=lambda part: saved[part])
    return words.part_saved(
        winner.title,
        other.title,
        part,
        (of[part], other_shares[part]),
        per_sample=winner.batch != other.batch,
        paid=(lost, -saved[lost]) if -saved[lost] >= notable else None,
    )


def _axis_reason(difference: StepDifference) -> str:
    """Along which axes and in which layers the runner-up exposes more; "" where that is next to nothing."""
    layers = [change for change in difference.changes if change.axis is not None]
    if not layers or max(abs(change.change_ns) for change in layers) < NOTABLE * difference.after_ns:
        return ""
    several = len(difference.by_axis) > 1
    rows = [
        (
            exposed_comm.exposed_row(change.layer, change.reason, change.axis if several else None),
            change.change_ns,
        )
        for change in layers
    ]
    return exposed_comm.exposed_where(difference.after, difference.before, difference.by_axis, rows)


def _bytes_reason(winner: SchemeRow, other: SchemeRow, slowest: bool = False) -> str:
    """Bytes over the dearest link that either uses; "" where they are not known."""
    classes = {link.link_class for link in (*winner.links, *other.links)}
    dearest = next((name for name in BETWEEN_HOSTS if name in classes), None) or next(
        iter(sorted(classes)), None
    )
    if dearest is None:
        return ""
    mine, theirs = _sent(winner.links, dearest), _sent(other.links, dearest)
    if mine is None or theirs is None:
        return ""
    if slowest:
        return words.slowest_sends(other.title, theirs, theirs / mine if mine and theirs > mine else None)
    if mine and abs(theirs / mine - 1) < NOTABLE:
        return words.same_bytes(mine, dearest)
    return words.sent_bytes(winner.title, other.title, dearest, (mine, theirs))


def _sent(links: Sequence[LinkBytes], link_class: str) -> float | None:
    """Bytes per step of all senders: recorded, else as predicted; 0 over a link that is not used."""
    for link in links:
        if link.link_class == link_class:
            return link.recorded if link.recorded is not None else link.predicted
    return 0.0 if links else None


def _turns(
    rows: Sequence[SchemeRow], runs: Mapping[str, StudyRun]
) -> tuple[tuple[Turn, ...], tuple[BatchTurn, ...], str]:
    """By bandwidth, by batch, and what the turns by bandwidth say, or why there are none."""
    if len({row.batch for row in rows}) > 1:
        return (), (), words.OTHER_BATCHES
    models = [(row, model_of(row, runs[row.runs[0]])) for row in rows]
    (first, winner), *rivals = models
    if not isinstance(winner, Modelled):
        return (), (), words.turn_not_known(first.title, winner)
    modelleds = [model for _, model in rivals if isinstance(model, Modelled)]
    if not modelleds:
        row, why = rivals[0]
        assert not isinstance(why, Modelled)
        return (), (), words.turn_not_known(row.title, why)
    turns = turns_against(winner, modelleds)
    return turns, batch_turns(winner, modelleds, rows[0].batch or 1), _turn_sentence(turns, first)


def _turn_sentence(turns: Sequence[Turn], winner: SchemeRow) -> str:
    by_bandwidth = [turn for turn in turns if turn.bandwidth_factor is not None]
    if not by_bandwidth:
        return words.no_turn(winner.title, FARTHEST)
    slower = next((turn for turn in by_bandwidth if (turn.bandwidth_factor or 0) < 1), None)
    quicker = next((turn for turn in by_bandwidth if (turn.bandwidth_factor or 0) > 1), None)
    return " ".join(turn.sentence for turn in (slower, quicker) if turn is not None)


def _caution(rows: Sequence[SchemeRow]) -> str:
    """What samples/s leave out."""
    cautions = [_unequal(rows)]
    winner = rows[0]
    schemes = [row for row in rows if row.held_out_loss is not None]
    best = min(schemes, key=lambda row: (row.held_out_loss or 0.0, row.title), default=None)
    if best is not None and winner.held_out_loss is not None and best.held_out_loss is not None:
        apart = winner.held_out_loss - best.held_out_loss
        if apart > LOSS_APART * abs(best.held_out_loss):
            cautions.append(
                words.learned_less(winner.title, winner.held_out_loss, best.title, best.held_out_loss)
            )
    diverged = [row.title for row in rows if row.num_diverged]
    if diverged:
        cautions.append(words.diverged(diverged))
    disturbed = [row.title for row in rows if row.num_disturbed]
    if disturbed:
        share = sum(row.num_disturbed for row in rows) / sum(row.num_repeats for row in rows)
        cautions.append(words.disturbed(share, disturbed))
    return " ".join(filter(None, cautions))
