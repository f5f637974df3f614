"""Icicles: a tree of shares as boxes, each below the one that holds it. Data only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from perfscope.reports.chart import Chart

SMALLEST = 0.001  # of the whole; smaller boxes cannot be seen
MOST_BOXES = 400
MOST_ROWS = 24


class Step(NamedTuple):
    """One level of a path. `part`: color of its box, a part of the style sheet; `full`: its name in full."""

    label: str
    full: str
    part: str


class IcicleBox(Struct, frozen=True, kw_only=True):
    """One box; `start` and `share` are of the whole. `path` names it in links."""

    label: str
    full: str
    part: str
    path: str
    depth: int
    start: float
    share: float
    value: float


class Icicle(Chart, Struct, frozen=True, kw_only=True):
    """Boxes in order of depth-first search. `text`: how a value reads."""

    id: str
    title: str
    boxes: tuple[IcicleBox, ...]
    text: Callable[[float], str]
    legend: tuple[tuple[str, str], ...] = ()  # part -> title
    caption: str = ""


class _Node:
    def __init__(self, step: Step) -> None:
        self.step, self.value = step, 0.0
        self.children: dict[Step, _Node] = {}


def icicle_boxes(root: Step, paths: Iterable[tuple[Sequence[Step], float]]) -> tuple[IcicleBox, ...]:
    """Boxes of the tree that the paths make; siblings with the largest value first.

    Args:
        root: names the whole.
        paths: steps below the root, and the value at their end.
    """
    top = _Node(root)
    for steps, value in paths:
        node = top
        node.value += value
        for step in steps[: MOST_ROWS - 1]:
            node = node.children.setdefault(step, _Node(step))
            node.value += value
    boxes: list[IcicleBox] = []
    if top.value > 0:
        _place(top, "", 0, 0.0, top.value, boxes)
    kept = sorted(range(len(boxes)), key=lambda index: (-boxes[index].share, boxes[index].depth))
    return tuple(boxes[index] for index in sorted(kept[:MOST_BOXES]))


def _place(node: _Node, path: str, depth: int, start: float, total: float, boxes: list[IcicleBox]) -> None:
    step, share = node.step, node.value / total
    boxes.append(
        IcicleBox(
            label=step.label,
            full=step.full,
            part=step.part,
            path=path,
            depth=depth,
            start=start,
            share=share,
            value=node.value,
        )
    )
    for child in sorted(node.children.values(), key=lambda one: (-one.value, one.step)):
        if child.value / total >= SMALLEST:
            below = f"{path}/{child.step.label}" if path else child.step.label
            mark = f"{below}:{child.step.part}" if child.step.part in ("forward", "backward") else below
            _place(child, mark, depth + 1, start, total, boxes)
        start += child.value / total
