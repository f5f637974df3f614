"""Rows of steps.jsonl that cannot be true are left out, and the report names them as missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.run import analyze_run
from perfscope.messages.missing import cause_text
from tests.support.synthetic_run import SyntheticRun

STEPS = 12


def a_run(path: Path, *, num_steps: int | None = None, **columns: Any) -> SyntheticRun:
    run = SyntheticRun(path, options={"trace": False, "overhead": 0.01}, world_size=1)
    run.rank(0, world_size=1, num_steps=num_steps)
    durations = columns.pop("dur_ns", [100] * STEPS)
    run.steps(0, durations, **{"samples": [16] * STEPS, **columns})
    return run


def last(value: int) -> list[int | None]:
    return [*[10] * (STEPS - 1), value]


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("samples", last(-1), "impossible samples"),
        ("samples", last(10**13), "impossible samples"),
        ("input_ns", last(101), "impossible input_ns"),
        ("backward_ns", last(-5), "impossible backward_ns"),
        ("optimizer_ns", last(10**18), "impossible optimizer_ns"),
    ],
)
def test_a_value_that_cannot_be_is_null_and_named(
    tmp_path: Path, column: str, values: list[int | None], reason: str
) -> None:
    columns: dict[str, Any] = {column: values}
    reader = a_run(tmp_path, **columns).read()
    table = reader.steps(0)
    assert table[column].to_pylist() == [*values[:-1], None]
    assert table["dur_ns"].to_pylist() == [100] * STEPS
    assert [(note.num_dropped, note.reason) for note in reader.notes] == [(1, reason)]


def test_a_step_of_thirty_years_is_left_out_and_a_missing_entry_says_so(tmp_path: Path) -> None:
    analysis = analyze_run(a_run(tmp_path, dur_ns=[*[100] * 11, 10**18]).read())
    assert analysis.step_ns is not None and analysis.step_ns.p90 == 100
    assert any("steps of more than 30 days" in cause_text(entry) for entry in analysis.missing)


def test_a_step_that_is_in_the_file_twice_counts_once(tmp_path: Path) -> None:
    run = a_run(tmp_path, num_steps=STEPS)
    file = run.path / "ranks/0/steps.jsonl"
    file.write_text(file.read_text() + file.read_text().splitlines()[-1] + "\n")
    reader = run.read()
    assert reader.steps(0)["step"].to_pylist() == list(range(STEPS))
    assert "steps that are in the file twice" in {note.reason for note in reader.notes}


def test_more_steps_than_the_rank_counted_are_named(tmp_path: Path) -> None:
    reader = a_run(tmp_path, num_steps=3).read()
    reader.steps(0)
    assert [note.reason for note in reader.notes] == ["12 steps are there; the rank counted 3"]
