"""How many samples, workers and servers published lemmas call for, with one run's measured figures.

The lemmas are those of Zou et al. 2017 (arXiv 1709.06622): workers divide the compute of a step, and none of
its overhead; servers hide their traffic behind the compute of a round. What memory holds is of no lemma: the
peak of a device is taken as what the model and its optimizer keep, and a part that grows with the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor

from msgspec import Struct

from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.results import RankResult, RunAnalysis
from perfscope.vocabulary.lemmas import Gap, Quantity
from perfscope.vocabulary.memory import FULL, LimitOf

_ELEMENT_BYTES = {"float32": 4, "float64": 8}  # of weights; with other types weights may stay in float32


class DeviceMemory(Struct, frozen=True, kw_only=True):
    """Of the rank whose device is the fullest: bytes, and its samples of a step.

    `peak_bytes`: most that tensors took. `kept_bytes`: parameters, gradients, optimizer state and buffers.
    `limit_bytes`: of the device.
    """

    peak_bytes: int
    kept_bytes: int
    limit_bytes: int
    samples: float


class AdviceFigures(Struct, frozen=True, kw_only=True):
    """Measured figures of one run; None: not measured.

    `compute_ns`, `overhead_ns`: of the mean traced step of a rank, which they add up to. `weight_bytes`: of
    one copy of the model. `bandwidth_bytes_per_s`: bytes of sized calls over their transfer time.
    `num_workers`: without servers.
    """

    num_workers: int
    batch: float | None
    compute_ns: float | None
    overhead_ns: float | None
    weight_bytes: float | None
    bandwidth_bytes_per_s: float | None
    parallel_efficiency: float | None
    data_parallel: bool = True
    num_servers: int = 0
    samples_per_s: float | None = None
    on_device: bool = False
    memory: DeviceMemory | None = None


class AdviceItem(Struct, frozen=True, kw_only=True):
    """One quantity: `value`, or `gap` that says why there is none.

    `measured`: what the run itself had of it; None: nothing, as of servers of a run without any.
    `used`: the figures of the formula by name.
    """

    quantity: Quantity
    value: int | None
    measured: float | None
    used: dict[str, float] = {}
    gap: Gap | None = None


class RunBeside(Struct, frozen=True, kw_only=True):
    """One of several runs, beside the lemma.

    `efficiency`: samples/s per worker over those of the run with the fewest workers; `by_lemma`: the same
    ratio from the overhead of the run that is advised, at equal batches. None: a figure is missing.
    """

    name: str
    num_workers: int
    num_servers: int
    batch: float | None
    samples_per_s: float | None
    efficiency: float | None
    by_lemma: float | None


class Advice(Struct, frozen=True, kw_only=True):
    """`efficiency`: the lemma's, of the run's own number of workers; None: a figure is missing."""

    target: float
    figures: AdviceFigures
    overhead_ratio: float | None
    efficiency: float | None
    items: tuple[AdviceItem, ...]


def runs_beside(
    runs: Sequence[tuple[str, AdviceFigures]], overhead_ratio: float | None
) -> tuple[RunBeside, ...]:
    """What several runs (name, figures) measured, by number of workers."""
    ordered = sorted(runs, key=lambda run: run[1].num_workers)
    first = ordered[0][1]
    beside = []
    for name, figures in ordered:
        speed, base, ratio = figures.samples_per_s, first.samples_per_s, overhead_ratio
        each = None if speed is None else speed / figures.num_workers
        reference = None if base is None else base / first.num_workers
        lemma = None
        if ratio is not None:
            lemma = (1 + first.num_workers * ratio) / (1 + figures.num_workers * ratio)
        beside.append(
            RunBeside(
                name=name,
                num_workers=figures.num_workers,
                num_servers=figures.num_servers,
                batch=figures.batch,
                samples_per_s=speed,
                efficiency=each / reference if each is not None and reference else None,
                by_lemma=lemma if figures.batch == first.batch else None,
            )
        )
    return tuple(beside)


def advice_figures(analysis: RunAnalysis) -> AdviceFigures:
    """What the lemmas need of a run."""
    scheme = analysis.run.scheme
    groups = () if scheme is None else scheme.groups
    servers = {group.ranks[0] for group in groups if group.axis == "server" and group.ranks}
    workers = [rank for rank in analysis.ranks if rank.rank not in servers]
    traced = [rank.breakdown_ns for rank in workers if rank.breakdown_ns is not None]
    traced = traced if analysis.breakdown_of == "step" else []
    compute = sum(part.compute for part in traced) / len(traced) if traced else None
    step = sum(part.step for part in traced) / len(traced) if traced else None
    sized = [call for call in analysis.calls if call.bytes and call.transfer_ns > 0]
    transfer = sum(call.transfer_ns for call in sized)
    return AdviceFigures(
        num_workers=max(1, len(workers)),
        num_servers=len(servers),
        samples_per_s=analysis.throughput_samples_per_s,
        batch=float(analysis.bench.batch) if analysis.bench else analysis.samples_per_step,
        compute_ns=compute,
        overhead_ns=None if step is None or compute is None else step - compute,
        weight_bytes=_weight_bytes(analysis, workers),
        bandwidth_bytes_per_s=sum(call.bytes or 0 for call in sized) / transfer * 1e9 if transfer else None,
        parallel_efficiency=analysis.efficiency.parallel_efficiency if analysis.efficiency else None,
        data_parallel=scheme is None or (scheme.axes or {}).get("parallelism") in ("data", "none"),
        on_device=any(rank.device_ns is not None or rank.peak_device_bytes for rank in workers),
        memory=_fullest(workers, analysis.machine),
    )


def _weight_bytes(analysis: RunAnalysis, workers: Sequence[RankResult]) -> float | None:
    """Of one copy of the model; of a script on several ranks it is not known how they share the model."""
    scheme = analysis.run.scheme
    if scheme is not None:
        size = _ELEMENT_BYTES.get(scheme.dtype or "")
        return float(scheme.num_params * size) if scheme.num_params and size else None
    held = workers[0].parameter_bytes if len(workers) == 1 else None
    return float(held) if held else None


def _fullest(workers: Sequence[RankResult], machine: MachineAnalysis | None) -> DeviceMemory | None:
    """Of the ranks whose tensors, samples and device are known; None: none is."""
    limits: dict[str, int] = {}
    for limit in () if machine is None else machine.memory_limits:
        if limit.of is LimitOf.DEVICE:
            limits[limit.host] = min(limits.get(limit.host, limit.limit_bytes), limit.limit_bytes)
    known = []
    for rank in workers:
        kept = (rank.parameter_bytes, rank.gradient_bytes, rank.optimizer_bytes, rank.buffer_bytes)
        total = sum(part or 0 for part in kept)
        peak, limit_bytes = rank.peak_device_bytes, limits.get(rank.host)
        if None in kept or not peak or not limit_bytes or not rank.samples_per_step or peak <= total:
            continue
        known.append(
            DeviceMemory(
                peak_bytes=peak, kept_bytes=total, limit_bytes=limit_bytes, samples=rank.samples_per_step
            )
        )
    return min(known, key=_fitting, default=None)


def _fitting(memory: DeviceMemory) -> float:
    """Samples of a rank's step that its device holds."""
    each = (memory.peak_bytes - memory.kept_bytes) / memory.samples
    return (FULL * memory.limit_bytes - memory.kept_bytes) / each


