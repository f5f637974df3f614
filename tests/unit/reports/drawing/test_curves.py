"""Charts of curves as shapes."""

from typing import TypeVar

import pytest

from perfscope.reports.curves import Curve, CurveChart
from perfscope.reports.drawing import lay_out
from perfscope.reports.drawing.shapes import Marker, Text

_T = TypeVar("_T", Marker, Text)


def shapes_of(kind: type[_T], *points: tuple[str, float, float]) -> list[_T]:
    curves = tuple(Curve(label=label, x=(x,), y=(y,)) for label, x, y in points)
    chart = CurveChart(id="chart", title="Chart", x_title="x", y_title="y", curves=curves)
    (panel,) = lay_out(chart).panels
    return [shape for shape in panel.boxes[0].shapes if isinstance(shape, kind)]


def test_points_of_curves_with_one_point_carry_their_names() -> None:
    points = ("left", 1.0, 1.0), ("right", 100.0, 50.0)
    assert [name.text for name in shapes_of(Text, *points)] == ["left", "right"]
    assert len(shapes_of(Marker, *points)) == 2


def test_names_of_near_points_are_apart_and_one_without_room_is_left_to_the_legend() -> None:
    points = [(f"setting {number}", 50.0, 50.0) for number in range(8)] + [("far", 100.0, 100.0)]
    names = shapes_of(Text, *points)
    assert 2 <= len(names) < len(points)
    assert len({(name.anchor, round(name.y, 3)) for name in names}) == len(names)


def test_the_name_of_a_point_at_the_right_edge_is_left_of_it() -> None:
    (first, last) = shapes_of(Text, ("first", 1.0, 1.0), ("last", 100.0, 50.0))
    assert (first.anchor, last.anchor) == ("start", "end")


@pytest.mark.parametrize("length", [1, 2])
def test_curves_of_several_points_have_names_in_the_legend_only(length: int) -> None:
    chart = CurveChart(
        id="chart",
        title="Chart",
        x_title="x",
        y_title="y",
        curves=(
            Curve(label="a", x=(1.0,), y=(1.0,)),
            Curve(label="b", x=(1.0, 2.0)[:length], y=(1.0, 2.0)[:length]),
        ),
    )
    (panel,) = lay_out(chart).panels
    names = [shape for shape in panel.boxes[0].shapes if isinstance(shape, Text)]
    assert bool(names) == (length == 1)
