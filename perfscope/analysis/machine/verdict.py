"""The "clean run" verdict: whether anything from outside disturbed the steps.

What happened before the first step or after the last is listed and does not count. Quiet is stated only where
other processes' CPU time was read over nine tenths of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfscope.analysis.machine.counters import counted_between
from perfscope.analysis.machine.disturbances import disturbances
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.results import Disturbance
from perfscope.messages import machine as texts
from perfscope.messages.disturbances import step_effect
from perfscope.rundir.sample_facts import Gap
from perfscope.units import format_ns, format_ratio
from perfscope.vocabulary.disturbances import NEIGHBORS
from perfscope.vocabulary.gpu import FOREIGN_PROCESSES, THROTTLE_TIME

COUNTS = 0.01  # a run is not clean if it was disturbed in this share of the steps' time
WHOLLY = 0.995  # watched in less of it is stated
COVERED = 0.9  # and clean only if read in this share of it


class Look(Struct, frozen=True, kw_only=True):
    """What there is to say of one host."""

    host: str
    disturbances: tuple[Disturbance, ...]
    share: float  # of the steps' time under any of them
    watched: float | None  # share of the steps' time in which other processes were read; None = never
    unknown: str  # why it is not known whether it was disturbed; "" = it is known
    seen: str  # what a quiet verdict rests on


class MachineVerdict(Struct, frozen=True, kw_only=True):
    """`clean` as in MachineAnalysis."""

    clean: bool | None
    reason: str
    summary: str  # the first sentence of a disturbed run's reason; "" else
    disturbances: tuple[Disturbance, ...]
    traced_disturbed: bool | None


def look(host: Host) -> Look:
    """Judge one host."""
    disturbances_found = tuple(disturbances(host))
    unknown = _why_unknown(host)
    return Look(
        host=host.name,
        disturbances=disturbances_found,
        share=_disturbed_share(host, disturbances_found),
        watched=_watched_share(host),
        unknown=unknown,
        seen="" if unknown else _looked_at(host),
    )


def judge(looks: Sequence[Look], disturbances: Sequence[Disturbance], num_windows: int) -> MachineVerdict:
    """Whether the run was clean: every host must have been.

    Args:
        looks: one per host.
        disturbances: their disturbances, with effects.
        num_windows: traced windows of the run.
    """
    every = tuple(
        sorted(disturbances, key=lambda disturbance: (not disturbance.within_steps, disturbance.start_ns))
    )
    hit = [number for disturbance in every if disturbance.within_steps for number in disturbance.windows]
    not_told = not num_windows or not looks or any(look.unknown for look in looks)
    traced_disturbed = True if hit else (None if not_told else False)
    clean, reason, summary = _judged(looks, every, texts.windows_hit(hit) if hit or not not_told else "")
    return MachineVerdict(
        clean=clean, reason=reason, summary=summary, disturbances=every, traced_disturbed=traced_disturbed
    )


def _judged(
    looks: Sequence[Look], every: Sequence[Disturbance], windows: str
) -> tuple[bool | None, str, str]:
    """`clean`, `reason` and `summary` of the verdict."""
    inside = [disturbance for disturbance in every if disturbance.within_steps]
    share = max((look.share for look in looks), default=0.0)
    if inside and share >= COUNTS:
        worst = max(
            inside, key=lambda disturbance: disturbance.severity * (disturbance.end_ns - disturbance.start_ns)
        )
        summary = texts.disturbed_share(share, _watched(looks))
        reason = texts.disturbed(
            summary,
            worst.title,
            step_effect(worst.step_ns_during, worst.step_ns_otherwise),
            host=worst.host if len(looks) > 1 else "",
            windows=windows,
            more=len(inside) - 1,
        )
        return False, reason, summary
    unknown = [look for look in looks if look.unknown]
    if unknown or not looks:
        host = unknown[0].host if unknown else ""
        return None, texts.unknown([look.unknown for look in unknown], host, len(looks)), ""
    reason = texts.quiet(
        looks[0].seen,
        _watched(looks),
        num_hosts=len(looks),
        host=looks[0].host,
        num_short=len(inside),
        short_share=share,
        windows=windows,
    )
    return True, reason, ""


def _disturbed_share(host: Host, disturbances: Sequence[Disturbance]) -> float:
    """Share of the steps' time under any disturbance."""
    if host.steps_ns is None:
        return 0.0
    inside = sorted(
        (disturbance.start_ns, disturbance.end_ns) for disturbance in disturbances if disturbance.within_steps
    )
    total, reach = 0, 0
    for start, end in inside:
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total / max(1, host.steps_ns[1] - host.steps_ns[0])


def _why_unknown(host: Host) -> str:
    """Why it is not known whether this host was disturbed; '' if it is."""
    if not host.has_samples:
        return texts.NOT_SAMPLED
    if host.steps_ns is None:
        return texts.NO_STEP
    counters = host.counters("neighbour_cpu")
    if not counters:
        stopped = (fact for fact in host.samples.facts if fact.name == "stopped")
        gaps = (fact.value for fact in stopped if fact.collector == NEIGHBORS)
        reasons = (gap.reason for gap in gaps if isinstance(gap, Gap))
        return texts.other_processes_unread(next(reasons, ""))
    length = host.steps_ns[1] - host.steps_ns[0]
    watched = _watched_share(host) or 0.0
    if watched < COVERED:
        return texts.monitored_too_short(watched, length)
    return ""


def _watched_share(host: Host) -> float | None:
    """Share of the steps' time in which other processes' CPU time was read; None where it never was."""
    counters = host.counters("neighbour_cpu")
    if host.steps_ns is None or not counters:
        return None
    covered = max(counted_between(rates, *host.steps_ns)[1] for _, rates in counters)
    return covered / max(1, host.steps_ns[1] - host.steps_ns[0])


def _watched(looks: Sequence[Look]) -> float | None:
    """Share of the steps' time in which the host monitored least was; None: nothing was left out."""
    share = min((look.watched for look in looks if look.watched is not None), default=1.0)
    return share if share < WHOLLY else None


def _looked_at(host: Host) -> str:
    """What a quiet verdict rests on."""
    assert host.steps_ns is not None
    length = host.steps_ns[1] - host.steps_ns[0]
    num_cpus = host.topology.num_cpus
    of = f" of {num_cpus} CPUs" if num_cpus else " CPUs"
    total = sum(counted_between(rates, *host.steps_ns)[0] for _, rates in host.counters("neighbour_cpu"))
    parts = [f"other processes used {total / max(1, length):.2f}{of}"]
    steal = host.counters("cpu_steal", cpu="all")
    if steal and num_cpus:
        taken = counted_between(steal[0][1], *host.steps_ns)[0] / max(1, length) / num_cpus
        parts.append(f"the hypervisor took {format_ratio(taken)}")
    watched = [
        word
        for metric, word in (
            ("job_throttled", "quota"),
            ("thermal_throttle_time", "CPU heat"),
            (THROTTLE_TIME.name, "GPU clocks"),
            (FOREIGN_PROCESSES.name, "other processes on GPUs"),
            ("pressure_some", "memory pressure"),
        )
        if host.samples.find(metric)
    ]
    if watched:
        parts.append(f"nothing from {', '.join(watched)}")
    return f"{format_ns(length)} of steps {', '.join(parts)}"
