"""N.counters.json in a window's summary: sums of whole steps, names of layers, and files of no use."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.ingest.run import ingest_run
from perfscope.rundir import layout
from perfscope.rundir.seal import sealed
from perfscope.rundir.window_records import CountedLayers
from tests.support.ingest_traces import document, span
from tests.unit.ingest.test_run import window

NAME = "0.counters.json"
ROWS = [
    [100, 10, "forward", "a", 1, 10],
    [110, 10, "backward", "a", 2, 20],
    [120, 10, "other", "", 4, 40],
    [200, 10, "forward", "a", 8, 80],
    [300, 10, "forward", "a", 1_000, 1_000],  # of a step that did not end
]


def content(**changed: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "monotonic_ns": 1,
        "unix_ns": 2,
        "columns": [*layout.COUNTER_COLUMNS, "minor_faults", "task_clock_ns"],
        "rows": ROWS,
        "steps": [[3, 0, 3], [4, 3, 4]],
        "software_source": "getrusage",
        "user_only": False,
        "refused": {"cycles": ["no_pmu", "No such file or directory"]},
        "ended": ["too_costly", ""],
        **changed,
    }


def ingested(run: Path, text: str, *, packed: bool = False) -> CountedLayers:
    window(run, 0, 0, document([span("aten::mm", 1, 2)]))
    data = gzip.compress(text.encode()) if packed else text.encode()
    window(run, 0, 0, data, suffix=".counters.json.gz" if packed else ".counters.json")
    (summary,) = ingest_run(run)
    assert summary.events_kept == 1  # the trace is the trace, whatever becomes of the counters
    assert summary.counters is not None
    assert ingest_run(run) == [summary]  # as it is read from the disk
    return summary.counters


@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_whole_steps_are_added_up_by_phase_and_layer(tmp_path: Path, packed: bool) -> None:
    counters = ingested(tmp_path, sealed(json.dumps(content()), NAME), packed=packed)
    assert counters.num_steps == 2 and counters.columns == ("minor_faults", "task_clock_ns")
    assert counters.rows == (
        ("forward", "a", (9, 90)),
        ("backward", "a", (2, 20)),
        ("other", "", (4, 40)),
    )
    assert counters.refused == {"cycles": ("no_pmu", "No such file or directory")}
    assert counters.ended == ("too_costly", "") and counters.problem == ""


def test_layers_have_the_names_that_they_were_given_later(tmp_path: Path) -> None:
    folder = tmp_path / "ranks" / "0"
    folder.mkdir(parents=True)
    (folder / "layers.json").write_text(json.dumps({"layers": [], "renamed": {"a": "teacher.a"}}))
    counters = ingested(tmp_path, sealed(json.dumps(content()), NAME))
    assert {layer for _, layer, *_ in counters.rows} == {"teacher.a", ""}


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    text = sealed(json.dumps(content()), NAME).replace('"a", 8, 80', '"a", 9, 80')
    counters = ingested(tmp_path, text)
    assert counters.num_steps == 0 and counters.rows == () and counters.problem


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2},
        {"columns": ["start_ns"]},
        {"rows": [[100, 10, "forward", "a", 1]]},
        {"rows": [[100, 10, "sideways", "a", 1, 2]] * 4},
        {"rows": [[100, 10, "forward", "a", -1, 2]] * 4},
        {"rows": [[100, 10, "forward", "a", 1 << 70, 2]] * 4},
        {"rows": 5},
        {"steps": [[3, 0, 99]]},
        {"refused": {"cycles": ["no such cause", ""]}},
        {"ended": 3},
    ],
)
def test_what_is_not_as_agreed_gives_no_counters_and_a_reason(tmp_path: Path, changed: Any) -> None:
    counters = ingested(tmp_path, json.dumps(content(**changed)))
    assert counters.num_steps == 0 and counters.rows == () and counters.problem


def test_counters_that_come_or_change_later_are_read(tmp_path: Path) -> None:
    window(tmp_path, 0, 0, document([span("aten::mm", 1, 2)]))
    assert ingest_run(tmp_path)[0].counters is None
    text = json.dumps(content())
    window(tmp_path, 0, 0, text.encode(), suffix=".counters.json")
    counters = ingest_run(tmp_path)[0].counters
    assert counters is not None and counters.num_steps == 2


def test_counters_without_their_trace_are_no_window(tmp_path: Path) -> None:
    window(tmp_path, 0, 0, json.dumps(content()).encode(), suffix=".counters.json")
    assert ingest_run(tmp_path) == []
