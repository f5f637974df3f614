"""A small machine that trains: ranks, layers, links and loaders by arithmetic, with a cause of slowness.

It knows nothing of perfscope's analysis. A `Job` says how long everything takes; `run` plays it step by step
and gives when each rank did what. The same job without its cause, played with the same random draw, is the
exact truth of what removing the cause brings. Times are seconds from the first step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

MAIN, BACKEND, STREAM, COMM_STREAM = 100, 200, 7, 20  # BACKEND + k: the k-th communication thread
ELEMENT_BYTES = 4
BACKWARD_COST = 2.0  # of the forward pass, of each layer
LAUNCH_S, LAUNCH_LATENCY_S, CALL_S = 6e-6, 4e-6, 20e-6
_QUEUED = 0.9  # of what a neighbor costs is waiting for the CPU, the rest cold caches
_MAX_CALLS = 64  # different noise for so many calls of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """`forward_s`: of the whole layer on one undisturbed rank; `shapes`: of its parameters."""

    name: str
    type: str
    shapes: tuple[tuple[int, ...], ...]
    forward_s: float
    flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbor:
    """Somebody else: takes `cpus` of `host` from step `first` to `last`, which slows `ranks` by `factor`."""

    host: int
    first: int
    last: int
    cpus: float
    ranks: tuple[int, ...]
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Traced steps. `tracing`: how many times longer computing takes in them, because they are traced."""

    first: int
    count: int
    tracing: float

    def has(self, step: int) -> bool:
        return self.first <= step < self.first + self.count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """All that a run's times follow from.

    Attributes:
        seed: of the noise.
        shape: "data" (every rank has all layers, gradients are all-reduced in buckets), "tensor" (ranks hold
            parts of every layer and exchange activations) or "pipeline" (ranks hold different layers).
        on_gpu: kernels on a stream launched by the host, else operators on the main thread.
        share: shape (ranks, layers), part of the layer that the rank holds.
        slowdown: shape (ranks, layers), how many times longer the rank needs.
        extra_work: whether a slowdown is more work (in FLOPs) rather than slower work.
        bucket_bytes: a gradient bucket is closed once it has so many.
        latency_s, s_per_byte: alpha and beta of one message.
        threads: communication threads of a rank (CPU).
        loader_s: shape (ranks,), what the loader takes for a batch.
        prefetch: batches that the loader makes ahead, while the rank trains; 0 = it begins when asked.
        windows: the traced ones.
        names_peers: whether traces say whom a message goes to (gloo's spans do not).
        remote: rank -> share of its memory that lies on the other NUMA node.
    """

    seed: int
    shape: str
    on_gpu: bool
    num_ranks: int
    ranks_per_host: int
    layers: tuple[Layer, ...]
    share: Float
    slowdown: Float
    extra_work: bool
    bucket_bytes: int
    latency_s: float
    s_per_byte: float
    threads: int
    loader_s: Float
    prefetch: int
    optimizer_s: float
    activation_bytes: int
    num_micro: int
    num_steps: int
    windows: tuple[Window, ...]
    names_peers: bool = True
    neighbour: Neighbor | None = None
    remote: dict[int, float] = field(default_factory=dict)
    watched: bool = True  # a sampler ran on each host

    def groups(self) -> list[dict[str, Any]]:
        """Process groups, as a rank's record lists them."""
        return [{"name": "0", "desc": "default_pg", "ranks": list(range(self.num_ranks))}]

    def window_of(self, step: int) -> int:
        """Number of the window that traces a step; -1 = none."""
        return next((number for number, one in enumerate(self.windows) if one.has(step)), -1)

    def host_of(self, rank: int) -> int:
        return rank // self.ranks_per_host

    def shapes_on(self, rank: int, layer: int) -> tuple[tuple[int, ...], ...]:
        """Parameter shapes of the rank's part of a layer."""
        part = self.share[rank, layer]
        return tuple((max(1, round(shape[0] * part)), *shape[1:]) for shape in self.layers[layer].shapes)


