"""A parameter server that its workers wait for."""

from __future__ import annotations

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.results import Finding
from perfscope.messages.findings.ranks import ServerBound
from perfscope.vocabulary.findings import COMMUNICATION, FindingKind

BUSY = 0.5  # of its time that a server works: with less, workers hardly queue for it
WAITS = 0.2  # of the workers' step
# What else the same waiting looks like: communication, or work that is spread unevenly over ranks.
CONSEQUENCES = COMMUNICATION | {FindingKind.MODEL_SPLIT, FindingKind.IMBALANCE, FindingKind.LATE_START}


def bound(evidence: Evidence) -> Finding | None:
    """A server that works most of the time while its workers wait for it."""
    load = evidence.server
    if load is None or load.busy_ratio < BUSY or load.wait_ns < WAITS * load.step_ns:
        return None
    ratio = load.wait_ns / load.step_ns
    usual = evidence.step_ns.median if evidence.step_ns is not None else load.step_ns
    return Finding(
        id=FindingKind.SERVER_BOUND,
        facts=ServerBound(
            busy_ratio=load.busy_ratio,
            num_workers=len(load.workers),
            wait_ns=load.wait_ns,
            step_ns=load.step_ns,
            requests_per_s=load.requests_per_s,
            request_bytes=load.request_bytes,
        ),
        gain_ns=round(ratio * usual),
        gain_ratio=ratio,
        rank=load.rank,
    )
