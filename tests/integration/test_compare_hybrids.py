"""`perfscope compare` of hybrids that were really trained: by axis and layer, explained to the nanosecond."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.integration.run_support import PERFSCOPE, user_environment

SETTINGS = ("--model", "lenet", "--input", "3x32x32", "--batch", "8", "--steps", "8", "--threads", "1")
QUIET = ("--ceilings", "off", "--sample-interval", "off")
SCHEMES = {"hy.filter_dp": ("--mesh", "dp=2,tp=2"), "hy.owt": (), "dp.perlayer": (), "easgd.sync3": ()}
AXES = {
    "hy.filter_dp": {"tp", "dp"},
    "hy.owt": {"tp", "dp"},
    "dp.perlayer": {"dp"},
    "easgd.sync3": {"world"},
}
Json = dict[str, Any]


def perfscope(folder: Path, *words: str) -> str:
    ended = subprocess.run(
        [*PERFSCOPE, *words],
        cwd=folder,
        env=user_environment(COLUMNS="120"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each scheme on four ranks."""
    folder = tmp_path_factory.mktemp("hybrids")
    for scheme, mesh in SCHEMES.items():
        perfscope(folder, "bench", "run", scheme, "--ranks", "4", *mesh, *SETTINGS, *QUIET, "-o", scheme)
    return folder


def study_of(runs: Path, *schemes: str) -> Json:
    found: Json = json.loads(perfscope(runs, "compare", *schemes, "--json"))
    return found


def check_exact(one: Json) -> None:
    """The changes of a difference are all of it, and those of an axis all of the axis."""
    assert one["change_ns"] == one["after_ns"] - one["before_ns"]
    assert sum(change["change_ns"] for change in one["changes"]) == one["change_ns"]
    for change in one["changes"]:
        assert change["change_ns"] == change["after_ns"] - change["before_ns"]
    for axis, changed in one["by_axis"].items():
        assert sum(change["change_ns"] for change in one["changes"] if change["axis"] == axis) == changed


@pytest.mark.slow
def test_schemes_are_explained_by_axis_and_layer(runs: Path) -> None:
    study = study_of(runs, "hy.filter_dp", "hy.owt", "dp.perlayer")
    (schemes,) = study["schemes"]
    assert len(schemes["differences"]) == 2
    for one in schemes["differences"]:
        check_exact(one)
        assert set(one["by_axis"]) == AXES[one["before"]] | AXES[one["after"]]
    for row in schemes["rows"]:
        report = json.loads(perfscope(runs, "report", row["title"], "--json"))["communication"]
        parts = [part for part in row["step_parts"] if part["part"] == "exposed_comm"]
        assert {part["axis"] for part in parts} == AXES[row["title"]]
        for axis in report["by_axis"]:
            mine = [part["ns"] for part in parts if part["axis"] == axis["axis"]]
            assert abs(sum(mine) - axis["exposed_ns"]) <= len(parts)
        for layer in report["by_layer"]:
            mine = [part["ns"] for part in parts if part["layer"] == layer["layer"]]
            assert abs(sum(mine) - layer["exposed_ns"]) <= len(parts)
    text = perfscope(runs, "compare", "hy.filter_dp", "hy.owt", "dp.perlayer", "--text")
    for title in (
        "Exposed communication by axis",
        "Exposed communication by layer",
        "What tells each scheme",
    ):
        assert title in text


@pytest.mark.slow
def test_two_hybrids_differ_by_layers_of_one_alone(runs: Path) -> None:
    """The layers that gather activations are not in the data parallel network: they take no time there."""
    study = study_of(runs, "hy.filter_dp", "dp.perlayer")
    check_exact(study["diff"]["difference"])
    (section,) = [section for section in study["diff"]["sections"] if section["id"] == "exposed"]
    rows = {row["what"]: row for row in section["rows"]}
    gathers = [row for what, row in rows.items() if "_gather along tp" in what]
    assert gathers and all(row["after"] == 0 and row["change"] == -row["before"] for row in gathers)
    exposed = {
        side: sum(change[f"{side}_ns"] for change in study["diff"]["difference"]["changes"] if change["axis"])
        for side in ("before", "after")
    }
    changed = sum(row["change"] for row in section["rows"])
    assert changed == exposed["after"] - exposed["before"]


@pytest.mark.slow
def test_schemes_with_other_work_per_update_have_no_winner(runs: Path) -> None:
    study = study_of(runs, "hy.filter_dp", "easgd.sync3")
    first = study["headline"].partition(". ")[0]
    assert "not with the same work per update" in first and " wins" not in first
    assert "One update averages" in study["headline"]
