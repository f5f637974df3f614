"""Section "Timeline": the traced windows, every rank and lane."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec import structs

from perfscope import units
from perfscope.analysis.critical.results import CriticalPath
from perfscope.analysis.loading.timeline import FOLD_ROLE, QUEUE_ROLE, WORKER_ROLE
from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.rank_groupings import HOST, RankGrouping
from perfscope.analysis.served_layers import axis_of, decoded
from perfscope.analysis.timeline_extract import LaneExtract, StepMark, TimelineExtract, WindowExtract
from perfscope.analysis.timeline_ranks import MAX_RANKS, MOST_NAMED
from perfscope.messages.lists import counted, first_of
from perfscope.reports.display import visible
from perfscope.reports.model import Block, LaneGrouping, Note, Section, Timeline
from perfscope.reports.sections.counters import timeline_disturbances, timeline_lanes
from perfscope.vocabulary.axes import BATCH_AXES, Axis

LONGEST_NAME = 200
_WHICH_RANKS = (
    f"Drawn are up to {MOST_NAMED} ranks that findings, wait states and the critical path name or that have "
    "the longest and the shortest steps and computation, and evenly spaced others."
)


def timeline_section(
    extract: TimelineExtract | None,
    machine: MachineAnalysis | None = None,
    paths: Sequence[CriticalPath] = (),
) -> Section:
    if extract is None or not any(window.lanes for window in extract.windows):
        note = Note(text="No window was traced, so there is no timeline to draw.", tone="caution")
        return Section(id="timeline", title="Timeline", blocks=(note,))
    extract = structs.replace(extract, windows=tuple(in_order(window) for window in extract.windows))
    timeline = Timeline(
        id="timeline-chart",
        title="Traced windows, one row per rank and thread or stream",
        extract=extract,
        strings=tuple(visible(span_title(text), LONGEST_NAME) for text in extract.strings),
        focus=focus_step(extract),
        caption=_what_is_drawn(extract) + _of_loaders(extract),
        lanes=timeline_lanes(machine, extract),
        disturbances=timeline_disturbances(machine, extract),
        paths=tuple(paths),
        groupings=tuple(lane_grouping(grouping) for grouping in extract.groupings),
    )
    blocks: list[Block] = [timeline]
    drawn = {lane.rank for window in extract.windows for lane in window.lanes}
    if _left_out(extract) and len(drawn) >= MAX_RANKS:
        blocks.append(Note(text=_WHICH_RANKS))
    return Section(id="timeline", title="Timeline", lead=_lead(extract), blocks=tuple(blocks))


def _left_out(extract: TimelineExtract) -> frozenset[int]:
    """Ranks that are not drawn."""
    return frozenset().union(*(window.ranks_left_out for window in extract.windows))


def lane_grouping(grouping: RankGrouping) -> LaneGrouping:
    """With words for the grouping and each of its groups."""
    numbers = sorted(set(grouping.group_of.values()))
    index = {number: at for at, number in enumerate(numbers)}
    if grouping.by == HOST:
        title, names = "host", [f"host {visible(grouping.names[number], 60)}" for number in numbers]
    elif grouping.by == Axis.PP.value:
        title, names = "pipeline stage (pp)", [f"stage {number} (pp)" for number in numbers]
    else:
        axis = visible(grouping.by, 30)
        word = "replica" if grouping.by in {entry.value for entry in BATCH_AXES} else "part"
        title, names = f"{word} along {axis}", [f"{word} {number} along {axis}" for number in numbers]
    group_of = {rank: index[number] for rank, number in grouping.group_of.items()}
    return LaneGrouping(key=visible(grouping.by, 30), title=title, names=tuple(names), group_of=group_of)


def in_order(window: WindowExtract) -> WindowExtract:
    """Lanes of one role by their labels' numbers, alike on all ranks: thread ids follow no order."""
    groups: dict[tuple[int, int, str], int] = {}
    for lane in window.lanes:
        groups.setdefault((lane.rank, lane.device, lane.role), len(groups))

    def key(lane: LaneExtract) -> tuple[int, list[tuple[int, str]]]:
        pieces = re.findall(r"\d+|\D+", lane.label)
        number = [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]
        return groups[lane.rank, lane.device, lane.role], number

    return structs.replace(window, lanes=tuple(sorted(window.lanes, key=key)))


