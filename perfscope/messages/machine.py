"""What is stated of a machine: the "clean run" verdict, ceilings, bytes on the wire, memory placement."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.messages.lists import counted, joined, plural
from perfscope.messages.sentences import capital, clause
from perfscope.units import format_ns, format_ratio
from perfscope.vocabulary.ceilings import CEILING_TITLES, CeilingKind

# -- the verdict -----------------------------------------------------------------------------------------

NO_HOST_SAMPLED = "No host was sampled."
NOT_SAMPLED = "its counters were not sampled"
NO_STEP = "no step was recorded, so there is no time to judge"


def windows_hit(windows: Sequence[int]) -> str:
    """``Traced windows 0 and 2 were hit``."""
    numbers = sorted(set(windows))
    if not numbers:
        return "No traced window was hit"
    were = "was" if len(numbers) == 1 else "were"
    return f"Traced {plural('window', len(numbers))} {joined(numbers)} {were} hit"


def disturbed_share(share: float, covered: float | None) -> str:
    """The beginning of a disturbed run's verdict.

    Args:
        share: of the steps' time under any disturbance.
        covered: see `monitored`.
    """
    return f"Disturbances cover {format_ratio(share, 0)} of step time{monitored(covered)}."


def disturbed(share: str, worst: str, effect: str, *, host: str, windows: str, more: int) -> str:
    """The verdict of a disturbed run.

    Args:
        share: as `disturbed_share` says.
        worst: the worst disturbance, a sentence.
        effect: of it on the steps, as `step_effect` says; "": not known.
        host: where it was; "": there is only one.
        windows: as `windows_hit` says; "": not known.
        more: how many others there were within the steps.
    """
    where = f"On {host}: " if host else ""
    parts = [
        share,
        f"{where}{clause(worst)}{f'; {effect}' if effect else ''}.",
        f"{windows}." if windows else "",
        f"{more} more in section Machine." if more else "",
    ]
    return " ".join(part for part in parts if part)


def quiet(
    seen: str,
    covered: float | None,
    *,
    num_hosts: int,
    host: str,
    num_short: int,
    short_share: float,
    windows: str,
) -> str:
    """The verdict of a clean run: what it rests on (`seen`, of the first host), and disturbances too short
    to count.
    """
    where = f"On {num_hosts} hosts, of which {host}: in" if num_hosts > 1 else "In"
    reason = f"{where} {seen}"
    if num_short:
        reason += f"; {counted(num_short, 'short disturbance')} in {format_ratio(short_share, 1)} of it"
    reason += monitored(covered)
    if num_short and windows:
        reason += f". {windows}"
    return f"{reason}."


def unknown(reasons: Sequence[str], host: str, num_hosts: int) -> str:
    """Why it is not known whether a run was clean.

    Args:
        reasons: of each host of which that is not known.
        host: the first of them.
        num_hosts: all hosts.
    """
    if not reasons:
        return NO_HOST_SAMPLED
    if num_hosts == 1:
        return f"{capital(reasons[0])}."
    are = "is" if len(reasons) == 2 else "are"
    more = f"; so {are} {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return f"Of {num_hosts} hosts, {host} is not known: {reasons[0]}{more}."


def monitored(covered: float | None) -> str:
    """``, monitored during 92 % of it``; None: nothing was left out."""
    return "" if covered is None else f", monitored during {format_ratio(covered, 0)} of it"


def other_processes_unread(reason: str) -> str:
    return "the CPU time of other processes was not read" + (f": {reason}" if reason else "")


def monitored_too_short(share: float, steps_ns: int) -> str:
    return (
        f"not monitored long enough: other processes were monitored during only {format_ratio(share, 0)} "
        f"of step time ({format_ns(steps_ns)})"
    )


# -- ceilings --------------------------------------------------------------------------------------------

CEILINGS_OFF = "switched off by `--ceilings off`"
NOT_STARTED_THERE = "no `perfscope run` started on that host"
CEILINGS_OFF_OR_FAILED = "its ceilings were not measured (`--ceilings off`, or it failed)"
CEILINGS_NOT_WRITTEN = "its ceilings were not written: perfscope was stopped while it measured, or could not"
CEILINGS_NOT_MEASURED = "its ceilings were not measured"
NOT_MEASURED_HERE = "it was not measured on this host"


def ceiling_title(kind: str) -> str:
    """``STREAM triad``; a kind of another version in its own word."""
    try:
        return CEILING_TITLES[CeilingKind(kind)]
    except ValueError:
        return kind


def ceiling_note(spread_ratio: float | None, pressure_ratio: float | None) -> str:
    """Why a measured ceiling may be wrong; "": no reason.

    Args:
        spread_ratio: how far apart its repetitions are, where that is far.
        pressure_ratio: as `measured_under_pressure` takes it, where it is high.
    """
    notes = [f"repetitions differ by {format_ratio(spread_ratio, 0)}"] if spread_ratio is not None else []
    notes += [measured_under_pressure(pressure_ratio)] if pressure_ratio is not None else []
    return "; ".join(notes)


def measured_under_pressure(ratio: float) -> str:
    """`ratio`: of the time in which tasks waited for CPUs while a ceiling was measured."""
    return f"CPU pressure was {format_ratio(ratio, 0)} during the measurement: the value may be too low"


# -- bytes on the wire -----------------------------------------------------------------------------------

NOTHING_TO_COMPARE = (
    "the links were not read twice within the steps, or no traced collective states its bytes and members "
    "(traces of CPU backends do not where several process groups are in use and a call passes no Python)"
)
NO_SAMPLE_AROUND = "there is no sample on both sides of it"
COUNTER_SATURATED = "a port's counter has reached its top"
NO_LINK_COUNTER = "no counter of the links that carry it was read"


def whole_run(num_steps: float, unsampled_hosts: Sequence[str]) -> str:
    """What a comparison over the whole run rests on, in steps of the traced steps' size."""
    text = f"{num_steps:.1f} steps of traced steps' size; the first and last may be counted in part"
    return f"{text}; not sampled: {', '.join(unsampled_hosts)}" if unsampled_hosts else text


def readings_too_far(apart_ns: int, window_ns: int) -> str:
    return f"the readings around it are {format_ns(apart_ns)} apart, the window lasts {format_ns(window_ns)}"


def between_readings(num_steps: float) -> str:
    return f"over the {num_steps:.1f} steps between the readings around it"


# -- placement -------------------------------------------------------------------------------------------

MEMORY_OF_THE_JOB = "memory.numa_stat of the job"


def interleaved_on_purpose(policy: str) -> str:
    return f"its memory is spread over nodes on purpose ({policy})"


def bound_on_purpose(kinds: str, policy: str) -> str:
    """`kinds`: of memory (MCDRAM, HBM) that it is bound to."""
    return f"its memory is bound to {kinds} on purpose ({policy})"
