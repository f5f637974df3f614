"""`perfscope predict --advise` on a run whose truth is known, and on bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.cli.main import cli
from perfscope.errors import UsageError
from tests.unit.cli.predict.test_command import script_run


def test_the_document_has_formula_source_and_reason(tmp_path: Path) -> None:
    run = script_run(tmp_path / "run", 2)
    result = CliRunner().invoke(cli, ["predict", "--advise", str(run), "--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    workers, _, servers = document["items"]
    # forward and backward are 40 ms of compute; the optimizer and the exchange are overhead
    assert document["figures"]["compute_ns"] == pytest.approx(40e6, rel=0.01)
    assert workers["measured"] == 2
    assert workers["formula"] and "1709.06622" in workers["source"]
    assert servers["value"] is None and "weights" in servers["reason"]


def test_other_options_and_several_runs_are_refused(tmp_path: Path) -> None:
    run = str(script_run(tmp_path / "run", 2))
    for words in (["--world-sizes", "4"], [run]):
        result = CliRunner().invoke(cli, ["predict", "--advise", run, *words])
        assert result.exit_code == 2 or isinstance(result.exception, UsageError)