@dataclass(slots=True)
class Played:
    """What one rank did. `rows`: the timeline's columns by name, traced steps only."""

    starts: list[float] = field(default_factory=list)  # of every step, and the end of the last one
    input_s: list[float] = field(default_factory=list)
    queued_s: list[float] = field(
        default_factory=list
    )  # ready to run, but another had the CPU; of every step
    rows: list[dict[str, Any]] = field(default_factory=list)


def run(job: Job, num_steps: int | None = None, *, tape: bool = True) -> list[Played]:
    """Plays the job; one entry per rank."""
    player = Player(job, num_steps or job.num_steps, tape)
    for step in range(player.num_steps):
        player.step(step)
    return player.played


def step_s(job: Job, num_steps: int | None = None) -> Float:
    """How long the steps took, shape (ranks, steps)."""
    return np.array([np.diff(one.starts) for one in run(job, num_steps, tape=False)])


class _Noise:
    """Drawn from the seed alone, so that a job with and without a cause meets the same luck."""

    def __init__(self, job: Job) -> None:
        rng = np.random.default_rng(job.seed)
        steps, ranks, layers = job.num_steps, job.num_ranks, len(job.layers)
        self.ops: Float = np.exp(rng.normal(0, 0.04, (steps, ranks, layers, 2)))
        self.ops *= np.exp(rng.normal(0, 0.01, (steps, ranks, 1, 1)))
        self.ops *= np.exp(rng.normal(0, 0.008, (1, ranks, 1, 1)))
        self.calls: Float = np.exp(rng.normal(0, 0.08, (steps, _MAX_CALLS)))
        # How soon a thread of gloo gets to its turn varies far more than a NIC does.
        jitter = 0.08 if job.on_gpu else 0.5
        self.latency: Float = np.exp(rng.normal(-(jitter**2) / 2, jitter, (steps, _MAX_CALLS)))
        self.leave: Float = rng.exponential(3e-6, (steps, _MAX_CALLS, ranks))
        self.loader: Float = np.exp(rng.normal(0, 0.12, (steps, ranks)))
        self.optimizer: Float = np.exp(rng.normal(0, 0.05, (steps, ranks)))
        self.scheduler: Float = np.exp(rng.normal(0, 0.2, (steps, ranks, layers, 2)))


