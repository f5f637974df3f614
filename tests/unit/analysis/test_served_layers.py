"""Which call belongs to which mark of the program's own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from perfscope.analysis.served_layers import ServedLayers, served_layers
from perfscope.analysis.spans import spans_of
from perfscope.rundir.schema import TIMELINE

MAIN, OTHER, BACKEND = 1, 2, 3
NONE = -1


def marks(*rows: tuple[int, int, int, str]) -> ServedLayers:
    """Of a table with these spans: (lane, start, duration, name)."""
    values = [
        {"lane": lane, "start_ns": start, "dur_ns": dur, "name": name, "device": -1, "kind": "annotation"}
        for lane, start, dur, name in rows
    ]
    columns = {name: [row.get(name, 0) for row in values] for name in TIMELINE.names}
    words = [field.name for field in TIMELINE if pa.types.is_dictionary(field.type)]
    table = pa.table(
        {
            name: pa.array([value or None for value in column], pa.string()).dictionary_encode()
            if name in words
            else pa.array(column, TIMELINE.field(name).type)
            for name, column in columns.items()
        }
    )
    return served_layers(table, spans_of(table))


def found(served: ServedLayers, *calls: tuple[int, int, int]) -> list[dict[str, int] | None]:
    """Shares of calls: (when asked for, start, lane)."""
    launch, start, lane = (np.array([call[place] for call in calls], np.int64) for place in range(3))
    return [dict(served.shares[index]) if index >= 0 else None for index in served.of(launch, start, lane)]


def test_calls_belong_to_the_mark_in_which_they_were_asked_for() -> None:
    served = marks(
        (MAIN, 100, 50, "perfscope.serves:a=3&b=1"),
        (MAIN, 120, 5, "c10d::allreduce_"),
        (MAIN, 200, 50, "perfscope.serves:c=1"),
    )
    calls = (
        (120, 300, BACKEND),  # queued in the first, run long after it
        (NONE, 210, MAIN),  # a message that the thread sends itself
        (160, 210, BACKEND),  # queued between the marks, run while one is open
        (NONE, 210, BACKEND),  # not known when it was queued
        (NONE, 90, MAIN),
    )
    assert found(served, *calls) == [{"a": 3, "b": 1}, {"c": 1}, None, None, None]


def test_a_mark_inside_another_one_does_not_count() -> None:
    served = marks((MAIN, 100, 100, "perfscope.serves:a=1"), (MAIN, 120, 20, "perfscope.serves:b=1"))
    assert found(served, (130, 300, BACKEND), (160, 300, BACKEND)) == [{"a": 1}, {"a": 1}]


def test_marks_of_two_threads_at_once_do_not_say_whose_a_call_is() -> None:
    served = marks(
        (MAIN, 100, 100, "perfscope.serves:a=1"),
        (OTHER, 120, 20, "perfscope.serves:b=1"),
        (OTHER, 300, 20, "perfscope.serves:b=1"),
    )
    calls = ((130, 400, BACKEND), (110, 400, BACKEND), (160, 400, BACKEND), (310, 400, BACKEND))
    assert found(served, *calls) == [None, {"a": 1}, None, {"b": 1}]


def test_messages_between_stages_are_marked_with_both_and_the_microbatch() -> None:
    served = marks(
        (MAIN, 100, 10, "perfscope.boundary:1 2 3"),
        (MAIN, 200, 10, "perfscope.boundary:1 2"),
        (MAIN, 300, 10, "perfscope.boundary:1 2 -3"),
    )
    calls = [np.array(values, np.int64) for values in ((NONE,) * 3, (105, 205, 305), (MAIN,) * 3)]
    index = served.of(*calls)
    assert served.boundaries[index[0]] == (1, 2, 3) and served.shares[index[0]] == {}
    assert index.tolist()[1:] == [NONE, NONE]


def test_the_axis_of_a_mark() -> None:
    served = marks((MAIN, 100, 50, "perfscope.serves:dp?a=3"))
    (index,) = served.of(*(np.array([value], np.int64) for value in (120, 300, BACKEND)))
    assert (served.axes[index], served.shares[index]) == ("dp", {"a": 3})


def test_a_window_without_marks_has_none() -> None:
    assert found(marks((MAIN, 100, 50, "perfscope.serves:")), (120, 130, MAIN)) == [None]
