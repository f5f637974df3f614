"""What a bench run learned: the held-out set over its steps, what a target took, the gradient's noise.

Time of a point: from the first step's start to the step's end, without pauses, of the slowest rank. Samples:
steps times the batch B. Bytes: steps times the recorded bytes of a step, over all links and senders. Cost:
time times the price of an hour. Energy: of all hosts over the steps (machine.energy), of runs that the
target ended.

Noise scale (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1), with b < B samples and the squared norms
of their gradients: |G|^2 = (B |G_B|^2 - b |G_b|^2) / (B - b), tr(S) = (|G_b|^2 - |G_B|^2) / (1/b - 1/B),
both without bias; each is averaged over the run's measurements before B_noise = tr(S) / |G|^2.
Efficiency of an update of B samples: B_noise / (B_noise + B), the progress per sample relative to that of
very small batches at their best learning rate (Pollux, OSDI 2021, has the ratio of two of these). Goodput:
samples/s times efficiency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis.bench_bytes import LinkBytes
from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.messages import learning as why
from perfscope.rundir.scheme_records import BenchRecord, Evaluation, NoiseNorms, SchemeRecord

_POWERS = range(-3, 4)  # batches that efficiency is stated for, as powers of two times B
_HOUR_NS = 3600e9


class LearningPoint(Struct, frozen=True, kw_only=True):
    """One evaluation on the held-out set."""

    step: int  # steps until then
    samples: int  # samples until then, of all ranks
    train_ns: int | None  # training time until then, without evaluations
    bytes: float | None  # bytes sent until then, by all ranks over all links
    loss: float | None  # mean cross entropy of the held-out targets
    accuracy: float | None  # share of held-out targets predicted
    top5: float | None  # share among the five most probable classes
    auc: float | None = None  # area under the ROC curve, of two classes


class ToTarget(Struct, frozen=True, kw_only=True):
    """What it took to reach the target; None: not known, see `missing` of the LearningResult."""

    step: int  # steps
    samples: int  # samples of all ranks
    train_ns: int | None  # training time, without evaluations
    bytes: float | None  # bytes sent by all ranks
    joules: float | None = None  # of all hosts, evaluations included
    cost: float | None = None  # training time x price per hour


class NoiseScale(Struct, frozen=True, kw_only=True):
    """The gradient noise scale, and what follows for batches."""

    samples: float  # B_noise
    num_measurements: int  # over the run
    efficiency: float  # of the run's updates
    goodput: float | None  # samples/s x efficiency
    by_batch: tuple[tuple[int, float], ...]  # batch, efficiency


class LearningResult(Struct, frozen=True, kw_only=True):
    """What was measured between the steps of a bench run."""

    points: tuple[LearningPoint, ...] = ()  # evaluations in order
    num_held_out: int = 0  # samples of the held-out set
    best_accuracy: float | None = None  # that the synthetic data allows
    best_loss: float | None = None  # that the synthetic data allows
    best_auc: float | None = None  # that the synthetic data allows, of two classes
    target: str = ""  # METRIC=VALUE; "" = none
    to_target: ToTarget | None = None  # None: not reached
    noise: NoiseScale | None = None  # None: not known
    missing: Mapping[str, str] = {}  # to_target, joules, bytes, cost, noise, best -> why it is None


def learning_result(
    scheme: SchemeRecord,
    records: Mapping[int, BenchRecord],
    links: Sequence[LinkBytes] | None,
    samples_per_s: float | None,
) -> LearningResult | None:
    """What rank 0 measured; None where it measured nothing.

    Args:
        scheme: run.json's `scheme`.
        records: bench.json by rank.
        links: recorded bytes of a step; None: not known.
        samples_per_s: of the run.
    """
    first = records.get(0, BenchRecord())
    if not first.evaluations and not first.noise:
        return None
    per_step = None if links is None else math.fsum(link.recorded or 0.0 for link in links)
    points = tuple(_point(scheme, records, per_step, row) for row in first.evaluations)
    missing = {}
    if first.evaluations and first.best is None:
        missing["best"] = why.NO_BEST
    reached = next((point for point in points if point.step == first.target_step), None)
    to_target = None
    if scheme.target and reached is None:
        missing["to_target"] = why.target_not_reached(scheme.target, points[-1].step if points else 0)
    if reached is not None:
        to_target = _to_target(scheme, reached, missing)
    noise = _noise(first.noise, scheme.effective_batch, samples_per_s)
    if first.noise and noise is None:
        missing["noise"] = why.NO_SIGNAL
    return LearningResult(
        points=points,
        num_held_out=max((row.num_samples for row in first.evaluations), default=0),
        best_accuracy=None if first.best is None else first.best.accuracy,
        best_loss=None if first.best is None else first.best.loss,
        best_auc=None if first.best is None else first.best.auc,
        target=scheme.target or "",
        to_target=to_target,
        noise=noise,
        missing=missing,
    )


def with_energy(learning: LearningResult | None, machine: MachineAnalysis | None) -> LearningResult | None:
    """The same with the joules to the target, where all hosts' energy was read."""
    if learning is None or learning.to_target is None:
        return learning
    if machine is None or machine.joules_per_sample is None:
        return replace(learning, missing={**learning.missing, "joules": why.NO_ENERGY})
    joules = math.fsum(energy.joules for energy in machine.energy)
    return replace(learning, to_target=replace(learning.to_target, joules=joules))


