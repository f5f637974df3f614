"""Top frames of the sampled Python stacks, from speedscope documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perfscope.analysis.machine.results import StackFrame, StackNode
from perfscope.rundir.host_records import Profile, RecordedFrame, StacksRecord

_MOST_FRAMES = 25
_MOST_NODES = 400
_DEEPEST = 60  # frames of a stack, from the outermost


class _Place(NamedTuple):
    name: str
    file: str


def top_frames(records: Iterable[StacksRecord]) -> tuple[StackFrame, ...]:
    """Frames of all hosts together, those longest on top first.

    A frame's lines are one entry; `line` is the one that was on top most often. A recursive function counts
    once per stack.
    """
    on_top: dict[_Place, float] = defaultdict(float)
    anywhere: dict[_Place, float] = defaultdict(float)
    lines: dict[_Place, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    total = 0.0
    for record in records:
        frames = record.shared.frames
        for profile in record.profiles:
            for stack, weight in _samples(profile, len(frames)):
                total += weight
                functions = [_place(frames[index]) for index in stack]
                on_top[functions[-1]] += weight
                for function in set(functions):
                    anywhere[function] += weight
                line = frames[stack[-1]].line
                if line is not None:
                    lines[functions[-1]][line] += weight
    if not total:
        return ()
    ranked = sorted(anywhere, key=lambda function: (-on_top[function], -anywhere[function], function))
    return tuple(
        StackFrame(
            name=function.name,
            file=function.file,
            line=max(lines[function], key=lambda line: lines[function][line]) if lines[function] else None,
            self_ratio=on_top[function] / total,
            total_ratio=anywhere[function] / total,
        )
        for function in ranked[:_MOST_FRAMES]
    )


class _Node:
    def __init__(self) -> None:
        self.weight = 0.0
        self.children: dict[_Place, _Node] = {}


def stack_tree(records: Iterable[StacksRecord]) -> tuple[StackNode, ...]:
    """Functions below their callers, of all hosts together; siblings with most samples first.

    Of more than `_MOST_NODES` those with most samples. Deeper calls count for the function at `_DEEPEST`.
    """
    root = _Node()
    for record in records:
        frames = record.shared.frames
        for profile in record.profiles:
            for stack, weight in _samples(profile, len(frames)):
                node = root
                node.weight += weight
                for index in stack[:_DEEPEST]:
                    node = node.children.setdefault(_place(frames[index]), _Node())
                    node.weight += weight
    nodes: list[StackNode] = []
    if root.weight:
        _walk(root, 0, root.weight, nodes)
    kept = sorted(range(len(nodes)), key=lambda index: (-nodes[index].ratio, nodes[index].depth, index))
    return tuple(nodes[index] for index in sorted(kept[:_MOST_NODES]))


def _walk(node: _Node, depth: int, total: float, nodes: list[StackNode]) -> None:
    for frame, child in sorted(node.children.items(), key=lambda item: (-item[1].weight, item[0])):
        nodes.append(StackNode(depth=depth, name=frame.name, file=frame.file, ratio=child.weight / total))
        _walk(child, depth + 1, total, nodes)


def _place(frame: RecordedFrame) -> _Place:
    return _Place(frame.name or "?", frame.file)


def _samples(profile: Profile, num_frames: int) -> Iterable[tuple[Sequence[int], float]]:
    """Stacks (outermost frame first) with their weights; what points beyond the frames is passed over."""
    if profile.type != "sampled":
        return
    has_weights = len(profile.weights) == len(profile.samples)
    weights = profile.weights if has_weights else (1.0,) * len(profile.samples)
    for stack, weight in zip(profile.samples, weights, strict=True):
        if stack and all(0 <= index < num_frames for index in stack):
            yield stack, weight
