"""Settings side by side: schemes, or values of a label, and the ratio of each two."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from perfscope.analysis.missing import Missing
from perfscope.analysis.study.averages import (
    known_center,
    mean_composition,
    mean_links,
    middle_efficiency,
)
from perfscope.analysis.study.grouping import BATCH, DTYPE, MACHINE, MODEL, TASK, WORLD_SIZE
from perfscope.analysis.study.learning import learning_ranking
from perfscope.analysis.study.machines import placed_machine_key
from perfscope.analysis.study.pareto import pareto_points
from perfscope.analysis.study.repeats import (
    Floats,
    center,
    center_interval,
    log_centers,
    permutation_p,
    ratio_interval,
)
from perfscope.analysis.study.results import Interval, Pair, SchemeRow, SchemeStudy, StudyRun
from perfscope.analysis.study.series import apart
from perfscope.analysis.study.step_parts import difference, mean_parts
from perfscope.analysis.study.step_results import StepDifference
from perfscope.analysis.study.verdict import verdict_of
from perfscope.messages.comparison.schemes import (
    NOTHING_SHARED,
    ONE_REPEAT,
    exchanges_not_seen,
    one_setting,
)
from perfscope.messages.study import ranks
from perfscope.vocabulary.comparison import RankBasis

BEGUN_BEFORE = ("dp.fwd_overlap", "easgd.sync_ar")  # schemes whose exchanges outlive the step they begin in
MUCH_IDLE = 0.2  # of the step
Class = tuple[str, str, str, int | None, int | None, str]


def comparison_class(run: StudyRun, explained: Collection[str] = ()) -> Class:
    """What must be the same of two runs for a ratio of their samples/s to mean anything.

    `explained`: what the runs are compared by, which may differ (grouping.explained).
    """
    return (
        "" if MODEL in explained else run.model,
        "" if DTYPE in explained else run.dtype,
        "" if {MACHINE, WORLD_SIZE} & set(explained) else placed_machine_key(run),
        None if WORLD_SIZE in explained else run.world_size,
        None if BATCH in explained else run.batch,
        "" if TASK in explained else run.task,
    )


def scheme_studies(
    runs: Sequence[StudyRun],
    by: str,
    explained: Collection[str] = (),
    basis: RankBasis = RankBasis.TIME,
) -> tuple[SchemeStudy, ...]:
    """One study per set of runs that may be compared and holds two settings or more.

    Args:
        runs: all usable, `group` set.
        by: what `--by` takes, but "world_size" alone and "framework".
        explained: facts that the runs are compared by and may differ in.
        basis: what runs with a target are ranked by.
    """
    classes: dict[Class, list[StudyRun]] = defaultdict(list)
    for run in runs:
        classes[comparison_class(run, explained)].append(run)
    several = {key: of for key, of in classes.items() if len({run.repeat_key for run in of}) > 1}
    if not several:
        return (_refused(runs, by),) if runs else ()
    order = sorted(several, key=lambda key: tuple(str(part).rjust(12) for part in key))
    return tuple(_study(several[key], by, _title(key, list(several)), basis) for key in order)


def _title(key: Class, keys: Sequence[Class]) -> str:
    """What the set shares, as far as the sets differ in it."""
    model, dtype, machine, size, batch, task = key
    parts = (
        model,
        dtype,
        machine,
        ranks(size) if size else "",
        "" if batch is None else f"{batch:,} samples per step",
        task,
    )
    kept = [
        word
        for at, word in enumerate(parts)
        if word and (at in (0, 3, 4) or len({key[at] for key in keys}) > 1)
    ]
    return ", ".join(kept)


def _study(runs: Sequence[StudyRun], by: str, title: str, basis: RankBasis) -> SchemeStudy:
    rows = _rows(runs)
    drawn = _Draws()
    pairs = tuple(_pair(a, b, drawn) for at, a in enumerate(rows) for b in rows[at + 1 :])
    differences = _differences(rows)
    by_label = {run.label: run for run in runs}
    ranking = learning_ranking(rows, by_label, basis)
    verdict, turns, by_batch = verdict_of(rows, pairs, by_label, differences, ranking)
    return SchemeStudy(
        title=title,
        by=by,
        rows=rows,
        pairs=pairs,
        verdict=verdict,
        turns=turns,
        batch_turns=by_batch,
        differences=differences,
        learning=ranking,
        unseen=unseen_exchanges(rows),
        pareto=pareto_points(rows, ranking, pairs),
    )


def _differences(rows: Sequence[SchemeRow]) -> tuple[StepDifference, ...]:
    """Of the first row to each other one, of those whose steps were traced."""
    first, *other_rows = ((row.title, row.step_parts) for row in rows)
    differences = (difference(first, other) for other in other_rows)
    return tuple(entry for entry in differences if entry is not None)


def unseen_exchanges(rows: Sequence[SchemeRow]) -> str:
    """Of which rows the traced windows do not show the communication whole; "" = of none that is known.

    What waits for an exchange that began before the window is idle in the trace: it has no span there.
    """
    unseen = [
        (row.title, share)
        for row in rows
        if row.scheme.split("+")[0] in BEGUN_BEFORE
        and row.composition is not None
        and (share := row.composition.share("idle") or 0.0) >= MUCH_IDLE
    ]
    return exchanges_not_seen(unseen) if unseen else ""


def _refused(runs: Sequence[StudyRun], by: str) -> SchemeStudy:
    rows = _rows(runs)
    why = one_setting(rows[0].title) if len(rows) == 1 else NOTHING_SHARED
    return SchemeStudy(title="", by=by, rows=rows, pairs=(), verdict=None, refused=why)


def _rows(runs: Sequence[StudyRun]) -> tuple[SchemeRow, ...]:
    settings: dict[str, list[StudyRun]] = defaultdict(list)
    for run in runs:
        settings[run.repeat_key].append(run)
    titles = _titles(settings)
    rows = [_row(key, titles[key], of) for key, of in settings.items()]
    rows.sort(key=lambda row: (-(row.samples_per_s or 0.0), row.title))
    return tuple(rows)


def _titles(settings: dict[str, list[StudyRun]]) -> dict[str, str]:
    """The group's name, with what tells two settings of one group apart."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for key, of in settings.items():
        by_name[of[0].group or of[0].scheme or of[0].label].append(key)
    titles = {}
    for name, keys in by_name.items():
        distinct = apart(sorted(keys)) if len(keys) > 1 else [""]
        for key, facts in zip(sorted(keys), distinct, strict=True):
            titles[key] = f"{name} ({facts})" if facts else name
    return titles


