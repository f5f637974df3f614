"""The export for speedscope: valid by speedscope's own schema, balanced, no span lost."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastjsonschema
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.reports.export_source import LaneName, TimelinePart
from perfscope.reports.speedscope import write_speedscope
from perfscope.rundir.schema import EXPORTED

SCHEMA = Path(__file__).parents[2] / "data" / "speedscope" / "file-format-schema.json"
VALID = fastjsonschema.compile(json.loads(SCHEMA.read_text(encoding="utf-8")))
EPOCH = 1_790_000_000_123_456_789


def part(rank: int, *spans: tuple[str, int, int], lane: int = 7, layer: str | None = None) -> TimelinePart:
    base = {"rank": rank, "window": 0, "step": 1, "device": -1, "lane": lane, "kind": "compute"}
    rows = [
        {**base, "name": name, "start_ns": EPOCH + start, "dur_ns": end - start, "layer": layer}
        for name, start, end in spans
    ]
    table = pa.Table.from_pylist(
        [{name: row.get(name) for name in EXPORTED.names} for row in rows], schema=EXPORTED
    )
    lanes = (LaneName(device=-1, lane=7, label="main thread"),)
    return TimelinePart(rank=rank, window=0, host="node01", lanes=lanes, load=lambda: table)


def written(*parts: TimelinePart) -> dict[str, Any]:
    buffer = io.BytesIO()
    count = write_speedscope(parts, "run </script>", buffer)
    document: dict[str, Any] = json.loads(buffer.getvalue())
    VALID(document)
    opened = sum(event["type"] == "O" for one in document["profiles"] for event in one["events"])
    assert count == opened == sum(each.load().num_rows for each in parts)
    return document


def calls(profile: dict[str, Any], frames: list[dict[str, str]]) -> list[tuple[str, str, int]]:
    return [(event["type"], frames[event["frame"]]["name"], event["at"]) for event in profile["events"]]


def test_each_lane_of_each_rank_is_a_profile_and_spans_nest() -> None:
    document = written(part(0, ("step", 0, 100), ("mm", 10, 40)), part(1, ("step", 5, 50), lane=3))
    first, second = document["profiles"]
    frames = document["shared"]["frames"]
    assert (first["name"], second["name"]) == ("rank 0: main thread", "rank 1: thread 3")
    assert calls(first, frames) == [("O", "step", 0), ("O", "mm", 10), ("C", "mm", 40), ("C", "step", 100)]
    assert calls(second, frames) == [("O", "step", 5), ("C", "step", 50)]


def test_a_span_that_ends_after_the_one_it_is_in_is_drawn_to_that_ones_end() -> None:
    document = written(part(0, ("a", 0, 10), ("b", 5, 20)))
    events = calls(document["profiles"][0], document["shared"]["frames"])
    assert events == [("O", "a", 0), ("O", "b", 5), ("C", "b", 10), ("C", "a", 10)]


def test_the_layer_is_in_the_frames_name() -> None:
    document = written(part(0, ("mm", 0, 10), layer="head"))
    assert document["shared"]["frames"] == [{"name": "mm [head]"}]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(0, 50)), min_size=1))
def test_any_spans_give_balanced_events_in_order(spans: list[tuple[str, int, int]]) -> None:
    (profile,) = written(part(0, *((name, start, start + dur) for name, start, dur in spans)))["profiles"]
    stack, last = [], profile["startValue"]
    for event in profile["events"]:
        assert last <= event["at"] <= profile["endValue"]
        last = event["at"]
        if event["type"] == "O":
            stack.append(event["frame"])
        else:
            assert stack.pop() == event["frame"]
    assert not stack
