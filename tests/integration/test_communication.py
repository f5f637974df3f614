"""Exposed communication in real bench runs: layers and unattributed calls add up to the breakdown."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from perfscope.analysis.results import Communication, RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.ingest.run import ingest_run
from perfscope.reports.document import to_plain
from perfscope.rundir.reader import RunReader
from tests.integration.run_support import PERFSCOPE, user_environment

SETTINGS = ("--model", "lenet", "--input", "3x32x32", "--batch", "8", "--steps", "8", "--threads", "1")
QUIET = ("--ceilings", "off", "--sample-interval", "off", "-o", "run")


def trained(scheme: str, ranks: int, folder: Path) -> RunAnalysis:
    """A bench run of the scheme, analyzed."""
    command = [*PERFSCOPE, "bench", "run", scheme, "--ranks", str(ranks), *SETTINGS, *QUIET]
    ended = subprocess.run(
        command, cwd=folder, env=user_environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr
    ingest_run(folder / "run")
    return analyze_run(RunReader(folder / "run"))


def exact(communication: Mapping[str, Any], exposed_ns: int) -> None:
    """Both divisions of the JSON report add up to the exposed communication of the breakdown."""
    layers, axes, others = (
        sum(entry["exposed_ns"] for entry in communication[key])
        for key in ("by_layer", "by_axis", "unattributed")
    )
    assert layers + others == axes == communication["exposed_ns"] == exposed_ns


def check_sums(communication: Communication | None, exposed_ns: int) -> None:
    assert communication is not None
    document = to_plain(communication)
    assert isinstance(document, dict)
    exact(document, exposed_ns)


def test_the_report_names_layer_and_axis_of_the_exposed_communication(tmp_path: Path) -> None:
    trained("mp.filter", 2, tmp_path)
    command, environment = [*PERFSCOPE, "report", "run"], user_environment(COLUMNS="100")
    text, document = (
        subprocess.run([*command, *more], cwd=tmp_path, env=environment, capture_output=True, check=True)
        for more in (["--full"], ["--json"])
    )
    assert "Communication by axis" in text.stdout.decode()
    report = json.loads(document.stdout)
    communication = report["communication"]
    assert {entry["axis"] for entry in communication["by_axis"]} == {"tp"}
    [axis] = communication["by_axis"]
    assert axis["group_size"] == 2 and axis["calls"] > 0 and axis["bytes"] > 0
    layers = {entry["layer"]: entry["exposed_ns"] for entry in communication["by_layer"]}
    figures = {layer["layer"]: layer["exposed_comm_ns"] for layer in report["layers"]}
    assert layers and all(figures[layer] is not None for layer in layers)
