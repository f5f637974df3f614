"""Jobs drawn at random, with one planted cause each or with none, and what is true of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tests.planted.emulate import BACKWARD_COST, ELEMENT_BYTES, Job, Layer, Neighbor, Window, step_s

CAUSES = (
    "straggler",
    "slow_link",
    "input_bound",
    "model_split",
    "numa_remote",
    "small_collectives",
    "disturbed",
)
DEFAULT_BUCKET = 25 << 20
_LEAST_GAIN = 0.15  # of the step: less is not planted, it is lost in what any run has
_PROBE_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job and the truth about it.

    Attributes:
        cause: what was planted, None = nothing.
        rank, layer: where, None = everywhere or at no rank or layer.
        comparable: something of the run itself shows what would be without the cause; not so where all ranks'
            memory was remote all the time.
        without: what-if id -> the same job, with the same luck, without the thing that the what-if removes.
    """

    seed: int
    cause: str | None
    job: Job
    rank: int | None = None
    layer: str | None = None
    comparable: bool = True
    without: Mapping[str, Job] = field(default_factory=dict)

    @property
    def label(self) -> str:
        device = "gpu" if self.job.on_gpu else "cpu"
        what = f"{self.cause or 'clean'}, {self.job.shape}, {self.job.num_ranks} ranks, {device}"
        return f"seed {self.seed}: {what}"


def true_step_s(job: Job) -> tuple[float, float]:
    """Median and mean step of the steps that perfscope would count: untraced ones after the warm-up."""
    steps = step_s(job)
    counted = steps[:, [step for step in range(3, job.num_steps) if job.window_of(step) < 0]]
    return float(np.median(counted)), float(counted.mean())


def draw(seed: int, cause: str | None) -> Case:
    """One case. The strength is random, but always makes the planted cause the largest removable one."""
    for attempt in range(20):
        rng = np.random.default_rng([seed, attempt, CAUSES.index(cause) if cause else len(CAUSES)])
        job = _job(rng, seed, cause)
        if cause is None:
            return Case(seed=seed, cause=None, job=job)
        goal = _quick(job) / (1 - rng.uniform(0.22, 0.5))
        case = _PLANTS[cause](rng, seed, job, goal)
        best = min(_quick(one) for one in case.without.values())
        if 1 - best / _quick(case.job) >= _LEAST_GAIN:
            return case
    raise AssertionError(f"no {cause} case can be drawn from seed {seed}")


def _quick(job: Job) -> float:
    """Mean step over a few steps, in the middle of a neighbor's stay."""
    first = job.neighbour.first if job.neighbour else 0
    return float(step_s(job, first + _PROBE_STEPS)[:, first:].mean())


# -- jobs without a cause ----------------------------------------------------------------------------------


