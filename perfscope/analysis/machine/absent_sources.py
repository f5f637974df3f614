"""Hardware counters that are not there: whole hosts, sources of a host, and parts of the steps' time."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analysis.machine.host import Host
from perfscope.analysis.missing import MissingFigure
from perfscope.analysis.source import RunSource
from perfscope.units import format_ns

_MOST_NAMES = 6
# How the probe's notes on a host without a sampler begin (rank.json `notes`).
NO_COUNTERS_NOTE = "no hardware counters of this host: "
_LATE_NS = 2_000_000_000  # a sampler may begin this long after the steps, or end before them
_LATE_RATIO = 0.05  # of the steps' time
_REASON = "not available there: `perfscope doctor` on that host says why and what to do"


def absent_sources(host: Host) -> list[MissingFigure]:
    """One entry for all sources that the sampler noted as absent; none where it noted nothing."""
    facts = host.samples.facts
    noted = [fact for fact in facts if fact.name == "absent"]
    working = {series.collector for series in host.samples.series if len(series.values)}
    # A later sampler of the same run may have found what an earlier one did not.
    absent = list(dict.fromkeys(name for fact in noted if (name := _name(fact.value)) not in working))
    if not absent:
        return []
    every = working | {fact.collector for fact in facts} | {*absent}
    shown = ", ".join(absent[:_MOST_NAMES]) + (", …" if len(absent) > _MOST_NAMES else "")
    what = f"{len(absent)} of {len(every)} hardware sources of {host.name} ({shown})"
    return [MissingFigure(what=what, reason=_REASON)]


def unsampled(source: RunSource, hosts: Sequence[str], sampled: Sequence[str]) -> list[MissingFigure]:
    """Hosts of which no counters were read, one entry per reason.

    Args:
        source: the run.
        hosts: that left anything.
        sampled: those of them with counters.
    """
    noted: dict[str, str] = {}  # hosts of ranks; what a rank of it noted
    for rank in source.ranks:
        record = source.rank_records[rank]
        noted[record.host] = noted.get(record.host) or _noted(record.notes)
    off = source.run.options.sampling is None
    by_reason: dict[str, list[str]] = {}
    for name in sorted({*hosts, *noted} - {*sampled, ""}):
        reason = "switched off by `--sample-interval off`" if off else noted.get(name, "")
        usual = "no sampler wrote there" if name in hosts else "nothing was recorded there"
        by_reason.setdefault(reason or usual, []).append(name)
    return [
        MissingFigure(what=f"hardware counters of {some(names)}", reason=reason)
        for reason, names in by_reason.items()
    ]


def _noted(notes: Sequence[str]) -> str:
    for note in notes:
        if note.startswith(NO_COUNTERS_NOTE):
            return note.removeprefix(NO_COUNTERS_NOTE)
    return ""


def unwatched(host: Host) -> list[MissingFigure]:
    """The beginning or the end of the steps, where the sampler was not there."""
    span, steps = host.span_ns, host.steps_ns
    if span is None or steps is None:
        return []
    length = steps[1] - steps[0]
    before = min(span[0] - steps[0], length)
    after = min(steps[1] - span[1], length)
    missing = []
    if before > _LATE_NS:
        what = f"hardware counters of {host.name} for the first {format_ns(before)} of the steps"
        missing.append(MissingFigure(what=what, reason="its sampler began to read only then"))
    if after > max(_LATE_NS, _LATE_RATIO * length):
        what = f"hardware counters of {host.name} for the last {format_ns(after)} of the steps"
        missing.append(MissingFigure(what=what, reason=_why_ended(host)))
    return missing


def _why_ended(host: Host) -> str:
    """By its `end` line; each sampler that ended in order wrote one."""
    samplers = 1 + max((int(s.segment.max(initial=0)) for s in host.samples.series), default=0)
    if len(host.samples.ends) < samplers:
        return "its sampler was killed"
    return f"its sampler ended: {host.samples.ends[-1].get('end') or 'no reason was given'}"


def some(names: Sequence[str]) -> str:
    """The first four of them, and how many more."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}"


def _name(value: object) -> str:
    what = value.get("what") if isinstance(value, dict) else None
    return str(what or "unnamed")
