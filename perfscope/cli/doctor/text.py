"""The doctor's answer for a terminal: the verdict first, then what to do, then source by source."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from perfscope import units
from perfscope.cli.doctor.links_text import link_lines
from perfscope.cli.doctor.machine import bug_report, machine_tree, machine_words, topology_of
from perfscope.cli.doctor.memory_modes import Copies, fit_lines, mode_lines
from perfscope.collectors.base import Capability
from perfscope.collectors.survey import SourceStatus, Survey
from perfscope.collectors.trial import CollectorTrial
from perfscope.messages.lists import counted, joined
from perfscope.messages.machine import ceiling_title
from perfscope.messages.sentences import capital
from perfscope.reports.text import NARROWEST, WIDEST, Style, cells, pad
from perfscope.rundir.host_records import CeilingsRecord, MeasuredCeiling, TheoreticalCeiling
from perfscope.rundir.typed import read_as
from perfscope.vocabulary.disturbances import NEIGHBORS

# The first part of a collector's name -> a heading, and the same inside a sentence; in the table's order.
GROUPS = {
    "memory": ("Memory in use", "memory in use"),
    "numa": ("NUMA", "NUMA"),
    "cpu": ("CPU and pressure", "CPUs"),
    "pressure": ("CPU and pressure", "CPUs"),
    "membw": ("Memory bandwidth", "memory bandwidth"),
    "gpu": ("GPUs", "GPUs"),
    "fabric": ("InfiniBand, Omni-Path, RoCE", "RDMA fabrics"),
    "ethernet": ("Ethernet and TCP", "Ethernet"),
    "io": ("Storage", "storage"),
    "mounts": ("File systems", "file systems"),
    "osts": ("File systems", "file systems"),
    "power": ("Power", "power"),
    NEIGHBORS: ("Neighbors", NEIGHBORS),
    "stacks": ("Python stacks", "Python stacks"),
}
AVAILABLE, PARTLY, MISSING = "✓", "!", "–"
_COLOR = {AVAILABLE: "32", PARTLY: "33", MISSING: "90"}
_ASCII = str.maketrans(
    {
        "✓": "+",
        "–": "-",
        "→": ">",
        "µ": "u",
        "·": "|",
        "×": "x",
        "├": "|",
        "└": "`",
        "│": "|",
        "─": "-",
        "…": "~",
    }
)
NOTE = "note"  # an "absent part" that is a remark on the whole
_MOST_REMEDIES, _MOST_NAMES = 8, 6


def render(
    survey: Survey,
    trials: Sequence[CollectorTrial] | None,
    *,
    links: Sequence[Mapping[str, object]] = (),
    copies: Copies | None = None,
    width: int = 100,
    color: bool = False,
) -> str:
    """The whole answer in at most `width` columns (kept between 80 and 120), with a newline at the end."""
    width = max(NARROWEST, min(width, WIDEST))
    style = Style(color)
    blocks: list[tuple[str, list[str]]] = [
        ("What you can do", list(_remedies(survey, width))),
        ("Sources", list(_sources(survey, width, style))),
        ("Sampled for a moment", list(_trials(survey, trials, width)) if trials is not None else []),
        ("This machine" if not survey.captured else "The machine", list(_machine(survey, copies, width))),
        ("Ceilings", list(_ceilings(survey, width))),
        ("Links", list(_links(links, width))),
    ]
    lines = [*_head(survey, width, style), ""]
    for title, body in blocks:
        if body:
            lines += [style.bold(title), *body, ""]
    # Unindented and without color or decoration: it is there to be copied.
    lines += [style.bold("Bug report information"), *bug_report(survey, width)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def in_ascii(text: str) -> str:
    """The same for a terminal that shows nothing else; marks and arrows keep their meaning."""
    return text.translate(_ASCII)


def mark(capability: Capability) -> str:
    if not capability.available:
        return MISSING
    return PARTLY if any(absent.what != NOTE for absent in capability.absent) else AVAILABLE


def by_group(survey: Survey) -> dict[tuple[str, str], list[SourceStatus]]:
    """Sources by GROUPS, in the table's order; those of other packages last, under their own names."""
    groups: dict[tuple[str, str], list[SourceStatus]] = {group: [] for group in GROUPS.values()}
    for source in survey.sources:
        kind = source.capability.collector.partition(".")[0]
        groups.setdefault(GROUPS.get(kind, (kind, kind)), []).append(source)
    return {group: sources for group, sources in groups.items() if sources}


