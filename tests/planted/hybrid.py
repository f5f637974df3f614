"""A hybrid of tensor and data parallelism on the small machine, each axis with a link of its own.

Ranks that are neighbors are a tensor-parallel group; ranks at the same place of these groups are a
data-parallel one. Every layer ends with an all-reduce of activations that its group waits for, and gradients
are all-reduced in buckets beside the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.planted.emulate import (
    _MAX_CALLS,
    BACKEND,
    CALL_S,
    COMM_STREAM,
    ELEMENT_BYTES,
    LAUNCH_LATENCY_S,
    Float,
    Job,
    Layer,
    Played,
    Player,
    Window,
)

TP, DP = "tp", "dp"
AXES = (TP, DP)
DEFAULT_BUCKET = 25 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HybridJob(Job):
    """Attributes:
    tp: ranks of a tensor-parallel group.
    latency: axis -> alpha of one message, s.
    per_byte: axis -> beta, s per byte.
    heavy: layer index -> times the activations of the others.
    named: whether the groups' descriptions name the axes.
    reduces_input: the first layer's input has a gradient, which is reduced like those of other layers.
    """

    tp: int
    latency: dict[str, float]
    per_byte: dict[str, float]
    heavy: dict[int, float] = field(default_factory=dict)
    named: bool = True
    reduces_input: bool = True

    def members(self, axis: str) -> list[list[int]]:
        """Ranks of each group of an axis."""
        grid = np.arange(self.num_ranks).reshape(-1, self.tp)
        return (grid if axis == TP else grid.T).tolist()

    def groups(self) -> list[dict[str, Any]]:
        return [
            {"name": f"{axis}{number}", "desc": f"mesh_{axis}" if self.named else "undefined", "ranks": ranks}
            for axis in AXES
            for number, ranks in enumerate(self.members(axis))
        ]


def run(job: HybridJob, num_steps: int | None = None, *, tape: bool = True) -> list[Played]:
    """Plays the job; one entry per rank."""
    player = HybridPlayer(job, num_steps or job.num_steps, tape)
    for step in range(player.num_steps):
        player.step(step)
    return player.played


def true_step_s(job: HybridJob) -> float:
    """Median step of those that perfscope would count."""
    steps = np.array([np.diff(one.starts) for one in run(job, tape=False)])
    counted = [step for step in range(3, job.num_steps) if job.window_of(step) < 0]
    return float(np.median(steps[:, counted]))


class HybridPlayer(Player):
    job: HybridJob

    def __init__(self, job: HybridJob, num_steps: int, tape: bool) -> None:
        super().__init__(job, num_steps, tape)
        self.job = job
        self.free = {axis: [0.0] * job.num_ranks for axis in AXES}  # when the axis' lane of a rank is free
        self.buckets = _buckets(job)

    def _play(self) -> None:
        job, ranks, last = self.job, range(self.job.num_ranks), len(self.job.layers) - 1
        for layer in range(last + 1):
            for rank in ranks:
                self._compute(rank, layer, backward=False)
            self._exchange_of(layer, backward=False)
        done, number = [0.0] * job.num_ranks, 0
        for layer in range(last, -1, -1):
            for rank in ranks:
                self._compute(rank, layer, backward=True)
            while number < len(self.buckets) and self.buckets[number][1] == layer:
                leave = self._all_reduce(DP, self.buckets[number][0], {"phase": "backward"})
                done = [max(pair) for pair in zip(done, leave, strict=True)]
                number += 1
            if layer or job.reduces_input:
                self._exchange_of(layer, backward=True)
        for rank in ranks:
            self.at[rank] = max(self.at[rank], done[rank])
            if not job.on_gpu:
                self.host[rank] = self.at[rank]

    def _exchange_of(self, layer: int, *, backward: bool) -> None:
        job = self.job
        size = 4 * round(job.activation_bytes * job.heavy.get(layer, 1.0) / 4)
        known = {"layer": job.layers[layer].name, "phase": "backward" if backward else "forward"}
        for rank, time in enumerate(self._all_reduce(TP, size, known)):
            self.at[rank] = time
            if not job.on_gpu:
                self.host[rank] = time

    def _all_reduce(self, axis: str, size: int, known: dict[str, Any]) -> list[float]:
        """All groups of the axis from now; when their ranks are through."""
        job, leave = self.job, [0.0] * self.job.num_ranks
        launched = list(self.host)
        ready = [self._call(rank) for rank in range(job.num_ranks)]
        for number, members in enumerate(job.members(axis)):
            enter = {rank: max(ready[rank], self.free[axis][rank]) for rank in members}
            luck = (self.now, self.calls % _MAX_CALLS)
            cost = job.latency[axis] * float(self.noise.latency[luck])
            cost += size * job.per_byte[axis] * float(self.noise.calls[luck])
            done = max(enter.values()) + 2 * (len(members) - 1) / len(members) * cost
            facts = {"collective": "all_reduce", "group": f"{axis}{number}", "group_size": len(members)}
            facts |= {"dtype": "float", "in_bytes": size, "out_bytes": size, **known}
            for rank in members:
                leave[rank] = done + float(self.noise.leave[(*luck, rank)])
                self.free[axis][rank] = leave[rank]
                length, lane = leave[rank] - enter[rank], AXES.index(axis)
                if job.on_gpu:
                    name, at = "ncclDevKernel_AllReduce_RING_LL", launched[rank]
                    self._device(
                        rank, enter[rank], length, "comm", COMM_STREAM + lane, at, name=name, **facts
                    )
                else:
                    name = "gloo:all_reduce"
                    more = {"lane": BACKEND + lane, "name": name, "launch": launched[rank], **facts}
                    self._row(rank, enter[rank], length, "comm", **more)
        self.calls += 1
        return leave

    def _call(self, rank: int) -> float:
        begin = self.host[rank]
        self.host[rank] += CALL_S
        self._row(rank, begin, CALL_S, "host", phase="backward", name="c10d::allreduce_", depth=1)
        if self.job.on_gpu:
            return max(self.at[rank], self.host[rank] + LAUNCH_LATENCY_S)
        self.at[rank] = self.host[rank]
        return self.host[rank] + 2e-6


def _buckets(job: HybridJob) -> list[tuple[int, int]]:
    """(bytes, layer whose backward fills it) of a rank's parts, which are equal on all ranks."""
    buckets, size = [], 0
    for layer in range(len(job.layers) - 1, -1, -1):
        for shape in job.shapes_on(0, layer)[::-1]:
            size += int(np.prod(shape)) * ELEMENT_BYTES
            if size >= job.bucket_bytes:
                buckets.append((size, layer))
                size = 0
    return [*buckets, (size, 0)] if size else buckets


