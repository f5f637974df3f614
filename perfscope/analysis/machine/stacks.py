"""Top frames of the sampled Python stacks, from speedscope documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perfscope.analysis.machine.results import StackFrame
from perfscope.analysis.source import Document

_MOST_FRAMES = 25


class _Place(NamedTuple):
    name: str
    file: str


def top_frames(documents: Iterable[Document]) -> tuple[StackFrame, ...]:
    """Frames of all hosts together, those longest on top first.

    A frame's lines are one entry; `line` is the one that was on top most often. A recursive function counts
    once per stack.
    """
    on_top: dict[_Place, float] = defaultdict(float)
    anywhere: dict[_Place, float] = defaultdict(float)
    lines: dict[_Place, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    total = 0.0
    for document in documents:
        shared = document.get("shared")
        frames = _dicts(shared.get("frames")) if isinstance(shared, dict) else []
        for profile in _dicts(document.get("profiles")):
            for stack, weight in _samples(profile, len(frames)):
                total += weight
                stack_frames = [_place(frames[index]) for index in stack]
                on_top[stack_frames[-1]] += weight
                for frame in set(stack_frames):
                    anywhere[frame] += weight
                line = frames[stack[-1]].get("line")
                if isinstance(line, int):
                    lines[stack_frames[-1]][line] += weight
    if not total:
        return ()
    ranked = sorted(anywhere, key=lambda frame: (-on_top[frame], -anywhere[frame], frame))
    return tuple(
        StackFrame(
            name=frame.name,
            file=frame.file,
            line=max(lines[frame], key=lambda line: lines[frame][line]) if lines[frame] else None,
            self_ratio=on_top[frame] / total,
            total_ratio=anywhere[frame] / total,
        )
        for frame in ranked[:_MOST_FRAMES]
    )


def _place(frame: Document) -> _Place:
    return _Place(str(frame.get("name") or "?"), str(frame.get("file") or ""))


def _samples(profile: Document, num_frames: int) -> Iterable[tuple[Sequence[int], float]]:
    """Stacks (outermost frame first) with their weights; what points beyond the frames is passed over."""
    stacks, weights = profile.get("samples"), profile.get("weights")
    if profile.get("type") != "sampled" or not isinstance(stacks, list):
        return
    given = weights if isinstance(weights, list) and len(weights) == len(stacks) else [1.0] * len(stacks)
    for stack, weight in zip(stacks, given, strict=True):
        if not isinstance(stack, list) or not stack or not isinstance(weight, (int, float)):
            continue
        if all(isinstance(index, int) and 0 <= index < num_frames for index in stack):
            yield stack, float(weight)


def _dicts(value: object) -> list[Document]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
