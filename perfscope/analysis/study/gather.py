"""One run as the study sees it: RunAnalysis -> StudyRun."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from perfscope.analysis.bench import BenchResult
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.missing_reasons import why_cut_short
from perfscope.analysis.rank_facts import named_framework, world_size
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.study.causes import KEPT
from perfscope.analysis.study.models import Model, model_of, model_words
from perfscope.analysis.study.parity import mean_losses
from perfscope.analysis.study.results import (
    PARTS,
    Composition,
    LossCurve,
    MachineFacts,
    RunEntry,
    StudyRun,
)
from perfscope.analysis.study.step_parts import step_parts
from perfscope.messages.comparison.problems import incomplete_reason
from perfscope.rundir.host_records import TopologyRecord
from perfscope.rundir.old_words import scales_with
from perfscope.rundir.records import Exit, RankRecord, RunRecord
from perfscope.rundir.scheme_records import BenchRecord, SchemeRecord
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.links import BETWEEN_HOSTS
from perfscope.vocabulary.traffic import ScalesWith

SEPARATOR = " · "  # between the facts of a repeat key
REPEAT = "repeat"  # the label that numbers repeats
GROWN = 10.0  # a last loss that many times the first has diverged, as `perfscope bench` has it
_SYNCHRONOUS = ("synchronous", "none")  # none: one process
_CLUSTER = re.compile(r"@(\d+(?:\.\d+)?)([kmg])bit", re.IGNORECASE)
_BIT = {"k": 1e3, "m": 1e6, "g": 1e9}


def gather(entries: Sequence[RunEntry]) -> tuple[StudyRun, ...]:
    """The runs in an order of their own (world size, scheme, name), whatever the order they came in."""
    labels = _labels([entry.name for entry in entries])
    models = [model_of(entry) for entry in entries]
    runs = [
        _study_run(entry, label, model, word)
        for entry, label, model, word in zip(entries, labels, models, model_words(models), strict=True)
    ]
    runs.sort(key=lambda run: (run.world_size or 0, run.scheme, run.mesh, run.name, run.label))
    seen: Counter[str] = Counter()
    numbered = []
    for run in runs:
        seen[run.repeat_key] += 1
        numbered.append(replace(run, repeat=seen[run.repeat_key]))
    return tuple(numbered)


def _labels(names: Sequence[str]) -> list[str]:
    """As much of each path's end as tells them apart; the same path twice gets a number."""
    parts = [[part for part in name.replace("\\", "/").split("/") if part] or [name] for name in names]
    depth = [1] * len(names)
    while True:
        labels = ["/".join(of[-num:]) for of, num in zip(parts, depth, strict=True)]
        count = Counter(labels)
        grow = [at for at, label in enumerate(labels) if count[label] > 1 and depth[at] < len(parts[at])]
        if not grow:
            break
        for at in grow:
            depth[at] += 1
    seen: Counter[str] = Counter()
    unique = []
    for label in labels:
        seen[label] += 1
        unique.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return unique