def advise(figures: AdviceFigures, target: float) -> Advice:
    """The quantities for a parallel efficiency of at least `target`, in (0, 1)."""
    num, ratio = figures.num_workers, None
    if figures.compute_ns and figures.overhead_ns is not None:
        ratio = max(0.0, figures.overhead_ns) / (num * figures.compute_ns)
    return Advice(
        target=target,
        figures=figures,
        overhead_ratio=ratio,
        efficiency=None if ratio is None else (1 + ratio) / (1 + num * ratio),
        items=(
            _workers(figures, ratio, target),
            _minibatch(figures, ratio, target),
            _servers(figures),
            _fitting_batch(figures),
        ),
    )


def _gap(figures: AdviceFigures) -> Gap | None:
    if not figures.data_parallel:
        return Gap.NOT_DATA_PARALLEL
    if figures.compute_ns is None:
        return Gap.NOT_TRACED
    return None if figures.compute_ns > 0 else Gap.NO_COMPUTE


def _workers(figures: AdviceFigures, ratio: float | None, target: float) -> AdviceItem:
    gap = _gap(figures) or (None if ratio else Gap.NO_OVERHEAD)
    value = None
    if gap is None and ratio:
        value = max(1, floor((1 + ratio - target) / (target * ratio) + 1e-9))
    used = {} if ratio is None else {"overhead_ratio": ratio}
    measured = float(figures.num_workers)
    return AdviceItem(quantity=Quantity.WORKERS, value=value, measured=measured, used=used, gap=gap)


