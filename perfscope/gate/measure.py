"""A run directory as the gate sees it: its metrics, where its step went, and what was around it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from perfscope.analysis.absent import why_cut_short
from perfscope.analysis.intervals import Int64
from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.rank_facts import runs_ahead
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyse_run
from perfscope.analysis.source import Document
from perfscope.analysis.steps import RankSteps, rank_steps
from perfscope.analysis.study.gather import gather
from perfscope.analysis.study.results import RunEntry, StudyRun
from perfscope.gate.records import (
    CollectiveUse,
    Fingerprint,
    LayerTime,
    Phases,
    RunFigures,
)
from perfscope.gate.surroundings import surroundings
from perfscope.messages.lists import plural
from perfscope.messages.missing import cause_text
from perfscope.rundir.reader import RunReader
from perfscope.rundir.records import RankRecord
from perfscope.vocabulary.figures import Figure

STALL = 2.0  # a step stalls for as long as it takes beyond this many median steps
# Of the steps' time. Where a quarter of the steps is slower, the tenth percentile of all is the thirteenth of
# the others: about one per cent more where they spread as on a shared machine of two CPUs.
TOLERATED = 0.25
SIDE_LABEL, PAIR_LABEL = "check.side", "check.pair"  # labels by which `perfscope check` knows its own runs


class SettledRun(RunReader):
    """A run without its first traced window where it has later ones: that one lies in the warm-up."""

    def summaries(self) -> tuple[Document, ...]:
        every = super().summaries()
        first = min((_whole(window_summary["window"]) for window_summary in every), default=0)
        later = tuple(window_summary for window_summary in every if _whole(window_summary["window"]) > first)
        return later or every


def measure_run(path: Path, name: str) -> RunFigures:
    """What the gate keeps of a run; its traces must have been ingested, else the traced figures are absent.

    Raises:
        RunDirectoryError: there is no run that can be read.
    """
    reader = SettledRun(path)
    analysis = analyse_run(reader)
    metas = reader.rank_records
    entry = RunEntry(name=name, analysis=analysis, bench_records=reader.bench_records(), metas=metas)
    (study,) = gather([entry])
    tables = {rank: reader.steps(rank) for rank in reader.ranks}
    ahead = runs_ahead(metas)
    steps = {rank: rank_steps(table, runs_ahead=ahead) for rank, table in tables.items()}
    metrics, absent = _metrics(study, analysis, metas, steps)
    machine = analysis.machine
    labels = study.labels
    pair = labels.get(PAIR_LABEL, "")
    return RunFigures(
        name=name,
        fingerprint=_fingerprint(study, analysis),
        metrics=metrics,
        absent=absent,
        num_steps=min((len(steps_of_rank.counted) for steps_of_rank in steps.values()), default=0),
        phases=_phases(tables, steps),
        composition=study.composition,
        layers=tuple(
            LayerTime(
                layer=layer.layer,
                forward_ns=layer.forward_ns,
                backward_ns=layer.backward_ns,
                module_type=layer.module_type or "",
            )
            for layer in analysis.layers
        ),
        collectives=_collectives(analysis),
        surroundings=surroundings(reader, study, analysis, steps),
        clean=_is_clean(machine),
        clean_reason=machine.clean_reason if machine else "nothing of the machine was recorded",
        disturbed_ratio=machine.disturbed_ratio if machine else None,
        problem=_problem(study, analysis),
        side=labels.get(SIDE_LABEL, ""),
        pair=int(pair) if pair.isdecimal() else None,
    )


def step_metrics(steps: Sequence[Int64]) -> dict[str, float]:
    """step_p10 (mean over ranks), step_mean and stalls of counted steps; one array of ns per rank."""
    steps = [durations for durations in steps if len(durations)]
    every = np.concatenate(steps) if steps else np.empty(0, dtype=np.int64)
    if not len(every) or every.sum() <= 0:
        return {}
    excess = np.maximum(every - STALL * np.median(every), 0.0).sum()
    return {
        "step_p10": float(np.mean([np.percentile(durations, 10) for durations in steps])),
        "step_mean": float(every.mean()),
        "stalls": float(excess / every.sum()),
    }


def disturbed_share(machine: MachineAnalysis) -> float:
    """Share of the steps' time in which something from outside disturbed them, on the worst host."""
    start, end = machine.steps_start_ns, machine.steps_end_ns
    if start is None or end is None or end <= start:
        return 0.0
    shares = []
    for host in {disturbance.host for disturbance in machine.disturbances}:
        inside = sorted(
            (max(disturbance.start_ns, start), min(disturbance.end_ns, end))
            for disturbance in machine.disturbances
            if disturbance.host == host and disturbance.within_steps
        )
        covered, reach = 0, start
        for begin, stop in inside:
            covered += max(0, stop - max(begin, reach))
            reach = max(reach, stop)
        shares.append(covered / (end - start))
    return max(shares, default=0.0)


def _is_clean(machine: MachineAnalysis | None) -> bool | None:
    """The clean-run verdict, with what the p10 step bears: None = cannot be told."""
    if machine is None or machine.clean is not False:
        return machine.clean if machine else None
    return disturbed_share(machine) <= TOLERATED


