"""The same models in several frameworks: do they learn the same, and which is how fast.

Speeds are only compared where the losses agree (parity.py); a framework whose curve leaves the
reference's has a row and no ratio. "No kernel" is the part of the step in which no operator, communication,
copy or wait for data was traced on the threads that train: what the framework itself takes, and idling.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.study.averages import known_center, mean_composition
from perfscope.analysis.study.framework_results import (
    FrameworkPoint,
    FrameworkRow,
    FrameworkStudy,
)
from perfscope.analysis.study.framework_verdict import action_of, agreement_of, headline_of, scaling_of
from perfscope.analysis.study.machines import machine_key
from perfscope.analysis.study.parity import Parity, parity, worst
from perfscope.analysis.study.repeats import center_interval
from perfscope.analysis.study.results import WARN, Problem, StudyRun
from perfscope.messages.comparison import frameworks as words
from perfscope.messages.study import ranks
from perfscope.rundir.records import FrameworkRunRecord
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.comparison import ProblemKind, StudyPart
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.frameworks import REFERENCE, RETIRED


def framework_studies(runs: Sequence[StudyRun]) -> tuple[FrameworkStudy, ...]:
    """One study per model, machine, batch, threads and size of a sample; `group` is the runs' framework."""
    studies: list[FrameworkStudy] = []
    for model, of_model in _by_model(runs):
        facets = _facets(of_model).values()
        classes: dict[tuple[str, ...], list[StudyRun]] = defaultdict(list)
        for run in of_model:
            classes[tuple(of(run) for of in facets)].append(run)
        telling = [at for at, of in enumerate(facets) if len({of(run) for run in of_model}) > 1]
        for key, of_class in sorted(classes.items()):
            title = [model, *(key[at] for at in telling)]
            studies.append(_study(of_class, ", ".join(filter(None, title)) or words.SAME_MODEL))
    return tuple(studies)


def separating_problems(runs: Sequence[StudyRun]) -> list[Problem]:
    """What tells studies of one model apart: said, for only runs that share it are held together."""
    problems = []
    for model, of_model in _by_model(runs):
        for kind, of in _facets(of_model).items():
            sets: dict[str, list[str]] = defaultdict(list)
            for run in of_model:
                sets[of(run)].append(run.label)
            if len(sets) < 2:
                continue
            text = words.facet_differs(kind, model, sets)
            labels = tuple(run.label for run in of_model)
            problems.append(
                Problem(severity=WARN, id=kind, text=text, runs=labels, affects=(StudyPart.FRAMEWORKS,))
            )
    return problems


def _by_model(runs: Sequence[StudyRun]) -> list[tuple[str, list[StudyRun]]]:
    models: dict[str, list[StudyRun]] = defaultdict(list)
    for run in runs:
        if run.group:
            models[run.model].append(run)
    return sorted(models.items())


def _facets(runs: Sequence[StudyRun]) -> dict[ProblemKind, Callable[[StudyRun], str]]:
    """What runs of one model must share to be compared, by the problem where they do not."""
    per_rank = {run.samples_per_rank for run in runs}
    weak = len(per_rank) == 1 and None not in per_rank and len({run.batch for run in runs}) > 1
    return {
        ProblemKind.OTHER_DTYPE: lambda run: run.dtype,
        ProblemKind.OTHER_MACHINE: lambda run: machine_key(
            replace(run, world_size=1)
        ),  # one rank uses no network
        ProblemKind.OTHER_BATCH: _batch_of_rank if weak else _batch,
        ProblemKind.OTHER_THREADS: lambda run: _threads(_asked(run).threads),
        ProblemKind.OTHER_MODEL: lambda run: "x".join(map(str, _asked(run).input_shape)),
    }


def _batch(run: StudyRun) -> str:
    return "" if run.batch is None else words.samples_per_step(run.batch)


def _batch_of_rank(run: StudyRun) -> str:
    return words.samples_per_rank(run.samples_per_rank or 0.0)


def _threads(num: int | None) -> str:
    """That were asked for: what frameworks say of themselves is not one and the same figure."""
    return words.threads_per_rank(num) if num else ""


def _study(runs: Sequence[StudyRun], title: str) -> FrameworkStudy:
    by_name: dict[str, list[StudyRun]] = defaultdict(list)
    for run in runs:
        by_name[run.group].append(run)
    reference = REFERENCE if REFERENCE in by_name else _most_runs(by_name)
    rows = [
        _row(name, of, by_name[reference], is_reference=name == reference) for name, of in by_name.items()
    ]
    rows.sort(key=lambda row: (-(row.points[0].samples_per_s or 0.0) if row.points else 0.0, row.name))
    sizes = tuple(_sizes(runs))
    return FrameworkStudy(
        title=title,
        reference=reference,
        rows=tuple(rows),
        world_sizes=sizes,
        headline=f"{title}: {headline_of(rows, sizes)}",
        action=action_of(rows, sizes),
        missing=tuple(_missing(rows, reference)),
        trained=_trained(runs),
        agreement=agreement_of(rows, reference),
        scaling=scaling_of(rows, sizes),
    )


def _most_runs(by_name: dict[str, list[StudyRun]]) -> str:
    return min(by_name, key=lambda name: (-len(by_name[name]), name))


