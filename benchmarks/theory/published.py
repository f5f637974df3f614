"""Published scaling figures, recomputed from stated assumptions: what the cost formulas would have said.

Every assumption is a low, a middle and a high value with where it is from; the result is the whole range over
all combinations and the middle one. Nothing is fitted to the published figure, so misses are possible, and
listed. The model: step = compute + exposed communication + waiting for the slowest of N nodes, whose step
times vary independently and normally (expected maximum after Blom, 1958). Efficiency = compute / step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist, fmean

from perfscope.analysis.predict.costs import HALVING_DOUBLING, TREE, LinkCost, collective_time_s

MEASURED = "measured"
PUBLISHED = "published"
ASSUMED = "assumed"

HIT = "hit"
DEPENDS = "depends on the assumptions"
MISS = "miss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One quantity with its plausible range. tag: measured (by us), published (read there), assumed."""

    what: str
    low: float
    middle: float
    high: float
    tag: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCheck:
    """One published figure and what the model gives for it.

    low, middle, high: over all combinations of the assumptions. published: the figure, to +- `rounding`;
    at_least: it is a lower bound. unit: "%" or "x". verdict: HIT (the middle is within 5 % of the figure; a
    bound holds for all combinations), DEPENDS (only some combinations reach it), MISS (none does). comment:
    what the outcome says.
    """

    claim: str
    source: str
    assumptions: tuple[Assumption, ...]
    low: float
    middle: float
    high: float
    published: float
    rounding: float
    at_least: bool
    unit: str
    comment: str

    @property
    def verdict(self) -> str:
        if self.at_least:
            if self.low >= self.published:
                return HIT
            return DEPENDS if self.high >= self.published else MISS
        if not self.low - self.rounding <= self.published <= self.high + self.rounding:
            return MISS
        return HIT if abs(self.middle / self.published - 1) <= _CLOSE else DEPENDS


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A check as text, one row of docs/validation.md."""

    claim: str
    source: str
    assumptions: str
    result: str
    published: str
    verdict: str
    comment: str


_CLOSE = 0.05
_ONE_DECIMAL = 0.05


def checks() -> tuple[PublishedCheck, ...]:
    """All published figures, recomputed."""
    return (
        _resnet_on_knl(),
        _weak_on_knl("GoogLeNet", 0.915, _googlenet_bytes(), 1533 / 300, "the abstract's 91.5 %"),
        _weak_on_knl("VGG-19", 0.802, _vgg19_bytes(), 1318 / 80, "same paper, the other network"),
        _four_gpu_tree(strong=False),
        _four_gpu_tree(strong=True),
        _two_gpu_tree(),
        _four_p100(),
    )


def table() -> tuple[TableRow, ...]:
    """`checks` as text for people."""
    return tuple(_row(check) for check in checks())


def waiting_for_slowest(num_nodes: int, spread: float) -> float:
    """Expected lateness of the slowest of N nodes, as a share of the mean step, for a relative spread."""
    if num_nodes < 2 or spread == 0:
        return 0.0
    return spread * NormalDist().inv_cdf((num_nodes - 0.375) / (num_nodes + 0.25))


def _over_all(
    assumptions: Mapping[str, Assumption], model: Callable[[Mapping[str, float]], float]
) -> tuple[float, float, float]:
    """(low, middle, high) of the model over every combination of low, middle and high."""
    middle = model({name: each.middle for name, each in assumptions.items()})
    choices = [(each.low, each.middle, each.high) for each in assumptions.values()]
    results = [model(dict(zip(assumptions, combination, strict=True))) for combination in product(*choices)]
    return min(results), middle, max(results)


def _efficiency(num_nodes: int, compute_s: float, comm_s: float, spread: float) -> float:
    return compute_s / (compute_s * (1 + waiting_for_slowest(num_nodes, spread)) + comm_s)


def _spread() -> Assumption:
    return Assumption(
        what="relative standard deviation of a node's step", low=0.0, middle=0.01, high=0.02,
        tag=ASSUMED, source="the same for every cluster here; none of the papers gives it",
    )  # fmt: skip


def _latency() -> Assumption:
    return Assumption(
        what="latency of one message (us)", low=1.1, middle=3.0, high=5.0, tag=ASSUMED,
        source="1.1 to 1.3 us on Xeon (remembered), more on KNL, whose single cores are slow "
        "(Rosales, Gómez-Iglesias, PEARC17 slides)",
    )  # fmt: skip


def _resnet_on_knl() -> PublishedCheck:
    num_nodes, num_tensors, num_bytes = 1536, 161, 25.56e6 * 4
    assumptions = {
        "rate": Assumption(
            what="images/s of one node", low=39.0, middle=50.0, high=85.0, tag=ASSUMED,
            source="low: 90 epochs in 48 min on 1024 CPUs (You et al., arXiv 1709.05011); high: a KNL is "
            "about as fast as two Xeon 6148 (Dell, 2018), which do 84 images/s (PaddlePaddle benchmark)",
        ),
        "batch": Assumption(
            what="images per node and step", low=16, middle=32, high=64, tag=ASSUMED,
            source="global batches of 24k to 98k; what fits 16 GB of fast memory",
        ),
        "gbyte_per_s": Assumption(
            what="GB/s one node sends", low=5.0, middle=9.0, high=12.3, tag=ASSUMED,
            source="Omni-Path port 12.5 GB/s; one task per KNL does not saturate it (Cornell, Stampede2)",
        ),
        "latency_us": _latency(),
        "messages": Assumption(
            what="all_reduce calls per step", low=1, middle=num_tensors, high=num_tensors, tag=ASSUMED,
            source="MLSL sends per layer; ResNet-50 has 161 parameter tensors",
        ),
        "hidden": Assumption(
            what="share of communication hidden behind backward", low=0.0, middle=0.5, high=0.9, tag=ASSUMED,
            source="MLSL progresses asynchronously; the paper gives no figure",
        ),
        "spread": _spread(),
    }  # fmt: skip

    def model(given: Mapping[str, float]) -> float:
        link = LinkCost(given["latency_us"] * 1e-6, 1e-9 / given["gbyte_per_s"])
        messages = given["messages"]
        each = collective_time_s("all_reduce", num_nodes, num_bytes / messages, link, HALVING_DOUBLING)
        exposed = messages * each * (1 - given["hidden"])
        return 100 * _efficiency(num_nodes, given["batch"] / given["rate"], exposed, given["spread"])

    low, middle, high = _over_all(assumptions, model)
    return PublishedCheck(
        claim="ResNet-50, data parallel, 1,536 KNL nodes: scaling efficiency above 90 %",
        source="Codreanu, Podareanu, Saletore, arXiv 1711.04291",
        assumptions=tuple(assumptions.values()),
        low=low, middle=middle, high=high, published=90.0, rounding=0.0, at_least=True, unit="%",
        comment="100 MB every half second is little for this network; small batches without overlap miss it",
    )  # fmt: skip


def _googlenet_bytes() -> Assumption:
    return Assumption(
        what="parameters exchanged (MB)", low=28.0, middle=28.0, high=53.5, tag=PUBLISHED,
        source="7.0 M parameters; 13.4 M with the two auxiliary classifiers that Caffe trains",
    )  # fmt: skip


def _vgg19_bytes() -> Assumption:
    return Assumption(
        what="parameters exchanged (MB)", low=574.7, middle=574.7, high=574.7, tag=PUBLISHED,
        source="143.67 M parameters",
    )  # fmt: skip


def _weak_on_knl(
    network: str, published: float, size: Assumption, step_s: float, which: str
) -> PublishedCheck:
    num_nodes = 64  # x 68 cores = 4352, of which 4253 is taken for a transposition
    assumptions = {
        "mbytes": size,
        "step_s": Assumption(
            what="step on one node (s)", low=step_s, middle=step_s, high=step_s, tag=PUBLISHED,
            source="time and iterations of the paper's weak-scaling table (remembered)",
        ),
        "gbyte_per_s": Assumption(
            what="GB/s one node sends", low=3.0, middle=8.0, high=10.0, tag=ASSUMED,
            source="Cray Aries about 10 GB/s from Xeon (remembered); less from one slow KNL core",
        ),
        "latency_us": _latency(),
        "spread": _spread(),
    }  # fmt: skip

    def model(given: Mapping[str, float]) -> float:
        link = LinkCost(given["latency_us"] * 1e-6, 1e-9 / given["gbyte_per_s"])
        num_bytes = given["mbytes"] * 1e6
        # Sync EASGD: weights down the tree, the sum of the workers' weights up, packed in one message each.
        comm = sum(
            collective_time_s(each, num_nodes, num_bytes, link, TREE) for each in ("broadcast", "reduce")
        )
        return 100 * _efficiency(num_nodes, given["step_s"], comm, given["spread"])

    low, middle, high = _over_all(assumptions, model)
    return PublishedCheck(
        claim=(
            f"{network}, Sync EASGD, weak scaling to 64 KNL nodes "
            f"(printed as 4,253 cores): {100 * published:.1f} %"
        ),
        source=f"You, Buluç, Demmel, SC'17, arXiv 1708.02983 ({which})",
        assumptions=tuple(assumptions.values()),
        low=low, middle=middle, high=high, published=100 * published, rounding=_ONE_DECIMAL, at_least=False,
        unit="%",
        comment="the model is too hopeful: tree and spread leave a part of the loss unexplained (update, "
        "packing, input, a larger spread), which the paper does not separate here",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    name: str
    mbytes: float
    step_s: tuple[float, float, float]  # slow, middle, fast GPU code, for the batch of the prototxt


def _titan_x_networks() -> tuple[_Network, ...]:
    return (
        _Network(name="AlexNet, batch 256", mbytes=244.4, step_s=(0.33, 0.25, 0.19)),
        _Network(name="VGG-16, batch 64", mbytes=553.4, step_s=(1.7, 1.2, 0.9)),
        _Network(name="GoogLeNet, batch 32", mbytes=53.5, step_s=(0.20, 0.14, 0.108)),
    )


def _tree_assumptions() -> dict[str, Assumption]:
    pace = "step on one GPU, by speed of the GPU code (0 slow, 1 middle, 2 fast)"
    times = "; ".join(
        f"{each.name}: {', '.join(f'{t:g}' for t in each.step_s)} s" for each in _titan_x_networks()
    )
    return {
        "pace": Assumption(
            what=pace, low=0, middle=1, high=2, tag=ASSUMED,
            source=f"Titan X (Maxwell), cuDNN v2 to v3, convnet-benchmarks (remembered): {times}",
        ),
        "gbyte_per_s": Assumption(
            what="GB/s between two GPUs", low=6.0, middle=10.0, high=12.0, tag=ASSUMED,
            source="PCIe 3.0 x16 with P2P; the low end crosses switches",
        ),
    }  # fmt: skip


def _tree_speedup(num_gpus: int, given: Mapping[str, float], *, strong: bool) -> float:
    """Mean over the networks; nothing overlaps: gradients up after backward, weights down before forward."""
    link = LinkCost(10e-6, 1e-9 / given["gbyte_per_s"])
    speedups = []
    for network in _titan_x_networks():
        whole = network.step_s[int(given["pace"])]
        own = whole / num_gpus if strong else whole
        comm = sum(
            collective_time_s(each, num_gpus, network.mbytes * 1e6, link, TREE)
            for each in ("broadcast", "reduce")
        )
        speedups.append((whole if strong else num_gpus * whole) / (own + comm))
    return fmean(speedups)


def _tree_check(num_gpus: int, *, strong: bool, published: float, claim: str, comment: str) -> PublishedCheck:
    assumptions = _tree_assumptions()
    low, middle, high = _over_all(assumptions, lambda given: _tree_speedup(num_gpus, given, strong=strong))
    return PublishedCheck(
        claim=claim, source="BVLC/caffe, docs/multigpu.md", assumptions=tuple(assumptions.values()),
        low=low, middle=middle, high=high, published=published, rounding=_ONE_DECIMAL, at_least=False,
        unit="x", comment=comment,
    )  # fmt: skip


def _four_gpu_tree(*, strong: bool) -> PublishedCheck:
    if strong:
        return _tree_check(
            4, strong=True, published=2.5,
            claim="Caffe's synchronous tree on 4 GPUs, batch divided (strong): mid 2.x, taken as 2.5x",
            comment="mean of AlexNet, VGG-16 and GoogLeNet; AlexNet alone is far lower",
        )  # fmt: skip
    return _tree_check(
        4, strong=False, published=3.5,
        claim="Caffe's synchronous tree on 4 GPUs, batch per GPU kept (weak): 3.5x",
        comment="mean of AlexNet, VGG-16 and GoogLeNet, which the page speaks of as one",
    )  # fmt: skip


def _two_gpu_tree() -> PublishedCheck:
    return _tree_check(
        2, strong=False, published=1.8, claim="Caffe's synchronous tree on 2 GPUs: 1.8x",
        comment="same assumptions as the 4-GPU row",
    )  # fmt: skip


def _four_p100() -> PublishedCheck:
    assumptions = {
        "step_s": Assumption(
            what="step of 128 images on one P100 (s)", low=128 / 468, middle=128 / 468, high=128 / 468,
            tag=PUBLISHED, source="468 images/s (same page)",
        ),
        "mbytes": _googlenet_bytes(),
        "gbyte_per_s": Assumption(
            what="GB/s between two GPUs", low=6.0, middle=10.0, high=12.0, tag=ASSUMED,
            source="PCIe 3.0 x16 with P2P; the low end crosses sockets",
        ),
    }  # fmt: skip

    def model(given: Mapping[str, float]) -> float:
        link = LinkCost(10e-6, 1e-9 / given["gbyte_per_s"])
        comm = collective_time_s("all_reduce", 4, given["mbytes"] * 1e6, link)
        return 4 * given["step_s"] / (given["step_s"] + comm)

    low, middle, high = _over_all(assumptions, model)
    return PublishedCheck(
        claim="GoogLeNet, NV-Caffe, 4 P100 in one node, batch per GPU kept: 1755 / 468 images/s = 3.75x",
        source="Dell HPC Innovation Lab, Deep Learning Performance with P100 GPUs",
        assumptions=tuple(assumptions.values()),
        low=low, middle=middle, high=high, published=1755 / 468, rounding=0.005, at_least=False, unit="x",
        comment="a ring over PCIe costs a few percent at most; what else is lost is not in the formulas",
    )  # fmt: skip


def _row(check: PublishedCheck) -> TableRow:
    def figure(value: float) -> str:
        return f"{value:.1f} %" if check.unit == "%" else f"{value:.2f}x"

    said = []
    for each in check.assumptions:
        span = (
            f"{each.middle:.3g}"
            if each.low == each.high
            else f"{each.low:.3g} / {each.middle:.3g} / {each.high:.3g}"
        )
        said.append(f"{each.what}: {span} [{each.tag}: {each.source}]")
    bound = "> " if check.at_least else ""
    return TableRow(
        claim=check.claim,
        source=check.source,
        assumptions="; ".join(said),
        result=f"{figure(check.middle)} ({figure(check.low)} to {figure(check.high)})",
        published=bound + figure(check.published),
        verdict=check.verdict,
        comment=check.comment,
    )
