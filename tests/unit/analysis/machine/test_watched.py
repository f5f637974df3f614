"""Samplers that came late, ended early or never ran are said, each once, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analysis.machine.counters import on_grid, rates
from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.messages.missing import cause_text, figure_text
from tests.support.synthetic_samples import BOOT, SECOND, SampledRun, SampleFile, ticks, two_nodes


def machine_of(path: Path, file: SampleFile | None, **more: Any) -> MachineAnalysis:
    """Steps last from second 10 to second 30."""
    machine = analyze_run(SampledRun(path, file, topology=two_nodes(), **more).read()).machine
    assert machine is not None
    return machine


def readings(start_s: float, end_s: float, ended: str = "", cpus: float = 0.01) -> SampleFile:
    file = SampleFile()
    file.rate("neighbour_cpu", ticks(start_s, end_s, 0.5), cpus * 100, scale=1e7)
    if ended:
        file.end(ended)
    return file


def counters(machine: MachineAnalysis) -> list[tuple[str, str]]:
    return [
        (figure_text(one), cause_text(one))
        for one in machine.missing
        if figure_text(one).startswith("hardware counters")
    ]


def test_a_sampler_that_was_killed_early_is_said(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, readings(0, 25.6))
    assert counters(machine) == [
        ("hardware counters of node0 for the last 4.50 s of the steps", "its sampler was killed")
    ]
    assert machine.clean is None
    assert machine.clean_reason == (
        "Not monitored long enough: other processes were monitored during only 78 % of step time (20.0 s)."
    )


def test_a_sampler_that_ended_early_says_why(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, readings(0, 27.5, "the disk is full"))
    assert counters(machine)[0][1] == "its sampler ended: the disk is full"


def test_a_sampler_that_came_late_is_said(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, readings(13, 35, "every rank has ended"))
    assert counters(machine) == [
        (
            "hardware counters of node0 for the first 3.00 s of the steps",
            "its sampler began to read only then",
        )
    ]
    assert machine.clean is None


def test_a_clean_verdict_tells_the_watched_share(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, readings(11, 40, "every rank has ended"))
    assert machine.clean is True and counters(machine) == []
    assert machine.clean_reason.endswith(", monitored during 95 % of it.")


def test_what_was_found_counts_however_short_the_watch(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, readings(0, 20, cpus=3))
    assert machine.clean is False
    assert "cover 50 % of step time, monitored during 50 % of it." in machine.clean_reason


@pytest.mark.parametrize(
    ("notes", "options", "reason"),
    [
        ([], {}, "no sampler wrote there"),
        (
            ["x", "no hardware counters of this host: perfscope's Python (/p) is not here"],
            {"sampling": {"interval_ms": 100}},
            "perfscope's Python (/p) is not here",
        ),
        ([], {"sampling": None}, "switched off by `--sample-interval off`"),
    ],
)
def test_a_host_without_a_sampler_says_why_once(
    tmp_path: Path, notes: list[str], options: dict[str, Any], reason: str
) -> None:
    ranks = [{"pid": 100, "notes": notes}, {"pid": 101, "host": "node1", "notes": notes}]
    machine = machine_of(tmp_path, None, ranks=ranks, options=options)
    both = counters(machine)
    if notes or options:
        assert both == [("hardware counters of node0, node1", reason)]
    else:
        expected = [(f"hardware counters of node{k}", why) for k, why in enumerate((reason, NOTHING))]
        assert both == expected


NOTHING = "nothing was recorded there"


def test_a_note_on_the_sampler_is_no_reason_for_a_missing_window(tmp_path: Path) -> None:
    notes = ["no hardware counters of this host: perfscope's Python (/p) is not here"]
    run = SampledRun(tmp_path, None, topology=two_nodes(), ranks=[{"pid": 1, "notes": notes, "root": "Net"}])
    found = analyze_run(run.read())
    windows = [cause_text(one) for one in found.missing if "no window was traced" in cause_text(one)]
    assert windows and not any("Python" in reason for reason in windows)


def test_a_grid_over_years_stays_small(tmp_path: Path) -> None:
    (series,) = readings(0, 10).read(tmp_path).series
    grid = on_grid(rates(series), BOOT, BOOT + 10**9 * SECOND, 1000)
    assert len(grid.per_s) == 2_000_000 and np.isnan(grid.per_s[1:]).all()
