"""What-if questions, in English: what is changed, the figures it rests on, and what speaks against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from perfscope.messages.lists import first_of, plural
from perfscope.units import format_ns, format_rate, format_ratio

NAMED_RANKS = 4

_PARTS = {
    "compute": "operators of no layer",
    "optimizer": "the optimizer",
    "copy": "copies",
    "idle": "no operator (Python, sleep, or another process on its core)",
}


class WhatIfText(NamedTuple):
    """What is changed, and the figures that the change rests on."""

    title: str
    evidence: str


def no_input_wait(wait_ns: float, loader: str) -> WhatIfText:
    """`wait_ns`: per step, of the mean rank; `loader`: what the framework calls it."""
    return WhatIfText(
        "no data-loader wait", f"ranks wait {format_ns(wait_ns)} per step on average for the {loader}"
    )


def no_idle(idle_ns: float, gap_is: str) -> WhatIfText:
    """`idle_ns`: per step, of the mean rank; `gap_is`: what an idle gap is in the framework."""
    return WhatIfText(
        f"no idle gaps ({gap_is})",
        f"{format_ns(idle_ns)} per step idle outside collectives (average over ranks)",
    )


def transfers(slug: str, moved_ns: float, latency_ns: float) -> WhatIfText:
    """Of zero_transfer, double_bandwidth and full_overlap. Times per step of the mean rank."""
    title = {
        "zero_transfer": "zero-cost transfers",
        "double_bandwidth": "2× network bandwidth",
        "full_overlap": "all communication overlapped with compute",
    }[slug]
    latency = f", {format_ns(latency_ns)} of it latency" if latency_ns >= 1 else ""
    moved = f"transfers take {format_ns(moved_ns)} per step and rank on average{latency}"
    overlap = "; ranks wait for communication only at the end of the window"
    return WhatIfText(title, moved + (overlap if slug == "full_overlap" else ""))


class FasterAxis(Struct, frozen=True, kw_only=True):
    """An axis of the mesh along which bytes move faster; rates as of bus bandwidths, byte/s."""

    axis: str
    bytes_per_s: float
    own_bytes_per_s: float  # of the slow axis

    @property
    def factor(self) -> float:
        """2 = twice as fast."""
        return self.bytes_per_s / self.own_bytes_per_s


def of_axis(question: str, axis: str, faster: FasterAxis | None) -> WhatIfText:
    """Of zero_transfer, full_overlap and fast_link along one axis of the mesh."""
    if question == "fast_link" and faster is not None:
        return WhatIfText(
            f"{axis} at the bandwidth of {faster.axis}",
            f"bytes move at {format_rate(faster.own_bytes_per_s)} along {axis}, at "
            f"{format_rate(faster.bytes_per_s)} along {faster.axis}; latency stays",
        )
    if question == "full_overlap":
        return WhatIfText(
            f"communication along {axis} hidden under computation",
            f"ranks wait for the calls of {axis} only at the end of the window",
        )
    return WhatIfText(
        f"zero-cost transfers along {axis}", "calls of other axes, and waiting for late ranks, stay"
    )


def one_bucket(small_bytes: int) -> WhatIfText:
    """`small_bytes`: calls of fewer bytes are merged."""
    return WhatIfText(
        "small all_reduce calls merged into buckets",
        f"calls below {small_bytes // 1024} KiB pay their latency once per bucket",
    )


def equal_start(last: int, after_ns: float) -> WhatIfText:
    """`last`: the rank that begins the traced steps last, `after_ns` after the first."""
    return WhatIfText(
        "all ranks starting the traced steps together",
        f"rank {last} begins {format_ns(after_ns)} after the first",
    )


PERFECT_BALANCE = WhatIfText(
    "compute balanced evenly over ranks", "every rank computes for the average time of each step"
)


def untraced_imbalance(mean_ns: float) -> str:
    """`mean_ns`: per step."""
    return f"in untraced steps, balancing the work would save {format_ns(mean_ns)} per step on average"


def equal_stages(slowest: int, relative: float) -> WhatIfText:
    """`slowest`: the stage that computes longest, `relative` times the mean stage."""
    return WhatIfText(
        "pipeline stages balanced",
        f"stage {slowest} computes {relative:.2f} times as long as the mean stage",
    )


def ideal_bubble(measured_ratio: float, balanced_ratio: float) -> WhatIfText:
    """`balanced_ratio`: bubble of the schedule with equal stages and nothing lost between them."""
    return WhatIfText(
        "the pipeline bubble at the schedule's ideal",
        f"the bubble is {format_ratio(measured_ratio)} of the pipeline's time; with equal stages and "
        f"immediate sends it would be {format_ratio(balanced_ratio)}",
    )


def equal_experts(most: int, layer: str, imbalance: float) -> WhatIfText:
    """`most`: rank whose experts have the most tokens in `layer` ("": any), `imbalance` times the mean's."""
    where = f"in {layer}, " if layer else ""
    return WhatIfText(
        "experts balanced",
        f"{where}the most loaded rank has {imbalance:.2f} times the mean number of tokens; over all "
        f"steps that is rank {most}",
    )