def _row(key: str, title: str, runs: Sequence[StudyRun]) -> SchemeRow:
    first = runs[0]
    speeds = tuple(sorted(run.samples_per_s for run in runs if run.samples_per_s is not None))
    missing: dict[Missing, None] = {}
    for run in runs:
        missing.update(dict.fromkeys(run.missing))
    return SchemeRow(
        key=key,
        title=title,
        group=first.group,
        scheme=first.scheme,
        mesh=first.mesh,
        axes=first.axes,
        runs=tuple(run.label for run in runs),
        num_repeats=len(runs),
        samples_per_s=center(speeds) if speeds else None,
        samples_per_s_values=speeds,
        samples_per_s_interval=center_interval(speeds),
        step_ns=known_center([run.typical_step_ns for run in runs]),
        composition=mean_composition(runs),
        step_parts=mean_parts([run.step_parts for run in runs]),
        efficiency=middle_efficiency(runs),
        links=mean_links(runs),
        peak_memory_bytes=known_center([run.peak_memory_bytes for run in runs]),
        batch=first.batch,
        effective_batch=first.effective_batch,
        first_loss=known_center([run.first_loss for run in runs]),
        last_loss=known_center([run.last_loss for run in runs]),
        held_out_loss=known_center([run.held_out_loss for run in runs]),
        num_disturbed=sum(bool(run.disturbed) for run in runs),
        num_diverged=sum(run.diverged for run in runs),
        missing=tuple(missing),
    )


class _Draws:
    """Bootstrap draws of the rows, each drawn once though it is in many pairs."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Floats] = {}

    def of(self, row: SchemeRow, stream: int) -> Floats:
        if (row.key, stream) not in self._known:
            self._known[row.key, stream] = log_centers(row.samples_per_s_values, stream)
        return self._known[row.key, stream]


def _pair(a: SchemeRow, b: SchemeRow, drawn: _Draws) -> Pair:
    """Of two rows with a speed each; computed one way round, so that (b, a) is exactly its inverse."""
    if a.key > b.key:
        return inverse(_pair(b, a, drawn))
    above, below = a.samples_per_s_values, b.samples_per_s_values
    interval = ratio_interval(above, below, (drawn.of(a, 0), drawn.of(b, 1)))
    return Pair(
        a=a.title,
        b=b.title,
        ratio=center(above) / center(below),
        interval=interval,
        p_value=permutation_p(above, below),
        level=None if interval is None else interval.low <= 1 <= interval.high,
        reason="" if interval else ONE_REPEAT,
    )


def inverse(pair: Pair) -> Pair:
    """The same pair the other way round."""
    interval = pair.interval
    turned = (
        None
        if interval is None
        else Interval(low=1 / interval.high, high=1 / interval.low, num_repeats=interval.num_repeats)
    )
    return Pair(
        a=pair.b,
        b=pair.a,
        ratio=1 / pair.ratio,
        interval=turned,
        p_value=pair.p_value,
        level=pair.level,
        reason=pair.reason,
    )