def _minibatch(figures: AdviceFigures, ratio: float | None, target: float) -> AdviceItem:
    gap, batch, num = _gap(figures), figures.batch, figures.num_workers
    if gap is None and not batch:
        gap = Gap.BATCH_NOT_KNOWN
    if gap is None and not ratio:
        gap = Gap.NO_OVERHEAD
    if gap is None and target * num <= 1:
        gap = Gap.ONE_WORKER
    value, used = None, {}
    if gap is None and batch and ratio and figures.compute_ns and figures.overhead_ns:
        allowed = (1 - target) / (target * num - 1)
        per_sample = num * figures.compute_ns / batch
        value = ceil(figures.overhead_ns / (allowed * per_sample) - 1e-9)
        used = {
            "compute_ns_per_sample": per_sample,
            "overhead_ns": figures.overhead_ns,
            "allowed_overhead_ratio": allowed,
        }
    return AdviceItem(quantity=Quantity.MINIBATCH, value=value, measured=batch, used=used, gap=gap)


def _servers(figures: AdviceFigures) -> AdviceItem:
    gap = _gap(figures)
    if gap is None and figures.weight_bytes is None:
        gap = Gap.WEIGHTS_NOT_KNOWN
    if gap is None and not figures.bandwidth_bytes_per_s:
        gap = Gap.NO_BANDWIDTH
    value, used = None, {}
    if gap is None and figures.weight_bytes and figures.bandwidth_bytes_per_s and figures.compute_ns:
        traffic = 2 * figures.weight_bytes * figures.num_workers
        value = ceil(traffic / (figures.bandwidth_bytes_per_s * figures.compute_ns / 1e9) - 1e-9)
        used = {
            "weight_bytes": figures.weight_bytes,
            "bandwidth_bytes_per_s": figures.bandwidth_bytes_per_s,
            "compute_ns": figures.compute_ns,
        }
    measured = float(figures.num_servers) if figures.num_servers else None
    return AdviceItem(quantity=Quantity.SERVERS, value=value, measured=measured, used=used, gap=gap)


def _fitting_batch(figures: AdviceFigures) -> AdviceItem:
    """Of all workers: every one has as many samples as the fullest device holds."""
    memory = figures.memory
    gap = Gap.NOT_DATA_PARALLEL if not figures.data_parallel else None
    if gap is None and memory is None:
        gap = Gap.MEMORY_NOT_KNOWN if figures.on_device else Gap.NO_DEVICE
    value, used = None, {}
    if gap is None and memory is not None:
        value = figures.num_workers * max(0, floor(_fitting(memory) + 1e-9))
        used = {
            "peak_bytes": float(memory.peak_bytes),
            "kept_bytes": float(memory.kept_bytes),
            "limit_bytes": float(memory.limit_bytes),
            "samples": memory.samples,
        }
    return AdviceItem(
        quantity=Quantity.FITTING_BATCH, value=value, measured=figures.batch, used=used, gap=gap
    )