def _study_run(entry: RunEntry, label: str, model_of_run: Model, model: str) -> StudyRun:
    analysis = entry.analysis
    bench = analysis.bench
    scheme = analysis.run.scheme or SchemeRecord()
    world = _world_size(entry)
    hosts = Counter(rank.host for rank in analysis.ranks if rank.host)
    batch = bench.batch if bench else _batch(analysis)
    composition, no_composition = _composition(analysis)
    incomplete, curve = _incomplete(analysis, world), _loss_curve(entry, batch)
    memory = _memory(entry.bench_records) or _memory_of_ranks(entry.metas)
    framework, version = _framework(entry)
    machine, facts = analysis.machine, _machine(entry)
    setting = _facts(entry, model, facts, world, batch)
    disturbances = machine.disturbances if machine else ()
    speed = analysis.throughput_samples_per_s
    run = StudyRun(
        label=label,
        name=entry.name,
        group="",
        repeat_key=SEPARATOR.join(text for _, text in setting),
        repeat=1,
        world_size=world,
        num_hosts=len(hosts) or None,
        ranks_per_host=tuple(hosts[host] for host in sorted(hosts)),
        num_ranks_seen=len(analysis.ranks),
        scheme=bench.scheme if bench else scheme.full_name,
        axes=scheme.axes or {},
        mesh=bench.mesh if bench else "",
        model=model,
        dtype=scheme.dtype or "",
        threads=_threads(entry),
        batch=batch,
        samples_per_s=speed if speed is not None and math.isfinite(speed) and speed > 0 else None,
        samples_source=analysis.samples_source,
        step_ns=analysis.step_ns,
        num_steps=_num_steps(analysis),
        composition=composition,
        efficiency=analysis.efficiency,
        peak_memory=memory,
        peak_memory_bytes=max((value for _, value in memory), default=None)
        or (bench.peak_rss_bytes if bench else None),
        loss_curve=curve,
        diverged=_diverged(analysis),
        disturbed=None if machine is None or machine.clean is None else not machine.clean,
        disturbances=tuple(disturbance.title for disturbance in disturbances if disturbance.within_steps),
        incomplete=tuple(incomplete.values()),
        incomplete_causes=tuple(incomplete),
        running=analysis.run.is_open,
        machine=facts,
        missing=_missing(analysis, no_composition, entry, curve),
        fixed_share=_fixed_share(scheme),
        num_params=model_of_run.num_params or None,
        typical_step_ns=typical_step(entry),
        findings=analysis.findings[:KEPT],
        framework=framework,
        framework_version=version,
        backend=_backend(entry),
        losses=_losses(entry),
    )
    return _with_bench(_with_record(run, analysis, setting), bench)


def _with_record(run: StudyRun, analysis: RunAnalysis, setting: Sequence[tuple[str, str]]) -> StudyRun:
    record, scheme = analysis.run, analysis.run.scheme or SchemeRecord()
    return replace(
        run,
        step_parts=step_parts(run.composition, analysis.communication),
        perfscope_version=record.perfscope_version,
        packages=record.packages,
        environment=record.environment,
        options=record.all_options,
        command=record.command,
        labels=record.labels,
        origin=record.origin,
        settings=_settings(record),
        batchless_key=_batchless_key(scheme, setting),
        task=", ".join(f"{name} {value}" for name, value in scheme.task if value),
    )


def _with_bench(run: StudyRun, bench: BenchResult | None) -> StudyRun:
    if bench is None:
        return run
    return replace(
        run,
        mesh=bench.mesh,
        effective_batch=bench.effective_batch,
        links=bench.links,
        first_loss=bench.first_loss,
        last_loss=bench.last_loss,
        held_out_loss=bench.held_out_loss,
        learning=bench.learning,
    )


def _backend(entry: RunEntry) -> str:
    """What carries the collectives: as the bench was asked, else as the ranks found it."""
    scheme = entry.analysis.run.scheme
    asked = (scheme.backend or "") if scheme is not None else ""
    backends = {meta.backend for meta in entry.metas.values() if meta.backend}
    return asked or " and ".join(sorted(backends))


def _settings(run: RunRecord) -> dict[str, str]:
    """Options of the run and of its bench that are one word or number each, and its learning rate."""
    both = {**run.all_options, **(run.scheme.document if run.scheme is not None else {})}
    if run.scheme is not None and run.scheme.learning_rate is not None:
        both["learning_rate"] = run.scheme.learning_rate.value
    return {name: str(value) for name, value in both.items() if isinstance(value, str | int | float)}


def mapping(value: object) -> Mapping[str, Any]:
    """`value` where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    """`value` where it is a list or tuple, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