def local_memory(ranks: Sequence[int]) -> WhatIfText:
    return WhatIfText(
        f"{_listed(sorted(ranks))} as fast as ranks with local memory",
        "their CPUs reach most of their memory through another node",
    )


def no_stragglers(ranks: Sequence[int], evidence: str) -> WhatIfText:
    """`evidence`: of the worst of them (`slower_than_peers`)."""
    whose = "its" if len(ranks) == 1 else "their"
    return WhatIfText(f"{_listed(ranks)} as fast as {whose} peers", evidence)


def at_roofline(layer: str, time_ns: float, fractions: Mapping[str, float]) -> WhatIfText:
    """`time_ns`: of the layer per step; `fractions`: of its roofline, by phase."""
    ratios = ", ".join(
        f"{format_ratio(share, 0)} of its roofline ({phase})" for phase, share in fractions.items()
    )
    return WhatIfText(
        f"layer {layer} at its roofline", f"it takes {format_ns(time_ns)} per step and runs at {ratios}"
    )


def caution(error_ratio: float | None, stretched: float | None, unexplained_ratio: float | None) -> str:
    """What speaks against the what-ifs of a run; None: that is small.

    Args:
        error_ratio: of the replay.
        stretched: mean traced over median step.
        unexplained_ratio: of the ranks' time, in communication that no matched call explains.
    """
    doubts = []
    if error_ratio is not None:
        doubts.append(f"the replay itself is off by {format_ratio(error_ratio, 0)}")
    if stretched is not None:
        doubts.append(f"traced steps took {stretched:.2g} times as long as the median step")
    if unexplained_ratio is not None:
        share = format_ratio(unexplained_ratio, 0)
        doubts.append(f"{share} of the ranks' time is communication that no matched call explains")
    return "; ".join(doubts)


def _listed(ranks: Sequence[int]) -> str:
    order = [*sorted(ranks[:NAMED_RANKS]), *ranks[NAMED_RANKS:]]
    return f"{plural('rank', len(ranks))} {first_of(order, NAMED_RANKS)}"


def slower_than_peers(
    rank: int,
    excess_ns: float,
    part_excess_ns: float,
    *,
    layer: str | None,
    phase: str | None,
    part: str,
    has_layers: bool,
) -> str:
    """``rank 3 takes 6 ms more per step than its peers for the same work, 5 ms of it in conv2 (forward)``.

    Args:
        rank: the slow one.
        excess_ns: more per step than its peers.
        part_excess_ns: of it in the layer, or part, with most.
        layer, phase: None: not a layer's.
        part: compute, optimizer, copy or idle.
        has_layers: the traces name layers.
    """
    where = f"{layer} ({phase})" if layer else _PARTS[part]
    if part == "compute" and not has_layers:
        where = "computation"
    return (
        f"rank {rank} takes {format_ns(excess_ns)} more per step than its peers for the same work, "
        f"{format_ns(part_excess_ns)} of it in {where}"
    )
