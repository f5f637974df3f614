"""Sorts runs into series that differ in the number of ranks alone, and tells each one's scaling mode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis.scaling.speedup import detect_mode
from perfscope.analysis.study.gather import SEPARATOR
from perfscope.analysis.study.machines import machine_key
from perfscope.analysis.study.results import STRONG, WEAK, StudyRun
from perfscope.messages.comparison import scaling as words
from perfscope.messages.scaling import mode_problem, mode_text
from perfscope.vocabulary.scaling import ModeReason

SERIAL = "serial"


class RunSeries(Struct, frozen=True, kw_only=True):
    """Runs of one line: `refused` says why it is none. `borrowed`: its one-rank runs are of `serial`.

    `mixed`: refused, for runs of one number of ranks are no repeats of each other.
    """

    name: str
    runs: tuple[StudyRun, ...]
    mode: str | None
    mode_reason: str
    borrowed: bool = False
    refused: str = ""
    mixed: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({run.world_size for run in self.runs if run.world_size}))

    def at(self, world_size: int) -> tuple[StudyRun, ...]:
        """Its runs with so many ranks."""
        return tuple(run for run in self.runs if run.world_size == world_size)


def find_series(runs: Sequence[StudyRun], mode: str | None) -> list[RunSeries]:
    """One series per scheme, model, data type and machine, and per batch where several were run.

    Runs on one rank use no network: they belong to every series of their kind, those of `serial` to every
    scheme that has no one-rank run of its own.
    """
    single = [run for run in runs if run.world_size == 1]
    lines: dict[tuple[str, ...], list[StudyRun]] = defaultdict(list)
    for run in runs:
        if run.world_size and run.world_size > 1:
            lines[_kind(run), run.scheme, machine_key(run)].append(run)
    series_found = []
    for (kind, scheme, _), members in sorted(lines.items()):
        study_runs = [run for run in single if _kind(run) == kind and run.scheme == scheme]
        serial = [run for run in single if _kind(run) == kind and run.scheme == SERIAL]
        joined = _by_batch([*(study_runs or serial), *members], mode, scheme, bool(serial) and not study_runs)
        if serial and not study_runs and all(series.refused for series in joined):
            alone = _by_batch(members, mode, scheme, False)
            if not all(
                series.refused or len(series.sizes) < 2 for series in alone
            ):  # serial trained something else
                joined = [
                    replace(run_series, mode_reason=words.without_serial(run_series.mode_reason))
                    for run_series in alone
                ]
        series_found += joined
    return _name_apart(series_found)


def _kind(run: StudyRun) -> str:
    return "\n".join((run.model, run.dtype, machine_key(replace(run, world_size=1))))


def _by_batch(runs: Sequence[StudyRun], mode: str | None, scheme: str, borrowed: bool) -> list[RunSeries]:
    """The series of one scheme: one, or one per batch (strong) or per samples per rank (weak)."""
    of_size: dict[int, set[int | None]] = defaultdict(set)
    for run in runs:
        of_size[run.world_size or 0].add(run.batch)
    if mode is None and all(len(batches) == 1 for batches in of_size.values()):
        per_rank = {run.world_size or 0: run.samples_per_rank for run in runs}
        detected, why = detect_mode(per_rank)
        reason = mode_text(why, per_rank, detected) if detected else mode_problem(why, per_rank)
        refused = "" if detected or len(of_size) < 2 else reason
        return [_series(runs, scheme, detected, reason, borrowed, refused)]
    if mode is None:
        mode, reason = _mode_of_sweep(runs)
        if mode is None:
            return [_series(runs, scheme, None, reason, borrowed, reason)]
    else:
        reason = mode_text(ModeReason.STATED, {}, mode)
    parts: dict[float, list[StudyRun]] = defaultdict(list)
    unknown = [run.label for run in runs if run.batch is None]
    if unknown:
        return [_series(runs, scheme, mode, reason, borrowed, words.batch_not_known(unknown, mode))]
    for run in runs:
        parts[(run.batch if mode == STRONG else run.samples_per_rank) or 0].append(run)
    by_batch = []
    for samples, members in sorted(parts.items()):
        kept = words.samples_kept(samples, per_rank=mode == WEAK)
        title = f"{scheme}, {kept}".strip(", ") if len(parts) > 1 else scheme
        has_own_base = borrowed and any(run.world_size == 1 for run in members)
        by_batch.append(_series(members, title, mode, words.mode_of(reason, kept), has_own_base))
    several = [series for series in by_batch if len(series.sizes) > 1]
    if several or len(by_batch) == 1:
        return several or by_batch
    had = [(run.batch, run.world_size) for run in runs]
    refused = words.nothing_kept(mode, had, per_rank=mode == WEAK)
    return [_series(runs, scheme, mode, reason, borrowed, refused)]


def _mode_of_sweep(runs: Sequence[StudyRun]) -> tuple[str | None, str]:
    """The mode where several batches were run at some number of ranks."""
    totals, shares = defaultdict(set), defaultdict(set)
    for run in runs:
        totals[run.world_size].add(run.batch)
        shares[run.world_size].add(run.samples_per_rank)
    if len({frozenset(batches) for batches in totals.values()}) == 1:
        return STRONG, words.SAME_BATCHES
    if len({frozenset(each) for each in shares.values()}) == 1:
        return WEAK, words.SAME_SAMPLES_PER_RANK
    ordered = sorted(totals.items(), key=lambda pair: pair[0] or 0)
    return None, words.neither_mode({size: sorted(of, key=lambda batch: batch or 0) for size, of in ordered})


def _series(
    runs: Sequence[StudyRun],
    name: str,
    mode: str | None,
    reason: str,
    borrowed: bool,
    refused: str = "",
) -> RunSeries:
    mixed = "" if refused else _mixed(runs)
    return RunSeries(
        name=name,
        runs=tuple(runs),
        mode=mode,
        mode_reason=reason,
        borrowed=borrowed,
        refused=refused or mixed,
        mixed=bool(mixed),
    )


def _mixed(runs: Sequence[StudyRun]) -> str:
    """Why the runs of one number of ranks are no repeats of each other; "" = they are."""
    of_size: dict[int, dict[str, str]] = defaultdict(dict)
    for run in runs:
        if run.scheme != SERIAL:
            of_size[run.world_size or 0].setdefault(run.repeat_key, run.label)
    for size, keys in sorted(of_size.items()):
        if len(keys) > 1:
            return words.not_repeats(size, apart(list(keys)))
    return ""


def apart(keys: Sequence[str]) -> list[str]:
    """Of each repeat key the facts that are not in all of them."""
    facts = [dict.fromkeys(key.split(SEPARATOR)) for key in keys]
    return [
        ", ".join(fact for fact in own_facts if fact and not all(fact in other for other in facts))
        for own_facts in facts
    ]


def _name_apart(series: list[RunSeries]) -> list[RunSeries]:
    """Adds what tells series of one name apart: the model, else the machine."""
    taken: dict[str, int] = defaultdict(int)
    for named in series:
        taken[named.name] += 1
    models = {run.model for one_series in series for run in one_series.runs}
    named_ = []
    for named in series:
        name = named.name
        if taken[named.name] > 1 or (len(models) > 1 and not name):
            last = named.runs[-1]
            more = [last.model if len(models) > 1 else "", last.machine.cluster or last.machine.text]
            name = ", ".join(part for part in (name, *more) if part)
        named_.append(replace(named, name=name))
    return named_
