"""Section "Counters over the run": what was sampled, as small charts on one time axis."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec import Struct

from perfscope.analysis.machine.results import CounterTrack, MachineAnalysis
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.timeline_extract import TimelineExtract
from perfscope.reports.display import visible
from perfscope.reports.model import (
    CounterChart,
    CounterLine,
    Counters,
    Section,
    TimeLabel,
    TimelineLane,
    Unit,
)
from perfscope.reports.sections.machine import origin_ns
from perfscope.vocabulary.memory import HOST_MEMORY, RANK_MEMORY

MOST_LINES = 8
MOST_FAMILIES = 3  # charts of one kind of line that a group may have
MOST_LANES = 8  # under the timeline, per window
MOST_KINDS = 2  # of one group among them
MOST_OF_KIND = 4  # lanes that differ by a number only (rank, node); of more only two are taken
LONGEST_LABEL = 60
_NUMBER = re.compile(r"\b\d+\b")
UNITS = {
    "ratio": Unit.RATIO,
    "bytes_per_s": Unit.RATE,
    "bytes": Unit.BYTES,
    "watts": Unit.POWER,
    "hz": Unit.FREQUENCY,
    "celsius": Unit.TEMPERATURE,
    "per_s": Unit.EVENTS,
    "joules": Unit.ENERGY,
    "flops_per_s": Unit.FLOP_RATE,
    "ns": Unit.TIME,
}
# Groups by interest: what computes, what feeds it, what it costs.
TITLES = {
    "cpu": "CPUs",
    "gpu": "GPUs",
    "pressure": "Pressure (share of time waiting)",
    RANK_MEMORY: "Resident memory of ranks",
    HOST_MEMORY: "Memory of hosts and control groups in use",
    "memory": "Memory",
    "network": "Network",
    "fabric": "Fabric",
    "gpu_link": "PCIe and links between GPUs",
    "power": "Power",
    "clocks": "Clocks",
    "numa": "NUMA",
    "io": "Storage",
}
# Where a group has readings in several units.
CHART_TITLES = {
    ("gpu", Unit.RATIO): "GPUs, utilization",
    ("gpu", Unit.BYTES): "GPUs, memory in use",
    ("gpu", Unit.TEMPERATURE): "GPUs, temperature",
    ("memory", Unit.RATE): "Memory bandwidth",
    ("memory", Unit.BYTES): "Memory in use",
    ("memory", Unit.RATIO): "Memory, share in use",
    ("numa", Unit.BYTES): "NUMA nodes, memory",
    ("network", Unit.EVENTS): "Network, packets and errors",
    ("fabric", Unit.EVENTS): "Fabric, packets and errors",
    ("fabric", Unit.RATIO): "Fabric, share of time",
    ("cpu", Unit.EVENTS): "CPUs, events",
    ("power", Unit.TEMPERATURE): "Temperature",
    ("io", Unit.TIME): "Storage, time per request",
    ("clocks", Unit.RATIO): "Throttled by heat",
}
UNIT_ORDER = (Unit.RATIO, Unit.RATE, Unit.BYTES, Unit.POWER, Unit.FREQUENCY, Unit.TEMPERATURE, Unit.EVENTS)
LANE_GROUPS = ("cpu", "gpu", "memory", "network", "fabric", "gpu_link")


def counters_section(analysis: RunAnalysis) -> Section | None:
    machine = analysis.machine
    if machine is None or not machine.tracks:
        return None
    tracks = [track for track in machine.tracks if not of_memory(track)]
    block = counters_block(machine, tracks, "counters-chart", "Counters over the run")
    if block is None:
        return None
    return Section(
        id="counters",
        title="Counters over the run",
        lead=_lead(machine),
        blocks=(block,),
        in_terminal="blocks",
    )


def of_memory(track: CounterTrack) -> bool:
    """Whether the section Memory draws it."""
    in_bytes = track.unit == "bytes" and track.group in ("memory", "gpu")
    return in_bytes or track.group in (RANK_MEMORY, HOST_MEMORY)


def counters_block(
    machine: MachineAnalysis, tracks: Sequence[CounterTrack], block_id: str, title: str
) -> Counters | None:
    """Charts of those tracks that move, by group and unit; None where none does."""
    origin, end = origin_ns(machine), _end_ns(machine)
    groups: dict[tuple[str, Unit], list[CounterTrack]] = defaultdict(list)
    for track in tracks:
        groups[track.group, UNITS.get(track.unit, Unit.NUMBER)].append(track)
    moving = {key: [t for t in of_group if _moves(t)] for key, of_group in groups.items()}
    still = len(tracks) - sum(len(of_group) for of_group in moving.values())
    if not any(moving.values()) or end <= origin:
        return None
    several = len({track.host for track in machine.tracks}) > 1
    charts = tuple(
        _chart(key, number, family, origin, several)
        for key, of_group in sorted(moving.items(), key=lambda item: _interest(item[0]))
        for number, family in enumerate(_families(key, of_group))
    )
    return Counters(
        id=block_id,
        title=title,
        span_ns=end - origin,
        charts=charts,
        windows=tuple(
            TimeLabel(start_ns=start - origin, end_ns=stop - origin, title=f"window {window}")
            for window, start, stop in machine.windows
            if stop > origin and start < end
        ),
        disturbances=_disturbances(machine, origin, end),
        steps=_steps(machine, origin),
        caption=_caption(tracks, still),
    )


def _lead(machine: MachineAnalysis) -> str:
    sentence = "x axis: time since the first sample. Bands: minimum to maximum of the samples"
    return f"{sentence} behind a point." if machine.tracks else ""


def _caption(tracks: Sequence[CounterTrack], still: int) -> str:
    parts = []
    if any(track.peak is not None for track in tracks):
        parts.append("Dashed gray line: maximum.")
    if still:
        text = "counter stayed at 0 and is" if still == 1 else "counters stayed at 0 and are"
        parts.append(f"{still:,} {text} not drawn.")
    return " ".join(parts)


def _end_ns(machine: MachineAnalysis) -> int:
    last = max((track.t_ns[-1] for track in machine.tracks if track.t_ns), default=0)
    return max(last, machine.end_ns or 0)


def _moves(track: CounterTrack) -> bool:
    return any(value > 0 for value in track.high if math.isfinite(value))


def _interest(key: tuple[str, Unit]) -> tuple[int, str, int]:
    group, unit = key
    order = list(TITLES)
    unit_position = UNIT_ORDER.index(unit) if unit in UNIT_ORDER else len(UNIT_ORDER)
    return (order.index(group) if group in order else len(order), group, unit_position)


def mean_of(track: CounterTrack) -> float:
    """The mean of a track's points; 0 where it has none."""
    finite = [value for value in track.mean if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else 0.0


def _label(track: CounterTrack, several: bool) -> str:
    host = f"{visible(track.host, 30)}: " if several else ""
    return f"{host}{visible(track.title, LONGEST_LABEL)}"


class _Family(Struct, frozen=True, kw_only=True):
    """Tracks that share a chart."""

    title: str
    tracks: tuple[CounterTrack, ...]


def _families(key: tuple[str, Unit], tracks: Sequence[CounterTrack]) -> list[_Family]:
    """One chart for a group, or a few where it has many lines of several kinds (``GPU 3 busy``)."""
    title = CHART_TITLES.get(key) or TITLES.get(key[0], visible(key[0], 40))
    kinds: dict[str, list[CounterTrack]] = defaultdict(list)
    for track in tracks:
        kinds[" ".join(_NUMBER.sub("", track.title).split())].append(track)
    large = [kind for kind, members in kinds.items() if len(members) > 2][:MOST_FAMILIES]
    if len(tracks) <= MOST_LINES or not large or len(kinds) == 1:
        return [_Family(title=title, tracks=tuple(tracks))] if tracks else []
    families = [_Family(title=visible(kind, 60), tracks=tuple(kinds[kind])) for kind in large]
    remaining = [track for kind, members in kinds.items() if kind not in large for track in members]
    if remaining:
        families.append(_Family(title=f"{title}, others", tracks=tuple(remaining)))
    return families


def _chart(key: tuple[str, Unit], number: int, family: _Family, origin: int, several: bool) -> CounterChart:
    group, unit = key
    ranked = sorted(family.tracks, key=lambda track: (-mean_of(track), track.id))
    drawn = sorted(ranked[:MOST_LINES], key=family.tracks.index)
    # Time that threads waited is added up over them, so a rank's line may exceed 100 % where others cannot.
    summed = group == "pressure" and any(track.peak is None for track in drawn)
    return CounterChart(
        id=f"counters-{_slug(group)}-{unit.value}-{number}",
        title=f"{family.title}; rank values are summed over threads" if summed else family.title,
        unit=unit,
        lines=tuple(
            CounterLine(
                label=_label(track, several),
                t_ns=tuple(instant - origin for instant in track.t_ns),
                mean=track.mean,
                low=track.low,
                high=track.high,
                peak=track.peak,
                peak_source=visible(track.peak_source),
                quality=visible(track.quality),
            )
            for track in drawn
        ),
        num_left_out=len(ranked) - len(drawn),
    )


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_]", "-", text.lower())[:20]


