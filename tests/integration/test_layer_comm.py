"""Exposed communication of layers in real bench runs: all of it is given to layers, or none is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.ingest.run import ingest_run
from perfscope.messages.missing import cause_text
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.figures import Figure
from tests.integration.run_support import PERFSCOPE, user_environment

SETTINGS = ("--model", "lenet", "--input", "3x32x32", "--batch", "8", "--steps", "8", "--threads", "1")
QUIET = ("--ceilings", "off", "--sample-interval", "off", "-o", "run")


def trained(scheme: str, ranks: int, folder: Path) -> RunAnalysis:
    """A bench run of the scheme, analyzed."""
    command = [*PERFSCOPE, "bench", "run", scheme, "--ranks", str(ranks), *SETTINGS, *QUIET]
    found = subprocess.run(
        command, cwd=folder, env=user_environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert found.returncode == 0, found.stderr
    ingest_run(folder / "run")
    return analyze_run(RunReader(folder / "run"))


def mean_exposed(analysis: RunAnalysis) -> float:
    """Of the breakdown, which knows nothing of layers."""
    parts = [rank.breakdown_ns.exposed_comm for rank in analysis.ranks if rank.breakdown_ns is not None]
    return sum(parts) / len(parts)


@pytest.mark.parametrize(
    ("scheme", "ranks"),
    [
        ("dp.ddp", 2),
        pytest.param("dp.fsdp", 2, marks=pytest.mark.slow),
        pytest.param("hy.pp_dp", 4, marks=pytest.mark.slow),
        pytest.param("hy.filter_dp", 4, marks=pytest.mark.slow),
        pytest.param("ps.async_sgd", 3, marks=pytest.mark.slow),
    ],
)
def test_layers_and_what_is_left_over_add_up_to_all_exposed_communication(
    tmp_path: Path, scheme: str, ranks: int
) -> None:
    check_sums(trained(scheme, ranks, tmp_path), all_given=scheme == "dp.ddp")


def check_sums(analysis: RunAnalysis, *, all_given: bool = False) -> None:
    comm = analysis.layer_comm
    assert comm is not None
    total = mean_exposed(analysis)
    assert total > 0
    assert comm.total_ns == pytest.approx(total, rel=1e-3)
    figures = [layer.exposed_comm_ns for layer in analysis.layers]
    named = [cause_text(missing) for missing in analysis.missing if missing.figure is Figure.LAYER_COMM]
    if all_given:
        assert not comm.unassigned and not named
        given = sum(figure for figure in figures if figure is not None)
        assert given + sum(comm.outside.values()) == pytest.approx(total, rel=1e-3)
    else:
        assert figures and set(figures) == {None}
        assert len(named) == 1
        assert all(call in named[0] for call in comm.unassigned)


def test_reports_say_why_a_layer_has_no_figure(tmp_path: Path) -> None:
    """In text and JSON: a reason, no zero."""
    check_sums(trained("mp.filter", 2, tmp_path))
    command, environment = [*PERFSCOPE, "report", "run"], user_environment(COLUMNS="100")
    text, document = (
        subprocess.run([*command, *more], cwd=tmp_path, env=environment, capture_output=True, check=True)
        for more in ([], ["--json"])
    )
    told = " ".join(text.stdout.decode().split())
    assert "Exposed communication cannot be attributed to layers: the layers of" in told
    found = json.loads(document.stdout)
    assert {layer["exposed_comm_ns"] for layer in found["layers"]} == {None}
    assert any(one["figure"] == Figure.LAYER_COMM for one in found["missing"])