def _head(survey: Survey, width: int, style: Style) -> Iterator[str]:
    where = f"captured tree {survey.captured}" if survey.captured else survey.host
    yield from (style.quiet(line) for line in _wrapped(f"perfscope doctor · {where}", width, ""))
    yield from (style.quiet(line) for line in _wrapped(machine_words(survey), width, ""))
    yield ""
    if not survey.sources:
        yield from (style.bold(line) for line in _wrapped("No source is known.", width, ""))
        return
    available = sum(source.capability.available for source in survey.sources)
    missing = [
        name
        for (_, name), sources in by_group(survey).items()
        if not any(source.capability.available for source in sources)
    ]
    partly = sum(mark(source.capability) == PARTLY for source in survey.sources)
    verdict = f"{available} of {len(survey.sources)} sources available"
    if partly:
        verdict += f", {partly} of them in part"
    if missing:
        verdict += f"; none for {_listed(missing)}"
    yield from (style.bold(line) for line in _wrapped(f"{verdict}.", width, ""))
    if survey.captured:
        yield from _wrapped(
            "This is a captured tree, not the machine you are on: what needs system calls, drivers' "
            "libraries or living processes is missing for that reason alone.",
            width,
            "",
        )


def _remedies(survey: Survey, width: int) -> Iterator[str]:
    """Each remedy once, with what it would give."""
    gains = _gains(survey)
    for number, (remedy, names) in enumerate(list(gains.items())[:_MOST_REMEDIES], 1):
        yield from _wrapped(remedy, width, "     ", f"  {number}. ")
        yield from _wrapped(f"→ {_several(list(dict.fromkeys(names)))}", width, "       ", "     ")
    if len(gains) > _MOST_REMEDIES:
        yield f"     {len(gains) - _MOST_REMEDIES} more below."


def _gains(survey: Survey) -> dict[str, list[str]]:
    """Remedy -> what it would give, in the order of the sources."""
    gains: dict[str, list[str]] = {}
    for source in survey.sources:
        capability = source.capability
        if not capability.available and capability.remedy:
            gains.setdefault(capability.remedy, []).append(capability.collector)
        for absent in capability.absent:
            if absent.remedy:
                gains.setdefault(absent.remedy, []).append(absent.what)
    return gains


def _numbered(survey: Survey) -> dict[str, str]:
    """Remedy -> how the table refers to it: by its number above, or in full where it has none."""
    return {
        remedy: f"do {number}. above" if number <= _MOST_REMEDIES else remedy
        for number, remedy in enumerate(_gains(survey), 1)
    }


def _sources(survey: Survey, width: int, style: Style) -> Iterator[str]:
    indent = 6 + max((cells(source.capability.collector) for source in survey.sources), default=0)
    remedies = _numbered(survey)
    for (title, _), sources in by_group(survey).items():
        yield f"  {title}"
        for source, names in _together(sources):
            yield from _source(source, remedies, indent, width, style)
            if names:
                yield from _wrapped(f"also {', '.join(names)}", width, " " * indent)


def _together(sources: Sequence[SourceStatus]) -> list[tuple[SourceStatus, list[str]]]:
    """Each source, with the names of those that are missing for the same reason and left out for that."""
    by_status: dict[object, tuple[SourceStatus, list[str]]] = {}
    for source in sources:
        capability = source.capability
        name = capability.collector
        key: object = name if capability.available else (capability.reason, capability.remedy)
        if key in by_status:
            by_status[key][1].append(name)
        else:
            by_status[key] = (source, [])
    return list(by_status.values())


