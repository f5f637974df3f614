"""The same models in several frameworks: do they learn the same, and which is how fast.

Speeds are only held against each other where the losses agree (parity.py); a framework whose curve leaves the
reference's has a row and no ratio. "No kernel" is the part of the step in which no operator, communication,
copy or wait for data was traced on the threads that train: what the framework itself takes, and idling.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from perfscope.analysis.missing import MissingFigure
from perfscope.analysis.study.averages import known_centre, mean_composition
from perfscope.analysis.study.framework_results import (
    FrameworkPoint,
    FrameworkRow,
    FrameworkStudy,
)
from perfscope.analysis.study.parity import Parity, parity
from perfscope.analysis.study.repeats import centre_interval
from perfscope.analysis.study.results import StudyRun
from perfscope.analysis.study.words import named, percent, ranks

REFERENCE = "torch"  # the framework that losses and speeds are held against, where it is there
LEVEL = 0.05  # speeds nearer than that are not ranked: runs of one and the same framework differ by as much
RETIRED = {"mxnet": "retired upstream since September 2023"}


def framework_studies(runs: Sequence[StudyRun]) -> tuple[FrameworkStudy, ...]:
    """One study per model and machine; `group` of the runs is their framework."""
    classes: dict[tuple[str, str, str], list[StudyRun]] = defaultdict(list)
    for run in runs:
        if run.group:
            classes[run.model, run.dtype, run.machine.text].append(run)
    several = len({machine for _, _, machine in classes}) > 1
    return tuple(
        _study(of, f"{model}, {machine}" if several and machine else model or "the same model")
        for (model, _, machine), of in sorted(classes.items())
    )


def _study(runs: Sequence[StudyRun], title: str) -> FrameworkStudy:
    by_name: dict[str, list[StudyRun]] = defaultdict(list)
    for run in runs:
        by_name[run.group].append(run)
    reference = REFERENCE if REFERENCE in by_name else _most_runs(by_name)
    losses = {size: _losses(by_name[reference], size) for size in _sizes(by_name[reference])}
    rows = [_row(name, of, losses, is_reference=name == reference) for name, of in by_name.items()]
    best = {size: _speed_at(rows, size) for size in sorted({run.world_size or 0 for run in runs})}
    rows.sort(key=lambda row: (-(row.points[0].samples_per_s or 0.0), row.name))
    headline, action = _headline(title, rows, best)
    return FrameworkStudy(
        title=title,
        reference=reference,
        rows=tuple(rows),
        world_sizes=tuple(sorted(best)),
        headline=headline,
        action=action,
        missing=tuple(_missing(rows)),
    )


def _most_runs(by_name: dict[str, list[StudyRun]]) -> str:
    return min(by_name, key=lambda name: (-len(by_name[name]), name))


def _sizes(runs: Sequence[StudyRun]) -> list[int]:
    return sorted({run.world_size for run in runs if run.world_size})


def _losses(runs: Sequence[StudyRun], size: int) -> tuple[float, ...]:
    """Of the first run on so many ranks that kept its losses."""
    curves = (run.loss_curve for run in runs if run.world_size == size)
    return next((curve.losses for curve in curves if curve is not None), ())


def _row(
    name: str, runs: Sequence[StudyRun], losses: dict[int, tuple[float, ...]], *, is_reference: bool
) -> FrameworkRow:
    sizes = _sizes(runs)
    points: list[FrameworkPoint] = []
    for size in sizes:
        of = [run for run in runs if run.world_size == size]
        points.append(_point(size, of, points[0] if points else None))
    agreement = {} if is_reference else {size: _agreement(losses.get(size, ()), runs, size) for size in sizes}
    return FrameworkRow(
        name=name,
        version=next((run.framework_version for run in runs if run.framework_version), ""),
        remark=RETIRED.get(name.split("-")[0], ""),
        is_reference=is_reference,
        points=tuple(points),
        parity={size: found for size, found in agreement.items() if found is not None},
    )


def _point(size: int, runs: Sequence[StudyRun], smallest: FrameworkPoint | None) -> FrameworkPoint:
    speeds = [run.samples_per_s for run in runs if run.samples_per_s is not None]
    speed = known_centre(speeds)
    composition = mean_composition(runs)
    before = smallest.samples_per_s if smallest else speed
    speedup = speed / before if speed and before else None
    times = 1 if smallest is None else size / smallest.world_size
    return FrameworkPoint(
        world_size=size,
        runs=tuple(run.label for run in runs),
        samples_per_s=speed,
        samples_per_s_interval=centre_interval(speeds),
        step_ns=known_centre([run.typical_step_ns for run in runs]),
        speedup=speedup,
        efficiency=None if speedup is None else speedup / times,
        composition=composition,
        no_kernel_share=composition.share("idle") if composition else None,
        peak_memory_bytes=known_centre([_total_memory(run) for run in runs]),
        num_disturbed=sum(bool(run.disturbed) for run in runs),
        missing=tuple(dict.fromkeys(one for run in runs for one in run.missing)),
    )


def _total_memory(run: StudyRun) -> float | None:
    """Of all ranks together: what a machine must have."""
    return float(sum(size for _, size in run.peak_memory)) if run.peak_memory else None


def _agreement(reference: Sequence[float], runs: Sequence[StudyRun], size: int) -> Parity | None:
    own = _losses(runs, size)
    return parity(reference, own) if reference and own else None


def _speed_at(rows: Sequence[FrameworkRow], size: int) -> FrameworkRow | None:
    """The fastest on so many ranks among those that learn as the reference does."""
    known = [
        (point.samples_per_s, row)
        for row in rows
        for point in row.points
        if point.world_size == size and point.samples_per_s and row.agrees(size)
    ]
    return max(known, key=lambda one: one[0])[1] if known else None


def _headline(
    title: str, rows: Sequence[FrameworkRow], best: dict[int, FrameworkRow | None]
) -> tuple[str, str]:
    told = []
    for size, row in best.items():
        others = [one for one in rows if row is not None and one is not row and one.agrees(size)]
        speeds = sorted(speed for one in others if (speed := one.speed(size)))
        own = row.speed(size) if row is not None else None
        if row is None or not own or not speeds:
            continue
        slowest, next_one = own / speeds[0], own / speeds[-1]
        if next_one < 1 + LEVEL:
            near = [row.name, *(one.name for one in others if (one.speed(size) or 0.0) * (1 + LEVEL) > own)]
            told.append(f"on {ranks(size)} {named(sorted(near))} are within {percent(LEVEL)} of each other")
            continue
        span = f"{next_one:.2f}" if len(speeds) == 1 else f"{next_one:.2f} to {slowest:.2f}"
        told.append(f"on {ranks(size)} {row.name} trains {span} times as many samples/s as the others")
    astray = [row.name for row in rows if any(one.agrees is False for one in row.parity.values())]
    action = ""
    if astray:
        action = (
            f"Find out why {named(astray)} {'does' if len(astray) == 1 else 'do'} not learn as the reference "
            "does, before speeds are compared."
        )
    if not told:
        return f"{title}: no two frameworks can be compared.", action
    return f"{title}: {'; '.join(told)}.", action


def _missing(rows: Sequence[FrameworkRow]) -> list[MissingFigure]:
    found = []
    for row in rows:
        if not row.is_reference and not row.parity:
            reason = "its losses or the reference's were not recorded on the same number of ranks"
            found.append(MissingFigure(what=f"whether {row.name} learns the same", reason=reason))
        for size, one in row.parity.items():
            if not one.agrees:
                found.append(
                    MissingFigure(
                        what=f"the speed of {row.name} against others on {ranks(size)}", reason=one.reason
                    )
                )
    return found
