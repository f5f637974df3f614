"""Idle time of ranks that compute on the CPU, by what the thread that trains did meanwhile.

Garbage collections and checkpoints of the traced steps are timed by the probe and run no operator: they are
idle time of the step. How long the thread had no CPU is known per step, not at which moments; the wait falls
into idle time in proportion to its share of the step. How long it slept in the kernel is known per step,
too: what it slept beyond communication and input was idle time. Samples of the thread tell what it slept in.
The rest is not traced: Python and system calls that compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from perfscope.analysis.intervals import Int64
from perfscope.analysis.machine.thread_states import ThreadStates
from perfscope.analysis.results import Breakdown, HostIdle, RankResult
from perfscope.analysis.spans import Mask
from perfscope.analysis.whole_run.steps import StepParts
from perfscope.vocabulary.host_activity import HostActivity
from perfscope.vocabulary.run_parts import RunPart

_NEVER_COMMUNICATION = (HostActivity.FILES, HostActivity.SLEEP)
_FEWEST_READINGS = 3  # of an activity that count as more than chance


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
    left, ns_by_kind = breakdown.idle, {}
    waited = _mean(parts.runqueue, parts)
    for kind, ns in (
        (HostActivity.GARBAGE_COLLECTION, _mean(parts.timed[RunPart.GARBAGE_COLLECTION], parts)),
        (HostActivity.CHECKPOINT, _mean(parts.timed[RunPart.CHECKPOINT], parts)),
        (HostActivity.PREEMPTED, round(waited * breakdown.idle / breakdown.step) if breakdown.step else 0),
        (HostActivity.BLOCKED, _slept(breakdown, parts)),
    ):
        ns_by_kind[kind] = min(ns, left)
        left -= ns_by_kind[kind]
    ns_by_kind[HostActivity.UNTRACED] = left
    entries = [HostIdle(kind=kind, ns=ns) for kind, ns in ns_by_kind.items() if ns]
    return tuple(sorted(entries, key=lambda entry: -entry.ns))


def _slept(breakdown: Breakdown, parts: StepParts) -> int:
    """What the thread that trains slept in the kernel outside of communication, input and checkpoints, at
    least; ns.

    It is on a CPU, waits for one or sleeps. All that it does outside of idle time may have been sleep, too,
    but for computation, in which it may wait for threads of its own: those mostly spin.
    """
    chosen = parts.is_traced & has_states(parts)
    if not chosen.any():
        return 0
    ran = _mean_of(ran_ns(parts)[chosen])
    asleep = _mean_of(asleep_ns(parts)[chosen])
    elsewhere = breakdown.exposed_comm + breakdown.input_wait + _mean(parts.timed[RunPart.CHECKPOINT], parts)
    ran_idle = max(0, ran - (breakdown.step - breakdown.idle))  # that much of the idle time it ran
    return max(0, min(asleep - elsewhere, breakdown.idle - ran_idle))


def usual_sleep_ratio(breakdown: Breakdown | None, parts: StepParts) -> float | None:
    """What the thread sleeps outside of operators, input and checkpoints, as a share of the untraced steps.

    They are many more than the traced ones, and a wait for a lock is another in each step. Only of a rank
    that does not communicate: how long an untraced step waits for other ranks is not recorded.

    Args:
        breakdown: of the rank; None: no step was traced.
        parts: its steps.

    Returns:
        None where that is not known, or no more steps are untraced than traced.
    """
    if breakdown is None or breakdown.exposed_comm:
        return None
    traced, usual = (chosen & has_states(parts) for chosen in (parts.is_traced, parts.is_usual))
    if not traced.any() or usual.sum() <= traced.sum():
        return None
    waits = parts.timed[RunPart.INPUT] + parts.timed[RunPart.CHECKPOINT]
    asleep = asleep_ns(parts) - waits
    # What it sleeps in operators (on threads of its own) is known of the traced steps only.
    in_operators = max(0, _mean_of(asleep[traced]) - _slept(breakdown, parts))
    share_of_operators = in_operators / float(np.mean(parts.durations[traced]))
    ratio = float(np.mean(asleep[usual])) / float(np.mean(parts.durations[usual])) - share_of_operators
    return min(max(ratio, 0.0), 1.0)


def has_states(parts: StepParts) -> Mask:
    """Steps of which it is recorded how long the thread ran and waited for a CPU."""
    used = parts.used
    has_times = (used["thread_user_ns"] >= 0) & (used["thread_system_ns"] >= 0)
    result: Mask = has_times & (parts.runqueue >= 0)
    return result


def ran_ns(parts: StepParts) -> Int64:
    result: Int64 = parts.used["thread_user_ns"] + parts.used["thread_system_ns"]
    return result


def asleep_ns(parts: StepParts) -> Int64:
    """Neither on a CPU nor waiting for one."""
    result: Int64 = parts.durations - ran_ns(parts) - parts.runqueue
    return result


def other_threads_ns(parts: StepParts) -> float | None:
    """CPU time of all threads of the process but the one that trains, per usual step; None: not recorded."""
    names = ("user_ns", "system_ns", "thread_user_ns", "thread_system_ns")
    is_measured = parts.is_usual & np.logical_and.reduce([parts.used[name] >= 0 for name in names])
    if not is_measured.any():
        return None
    used = {name: float(np.mean(parts.used[name][is_measured])) for name in names}
    return max(0.0, used["user_ns"] + used["system_ns"] - used["thread_user_ns"] - used["thread_system_ns"])


def with_names(results: Sequence[RankResult], states: Mapping[int, ThreadStates]) -> tuple[RankResult, ...]:
    """Time blocked in the kernel is divided by what the rank's main thread was seen to sleep in."""
    return tuple(
        result
        if result.host_idle is None or result.breakdown_ns is None or result.rank not in states
        else replace(result, host_idle=_named(result.host_idle, result.breakdown_ns, states[result.rank]))
        for result in results
    )


