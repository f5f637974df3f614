"""Hardware counters that are not there: whole hosts, sources of a host, and parts of the steps' time."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analysis.machine.host import Host
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.source import RunSource
from perfscope.rundir.old_words import notes_of
from perfscope.rundir.sample_facts import Gap
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.notes import NO_COUNTERS_OF_HOST, NoteKind

_MOST_NAMES = 6
_LATE_NS = 2_000_000_000  # a sampler may begin this long after the steps, or end before them
_LATE_RATIO = 0.05  # of the steps' time


def absent_sources(host: Host) -> list[Missing]:
    """One entry for all sources that the sampler noted as absent; none where it noted nothing."""
    facts = host.samples.facts
    noted = [fact.value for fact in facts if fact.name == "absent" and isinstance(fact.value, Gap)]
    working = {series.collector for series in host.samples.series if len(series.values)}
    # A later sampler of the same run may have found what an earlier one did not.
    absent = list(dict.fromkeys(name for gap in noted if (name := gap.what or "unnamed") not in working))
    if not absent:
        return []
    every = working | {fact.collector for fact in facts} | {*absent}
    names = ", ".join(absent[:_MOST_NAMES]) + (", …" if len(absent) > _MOST_NAMES else "")
    return [
        missing_figure(
            Figure.HARDWARE_SOURCES,
            Cause.SOURCES_ABSENT,
            host=host.name,
            count=len(absent),
            total=len(every),
            sources=names,
        )
    ]


def unsampled(source: RunSource, hosts: Sequence[str], sampled: Sequence[str]) -> list[Missing]:
    """Hosts of which no counters were read, one entry per reason.

    Args:
        source: the run.
        hosts: that left anything.
        sampled: those of them with counters.
    """
    noted: dict[str, str] = {}  # hosts of ranks; what a rank of it noted
    for rank in source.ranks:
        record = source.rank_records[rank]
        reasons = (text for kind, text in notes_of(record) if kind is NoteKind.NO_COUNTERS)
        noted[record.host] = noted.get(record.host) or next(reasons, "").removeprefix(NO_COUNTERS_OF_HOST)
    for name in {*hosts, *noted} - {*sampled, ""}:
        noted[name] = noted.get(name) or source.sampler_error(name)
    off = source.run.options.sampling is None
    by_cause: dict[tuple[Cause, str], list[str]] = {}
    for name in sorted({*hosts, *noted} - {*sampled, ""}):
        usual = Cause.NO_SAMPLER if name in hosts else Cause.HOST_NOT_RECORDED
        cause = Cause.SAMPLING_OFF if off else Cause.SAMPLER_NOT_STARTED if noted.get(name) else usual
        reason = noted[name] if cause is Cause.SAMPLER_NOT_STARTED else ""
        by_cause.setdefault((cause, reason), []).append(name)
    return [
        missing_figure(Figure.HARDWARE_COUNTERS, cause, hosts=tuple(names), reason=reason)
        for (cause, reason), names in by_cause.items()
    ]


def unwatched(host: Host) -> list[Missing]:
    """The beginning or the end of the steps, where the sampler was not there."""
    span, steps = host.span_ns, host.steps_ns
    if span is None or steps is None:
        return []
    length = steps[1] - steps[0]
    before = min(span[0] - steps[0], length)
    after = min(steps[1] - span[1], length)
    missing = []
    if before > _LATE_NS:
        figure, cause = Figure.FIRST_HARDWARE_COUNTERS, Cause.SAMPLER_STARTED_LATE
        missing.append(missing_figure(figure, cause, host=host.name, time_ns=before))
    if after > max(_LATE_NS, _LATE_RATIO * length):
        missing.append(_ended(host, after))
    return missing


def _ended(host: Host, time_ns: int) -> Missing:
    """By the sampler's `end` line; each that ended in order wrote one."""
    figure, name = Figure.LAST_HARDWARE_COUNTERS, host.name
    samplers = 1 + max((int(s.segment.max(initial=0)) for s in host.samples.series), default=0)
    if len(host.samples.ends) < samplers:
        return missing_figure(figure, Cause.SAMPLER_KILLED, host=name, time_ns=time_ns)
    end = host.samples.ends[-1].end or "no reason was given"
    return missing_figure(figure, Cause.SAMPLER_ENDED, host=name, time_ns=time_ns, end=end)