def _source(
    source: SourceStatus, remedies: Mapping[str, str], indent: int, width: int, style: Style
) -> Iterator[str]:
    capability = source.capability
    sign = mark(capability)
    space = " " * indent
    reason_text = _gives(source) if capability.available else (capability.reason or "no reason was given")
    first, *continued = _wrapped(reason_text, width, space)
    sign_text = f"\x1b[{_COLOR[sign]}m{sign}\x1b[0m" if style.on else sign
    yield f"  {sign_text} {pad(capability.collector, indent - 6)}  {first.lstrip()}"
    yield from continued
    if not capability.available:
        if capability.remedy:
            yield from _wrapped(remedies[capability.remedy], width, space + "  ", space + "→ ")
        return
    if capability.source:
        yield from _wrapped(f"from {capability.source}", width, space)
    reasons: dict[tuple[str, str], list[str]] = {}
    for absent in capability.absent:
        reasons.setdefault((absent.reason, absent.remedy), []).append(absent.what)
    for (reason, remedy), parts in reasons.items():
        reason_text = reason if parts == [NOTE] else f"{_several(parts)}: {reason}"
        yield from _wrapped(
            reason_text, width, space + "  ", f"{space}{PARTLY if parts == [NOTE] else MISSING} "
        )
        if remedy:
            yield from _wrapped(remedies[remedy], width, space + "    ", f"{space}  → ")


def _gives(source: SourceStatus) -> str:
    """ "12 metrics (bytes, ns) · every tick · 2 nodes"."""
    capability = source.capability
    parts = []
    if capability.metrics:
        names = sorted({metric.unit for metric in capability.metrics})
        count = len({metric.name for metric in capability.metrics})
        parts.append(f"{counted(count, 'metric')} ({', '.join(names)})")
    interval = capability.min_interval_ns
    parts.append(f"every {interval / 1e9:g} s" if interval else "every tick")
    steps = sorted({metric.resolution.partition(";")[0] for metric in capability.metrics} - {""})
    if steps:
        parts.append(f"resolution {', '.join(steps[:2])}")
    if capability.detail:
        parts.append(capability.detail)
    if source.foreign:
        parts.append("from another package")
    return " · ".join(parts)


def _trials(survey: Survey, trials: Sequence[CollectorTrial], width: int) -> Iterator[str]:
    without = {source.capability.collector for source in survey.sources if not source.capability.metrics}
    if not trials:
        yield "  No source is available."
        return
    size = max(cells(trial.collector) for trial in trials)
    for trial in trials:
        each = trial.cpu_ns / trial.samples if trial.samples else None
        gave = [] if trial.collector in without else [counted(trial.readings, "reading")]
        cost = f"{units.format_ns(each)} of CPU per sample"
        outcome = ", ".join([counted(trial.samples, "sample"), *gave, cost]) if trial.samples else "not read"
        if trial.failed:
            outcome += f", {trial.failed} not read"
        silent = not trial.readings and trial.collector not in without
        bad = trial.fault or (silent and trial.failed)
        sign = MISSING if bad else PARTLY if trial.stopped or trial.failed or silent else AVAILABLE
        yield f"  {sign} {pad(trial.collector, size)}  {outcome}"
        for text in [*([trial.fault] if trial.fault else []), *trial.stopped]:
            yield from _wrapped(text, width, " " * (size + 6))


def _links(documents: Sequence[Mapping[str, object]], width: int) -> Iterator[str]:
    for line, indent in link_lines(documents):
        if cells(line) <= width - 2:
            yield f"  {line}"
        else:
            yield from _wrapped(line, width, f"  {indent}", "  ")


