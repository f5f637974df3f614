"""Icicles: shares add up, siblings by size, and both icicles of a run hold what was recorded."""

from __future__ import annotations

import pytest

from perfscope.analysis.kernels.places import MOST_PLACES, Place, PlaceSums, merge_places, places_of
from perfscope.analysis.machine.stacks import stack_tree
from perfscope.reports.drawing import lay_out
from perfscope.reports.drawing.print_picture import paper_svg
from perfscope.reports.icicle import MOST_BOXES, Step, icicle_boxes
from perfscope.reports.sections.flame import stack_icicle
from perfscope.rundir.host_records import Frames, Profile, RecordedFrame, StacksRecord
from perfscope.vocabulary.kernels import KernelType

ROOT = Step("all", "all", "outline")


def step(name: str) -> Step:
    return Step(name, name, "compute")


def test_boxes_are_as_wide_as_their_share_and_lie_in_their_parent() -> None:
    paths = [((step("a"), step("x")), 6.0), ((step("a"),), 2.0), ((step("b"),), 8.0), ((step("c"),), 4.0)]
    boxes = icicle_boxes(ROOT, paths)
    assert [(box.path, box.depth, box.start, box.share) for box in boxes] == [
        ("", 0, 0.0, 1.0),
        ("a", 1, 0.0, 0.4),
        ("a/x", 2, 0.0, 0.3),
        ("b", 1, 0.4, 0.4),
        ("c", 1, 0.8, 0.2),
    ]


def test_a_box_is_never_kept_without_its_parents() -> None:
    paths = [((step(f"m{i}"), step("x"), step("y")), 1.0) for i in range(500)]
    boxes = icicle_boxes(ROOT, paths)
    assert len(boxes) == MOST_BOXES
    known = {box.path for box in boxes}
    assert all(box.path.rpartition("/")[0] in known for box in boxes)


def test_places_add_up_to_all_time_also_of_those_left_out() -> None:
    def place(number: int) -> Place:
        return Place(f"layer{number % 7}", "forward", KernelType.GEMM, "", f"op{number}")

    mine = {place(i): PlaceSums(calls=1, ns=i) for i in range(400)}
    merge_places(mine, {place(i): PlaceSums(calls=2, ns=5) for i in range(390, 410)})
    rows = places_of(mine)
    assert sum(row.total_ns for row in rows) == sum(range(400)) + 20 * 5
    assert sum(row.calls for row in rows) == 400 + 20 * 2
    assert [row.name for row in rows[MOST_PLACES:]] == [None] * 7


def stacks(*samples: tuple[tuple[int, ...], float]) -> StacksRecord:
    frames = tuple(RecordedFrame(name=name, file="train.py") for name in ("main", "step", "load"))
    profile = Profile(
        type="sampled", samples=tuple(s for s, _ in samples), weights=tuple(w for _, w in samples)
    )
    return StacksRecord(shared=Frames(frames=frames), profiles=(profile,))


def test_stacks_of_all_hosts_are_one_tree() -> None:
    nodes = stack_tree([stacks(((0, 1), 3.0), ((0,), 1.0)), stacks(((0, 2), 4.0))])
    assert [(node.depth, node.name, node.ratio) for node in nodes] == [
        (0, "main", 1.0),
        (1, "load", 0.5),
        (1, "step", 0.375),
    ]
    (chart,) = stack_icicle(nodes)
    shares = {box.label: box.share for box in chart.boxes}
    assert shares == pytest.approx({"all samples": 1.0, "main": 1.0, "load": 0.5, "step": 0.375})
    assert ">load</text>" in paper_svg(lay_out(chart))
    assert stack_icicle(stack_tree([])) == ()