class Player:
    def __init__(self, job: Job, num_steps: int, tape: bool) -> None:
        self.job, self.num_steps, self.tape = job, num_steps, tape
        self.noise = _Noise(job)
        self.played = [Played() for _ in range(job.num_ranks)]
        self.host = [0.0] * job.num_ranks  # the main thread
        self.at = [0.0] * job.num_ranks  # what computes: the main thread, or the stream
        self.comm = [[0.0] * (1 if job.on_gpu else job.threads) for _ in range(job.num_ranks)]
        self.buckets = _buckets(job) if job.shape == "data" else []
        self.made = [[0.0] for _ in range(job.num_ranks)]  # when each batch was ready
        self.taken = [[0.0] for _ in range(job.num_ranks)]  # and when it was asked for
        self.queued = [0.0] * job.num_ranks  # in this step
        self.called: list[list[float]] = [[] for _ in range(job.num_ranks)]  # when the host did, of this step
        self.now = 0  # the step being played
        self.window = -1  # that traces it
        self.calls = 0  # of this step
        self.correlation = 0

    def step(self, step: int) -> None:
        job, self.now, self.calls = self.job, step, 0
        self.called = [[] for _ in range(job.num_ranks)]
        self.window = job.window_of(step)
        ranks = range(job.num_ranks)
        for rank in ranks:
            self.played[rank].starts.append(self.host[rank])
            self.at[rank] = self.host[rank]
        self._play()
        for rank in ranks:
            self._optimize(rank)
            self._load(rank)
            self.played[rank].queued_s.append(self.queued[rank])
            self.queued[rank] = 0.0
        if step == self.num_steps - 1:
            for rank in ranks:
                self.played[rank].starts.append(self.host[rank])

    def _play(self) -> None:
        {"data": self._data, "tensor": self._tensor, "pipeline": self._pipeline}[self.job.shape]()

    # -- computing -----------------------------------------------------------------------------------------

    def _cost(self, rank: int, layer: int, backward: bool, parts: int = 1) -> float:
        job, noise = self.job, self.noise
        cost = job.layers[layer].forward_s * job.share[rank, layer] * job.slowdown[rank, layer] / parts
        cost *= (BACKWARD_COST if backward else 1.0) * noise.ops[self.now, rank, layer, int(backward)]
        cost *= job.windows[self.window].tracing if self.window >= 0 else 1.0
        near = job.neighbour
        if near is not None and rank in near.ranks and near.first <= self.now < near.last:
            stolen = cost * (near.factor - 1) * noise.scheduler[self.now, rank, layer, int(backward)]
            self.queued[rank] += float(stolen) * _QUEUED
            cost += stolen
        return float(cost)

    def _compute(self, rank: int, layer: int, backward: bool, parts: int = 1) -> None:
        """One layer's pass on one rank, now."""
        job, cost, launch = self.job, self._cost(rank, layer, backward, parts), self.host[rank]
        if job.on_gpu:
            self.host[rank] += LAUNCH_S
            begin = max(self.at[rank], launch + LAUNCH_LATENCY_S)
            self.at[rank] = begin + cost
        else:
            begin = self.at[rank] + 3e-6
            self.at[rank] = self.host[rank] = begin + cost
        if self.tape and self.window >= 0:
            self._write_pass(rank, layer, backward, (begin, cost, launch), parts)

    def _write_pass(
        self, rank: int, layer: int, backward: bool, times: tuple[float, float, float], parts: int
    ) -> None:
        job, (begin, cost, launch) = self.job, times
        work = (BACKWARD_COST if backward else 1.0) * job.share[rank, layer] / parts
        work *= job.slowdown[rank, layer] if job.extra_work else 1.0
        flops, name = round(job.layers[layer].flops * work), job.layers[layer].name
        operator = f"aten::{job.layers[layer].type.lower()}{'_backward' if backward else ''}"
        known: dict[str, Any] = {"phase": "backward" if backward else "forward", "layer": name}
        sized = {"flops": flops, "bytes_read": flops // 8, "bytes_written": flops // 16, "name": operator}
        if not job.on_gpu:
            if not backward:
                self._row(rank, begin - 2e-6, cost + 2e-6, "annotation", name=name, depth=1, **known)
            self._row(rank, begin, cost, "compute", depth=2, **known, **sized)
            return
        self.correlation += 1
        if not backward:
            self._row(rank, launch - 1e-6, LAUNCH_S, "annotation", name=name, depth=1, **known)
        self._row(rank, launch, LAUNCH_S - 2e-6, "compute", depth=2, **known, **sized)
        self._device(rank, begin, cost, "compute", STREAM, launch, name=f"{operator}_kernel", **known)

    def _optimize(self, rank: int) -> None:
        job, cost = self.job, self.job.optimizer_s * float(self.noise.optimizer[self.now, rank])
        if job.on_gpu:
            launch = self.host[rank]
            begin = max(self.at[rank], launch + LAUNCH_LATENCY_S)
            self.at[rank] = begin + cost
            self._row(
                rank,
                launch,
                LAUNCH_S,
                "optimizer",
                phase="optimizer",
                name="Optimizer.step#SGD.step",
                depth=1,
            )
            self._device(rank, begin, cost, "compute", STREAM, launch, name="sgd_kernel", phase="optimizer")
            wait = self.host[rank] + LAUNCH_S
            self.host[rank] = max(wait, self.at[rank])
            self._row(rank, wait, self.host[rank] - wait, "host", name="cudaStreamSynchronize", depth=1)
            return
        begin = self.host[rank]
        self._row(rank, begin, cost, "optimizer", phase="optimizer", name="Optimizer.step#SGD.step", depth=1)
        self._row(
            rank, begin + cost / 20, cost * 0.9, "compute", phase="optimizer", name="aten::add_", depth=2
        )
        self.host[rank] = begin + cost

    def _load(self, rank: int) -> None:
        asked, ahead = self.host[rank], self.job.prefetch
        made, taken = self.made[rank], self.taken[rank]
        begin = max(made[-1], taken[-ahead] if len(taken) >= ahead else 0.0) if ahead else asked
        made.append(begin + float(self.job.loader_s[rank] * self.noise.loader[self.now, rank]))
        cost = max(made[-1] - asked, 2e-5)
        taken.append(asked + cost)
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        self._row(rank, self.host[rank] + 1e-6, cost, "input", name=name, depth=1)
        self.host[rank] += cost + 4e-6
        self.played[rank].input_s.append(cost)

    # -- communicating -------------------------------------------------------------------------------------

    def _ring(self, size: float, collective: str) -> float:
        """Ring cost without waiting: an all-reduce is twice a gather."""
        n = self.job.num_ranks
        turns, luck = (2 if collective == "all_reduce" else 1) * (n - 1), (self.now, self.calls % _MAX_CALLS)
        latency_s = self.job.latency_s * float(self.noise.latency[luck])
        return turns / n * (latency_s + size * self.job.s_per_byte * float(self.noise.calls[luck]))

    def _collective(self, ready: list[float], size: int, collective: str) -> list[float]:
        """All ranks from when they are ready; when they are through."""
        job, ranks = self.job, range(self.job.num_ranks)
        threads = [min(range(len(free)), key=free.__getitem__) for free in self.comm]
        enter = [max(ready[rank], self.comm[rank][threads[rank]]) for rank in ranks]
        last = max(enter)
        done = last + self._ring(size, collective)
        number = self.calls
        leave = [done + float(self.noise.leave[self.now, number % _MAX_CALLS, rank]) for rank in ranks]
        self.calls += 1
        whole = {"all_reduce": size, "all_gather": size // job.num_ranks}
        facts: dict[str, Any] = {
            "collective": collective,
            "group": "0",
            "group_size": job.num_ranks,
            "dtype": "float",
        }
        facts |= {"in_bytes": whole[collective], "out_bytes": size}
        for rank in ranks:
            self.comm[rank][threads[rank]] = leave[rank]
            length = leave[rank] - enter[rank]
            if job.on_gpu:
                name = f"ncclDevKernel_{collective.title().replace('_', '')}_RING_LL"
                launch = self.called[rank][number]
                self._device(rank, enter[rank], length, "comm", COMM_STREAM, launch, name=name, **facts)
            else:
                more = {"lane": BACKEND + threads[rank], "name": f"gloo:{collective}", **facts}
                if number < len(self.called[rank]):
                    more["launch"] = self.called[rank][number]
                self._row(rank, enter[rank], length, "comm", **more)
        return leave

    def _data(self) -> None:
        job, ranks, last = self.job, range(self.job.num_ranks), len(self.job.layers) - 1
        ready = [[0.0] * job.num_ranks for _ in self.buckets]
        for rank in ranks:
            for layer in range(last + 1):
                self._compute(rank, layer, backward=False)
            number = 0
            for layer in range(last, -1, -1):
                self._compute(rank, layer, backward=True)
                while number < len(self.buckets) and self.buckets[number][1] == layer:
                    ready[number][rank] = self._call(rank)
                    number += 1
        for (size, _), times in zip(self.buckets, ready, strict=True):
            leave = self._collective(times, size, "all_reduce")
            for rank in ranks:
                self.at[rank] = max(self.at[rank], leave[rank])
                if not job.on_gpu:
                    self.host[rank] = self.at[rank]

    def _call(self, rank: int) -> float:
        """The host hands a collective over; when it may begin."""
        begin = self.host[rank]
        self.called[rank].append(begin)
        self.host[rank] += CALL_S
        self._row(rank, begin, CALL_S, "host", phase="backward", name="c10d::allreduce_", depth=1)
        if self.job.on_gpu:
            return max(self.at[rank], self.host[rank] + LAUNCH_LATENCY_S)
        self.at[rank] = self.host[rank]
        return self.host[rank] + 2e-6

    def _tensor(self) -> None:
        layers = range(len(self.job.layers))
        for backward, order in ((False, layers), (True, reversed(layers))):
            for layer in order:
                for rank in range(self.job.num_ranks):
                    self._compute(rank, layer, backward)
                self._exchange("all_reduce" if backward else "all_gather")

    def _exchange(self, collective: str) -> None:
        """Activations or their gradients, which everybody needs to go on."""
        for rank, time in enumerate(self._collective(list(self.at), self.job.activation_bytes, collective)):
            self.at[rank] = time
            if not self.job.on_gpu:
                self.host[rank] = time

    def _pipeline(self) -> None:
        job, ranks = self.job, range(self.job.num_ranks)
        for backward, stages in ((False, ranks), (True, ranks[::-1])):
            for _ in range(job.num_micro):
                sent = None
                for stage in stages:
                    if sent is not None:
                        self._receive(stage, stage + (1 if backward else -1), sent)
                    own = [layer for layer in range(len(job.layers)) if job.share[stage, layer] > 0]
                    for layer in reversed(own) if backward else own:
                        self._compute(stage, layer, backward, job.num_micro)
                    sent = self.host[stage]
                    self.at[stage] = self.host[stage] = sent + CALL_S

    def _receive(self, rank: int, sender: int, sent: float) -> None:
        """The receiver blocks, the sender goes on; the transfer begins once both have called."""
        enter, size = self.host[rank], self.job.activation_bytes
        luck = (self.now, self.calls % _MAX_CALLS)
        cost = self.job.latency_s * float(self.noise.latency[luck])
        cost += size * self.job.s_per_byte * float(self.noise.calls[luck])
        self.calls += 1
        leave = max(enter, sent) + cost
        facts: dict[str, Any] = {"group": "0", "group_size": self.job.num_ranks, "dtype": "float"}
        facts |= {"in_bytes": size, "out_bytes": size, "depth": 1}
        peers = (sender, rank) if self.job.names_peers else (None, None)
        # As in gloo's traces: both on the main thread, the send only as long as handing it over takes.
        told = {"collective": "recv", "name": "gloo:recv", "peer": peers[0]}
        self._row(rank, enter, leave - enter, "comm", **told, **facts)
        told = {"collective": "send", "name": "gloo:send", "peer": peers[1]}
        self._row(sender, sent, CALL_S, "comm", **told, **facts)
        self.at[rank] = self.host[rank] = leave

    # -- writing down --------------------------------------------------------------------------------------

    def _row(self, rank: int, start: float, length: float, kind: str, **columns: Any) -> None:
        if self.tape and self.window >= 0:
            row = {"start": start, "length": length, "kind": kind, "step": self.now, **columns}
            row["window"] = self.window
            self.played[rank].rows.append(row)

    def _device(
        self, rank: int, start: float, length: float, kind: str, lane: int, launch: float, **columns: Any
    ) -> None:
        more = {"device": 0, "lane": lane, "launch": launch, "correlation": self.correlation}
        self._row(rank, start, length, kind, **more, **columns)


def _buckets(job: Job) -> list[tuple[int, int]]:
    """(bytes, layer whose backward fills it), in the order in which gradients become ready."""
    found, size = [], 0
    for layer in range(len(job.layers) - 1, -1, -1):
        for shape in job.layers[layer].shapes[::-1]:
            size += int(np.prod(shape)) * ELEMENT_BYTES
            if size >= job.bucket_bytes:
                found.append((size, layer))
                size = 0
    if size:
        found.append((size, 0))
    return found
