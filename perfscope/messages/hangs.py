"""Ranks that make no step: for how long, and where they stand, in words."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfscope import units
from perfscope.messages.lists import ranks_of
from perfscope.vocabulary.hangs import HangEnd

_PARTS = {
    "input": "reading data",
    "evaluation": "an evaluation",
    "inference": "forward passes without gradients",
    "checkpoint": "writing a checkpoint",
    "compilation": "compiling",
}
_STATES = {
    "R": "its main thread runs",
    "S": "its main thread sleeps",
    "D": "its main thread waits for a disk or device",
    "Z": "its process has ended",
    "gone": "its process is gone",
}
_THEY = {False: "it stands", True: "they stand"}
_MOST_PLACES = 3


class Place(Struct, frozen=True, kw_only=True):
    """Where a rank stands, see rundir.hangs.HangingRank."""

    source: str = ""
    call: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    part: str = ""
    part_ended: bool = False
    state: str = ""


def place_text(location: Place) -> str:
    """``in all_reduce, called from train.py:41 (average)``; "" where nothing is known."""
    if location.file:
        call = f"in {location.call}, called from" if location.call else "at"
        return f"{call} {location.file}:{location.line} ({location.function})"
    if location.call:
        return f"in {location.call}"
    if location.part:
        part = _PARTS.get(location.part, location.part)
        return f"{'after' if location.part_ended else 'in'} {part} by its last mark"
    return _STATES.get(location.state, "")


def places_text(locations: Sequence[tuple[int, Place]], *, past: bool = False) -> str:
    """Where ranks stand, those of one place together: first the places outside of communication.

    ``rank 1 is at train.py:17 (load)``; "" where nothing is known.
    """
    ranks: dict[str, list[int]] = {}
    location_of: dict[str, Place] = {}
    for rank, location in locations:
        text = place_text(location)
        ranks.setdefault(text, []).append(rank)
        location_of[text] = location
    texts = sorted(filter(None, ranks), key=lambda text: (bool(location_of[text].call), len(ranks[text])))
    more = len(texts) - _MOST_PLACES
    parts = [_location(ranks[text], location_of[text], past) for text in texts[:_MOST_PLACES]]
    return "; ".join([*parts, *([f"{more} more places"] if more > 0 else [])])


def _location(ranks: Sequence[int], location: Place, past: bool) -> str:
    text = place_text(location)
    if not (location.file or location.call or location.part):  # the state of a process
        return f"{ranks_of(ranks)}: {text}"
    several = len(ranks) > 1
    verb = ("was", "were")[several] if past else ("is", "are")[several]
    return f"{ranks_of(ranks)} {verb} {text}"


def hang_line(locations: Sequence[tuple[int, Place]], silent_s: float, usual_ns: int | None) -> str:
    """The line of a hang that has just been noticed.

    Args:
        locations: rank -> where it stands.
        silent_s: since the last step of these ranks.
        usual_ns: the usual step; None: they have made none.
    """
    usual = "" if usual_ns is None else f" (a step usually takes {units.format_ns(usual_ns)})"
    what = "made no step" if usual_ns is not None else "not made a first step"
    ranks = [rank for rank, _ in locations]
    have = "have" if len(ranks) > 1 else "has"
    where = places_text(locations)
    text = f"{ranks_of(ranks)} {have} {what} for {seconds_text(silent_s)}{usual}"
    return f"{text}: {where}" if where else f"{text}; where {_THEY[len(ranks) > 1]} is not known"


def hang_sentence(
    locations: Sequence[tuple[int, Place]], stood_ns: int | None, end: HangEnd, signal: object = None
) -> str:
    """One sentence on a hang of a recorded run.

    Args:
        locations: rank -> where it stood when the hang was noticed.
        stood_ns: until steps went on or the run ended; None: the run was not closed.
        end: how it ended.
        signal: that ended the run; None: none did.
    """
    ranks = ranks_of([rank for rank, _ in locations])
    time = "" if stood_ns is None else seconds_text(stood_ns / 1e9)
    by = f"signal {signal} ended the run" if signal is not None else "the run failed"
    what = {
        HangEnd.RESUMED: f"made no step for {time}, and then went on",
        HangEnd.RUN_FAILED: f"had made no step for {time} when {by}",
        HangEnd.RUN_EXITED: f"made no step in the last {time} before the run ended by itself",
        HangEnd.NOT_CLOSED: "made no step any more, as far as the run was recorded",
    }[end]
    where = places_text(locations, past=True)
    return f"{ranks[:1].upper()}{ranks[1:]} {what}{': ' if where else ''}{where}."


def hang_action(locations: Sequence[tuple[int, Place]]) -> str:
    """What to look at, by where the ranks stood; "" where that says nothing."""
    calls = {location.call for _, location in locations}
    outside = [(rank, location) for rank, location in locations if not location.call]
    ended = [rank for rank, location in outside if location.state in ("Z", "gone")]
    if ended:
        return f"Find out why the process of {ranks_of(ended)} ended: see its output and the kernel's log."
    if not outside and len(calls) > 1:
        return "Make all ranks call the same collectives in the same order: they are in different ones."
    if not outside:
        return (
            f"All of them are in {calls.pop()}: check the network between the ranks, and that each makes "
            "the same number of calls with tensors of the same size."
        )
    location = next((location for _, location in outside if location.file), None)
    if location is None or len(outside) == len(locations) > 1:
        return ""
    ranks = ranks_of([rank for rank, _ in outside])
    waiting = ": the other ranks wait" if len(outside) < len(locations) else ""
    line = f"{location.file}:{location.line} ({location.function})"
    return f"Find out why {ranks} did not get past {line}{waiting}."


def seconds_text(seconds: float) -> str:
    """Such as "41 s", "12 min", "3 h 05 min"."""
    rounded = int(seconds)
    if rounded < 120:
        return f"{rounded} s"
    if rounded < 7200:
        return f"{rounded // 60} min"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"
