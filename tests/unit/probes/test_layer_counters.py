"""Readings of layers: what belongs to which, when they end, and what the file says."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from perfscope.probes import layer_counters
from perfscope.probes.layer_counters import LayerCounters
from perfscope.probes.perf_events import Closed, Reason
from perfscope.rundir import layout
from perfscope.rundir.documents import read_document
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.layer_counters import LayerCounter


class Counted:
    """Counters that count what a test adds to `value`."""

    columns = ("minor_faults",)
    refused: ClassVar = {LayerCounter.CYCLES: Reason(Cause.NO_PMU, "No such file or directory")}
    user_only = False
    software_source = "perf_event_open"

    def __init__(self) -> None:
        self.value, self.closed, self.reads = 0, False, 0

    def read(self) -> Any:
        self.reads += 1
        if self.closed:
            raise Closed(9, "closed")
        return self.value

    def decode(self, reading: Any) -> list[int]:
        return [reading]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def source() -> Counted:
    return Counted()


@pytest.fixture
def counters(source: Counted) -> LayerCounters:
    opened = LayerCounters(lambda: source)  # type: ignore[arg-type,return-value]
    opened.open()
    return opened


def written(counters: LayerCounters, folder: Path) -> dict[str, Any]:
    counters.close(str(folder / "0.counters.json"))
    return read_document(folder / "0.counters.json")


def by_layer(document: dict[str, Any]) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = {}
    for _, _, phase, layer, value in document["rows"]:
        sums[phase, layer] = sums.get((phase, layer), 0) + value
    return sums


def layer(counters: LayerCounters, name: str) -> contextlib.AbstractContextManager[None]:
    new_mark = counters.marks(lambda _: contextlib.nullcontext())
    mark: contextlib.AbstractContextManager[None] = new_mark(layout.MARK_LAYER + name)
    return mark


def test_a_layer_has_what_is_counted_while_it_is_the_innermost(
    counters: LayerCounters, source: Counted, tmp_path: Path
) -> None:
    counters.step_begins()
    source.value += 1
    with layer(counters, "Net"):
        source.value += 10
        with layer(counters, "conv"):
            source.value += 100
        source.value += 1_000
    source.value += 10_000
    counters.step_ended(7)
    document = written(counters, tmp_path)
    assert document["columns"] == [*layout.COUNTER_COLUMNS, "minor_faults"]
    assert by_layer(document) == {("other", ""): 10_001, ("forward", "Net"): 1_010, ("forward", "conv"): 100}
    assert document["steps"] == [[7, 0, 5]]
    assert sum(row[-1] for row in document["rows"]) == source.value  # the step's total
    starts = [(row[0], row[0] + row[1]) for row in document["rows"]]
    assert all(end == start for (_, end), (start, _) in pairwise(starts))
    assert document["refused"] == {"cycles": ["no_pmu", "No such file or directory"]}
    assert document["ended"] is None and source.closed


def test_what_is_counted_between_steps_is_in_none(
    counters: LayerCounters, source: Counted, tmp_path: Path
) -> None:
    for step in (3, 4):
        counters.step_begins()
        source.value += 5
        counters.step_ended(step)
        source.value += 1_000
    document = written(counters, tmp_path)
    assert by_layer(document) == {("other", ""): 10}
    assert document["steps"] == [[3, 0, 1], [4, 1, 2]]


def test_a_layer_left_by_an_exception_inside_it_ends_all_the_same(
    counters: LayerCounters, source: Counted, tmp_path: Path
) -> None:
    counters.step_begins()
    outer = layer(counters, "outer")
    outer.__enter__()
    layer(counters, "inner").__enter__()  # never left
    counters.backward_begins()  # nor is this
    outer.__exit__(None, None, None)
    source.value += 3
    counters.step_ended(0)
    assert by_layer(written(counters, tmp_path))["other", ""] == 3


def test_other_threads_take_no_readings(counters: LayerCounters, source: Counted) -> None:
    counters.step_begins()
    reads = source.reads

    def work() -> None:
        with layer(counters, "a"):
            counters.leave(counters.backward_begins())

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert source.reads == reads


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of tests take no time: any reading would be too much of it."""
    monkeypatch.setattr(layer_counters, "MAX_SHARE", math.inf)


def test_where_readings_are_much_of_a_step_one_step_is_read_and_no_later_window(
    counters: LayerCounters, source: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_counters, "MAX_SHARE", 0)
    for step in (3, 4):
        counters.step_begins()
        with layer(counters, "a"):
            source.value += 2
        counters.step_ended(step)
    document = written(counters, tmp_path)
    assert [step for step, _, _ in document["steps"]] == [3] and document["ended"] is None
    assert by_layer(document)["forward", "a"] == 2
    reads = source.reads
    counters.open()
    counters.step_begins()
    counters.step_ended(9)
    counters.close(str(tmp_path / "1.counters.json"))
    assert source.reads == reads and not (tmp_path / "1.counters.json").exists()


def test_readings_end_where_they_cost_too_much(
    counters: LayerCounters, source: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters.step_begins()
    counters.step_ended(0)
    monkeypatch.setattr(layer_counters, "FREE_NS", 0)
    monkeypatch.setattr(layer_counters, "MOST_SHARE", 0)
    counters.step_begins()
    reads = source.reads
    with layer(counters, "a"):
        pass
    counters.step_ended(1)
    assert source.reads == reads  # the first reading of the step was the last
    document = written(counters, tmp_path)
    assert document["ended"] == ["too_costly", ""]
    assert [step for step, _, _ in document["steps"]] == [0]  # the step without all readings is left out


def test_counters_that_the_training_closed_end_the_readings(
    counters: LayerCounters, source: Counted, tmp_path: Path
) -> None:
    counters.step_begins()
    counters.step_ended(0)
    counters.step_begins()
    source.closed = True
    with layer(counters, "a"):
        pass
    counters.step_ended(1)
    document = written(counters, tmp_path)
    assert document["ended"] == ["descriptors_closed", "closed"]
    assert [step for step, _, _ in document["steps"]] == [0]


def test_without_a_window_nothing_is_read_or_written(source: Counted, tmp_path: Path) -> None:
    counters = LayerCounters(lambda: source)  # type: ignore[arg-type,return-value]
    mark = contextlib.nullcontext()
    assert counters.marks(lambda _: mark)("a") is mark
    counters.step_begins()
    counters.step_ended(0)
    counters.takes(object())
    counters.gives(object())
    counters.close(str(tmp_path / "0.counters.json"))
    assert source.reads == 0 and list(tmp_path.iterdir()) == []


def test_an_abandoned_window_gives_its_counters_back(counters: LayerCounters, source: Counted) -> None:
    counters.step_begins()
    counters.abandon()
    assert source.closed and not counters.active


def test_the_file_carries_its_checksum(counters: LayerCounters, tmp_path: Path) -> None:
    counters.step_begins()
    counters.step_ended(0)
    written(counters, tmp_path)
    text = (tmp_path / "0.counters.json").read_text()
    assert next(iter(json.loads(text))) == "checksum"
