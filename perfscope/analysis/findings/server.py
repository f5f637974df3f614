"""A parameter server that its workers wait for."""

from __future__ import annotations

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.results import Finding
from perfscope.units import format_bytes, format_count, format_ns, format_ratio

BUSY = 0.5  # of its time that a server works: with less, workers hardly queue for it
WAITS = 0.2  # of the workers' step
SERVER_BOUND = "server_bound"
# What else the same waiting looks like: communication, or work that is spread unevenly over ranks.
CONSEQUENCES = frozenset(
    {
        *("serialised", "comm_bound", "slow_link", "no_overlap", "small_collectives"),
        *("model_split", "imbalance", "late_start"),
    }
)


def bound(evidence: Evidence, verdict: bool) -> Finding | None:
    """A server that works most of the time while its workers wait for it."""
    load = evidence.server
    if load is None or load.busy_ratio < BUSY or load.wait_ns < WAITS * load.step_ns:
        return None
    ratio = load.wait_ns / load.step_ns
    usual = evidence.step_ns.median if evidence.step_ns is not None else load.step_ns
    lead = "The parameter server bounds the step" if verdict else "Workers wait for the parameter server"
    served = ""
    if load.requests_per_s is not None:
        size = f" of {format_bytes(round(load.request_bytes))}" if load.request_bytes is not None else ""
        served = f" It receives {load.requests_per_s:,.1f} requests{size} per second."
    count = len(load.workers)
    return Finding(
        id=SERVER_BOUND,
        title=(
            f"{lead}: rank {load.rank} is busy {format_ratio(load.busy_ratio, 0)} of the time, and "
            f"{'its worker waits' if count == 1 else f'its {format_count(count)} workers wait'} for it "
            f"{format_ratio(ratio, 0)} of {'the' if count == 1 else 'their'} step."
        ),
        detail=(
            f"A worker waits {format_ns(load.wait_ns)} of {format_ns(load.step_ns)} per step, transfers not "
            f"counted.{served}"
        ),
        action=(
            "Give each server fewer workers or a part of the weights (several servers), make the update "
            "cheaper, take more local steps between exchanges, or send less (compression)."
        ),
        gain_ns=round(ratio * usual),
        gain_ratio=ratio,
        rank=load.rank,
    )
