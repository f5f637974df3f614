"""Idle time of ranks that compute on the CPU, by what the thread that trains did meanwhile.

Garbage collections and checkpoints of the traced steps are timed by the probe and run no operator: they are
idle time of the step. How long the thread had no CPU is known per step, not at which moments; the wait falls
into idle time in proportion to its share of the step. What is left is not traced: Python, locks, system
calls.
"""

from __future__ import annotations

import numpy as np

from perfscope.analysis.intervals import Int64
from perfscope.analysis.results import Breakdown, HostIdle
from perfscope.analysis.whole_run.steps import StepParts
from perfscope.vocabulary.host_activity import HostActivity
from perfscope.vocabulary.run_parts import RunPart


def host_idle(breakdown: Breakdown | None, parts: StepParts) -> tuple[HostIdle, ...] | None:
    """Per mean analyzed step; adds up to `breakdown.idle` exactly, the longest first.

    Args:
        breakdown: of the rank; None: no step was traced.
        parts: its steps.

    Returns:
        None where the probe recorded none of the traced steps.
    """
    if breakdown is None or not parts.is_traced.any():
        return None
    left, found = breakdown.idle, {}
    waited = _mean(parts.runqueue, parts)
    for kind, ns in (
        (HostActivity.GARBAGE_COLLECTION, _mean(parts.timed[RunPart.GARBAGE_COLLECTION], parts)),
        (HostActivity.CHECKPOINT, _mean(parts.timed[RunPart.CHECKPOINT], parts)),
        (HostActivity.PREEMPTED, round(waited * breakdown.idle / breakdown.step) if breakdown.step else 0),
    ):
        found[kind] = min(ns, left)
        left -= found[kind]
    found[HostActivity.UNTRACED] = left
    entries = [HostIdle(kind=kind, ns=ns) for kind, ns in found.items() if ns]
    return tuple(sorted(entries, key=lambda entry: -entry.ns))


def _mean(values: Int64, parts: StepParts) -> int:
    known = values[parts.is_traced & (values >= 0)]
    return round(float(np.mean(known))) if len(known) else 0