def _whole(value: object) -> int | None:
    """A count above 0; an integer that was decoded as a float counts."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0 or value % 1:
        return None
    return int(value)


def _world_size(entry: RunEntry) -> int | None:
    """Ranks of the job; if not recorded, of the scheme, as launched, or as many as were recorded."""
    run, bench = entry.analysis.run, entry.analysis.bench
    size = world_size(run, entry.metas) or (bench.num_ranks if bench else None)
    return size or run.expected_ranks or len(entry.analysis.ranks) or None


def _batch(analysis: RunAnalysis) -> int | None:
    """Samples of a step over all ranks, of a run that is no bench run."""
    option = _whole(analysis.run.options.samples_per_step)
    if option:
        return option
    if analysis.samples_per_step:  # of the median step: how many smaller last batches there were is no matter
        return round(analysis.samples_per_step) or None
    speed, step = analysis.throughput_samples_per_s, analysis.step_ns
    return round(speed * step.median / 1e9) or None if speed and step else None


def typical_step(entry: RunEntry) -> float | None:
    """The step that the run's samples/s follow from, ns.

    Of a bench run the slowest rank's (asynchronous: batch over samples/s, for its ranks step by themselves);
    else the median over all ranks' steps; the mean where batch sizes vary.
    """
    analysis, bench, step = entry.analysis, entry.analysis.bench, entry.analysis.step_ns
    if bench is not None and bench.samples_per_s and bench.batch:
        return bench.batch * 1e9 / bench.samples_per_s
    if analysis.batch_range and analysis.samples_per_step and analysis.throughput_samples_per_s:
        return analysis.samples_per_step * 1e9 / analysis.throughput_samples_per_s
    return float(step.median) if step else None


def _threads(entry: RunEntry) -> int | None:
    scheme = entry.analysis.run.scheme
    asked = scheme.threads if scheme is not None else None
    counts = {meta.num_threads or None for meta in entry.metas.values()}
    return asked or (counts.pop() if len(counts) == 1 else None)


def _num_steps(analysis: RunAnalysis) -> int | None:
    recorded = max((rank.num_steps for rank in analysis.ranks), default=0)
    return recorded or (analysis.bench.num_steps if analysis.bench else 0) or None


def _facts(
    entry: RunEntry, model: str, machine: MachineFacts, world: int | None, batch: int | None
) -> list[tuple[str, str]]:
    """Everything that must be the same for two runs to be repeats of one setting, as (name, words).

    Labels are the user's own way of telling settings apart, so that they count, too, REPEAT excepted.
    """
    run, bench = entry.analysis.run, entry.analysis.bench
    facts = [
        ("scheme", bench.scheme if bench else ""),
        ("mesh", bench.mesh if bench else ""),
        ("model", model),
        ("ranks", f"{world} ranks"),
        ("batch", f"batch {batch}"),
        ("threads", f"{_threads(entry)} threads"),
        ("cluster", run.options.cluster or ""),
        ("machine", machine.text),
        *(("label", f"{name}={value}") for name, value in sorted(run.labels.items()) if name != REPEAT),
    ]
    if bench is not None:
        scheme = run.scheme or SchemeRecord()
        facts += [(name, str(getattr(scheme, name))) for name in ("period", "bind", "dtype", "backend")]
        facts += [(name, f"{name} {value}") for name, value in scheme.update if value]
    return facts


def _batchless_key(scheme: SchemeRecord, facts: Sequence[tuple[str, str]]) -> str:
    """The facts but the batch, what follows from it, and labels; "" where updates are not synchronous."""
    if (scheme.axes or {}).get("synchrony") not in _SYNCHRONOUS:
        return ""
    kept = [text for name, text in facts if name not in ("batch", "label", "rate")]
    return SEPARATOR.join([*kept, scheme.rate_law])


def _composition(analysis: RunAnalysis) -> tuple[Composition | None, Missing | None]:
    """The mean rank's mean traced step, and why there is none."""
    breakdowns = [rank.breakdown_ns for rank in analysis.ranks if rank.breakdown_ns is not None]
    if analysis.breakdown_of == "file":
        return None, missing_figure(Figure.STEP_COMPOSITION, Cause.NO_STEP_MARKS)
    if not breakdowns:
        return None, missing_figure(Figure.STEP_COMPOSITION, Cause.NO_WINDOW_TRACED)
    if any("exposed_comm" in rank.unknown for rank in analysis.ranks):
        return None, missing_figure(Figure.STEP_COMPOSITION, Cause.UNSEEN_CALLS)
    means = {
        part: math.fsum(getattr(breakdown, part) for breakdown in breakdowns) / len(breakdowns)
        for part in PARTS
    }
    step = math.fsum(breakdown.step for breakdown in breakdowns) / len(breakdowns)
    return Composition(
        step=step, num_steps=min(breakdown.num_steps for breakdown in breakdowns), **means
    ), None