def _sizes(runs: Sequence[StudyRun]) -> list[int]:
    return sorted({run.world_size for run in runs if run.world_size})


def _trained(runs: Sequence[StudyRun]) -> str:
    """What all of them share."""
    first, settings = runs[0], _asked(runs[0])
    batches = {run.batch for run in runs}
    shape = "x".join(map(str, settings.input_shape))
    samples = first.samples_per_rank if len(batches) > 1 else first.batch
    facts = [
        words.samples_trained(samples, shape, per_rank=len(batches) > 1) if samples else "",
        _threads(settings.threads),
        settings.dtype or first.dtype,
    ]
    return ", ".join(filter(None, facts))


def _row(
    name: str, runs: Sequence[StudyRun], references: Sequence[StudyRun], *, is_reference: bool
) -> FrameworkRow:
    points: list[FrameworkPoint] = []
    for size in _sizes(runs):
        of = [run for run in runs if run.world_size == size]
        points.append(_point(size, of, points[0] if points else None))
    agreement = {size: _agreement(references, runs, size) for size in _sizes(runs)}
    return FrameworkRow(
        name=name,
        version=_version(runs),
        remark=words.RETIRED.format(since=RETIRED[name]) if name in RETIRED else "",
        is_reference=is_reference,
        points=tuple(points),
        parity={
            size: parities
            for size, parities in agreement.items()
            if parities is not None and not (is_reference and parities.agrees is not False)
        },
        how=next((how for run in runs if (how := _asked(run).how)), ""),
    )


def _version(runs: Sequence[StudyRun]) -> str:
    versions = [_asked(run).version or run.framework_version for run in runs]
    return " and ".join(sorted({version for version in versions if version}))


def _point(size: int, runs: Sequence[StudyRun], smallest: FrameworkPoint | None) -> FrameworkPoint:
    speeds = sorted(run.samples_per_s for run in runs if run.samples_per_s is not None)
    speed = known_center(speeds)
    composition = mean_composition(runs)
    step = known_center([run.typical_step_ns for run in runs])
    before = smallest.samples_per_s if smallest else speed
    speedup = speed / before if speed and before else None
    times = 1 if smallest is None else size / smallest.world_size
    return FrameworkPoint(
        world_size=size,
        runs=tuple(run.label for run in runs),
        samples_per_s=speed,
        samples_per_s_interval=center_interval(speeds),
        step_ns=step,
        speedup=speedup,
        efficiency=None if speedup is None else speedup / times,
        composition=composition,
        no_kernel_share=composition.share("idle") if composition else None,
        peak_memory_bytes=known_center([_total_memory(run) for run in runs]),
        num_disturbed=sum(bool(run.disturbed) for run in runs),
        missing=tuple(dict.fromkeys(missing for run in runs for missing in run.missing)),
        speeds=tuple(speeds),
        traced_ratio=composition.step / step if composition and step else None,
    )


def _total_memory(run: StudyRun) -> float | None:
    """Of all ranks together: what a machine must have."""
    return float(sum(size for _, size in run.peak_memory)) if run.peak_memory else None


def _agreement(references: Sequence[StudyRun], runs: Sequence[StudyRun], size: int) -> Parity | None:
    """The worst of the runs on so many ranks; None: nothing to compare, or not there."""
    study_runs = [run for run in references if run.world_size == size and run.losses]
    of = [run for run in runs if run.world_size == size and run.losses]
    return worst([_against(study_runs, run) for run in of]) if study_runs and of else None


def _against(references: Sequence[StudyRun], run: StudyRun) -> Parity:
    """Against the reference that was trained alike; where none was, the reason is what differs."""
    alike = [study_run for study_run in references if not _unlike(study_run, run)]
    compared = parity((alike or references)[0].losses, run.losses)
    unlike = [] if alike else _unlike(references[0], run)
    return (
        compared
        if compared.agrees is not False or not unlike
        else compared.because(words.trained_unlike(unlike))
    )


def _unlike(run: StudyRun, other: StudyRun) -> list[str]:
    """Settings that decide losses and differ, in words."""
    first, then = run.framework_run, other.framework_run
    if first is None or then is None:
        return []
    pairs = [(name, getattr(then, name), getattr(first, name)) for name in words.SETTINGS]
    return [words.trained_with(name, _word(is_), _word(was)) for name, is_, was in pairs if is_ != was]


def _asked(run: StudyRun) -> FrameworkRunRecord:
    return run.framework_run or FrameworkRunRecord()


def _word(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else f"{value}"


def _missing(rows: Sequence[FrameworkRow], reference: str) -> list[Missing]:
    there = {point.world_size for row in rows if row.is_reference for point in row.points}
    entries = []
    for row in rows:
        for point in row.points:
            size = point.world_size
            agreement = row.parity.get(size)
            cause = Cause.LOSSES_NOT_RECORDED if size in there else Cause.NO_REFERENCE_RUN
            if agreement is not None:
                cause = Cause.LOSSES_DISAGREE
            if row.is_reference if agreement is None else agreement.agrees is True:
                continue
            entries.append(
                missing_figure(
                    Figure.FRAMEWORK_SPEED,
                    cause,
                    framework=row.name,
                    size=ranks(size),
                    reference=reference,
                    reason=agreement.reason if agreement else "",
                )
            )
    return entries