def _disturbances(machine: MachineAnalysis, origin: int, end: int) -> tuple[TimeLabel, ...]:
    return tuple(
        TimeLabel(
            start_ns=max(d.start_ns - origin, 0),
            end_ns=min(d.end_ns, end) - origin,
            title=visible(d.title, 300),
            detail=visible("; ".join(d.evidence[:3]), 300),
        )
        for d in sorted(machine.disturbances, key=lambda d: d.start_ns)
        if d.end_ns > origin and d.start_ns < end
    )


def _steps(machine: MachineAnalysis, origin: int) -> TimeLabel | None:
    if machine.steps_start_ns is None or machine.steps_end_ns is None:
        return None
    start, end = machine.steps_start_ns - origin, machine.steps_end_ns - origin
    return (
        TimeLabel(start_ns=max(start, 0), end_ns=end, title="training steps") if end > max(start, 0) else None
    )


def window_starts(machine: MachineAnalysis, extract: TimelineExtract) -> dict[int, int]:
    """When each drawn window starts, in Unix ns: the trace's own start where its clock is Unix time.

    A trace whose clock is another one lies far from what the rank noted; there the note counts.
    """
    noted = {window: start for window, start, _ in machine.windows}
    starts = {}
    for window in extract.windows:
        noted_start = noted.get(window.window)
        near = noted_start is None or abs(window.start_ns - noted_start) < 60_000_000_000
        starts[window.window] = window.start_ns if near or noted_start is None else noted_start
    return starts