def span_title(name: str) -> str:
    """perfscope's own marks as a person reads them: ``perfscope.step:3`` is step 3."""
    if not name.startswith("perfscope."):
        return name
    word, colon, remainder = name.removeprefix("perfscope.").partition(":")
    if word in _TITLES:
        return _TITLES[word](remainder) or remainder
    return remainder if colon else word.replace("_", " ")


def _carried(text: str) -> str:
    """``dp?conv1=4704&fc=1024`` of a call that carries tensors of layers."""
    layers = decoded(text)
    axis = axis_of(text)
    if not layers:
        return f"communication along {axis}" if axis else "communication"
    carried = f"communication of {first_of(layers, _MOST_CARRIED)}"
    total = sum(layers.values())
    along = f" along {axis}" if axis else ""
    return f"{carried}{along}" + (f", {units.format_bytes(total)}" if total > len(layers) else "")


def _boundary(text: str) -> str:
    """``0 1 3``: the stage that sends, the one that receives, the microbatch."""
    numbers = text.split()
    if len(numbers) != 3:
        return text
    return f"stage {numbers[0]} to {numbers[1]}, microbatch {numbers[2]}"


def _group(text: str) -> str:
    group, has_peer, peer = text.rpartition(_PEER)
    return f"group {group}, peer {peer}" if has_peer else f"group {text}"


_MOST_CARRIED = 3
_PEER = ":peer="  # in the mark of a process group, before the global rank of the other end
_TITLES: dict[str, Callable[[str], str]] = {
    "step": "step {}".format,
    "serves": _carried,
    "boundary": _boundary,
    "group": _group,
    "rows": "exchange of {} rows".format,
    "source": "receive from rank {} of the group".format,
}


def _lead(extract: TimelineExtract) -> str:
    windows = [window for window in extract.windows if window.lanes]
    steps = {(window.window, mark.step) for window in windows for mark in window.steps}
    ranks = {lane.rank for window in windows for lane in window.lanes}
    left_out = _left_out(extract)
    of_all = f"{len(ranks)} of {len(ranks | left_out):,} ranks" if left_out else counted(len(ranks), "rank")
    parts = (counted(len(windows), "window"), counted(len(steps), "step"), of_all)
    return f"{', '.join(parts)}{'; all ranks on one time axis' if len(ranks) > 1 else ''}."


def _what_is_drawn(extract: TimelineExtract) -> str:
    if extract.resolution_ns <= 0 and not extract.num_left_out:
        return f"All {extract.num_drawn:,} recorded spans are drawn."
    sentences = [f"{extract.num_drawn:,} spans are drawn for {extract.num_recorded:,} recorded."]
    if extract.resolution_ns > 0:
        sentences.append(
            f"Adjacent spans closer and shorter than {units.format_ns(extract.resolution_ns)} are merged."
        )
    if extract.num_left_out:
        sentences.append(f"{extract.num_left_out:,} are left out.")
    return " ".join(sentences)


def _of_loaders(extract: TimelineExtract) -> str:
    """How lanes of data loaders are to be read; "" where there are none."""
    roles = {lane.role for window in extract.windows for lane in window.lanes}
    if not roles & {QUEUE_ROLE, WORKER_ROLE}:
        return ""
    text = " Loader queue: when the training waited for a batch, and finished batches in the queue."
    if FOLD_ROLE in roles:
        text += " Of many workers those with the slowest batches are drawn; W draws all."
    if extract.num_batches_left_out:
        text += f" {counted(extract.num_batches_left_out, 'batch', 'batches')} of workers are left out."
    return text


def focus_step(extract: TimelineExtract) -> tuple[int, int, int] | None:
    """(window, start, duration) of one step over all ranks: the middle step of the first window that has any.

    A window without step marks is shown whole. Times are ns since the window's start.
    """
    with_lanes = [window for window in extract.windows if window.lanes]
    with_steps = [window for window in with_lanes if window.steps]
    if with_steps:
        window = with_steps[0]
        start, end = _step_bounds(window)
        return window.window, start, end - start
    if with_lanes:
        return with_lanes[0].window, 0, with_lanes[0].dur_ns
    return None


def _step_bounds(window: WindowExtract) -> tuple[int, int]:
    numbers = sorted({mark.step for mark in window.steps})
    middle = numbers[len(numbers) // 2]
    marks: list[StepMark] = [mark for mark in window.steps if mark.step == middle]
    start = min(mark.start_ns for mark in marks)
    return max(start, 0), max(mark.start_ns + mark.dur_ns for mark in marks)