def efficiency_of(batch: float, noise_scale: float) -> float:
    """Progress per sample of updates of `batch` samples, relative to very small ones: in (0, 1)."""
    return noise_scale / (noise_scale + batch)


def noise_scale(rows: Sequence[NoiseNorms]) -> float | None:
    """B_noise in samples; None where the measurements hold no signal (|G|^2 or tr(S) is not above 0)."""
    signal = math.fsum(
        (row.big_batch * row.big_sq - row.small_batch * row.small_sq) / (row.big_batch - row.small_batch)
        for row in rows
    )
    noise = math.fsum((row.small_sq - row.big_sq) / (1 / row.small_batch - 1 / row.big_batch) for row in rows)
    return noise / signal if signal > 0 and noise > 0 else None


def _noise(rows: Sequence[NoiseNorms], batch: int, samples_per_s: float | None) -> NoiseScale | None:
    usable = [row for row in rows if row.big_batch > row.small_batch]
    scale = noise_scale(usable) if usable else None
    if scale is None or not batch:
        return None
    efficiency = efficiency_of(batch, scale)
    batches = dict.fromkeys(max(1, round(batch * 2.0**power)) for power in _POWERS)
    return NoiseScale(
        samples=scale,
        num_measurements=len(usable),
        efficiency=efficiency,
        goodput=None if samples_per_s is None else samples_per_s * efficiency,
        by_batch=tuple((size, efficiency_of(size, scale)) for size in batches),
    )


def _point(
    scheme: SchemeRecord, records: Mapping[int, BenchRecord], per_step: float | None, row: Evaluation
) -> LearningPoint:
    times = [record.trained_ns for record in records.values()]
    elapsed_ns = [of_rank[row.step] for of_rank in times if row.step < len(of_rank)]
    return LearningPoint(
        step=row.step,
        samples=row.step * scheme.batch,
        train_ns=max(elapsed_ns, default=None),
        bytes=None if per_step is None else per_step * row.step,
        loss=row.loss,
        accuracy=row.top1,
        top5=row.top5,
        auc=row.auc,
    )


def _to_target(scheme: SchemeRecord, reached: LearningPoint, missing: dict[str, str]) -> ToTarget:
    cost = None
    if reached.bytes is None:
        missing["bytes"] = why.BYTES_NOT_RECORDED
    if scheme.price_per_hour is None:
        missing["cost"] = why.NO_PRICE
    elif reached.train_ns is not None:
        cost = scheme.price_per_hour * reached.train_ns / _HOUR_NS
    return ToTarget(
        step=reached.step, samples=reached.samples, train_ns=reached.train_ns, bytes=reached.bytes, cost=cost
    )