def _machine(survey: Survey, copies: Copies | None, width: int) -> Iterator[str]:
    yield from (
        f"  {line}" if cells(line) <= width - 2 else f"  {line[: width - 3]}…"
        for line in machine_tree(survey)
    )
    topology = topology_of(survey)
    for line in [*mode_lines(topology), *(fit_lines(topology, copies) if copies else ())]:
        yield from _wrapped(line, width, "    ", "  ")
    for note in topology.notes:
        yield from _wrapped(note, width, "    ", "  ! ")
    for problem in survey.problems:
        yield from _wrapped(problem, width, "    ", "  ! ")


def _ceilings(survey: Survey, width: int) -> Iterator[str]:
    if survey.ceilings is None:
        if not survey.captured:
            yield "  Not measured yet: perfscope doctor --ceilings, or any run, measures them."
        return
    ceilings = read_as(CeilingsRecord, survey.ceilings)
    for entry in sorted(ceilings.entries, key=_ceiling_order):
        value = pad(_ceiling_value(entry), 14, right=True)
        first = f"  {pad(_ceiling_name(entry), 24)} {value}  "
        yield from _wrapped(_ceiling_note(entry), width, " " * cells(first), first)
    for peak in ceilings.theoretical:
        value = _ceiling_value(peak)
        yield from _wrapped(
            f"{peak.what}, {peak.where}: {value} at most ({peak.source})", width, "    ", "  "
        )
    for gap in ceilings.missing:
        yield from _wrapped(f"{gap.what}: {gap.reason}", width, "    ", f"  {MISSING} ")
    cached = _kept_since(ceilings.measured_unix_ns) if ceilings.cached else "measured now"
    yield from _wrapped(f"{cached}{'; ' if ceilings.how else ''}{ceilings.how}", width)


def _kept_since(measured_unix_ns: int | None) -> str:
    if measured_unix_ns is None:
        return "measured before and cached"
    at = datetime.fromtimestamp(measured_unix_ns // 10**9, tz=timezone.utc)
    return f"measured on {at:%Y-%m-%d at %H:%M} UTC and kept; --ceilings measures afresh"


def _ceiling_order(entry: MeasuredCeiling) -> tuple[bool, str, bool, str, int]:
    """Processor before GPUs, kinds together, the whole machine before its nodes, many threads first."""
    name = _ceiling_name(entry)
    return not entry.is_of_cpus, name, entry.node is not None, str(entry.node), -(entry.threads or 0)


def _ceiling_name(entry: MeasuredCeiling) -> str:
    title = capital(ceiling_title(entry.kind))
    return f"{title} {entry.dtype}" if entry.dtype else title


def _ceiling_value(entry: MeasuredCeiling | TheoreticalCeiling) -> str:
    return units.format_si(entry.value, "FLOP/s" if entry.unit == "flops_per_s" else "B/s")


def _ceiling_note(entry: MeasuredCeiling) -> str:
    on_cpus = "all nodes" if entry.node is None else f"node {entry.node}"
    parts = [on_cpus if entry.is_of_cpus else str(entry.device)]
    if entry.threads is not None:
        parts.append(counted(entry.threads, "thread"))
    if entry.runs == 1:
        parts.append("1 run, spread not known")
    elif entry.spread_ratio is not None:
        parts.append(f"{units.format_ratio(entry.spread_ratio, 0)} apart in {entry.runs} runs")
    return ", ".join(parts)


def _several(names: Sequence[str]) -> str:
    """Names one after another; of many only the first."""
    num_more = len(names) - _MOST_NAMES
    listed = [*names[:_MOST_NAMES], f"{num_more} more"] if num_more > 1 else names
    return ("; " if any("," in name for name in listed) else ", ").join(listed)


def _listed(names: Sequence[str]) -> str:
    return joined(names, "or")


def _wrapped(text: str, width: int, indent: str = "  ", first: str | None = None) -> list[str]:
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return lines or [indent if first is None else first]