def _loss_curve(entry: RunEntry, batch: int | None) -> LossCurve | None:
    """By step the mean over the ranks that know a loss; the time is that of the last of them to get there.

    Each rank's time counts from its own first step, so that clocks of hosts need not agree.
    """
    ranks = []
    for _, record in sorted(entry.bench_records.items()):
        if record.losses and len(record.step_ends_ns) > 1:
            ranks.append((record.losses, record.trained_ns))
    steps, samples, seconds, values = [], [], [], []
    for step in range(max((len(losses) for losses, _ in ranks), default=0)):
        points = [
            (loss, (ends[step + 1] - ends[0]) / 1e9)
            for losses, ends in ranks
            if step < len(losses) and step + 1 < len(ends) and (loss := losses[step]) is not None
        ]
        if points:
            steps.append(step + 1)
            samples.append((step + 1) * (batch or 0))
            seconds.append(max(time for _, time in points))
            values.append(math.fsum(loss for loss, _ in points) / len(points))
    if not steps:
        return None
    return LossCurve(
        steps=tuple(steps),
        samples=tuple(samples) if batch else (),
        seconds=tuple(seconds),
        losses=tuple(values),
    )


def _losses(entry: RunEntry) -> tuple[float | None, ...]:
    """Of whole batches, step by step: by which two trainings are compared."""
    return tuple(mean_losses([record.losses for _, record in sorted(entry.bench_records.items())]))


def _framework(entry: RunEntry) -> tuple[str, str]:
    """Name and version; a label of `perfscope bench` (horovod, which torch computes for) comes first."""
    every = (meta.framework for _, meta in sorted(entry.metas.items()))
    version = next((framework.version for framework in every if framework.name), "")
    return entry.analysis.run.labels.get("framework") or named_framework(entry.metas), version


def _memory_of_ranks(metas: Mapping[int, RankRecord]) -> tuple[tuple[int, int], ...]:
    peaks = [(rank, meta.memory.peak_rss_bytes) for rank, meta in sorted(metas.items())]
    return tuple((rank, size) for rank, size in peaks if size)


def _memory(records: Mapping[int, BenchRecord]) -> tuple[tuple[int, int], ...]:
    peaks = [(rank, record.peak_rss_bytes) for rank, record in sorted(records.items())]
    return tuple((rank, size) for rank, size in peaks if size)


def _diverged(analysis: RunAnalysis) -> bool:
    """As `perfscope bench` tells it: a loss that is no number at the end, or one that has grown tenfold."""
    bench = analysis.bench
    if bench is None:
        return False
    losses = (bench.first_loss, bench.last_loss, bench.held_out_loss)
    if any(loss is None or not math.isfinite(loss) for loss in losses):
        return bench.num_ranks_recorded == bench.num_ranks and bench.num_steps > 0
    return (bench.last_loss or 0.0) > GROWN * abs(bench.first_loss or 0.0)