def _named(idle: Sequence[HostIdle], breakdown: Breakdown, states: ThreadStates) -> tuple[HostIdle, ...]:
    """Communication waits for other threads and sockets, loaders for pipes: that much of the readings is not
    of idle time. Neither waits for files or sleeps for a time: what was seen of that is idle time, also where
    the time that the thread slept says less, of which all communication is taken to be a part.
    """
    seen = {activity: ratio * breakdown.step for activity, ratio in states.ratios.items()}
    for activities, ns in (
        ((HostActivity.PIPES, HostActivity.LOCK), breakdown.input_wait),
        ((HostActivity.LOCK, HostActivity.PIPES), breakdown.exposed_comm),
    ):
        left = float(ns)
        for activity in activities:
            taken = min(left, seen.get(activity, 0.0))
            if taken:
                seen[activity] -= taken
                left -= taken
    entries = {entry.kind: entry.ns for entry in idle}
    blocked, total = entries.pop(HostActivity.BLOCKED, 0), sum(seen.values())
    certain = sum(
        seen[activity]
        for activity in _NEVER_COMMUNICATION
        if states.ratios.get(activity, 0.0) * states.num_readings >= _FEWEST_READINGS
    )
    more = min(max(round(certain) - blocked, 0), entries.get(HostActivity.UNTRACED, 0))
    if more:
        blocked, entries[HostActivity.UNTRACED] = blocked + more, entries[HostActivity.UNTRACED] - more
    left = blocked
    for activity in sorted(seen, key=lambda kind: -seen[kind]):
        # More than was seen of it is not known to be of it.
        ns = min(left, round(min(blocked * seen[activity] / total, seen[activity]))) if total > 0 else 0
        if ns and activity is not HostActivity.BLOCKED:
            entries[activity] = ns
            left -= ns
    entries[HostActivity.BLOCKED] = left
    named = [HostIdle(kind=kind, ns=ns) for kind, ns in entries.items() if ns]
    return tuple(sorted(named, key=lambda entry: -entry.ns))


def _mean_of(values: Int64) -> int:
    return round(float(np.mean(values)))


def _mean(values: Int64, parts: StepParts) -> int:
    measured = values[parts.is_traced & (values >= 0)]
    return round(float(np.mean(measured))) if len(measured) else 0