LEAST_GAIN = 0.15  # of the step, as in tests/planted/cases.py

# -- drawing -------------------------------------------------------------------------------------------------

CAUSES = ("slow_tp_link", "slow_dp_link", "uneven_comm", "small_buckets")


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridCase:
    """`without`: the same job, with the same luck, without the cause."""

    cause: str | None
    job: HybridJob
    without: HybridJob
    layer: str | None = None


def draw(seed: int, cause: str | None) -> HybridCase:
    """One case; the cause costs between 22 and 45 percent of the step (of a layer: what its bytes cost)."""
    rng = np.random.default_rng([seed, CAUSES.index(cause) if cause else len(CAUSES)])
    job = _job(rng, seed, cause)
    if cause is None:
        return HybridCase(cause=None, job=job, without=job)
    if cause == "uneven_comm":
        return _uneven(rng, seed, job)
    goal = _quick(job) / (1 - rng.uniform(0.22, 0.45))

    def planted(strength: float) -> HybridJob:
        if cause == "small_buckets":
            latency = {**job.latency, DP: job.latency[DP] * strength}
            return replace(job, bucket_bytes=1, latency=latency)
        axis = TP if cause == "slow_tp_link" else DP
        return replace(job, per_byte={**job.per_byte, axis: job.per_byte[axis] * (1 + strength)})

    low, high = 0.1, 2000.0
    for _ in range(14):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if _quick(planted(middle)) < goal else (low, middle)
    slow = planted(float(np.sqrt(low * high)))
    without = replace(slow, bucket_bytes=DEFAULT_BUCKET) if cause == "small_buckets" else job
    return HybridCase(cause=cause, job=slow, without=without)