def timeline_lanes(machine: MachineAnalysis | None, extract: TimelineExtract) -> tuple[TimelineLane, ...]:
    """Counters to draw under the spans: per window the most telling tracks with a reading in it."""
    if machine is None:
        return ()
    starts = window_starts(machine, extract)
    hosts = {lane.host for window in extract.windows for lane in window.lanes}
    tracks = [t for t in machine.tracks if t.group in LANE_GROUPS and _moves(t) and t.host in hosts]
    several = len({track.host for track in tracks}) > 1
    tracks.sort(key=lambda track: (LANE_GROUPS.index(track.group), -mean_of(track)))
    lanes = []
    for window in extract.windows:
        start = starts[window.window]
        lanes_found = [
            lane
            for track in _one_of_each(tracks)
            if (lane := _lane(track, window.window, start, window.dur_ns, several)) is not None
        ]
        lanes += lanes_found[:MOST_LANES]
    return tuple(lanes)


def _one_of_each(tracks: Sequence[CounterTrack]) -> list[CounterTrack]:
    """At most two kinds of track of a group, so that one group does not crowd the others out.

    Tracks that differ by their number only (``rank 1 CPU use``) stay together where they are few: one rank's
    without the other's would look as if the other had none.
    """
    kinds: dict[tuple[str, str], list[CounterTrack]] = defaultdict(list)
    for track in tracks:
        kinds[track.group, " ".join(_NUMBER.sub("", track.title).split())].append(track)
    kept: list[CounterTrack] = []
    taken: Counter[str] = Counter()
    for (group, _), members in kinds.items():
        if taken[group] < MOST_KINDS:
            taken[group] += 1
            few = len(members) <= MOST_OF_KIND
            kept += sorted(members, key=_numbers) if few else members[:2]
    return kept


def _numbers(track: CounterTrack) -> list[int]:
    return [int(number) for number in _NUMBER.findall(track.title)]


def _lane(track: CounterTrack, window: int, start: int, duration: int, several: bool) -> TimelineLane | None:
    """The readings inside the window and the nearest on either side; None where none is near enough."""
    inside = [i for i, instant in enumerate(track.t_ns) if start <= instant <= start + duration]
    before = [i for i, instant in enumerate(track.t_ns) if instant < start][-1:]
    after = [i for i, instant in enumerate(track.t_ns) if instant > start + duration][:1]
    if not inside and not (before and after):
        return None
    chosen = [i for i in (*before, *inside, *after) if math.isfinite(track.mean[i])]
    if not chosen:
        return None
    finite = [value for value in track.high if math.isfinite(value)]
    return TimelineLane(
        window=window,
        host=visible(track.host),
        label=_label(track, several),
        unit=UNITS.get(track.unit, Unit.NUMBER),
        t_ns=tuple(track.t_ns[i] - start for i in chosen),
        mean=tuple(track.mean[i] for i in chosen),
        top=track.peak if track.peak and track.unit == "ratio" else max(finite, default=1.0) or 1.0,
    )


def timeline_disturbances(
    machine: MachineAnalysis | None, extract: TimelineExtract
) -> tuple[tuple[int, TimeLabel], ...]:
    """Disturbances that overlap a drawn window, on its own time axis."""
    if machine is None:
        return ()
    starts = window_starts(machine, extract)
    marks = []
    for window in extract.windows:
        start = starts[window.window]
        marks += [
            (
                window.window,
                TimeLabel(
                    start_ns=max(d.start_ns - start, 0),
                    end_ns=min(d.end_ns - start, window.dur_ns),
                    title=visible(d.title, 300),
                    detail=visible("; ".join(d.evidence[:3]), 300),
                ),
            )
            for d in machine.disturbances
            if d.end_ns > start and d.start_ns < start + window.dur_ns
        ]
    return tuple(marks)
