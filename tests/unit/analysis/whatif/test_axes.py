"""Which axis of the mesh has the faster link, where calls of several sizes run on busy CPUs."""

from __future__ import annotations

import pytest

from perfscope.analysis.whatif.axes import RunAxes


def axes(own: tuple[float, float, float], other: tuple[float, float, float]) -> RunAxes:
    """Axes "own" and "other": usual and best bytes/s, bytes of a call."""
    both = {"own": own, "other": other}
    usual, best, size = ({axis: values[place] for axis, values in both.items()} for place in range(3))
    return RunAxes(bytes_per_s=usual, best_bytes_per_s=best, call_bytes=size)


def test_the_faster_axis_is_as_fast_as_its_best_calls() -> None:
    faster = axes((13e6, 17e6, 2.6e6), (60e6, 320e6, 65e3)).faster_than("own")
    assert faster is not None
    assert (faster.axis, faster.bytes_per_s, faster.own_bytes_per_s) == ("other", 320e6, 13e6)


@pytest.mark.parametrize(
    ("own", "is_slow"),
    [
        ((200e6, 310e6, 65e3), False),  # small calls on the same link
        ((2.8e6, 6e6, 65e3), True),  # small calls on a slow one
        ((300e6, 400e6, 2.0e6), True),  # calls of the same size on a slower one
        ((700e6, 700e6, 2.6e6), False),
    ],
)
def test_calls_that_are_slow_because_they_are_small_show_no_slow_link(
    own: tuple[float, float, float], is_slow: bool
) -> None:
    assert (axes(own, (700e6, 1600e6, 2.6e6)).faster_than("own") is not None) == is_slow


def test_the_fastest_axis_and_one_without_sizes_have_no_faster_one() -> None:
    both = axes((13e6, 17e6, 2.6e6), (60e6, 320e6, 65e3))
    assert both.faster_than("other") is None
    assert both.faster_than("pp") is None
