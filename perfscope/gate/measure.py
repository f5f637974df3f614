"""A run directory as the gate sees it: its metrics, where its step went, and what was around it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from perfscope.analysis.intervals import Int64
from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.missing_reasons import why_cut_short
from perfscope.analysis.rank_facts import runs_ahead
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.analysis.spans import window_facts
from perfscope.analysis.steps import RankSteps, rank_steps, steps_on_device
from perfscope.analysis.study.gather import gather
from perfscope.analysis.study.results import RunEntry, StudyRun
from perfscope.gate.records import (
    CollectiveUse,
    Fingerprint,
    LayerTime,
    Phases,
    RunFigures,
)
from perfscope.gate.run_conditions import surroundings
from perfscope.messages.comparison.diff import collective_name
from perfscope.messages.gate import runs as words
from perfscope.messages.gate.metrics import ABSENT
from perfscope.messages.missing import cause_text
from perfscope.rundir.reader import RunReader
from perfscope.rundir.records import RankRecord
from perfscope.rundir.window_records import WindowSummary
from perfscope.vocabulary.figures import Figure

STALL = 2.0  # a step stalls for as long as it takes beyond this many median steps
# Of the steps' time. Where a quarter of the steps is slower, the tenth percentile of all is the thirteenth of
# the others: about one percent more where they spread as on a shared machine of two CPUs.
TOLERATED = 0.25
SIDE_LABEL, PAIR_LABEL = "check.side", "check.pair"  # labels by which `perfscope check` knows its own runs


class SettledRun(RunReader):
    """A run without its first traced window where it has later ones: that one is in the warm-up."""

    def summaries(self) -> tuple[WindowSummary, ...]:
        every = super().summaries()
        first = min((summary.window for summary in every), default=0)
        later = tuple(summary for summary in every if summary.window > first)
        return later or every


def measure_run(path: Path, name: str) -> RunFigures:
    """What the gate keeps of a run; its traces must have been ingested, else the traced figures are absent.

    Raises:
        RunDirectoryError: there is no run that can be read.
    """
    reader = SettledRun(path)
    analysis = analyze_run(reader)
    metas = reader.rank_records
    entry = RunEntry(name=name, analysis=analysis, bench_records=reader.bench_records(), metas=metas)
    (study,) = gather([entry])
    tables = {rank: reader.steps(rank) for rank in reader.ranks}
    ahead, windows = runs_ahead(metas), [window_facts(summary) for summary in reader.summaries()]
    steps = {
        rank: rank_steps(
            table,
            runs_ahead=ahead,
            on_device=steps_on_device(facts for facts in windows if facts.rank == rank),
        )
        for rank, table in tables.items()
    }
    metrics, absent = _metrics(study, analysis, metas, steps)
    machine = analysis.machine
    labels = study.labels
    pair = labels.get(PAIR_LABEL, "")
    return RunFigures(
        name=name,
        fingerprint=_fingerprint(study, analysis),
        metrics=metrics,
        absent=absent,
        num_steps=min((len(rank_steps.counted) for rank_steps in steps.values()), default=0),
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
        clean_reason=machine.clean_reason if machine else words.MACHINE_NOT_RECORDED,
        disturbed_ratio=machine.disturbed_ratio if machine else None,
        problem=_problem(study, analysis),
        side=labels.get(SIDE_LABEL, ""),
        pair=int(pair) if pair.isdecimal() else None,
    )


def step_metrics(steps: Sequence[Int64]) -> dict[str, float]:
    """step_p10 (mean over ranks), step_mean and stalls of counted steps; one array of ns per rank."""
    steps = [rank_steps for rank_steps in steps if len(rank_steps)]
    every = np.concatenate(steps) if steps else np.empty(0, dtype=np.int64)
    if not len(every) or every.sum() <= 0:
        return {}
    excess = np.maximum(every - STALL * np.median(every), 0.0).sum()
    return {
        "step_p10": float(np.mean([np.percentile(rank_steps, 10) for rank_steps in steps])),
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
    """The clean-run verdict, with what the p10 step bears: None = not known."""
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
    metrics = step_metrics([rank_steps.counted for rank_steps in steps.values()])
    absent = {id_: ABSENT[id_] for id_ in ("step_p10", "step_mean", "stalls") if id_ not in metrics}
    waits = [rank.input_wait_ns for rank in analysis.ranks if rank.input_wait_ns is not None]
    memory = [meta.memory.peak_rss_bytes for meta in metas.values()]
    device = [meta.memory.peak_device_bytes for meta in metas.values()]
    joules = math.fsum(energy.joules for energy in analysis.machine.energy) if analysis.machine else 0.0
    num_steps = max((len(rank_steps.durations) for rank_steps in steps.values()), default=0)
    no_speed = [cause_text(missing) for missing in analysis.missing if missing.figure is Figure.THROUGHPUT]
    figures = {
        "throughput": study.samples_per_s,
        "input_wait": math.fsum(waits) / len(waits) if waits else None,
        "exposed_comm": study.composition.exposed_comm if study.composition else None,
        "peak_memory": _largest(memory),
        "peak_device_memory": _largest(device),
        "energy": joules / num_steps if joules and num_steps else None,
    }
    metrics |= {id_: float(value) for id_, value in figures.items() if value is not None}
    absent |= {id_: ABSENT[id_] for id_, value in figures.items() if value is None}
    if "throughput" in absent and no_speed:
        absent["throughput"] = no_speed[0]
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
    phases: dict[str, list[float]] = defaultdict(list)
    for rank, of_rank in steps.items():
        if not of_rank.is_counted.any():
            continue
        table = tables[rank]
        for name, column in (
            ("step", "dur_ns"),
            ("input_wait", "input_ns"),
            ("backward", "backward_ns"),
            ("optimizer", "optimizer_ns"),
        ):
            values = table.column(column).to_numpy(zero_copy_only=False).astype(float)[of_rank.is_counted]
            finite = values[np.isfinite(values)]
            if len(finite):
                phases[name].append(float(np.median(finite)))
    if not phases["step"]:
        return None
    means = {name: math.fsum(values) / len(values) if values else None for name, values in phases.items()}
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
        name = collective_name(collective.collective, collective.group_size)
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
        return words.cut_short(cut_short)
    if run.exit is not None and run.exit.code:
        return words.exit_code(run.exit.code)
    if run.is_open:
        return words.STILL_OPEN
    seen, expected = len(analysis.ranks), study.world_size
    if not seen:
        return words.NO_RANK
    if expected and seen < expected:
        return words.ranks_missing(seen, expected)
    unfinished = [rank.rank for rank in analysis.ranks if rank.finished is False]
    if unfinished:
        return words.unfinished(unfinished[0])
    return ""