def _incomplete(analysis: RunAnalysis, world: int | None) -> dict[Cause, str]:
    """Why it is only a part."""
    run, reasons = analysis.run, dict[Cause, str]()

    def add(cause: Cause, **facts: object) -> None:
        reasons[cause] = incomplete_reason(cause, **facts)

    if run.is_open:
        add(Cause.NOT_CLOSED)
    ended = run.exit or Exit()
    if how := why_cut_short(run):
        add(Cause.CUT_SHORT, how=how)
    elif ended.signal:
        add(Cause.ENDED_BY_SIGNAL, signal=ended.signal)
    elif ended.code:
        add(Cause.EXIT_CODE, code=ended.code)
    seen = len(analysis.ranks)
    if world and seen < world:
        add(Cause.RANKS_MISSING, count=world - seen, total=world)
    cut = [rank.rank for rank in analysis.ranks if rank.finished is False]
    if cut and not run.is_open:
        add(Cause.FILES_NOT_CLOSED, ranks=", ".join(map(str, cut[:8])))
    return reasons


def _machine(entry: RunEntry) -> MachineFacts:
    run, machine = entry.analysis.run, entry.analysis.machine
    topologies = dict(sorted(machine.topologies.items())) if machine else {}
    first = next(iter(topologies.values()), TopologyRecord())
    hosts = tuple(sorted({rank.host for rank in entry.analysis.ranks if rank.host})) or tuple(topologies)
    devices = {meta.device for meta in entry.metas.values() if meta.device}
    cluster = run.options.cluster or ""
    return MachineFacts(
        hosts=hosts,
        cpu=" and ".join(sorted({topology.cpu_model for topology in topologies.values()} - {""})),
        num_cpus=first.logical_cpus or None,
        num_nodes=len(first.numa_nodes) or None,
        memory_bytes=first.memory_bytes or None,
        gpus=tuple(gpu.name or "GPU" for topology in topologies.values() for gpu in topology.gpus),
        kernel=first.kernel,
        cluster=cluster,
        device=" and ".join(sorted(devices)),
        link_bytes_per_s=_link_speed(cluster, topologies),
    )


def _link_speed(cluster: str, topologies: Mapping[str, TopologyRecord]) -> float | None:
    """One host's link to the others, byte/s: the emulated cluster's, else that of the one real interface."""
    match = _CLUSTER.search(cluster)
    if match:
        return float(match[1]) * _BIT[match[2].lower()] / 8
    if cluster:
        return None
    speeds = {
        nic.speed_bits_per_s
        for topology in topologies.values()
        for nic in topology.nics
        if nic.speed_bits_per_s and nic.state == "up" and not nic.virtual
    }
    return speeds.pop() / 8 if len(speeds) == 1 else None


def _fixed_share(scheme: SchemeRecord) -> float | None:
    """Of the bytes that the scheme's formulas send between hosts, those that do not grow with the batch.

    None: nothing is sent, or what a call grows with is not known.
    """
    sums = dict.fromkeys(ScalesWith, 0.0)
    for row in (row for rows in scheme.calls_of_rank.values() for row in rows):
        grows_with = scales_with(row.scales_with, row.what)
        if grows_with is None:
            return None
        for link, size in row.links.items():
            if link in BETWEEN_HOSTS:
                sums[grows_with] += size * row.count / row.every
    total = math.fsum(sums.values())
    return sums[ScalesWith.WEIGHTS] / total if total else None


def _missing(
    analysis: RunAnalysis, no_composition: Missing | None, entry: RunEntry, curve: LossCurve | None
) -> tuple[Missing, ...]:
    missing = list(analysis.missing)
    if no_composition:
        missing.append(no_composition)
    if analysis.throughput_samples_per_s is None:
        cause = Cause.NO_STEP_RECORDED if analysis.step_ns is None else Cause.BATCH_NOT_KNOWN
        missing.append(missing_figure(Figure.SAMPLES_PER_S, cause))
    if curve is None:
        cause = Cause.NO_LOSS if entry.bench_records else Cause.NOT_READ
        cause = Cause.NOT_A_BENCH_RUN if analysis.bench is None else cause
        missing.append(missing_figure(Figure.LOSS_CURVE, cause))
    if not entry.bench_records and analysis.bench is None:
        missing.append(missing_figure(Figure.MEMORY_AND_LINKS, Cause.NOT_A_BENCH_RUN))
    return tuple(dict.fromkeys(missing))
