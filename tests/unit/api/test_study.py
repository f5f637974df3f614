"""`perfscope.compare`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

import perfscope
from perfscope.errors import RunDirectoryError, UsageError
from tests.unit.cli.test_compare import recorded


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [recorded(tmp_path / f"n{count}", count, ms) for count, ms in ((1, 100.0), (2, 60.0), (4, 40.0))]


def test_speedups_of_a_scaling_study(runs: list[Path]) -> None:
    study = perfscope.compare([perfscope.open(runs[0]), *runs[1:]], mode="strong")
    scaling = study.frame("scaling")
    assert scaling["world_size"].tolist() == [1, 2, 4]
    assert scaling["speedup"].tolist() == pytest.approx([1.0, 100 / 60, 2.5])
    assert study.frame("runs")["step_median_ns"].tolist() == [100_000_000, 60_000_000, 40_000_000]
    assert b"speed" in study.report("text") or study.headline.encode()[:20] in study.report("text")


def test_charts_of_a_scaling_study(runs: list[Path]) -> None:
    mpl.use("agg")
    study = perfscope.compare(runs, mode="strong")
    ax = study.plot.speedup()
    measured, ideal = ax.get_lines()
    assert np.asarray(measured.get_ydata()).tolist() == pytest.approx([1.0, 100 / 60, 2.5])
    assert np.asarray(ideal.get_ydata()).tolist() == [1.0, 2.0, 4.0]
    assert study.plot.efficiency().get_ylabel() == "efficiency"


def test_layers_of_every_run_carry_its_label(runs: list[Path]) -> None:
    study = perfscope.compare(runs)
    labels = study.table("runs")["label"].to_pylist()
    assert study.table("layers").column_names[0] == study.table("axes").column_names[0] == "run"
    assert len(set(labels)) == 3
    assert "<table" in study._repr_html_()


def test_tables_of_a_comparison_are_exported(runs: list[Path], tmp_path: Path) -> None:
    study = perfscope.compare(runs, mode="strong")
    assert study.export("csv", tmp_path / "scaling.csv", table="scaling") == 3
    assert (tmp_path / "scaling.csv").read_text().startswith('"series","mode","world_size"')
    with pytest.raises(UsageError, match="perfetto holds the timeline only"):
        study.export("perfetto", tmp_path / "x", table="scaling")


def test_too_few_runs_and_an_unknown_grouping_are_refused(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"1 runs to compare.*nowhere"):
        perfscope.compare([runs[0], tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="by:"):
        perfscope.compare(runs, by="colour")