def _uneven(rng: np.random.Generator, seed: int, job: HybridJob) -> HybridCase:
    """A layer with two to four times the activations of the others."""
    while True:
        layer = int(rng.integers(0 if job.reduces_input else 1, len(job.layers)))
        heavy = replace(job, heavy={layer: float(rng.uniform(2.0, 4.0))})
        if 1 - _quick(job) / _quick(heavy) >= LEAST_GAIN:
            return HybridCase(cause="uneven_comm", job=heavy, without=job, layer=job.layers[layer].name)
        job = _job(rng, seed, "uneven_comm")


def _quick(job: HybridJob) -> float:
    return float(np.mean([np.diff(one.starts).mean() for one in run(job, 4, tape=False)]))


def _job(rng: np.random.Generator, seed: int, cause: str | None) -> HybridJob:
    tp, dp = int(rng.choice((2, 4))), 2
    num_layers, compute_s = int(rng.integers(6, 11)), float(rng.uniform(0.02, 0.06))
    num_layers = 5 if cause == "uneven_comm" else num_layers
    width = int(rng.integers(40, 100) if cause == "small_buckets" else rng.integers(128, 512))
    shapes = ((8 * width, width), (8 * width,))
    layers = tuple(
        Layer(
            name=f"layers.{number}.mlp",
            type="Linear",
            shapes=shapes,
            forward_s=compute_s * tp / num_layers / 3,
            flops=round(2e10 * compute_s / num_layers),
        )
        for number in range(num_layers)
    )
    ranks = tp * dp
    activation = 4 * int(rng.integers(1 << 16, 1 << 19))
    on_gpu = bool(rng.random() < 0.4)
    weights = sum(int(np.prod(shape)) for shape in shapes) * ELEMENT_BYTES * num_layers / tp
    part = float(rng.uniform(0.8, 1.2) if cause == "uneven_comm" else rng.uniform(0.03, 0.06)) * compute_s
    per_byte = part / (2 * num_layers * 2 * (tp - 1) / tp * activation + weights)
    latency = float(rng.uniform(5e-6, 15e-6))
    steady = Window(first=12, count=4, tracing=float(rng.uniform(1.0, 1.1)))
    return HybridJob(
        seed=seed,
        shape="hybrid",
        on_gpu=on_gpu,
        num_ranks=ranks,
        ranks_per_host=ranks,
        layers=layers,
        share=_even(ranks, num_layers, tp),
        slowdown=np.ones((ranks, num_layers)),
        extra_work=False,
        bucket_bytes=round(weights / rng.uniform(2, 4)),
        latency_s=latency,
        s_per_byte=per_byte,
        threads=1,
        loader_s=rng.uniform(1e-4, 3e-4, ranks),
        prefetch=2,
        optimizer_s=compute_s * 0.03,
        activation_bytes=activation,
        num_micro=1,
        num_steps=30,
        windows=(steady,),
        watched=False,
        tp=tp,
        latency={TP: latency, DP: latency},
        per_byte={TP: per_byte, DP: per_byte},
        named=bool(rng.random() < 0.6),
        reduces_input=bool(rng.random() < 0.5),
    )


def _even(ranks: int, layers: int, tp: int) -> Float:
    return np.full((ranks, layers), 1 / tp)
