"""Wait states in the JSON report: times in ns, per step where the name of the figure says so in `results`.

Calls are listed up to MOST_CALLS, those with the longest waits; `num_calls` says how many there are.
"""

from __future__ import annotations

import dataclasses

from perfscope.analysis.waits.results import LateCause, WaitAnalysis, WaitCall

MOST_CALLS = 1000


def waits_document(waits: WaitAnalysis | None) -> dict[str, object] | None:
    """JSON-ready; None where no step was traced. Missing figures stand with the run's."""
    if waits is None:
        return None
    worst = sorted(waits.calls, key=lambda call: -call.max_wait_ns)[:MOST_CALLS]
    return {
        "num_steps": waits.num_steps,
        "groups": [dataclasses.asdict(group) for group in waits.groups],
        "ranks": [dataclasses.asdict(rank) for rank in waits.ranks],
        "stragglers": [dataclasses.asdict(one) for one in waits.stragglers],
        "persistent": [dataclasses.asdict(one) for one in waits.persistent],
        "pattern": waits.pattern,
        "pattern_reason": waits.pattern_reason,
        "split": [dataclasses.asdict(row) for row in waits.split],
        "num_uncertain": waits.num_uncertain,
        "num_calls": len(waits.calls),
        "calls": [_call(call) for call in sorted(worst, key=lambda call: (call.window, call.start_ns))],
    }


def _call(call: WaitCall) -> dict[str, object]:
    return {
        "window": call.window,
        "step": call.step,
        "seq": call.seq,
        "collective": call.collective,
        "group": call.group,
        "num_ranks": len(call.ranks),
        "wait_ns": call.wait_ns,
        "max_wait_ns": call.max_wait_ns,
        "transfer_ns": call.transfer_ns,
        "late_rank": call.late_rank,
        "lateness_ns": call.lateness_ns,
        "uncertain": call.uncertain,
        "cause": _cause(call.cause),
    }


def _cause(cause: LateCause | None) -> dict[str, object] | None:
    return None if cause is None else dataclasses.asdict(cause)