def _job(rng: np.random.Generator, seed: int, cause: str | None) -> Job:
    shape = _shape(rng, cause)
    hosted = cause in ("numa_remote", "disturbed")  # what happens to hosts is seen by the second
    on_gpu = bool(shape == "data" and not hosted and rng.random() < 0.3)
    num_ranks = int(rng.choice((2, 4, 8) if shape == "data" else (2, 3, 4)))
    per_host = num_ranks if shape != "data" or rng.random() < 0.5 else max(1, num_ranks // 2)
    compute_s = rng.uniform(0.2, 0.35) if hosted else rng.uniform(0.02, 0.06)
    layers = _layers(rng, shape, num_ranks, compute_s, many=cause == "small_collectives")
    size = sum(int(np.prod(one)) * ELEMENT_BYTES for layer in layers for one in layer.shapes)
    share = np.ones((num_ranks, len(layers)))
    activation = 0
    if shape == "tensor":
        share /= num_ranks
        activation = int(rng.integers(1 << 16, 1 << 20)) * num_ranks
    elif shape == "pipeline":
        share = _staged([len(layers) // num_ranks] * num_ranks)
        activation = int(rng.integers(1 << 16, 1 << 20))
    job = Job(
        seed=seed,
        shape=shape,
        on_gpu=on_gpu,
        num_ranks=num_ranks,
        ranks_per_host=per_host,
        layers=layers,
        share=share,
        slowdown=np.ones_like(share),
        extra_work=bool(rng.random() < 0.5),
        bucket_bytes=round(size / rng.uniform(2, 4)),
        latency_s=float(rng.uniform(5e-6, 20e-6)) * (0.3 if on_gpu else 1.0),
        s_per_byte=0.0,
        threads=int(rng.integers(1, 3)),
        loader_s=rng.uniform(1e-4, 5e-4, num_ranks),
        prefetch=int(rng.choice((0, 2))),
        optimizer_s=compute_s * float(rng.uniform(0.02, 0.06)),
        activation_bytes=activation,
        num_micro=int(rng.integers(4, 9)) if shape == "pipeline" else 1,
        num_steps=48 if hosted else 30,
        windows=_windows(rng),
        names_peers=num_ranks > 2 or bool(rng.random() < 0.5),
        watched=hosted or bool(rng.random() < 0.5),
    )
    return replace(job, s_per_byte=_healthy_link(rng, job, size, compute_s))


def _windows(rng: np.random.Generator) -> tuple[Window, ...]:
    """One in the steady state; perhaps one before, which the profiler's own start disturbs."""
    steady = Window(first=12, count=4, tracing=float(rng.uniform(1.0, 1.1)))
    if rng.random() < 0.6:
        return (steady,)
    return (Window(first=3, count=2, tracing=float(rng.uniform(1.2, 2.0))), steady)


def _shape(rng: np.random.Generator, cause: str | None) -> str:
    if cause == "model_split":
        return str(rng.choice(("tensor", "pipeline")))
    if cause is None:
        return str(rng.choice(("data", "tensor", "pipeline"), p=(0.6, 0.2, 0.2)))
    return "data"


def _layers(
    rng: np.random.Generator, shape: str, num_ranks: int, compute_s: float, *, many: bool
) -> tuple[Layer, ...]:
    """Layers whose passes take `compute_s` on each rank in all."""
    if shape == "pipeline":
        num = num_ranks * int(rng.integers(3, 5))
        weights = np.exp(rng.normal(0, 0.05, num))
    else:
        num = int(rng.integers(10, 14)) if many else int(rng.integers(4, 10))
        weights = np.exp(rng.normal(0, 0.5, num))
    whole = compute_s * (num_ranks if shape != "data" else 1)  # split models are as much larger
    forward = weights / weights.sum() * whole / (1 + BACKWARD_COST)
    speed = rng.uniform(2e9, 40e9)
    found = []
    for index in range(num):
        outputs = int(np.exp(rng.uniform(np.log(64), np.log(1024))))
        inputs = int(np.exp(rng.uniform(np.log(64), np.log(1024))))
        kind = "Conv2d" if rng.random() < 0.5 else "Linear"
        shapes: tuple[tuple[int, ...], ...] = ((outputs, inputs), (outputs,))
        shapes = (*shapes, (outputs,), (outputs,)) if many else shapes  # a norm's, fused into the layer
        cost = float(forward[index])
        found.append(
            Layer(name=f"body.{index}", type=kind, shapes=shapes, forward_s=cost, flops=round(cost * speed))
        )
    return tuple(found)


def _healthy_link(rng: np.random.Generator, job: Job, size: int, compute_s: float) -> float:
    """Seconds per byte with which communication is a small part of the step."""
    part = float(rng.uniform(0.03, 0.12)) * compute_s
    n = job.num_ranks
    if job.shape == "data":
        return part / (2 * (n - 1) / n * size)
    if job.shape == "tensor":
        return part / (len(job.layers) * 3 * (n - 1) / n * job.activation_bytes)
    return part / (2 * job.num_micro * job.activation_bytes)


def _staged(counts: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """share of a pipeline: the first counts[0] layers on stage 0, and so on."""
    share = np.zeros((len(counts), sum(counts)))
    first = 0
    for stage, count in enumerate(counts):
        share[stage, first : first + count] = 1.0
        first += count
    return share


# -- causes ------------------------------------------------------------------------------------------------


def _until(make: Callable[[float], Job], goal_s: float, low: float, high: float) -> float:
    """The strength between two at which the step takes `goal_s` (bisection on a logarithmic scale)."""
    for _ in range(8):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if _quick(make(middle)) < goal_s else (low, middle)
    return float(np.sqrt(low * high))


def _straggler(rng: np.random.Generator, seed: int, job: Job, goal_s: float) -> Case:
    """One rank needs longer: in one layer, or (a slow core) in all."""
    rank = int(rng.integers(job.num_ranks))
    large = np.argsort([-layer.forward_s for layer in job.layers])[:3]
    index = int(rng.choice(large)) if rng.random() < 0.7 else None

    def slowed(factor: float) -> Job:
        slowdown = job.slowdown.copy()
        slowdown[rank, slice(None) if index is None else index] = factor
        return replace(job, slowdown=slowdown, extra_work=job.extra_work and index is not None)

    planted = slowed(_until(slowed, goal_s, 1.05, 60.0))
    name = None if index is None else job.layers[index].name
    return Case(
        seed=seed, cause="straggler", job=planted, rank=rank, layer=name, without={"no_stragglers": job}
    )


def _slow_link(rng: np.random.Generator, seed: int, job: Job, goal_s: float) -> Case:
    def slowed(factor: float) -> Job:
        return replace(job, s_per_byte=job.s_per_byte * factor)

    planted = slowed(_until(slowed, goal_s, 1.5, 500.0))
    without = {
        "zero_transfer": replace(planted, s_per_byte=0.0, latency_s=0.0),
        "double_bandwidth": replace(planted, s_per_byte=planted.s_per_byte / 2),
    }
    return Case(seed=seed, cause="slow_link", job=planted, without=without)


def _input(rng: np.random.Generator, seed: int, job: Job, goal_s: float) -> Case:
    """The loader of all ranks is slow, or that of one."""
    rank = int(rng.integers(job.num_ranks)) if rng.random() < 0.3 else None

    def slowed(wait_s: float) -> Job:
        loader = job.loader_s.copy()
        loader[slice(None) if rank is None else rank] = wait_s
        return replace(job, loader_s=loader)

    planted = slowed(_until(slowed, goal_s, 1e-4, 1.0))
    without = {"no_input_wait": replace(job, loader_s=np.zeros(job.num_ranks))}
    return Case(seed=seed, cause="input_bound", job=planted, rank=rank, without=without)


def _split(rng: np.random.Generator, seed: int, job: Job, goal_s: float) -> Case:
    """One rank holds more of the model than the others."""
    rank, num = int(rng.integers(job.num_ranks)), job.num_ranks
    if job.shape == "pipeline":
        each = len(job.layers) // num
        counts = [each - each // 2] * num
        counts[rank] = len(job.layers) - sum(counts) + counts[rank]
        planted = replace(job, share=_staged(counts))
        return Case(seed=seed, cause="model_split", job=planted, rank=rank, without={"perfect_balance": job})

    def slanted(part: float) -> Job:
        share = np.full_like(job.share, (1 - part) / (num - 1))
        share[rank] = part
        return replace(job, share=share)

    planted = slanted(_until(slanted, goal_s, 1 / num + 0.02, 0.95))
    return Case(seed=seed, cause="model_split", job=planted, rank=rank, without={"perfect_balance": job})


def _remote(rng: np.random.Generator, seed: int, job: Job, goal_s: float) -> Case:
    """The memory of some ranks lies on the other node: every layer takes longer there."""
    count = int(rng.integers(1, job.num_ranks + 1)) if rng.random() < 0.4 else 1
    ranks = sorted(rng.choice(job.num_ranks, count, replace=False).tolist())

    def slowed(factor: float) -> Job:
        slowdown = job.slowdown.copy()
        slowdown[ranks] = factor
        shares = {rank: float(away) for rank, away in zip(ranks, aways, strict=True)}
        return replace(job, slowdown=slowdown, extra_work=False, remote=shares)

    aways = rng.uniform(0.6, 0.98, count)
    planted = slowed(_until(slowed, min(goal_s, 1.8 * _quick(job)), 1.05, 3.0))
    return Case(
        seed=seed,
        cause="numa_remote",
        job=planted,
        rank=ranks[0] if count == 1 else None,
        comparable=count < job.num_ranks,
        without={"local_memory": job},
    )


def _tiny_buckets(rng: np.random.Generator, seed: int, job: Job, goal_s: float) -> Case:
    def slowed(latency_s: float) -> Job:
        return replace(job, bucket_bytes=1, latency_s=latency_s)

    planted = slowed(_until(slowed, goal_s, 1e-6, 0.02))
    without = {"one_bucket": replace(planted, bucket_bytes=DEFAULT_BUCKET)}
    return Case(seed=seed, cause="small_collectives", job=planted, without=without)


def _disturbed(rng: np.random.Generator, seed: int, job: Job, goal_s: float) -> Case:
    """Somebody else computes on one host, for a part of the run or all of it."""
    host = int(rng.integers(job.host_of(job.num_ranks - 1) + 1))
    mine = [rank for rank in range(job.num_ranks) if job.host_of(rank) == host]
    count = int(rng.integers(1, len(mine) + 1))
    ranks = tuple(sorted(rng.choice(mine, count, replace=False).tolist()))
    whole = rng.random() < 0.25
    first = 0 if whole else int(rng.integers(5, 14))
    last = job.num_steps if whole else first + int(rng.integers(24, 32))

    def slowed(factor: float) -> Job:
        near = Neighbor(host=host, first=first, last=last, cpus=float(count), ranks=ranks, factor=factor)
        return replace(job, neighbour=near)

    planted = slowed(_until(slowed, max(goal_s, 1.5 * _quick(job)), 1.1, 4.0))
    rank = ranks[0] if count == 1 else None
    return Case(seed=seed, cause="disturbed", job=planted, rank=rank, without={"undisturbed": job})


_PLANTS: Mapping[str, Callable[[np.random.Generator, int, Job, float], Case]] = {
    "straggler": _straggler,
    "slow_link": _slow_link,
    "input_bound": _input,
    "model_split": _split,
    "numa_remote": _remote,
    "small_collectives": _tiny_buckets,
    "disturbed": _disturbed,
}