def _metrics(
    study: StudyRun,
    analysis: RunAnalysis,
    metas: Mapping[int, RankRecord],
    steps: Mapping[int, RankSteps],
) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics by id, and why others are absent."""
    metrics = step_metrics([steps_of_rank.counted for steps_of_rank in steps.values()])
    absent = dict.fromkeys({"step_p10", "step_mean", "stalls"} - set(metrics), "no step was timed")
    waits = [rank.input_wait_ns for rank in analysis.ranks if rank.input_wait_ns is not None]
    memory = [meta.memory.peak_rss_bytes for meta in metas.values()]
    device = [meta.memory.peak_device_bytes for meta in metas.values()]
    joules = math.fsum(energy.joules for energy in analysis.machine.energy) if analysis.machine else 0.0
    num_steps = max((len(steps_of_rank.durations) for steps_of_rank in steps.values()), default=0)
    no_speed = [cause_text(entry) for entry in analysis.missing if entry.figure is Figure.THROUGHPUT]
    for id_, value, reason in (
        ("throughput", study.samples_per_s, next(iter(no_speed), "the batch size is not known")),
        ("input_wait", math.fsum(waits) / len(waits) if waits else None, "no data loader was seen"),
        (
            "exposed_comm",
            study.composition.exposed_comm if study.composition else None,
            "no window was traced",
        ),
        ("peak_memory", _largest(memory), "the run does not say (recorded before this was)"),
        ("peak_device_memory", _largest(device), "no device memory was used"),
        ("energy", joules / num_steps if joules and num_steps else None, "no energy counter was readable"),
    ):
        if value is None:
            absent[id_] = reason
        else:
            metrics[id_] = float(value)
    return metrics, absent


def _largest(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _fingerprint(study: StudyRun, analysis: RunAnalysis) -> Fingerprint:
    facts = study.machine
    return Fingerprint(
        cpu=facts.cpu,
        num_cpus=facts.num_cpus,
        gpus=tuple(sorted(facts.gpus)),
        num_hosts=study.num_hosts,
        torch=study.packages.get("torch", ""),
        perfscope=analysis.run.perfscope_version,
        world_size=study.world_size,
        batch=study.batch,
        scheme=study.scheme,
    )


def _phases(tables: Mapping[int, pa.Table], steps: Mapping[int, RankSteps]) -> Phases | None:
    by_phase: dict[str, list[float]] = defaultdict(list)
    for rank, steps_of_rank in steps.items():
        if not steps_of_rank.is_counted.any():
            continue
        table = tables[rank]
        for name, column in (
            ("step", "dur_ns"),
            ("input_wait", "input_ns"),
            ("backward", "backward_ns"),
            ("optimizer", "optimizer_ns"),
        ):
            values = (
                table.column(column).to_numpy(zero_copy_only=False).astype(float)[steps_of_rank.is_counted]
            )
            finite = values[np.isfinite(values)]
            if len(finite):
                by_phase[name].append(float(np.median(finite)))
    if not by_phase["step"]:
        return None
    means = {name: math.fsum(values) / len(values) if values else None for name, values in by_phase.items()}
    return Phases(
        step=means["step"] or 0.0,
        input_wait=means.get("input_wait"),
        backward=means.get("backward"),
        optimizer=means.get("optimizer"),
    )


def _collectives(analysis: RunAnalysis) -> tuple[CollectiveUse, ...]:
    steps = max((rank.num_traced_steps for rank in analysis.ranks), default=0)
    groups: dict[str, list[tuple[float, float | None, float, float | None]]] = defaultdict(list)
    for collective in analysis.collectives if steps else ():
        name = f"{collective.collective} over {collective.group_size} {plural('rank', collective.group_size)}"
        groups[name].append(
            (collective.count, collective.bytes, collective.duration_ns, collective.transfer_ns)
        )
    return tuple(
        CollectiveUse(
            name=name,
            calls=math.fsum(row[0] for row in rows) / steps,
            bytes=_sum([row[1] for row in rows], steps),
            duration_ns=math.fsum(row[2] for row in rows) / steps,
            transfer_ns=_sum([row[3] for row in rows], steps),
        )
        for name, rows in groups.items()
    )


def _sum(values: Sequence[float | None], steps: int) -> float | None:
    present = [value for value in values if value is not None]
    return math.fsum(present) / steps if len(present) == len(values) else None


def _problem(study: StudyRun, analysis: RunAnalysis) -> str:
    """Why nothing can be concluded from this run; '' if something can."""
    run = analysis.run
    cut_short = why_cut_short(run)
    if cut_short:
        return f"it is incomplete: {cut_short}"
    if run.exit is not None and run.exit.code:
        return f"its command ended with exit code {run.exit.code}"
    if run.is_open:
        return "it is still running, or perfscope was killed"
    seen, expected = len(analysis.ranks), study.world_size
    if not seen:
        return "no rank was recorded"
    if expected and seen < expected:
        return f"only {seen} of {expected} ranks were recorded"
    unfinished = [rank.rank for rank in analysis.ranks if rank.finished is False]
    if unfinished:
        return f"rank {unfinished[0]} did not end its training"
    return ""


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
