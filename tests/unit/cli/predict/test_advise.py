"""`perfscope predict --advise` on a run whose truth is known, and on bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from perfscope.analysis.predict.advice import AdviceFigures, advise, runs_beside
from perfscope.cli.main import cli
from perfscope.cli.predict.advice import advice_text
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


def test_values_are_put_into_the_formulas_and_what_is_missing_says_how_to_record_it(tmp_path: Path) -> None:
    run = script_run(tmp_path / "run", 2)
    text = CliRunner().invoke(cli, ["predict", "--advise", str(run)], catch_exceptions=False).stdout
    document = json.loads(
        CliRunner().invoke(cli, ["predict", "--advise", str(run), "--json"], catch_exceptions=False).stdout
    )
    workers, _, servers = document["items"]
    ratio = document["overhead_ratio"]
    exact = (1 + ratio - 0.8) / (0.8 * ratio)
    assert workers["with_values"].endswith(f"= {exact:,.4g}")
    assert max(map(len, text.splitlines())) <= 80
    text = " ".join(text.split())
    assert " ".join(workers["with_values"].split()) in text
    assert servers["with_values"] is None and "bench run" in servers["to_record"]
    assert "not known from one run" in text


def test_runs_beside_it_are_the_measured_counterpart(tmp_path: Path) -> None:
    runs = [str(script_run(tmp_path / name, ranks)) for name, ranks in (("two", 2), ("one", 1), ("four", 4))]
    arguments = ["predict", "--advise", *runs]
    document = json.loads(CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False).stdout)
    beside = {run["name"]: run for run in document["runs"]}
    assert list(beside) == ["one", "two", "four"]
    assert document["figures"]["num_workers"] == 2
    one, four = beside["one"], beside["four"]
    assert one["efficiency"] == 1
    assert four["efficiency"] == pytest.approx(four["samples_per_s"] / 4 / one["samples_per_s"])
    assert 0 < four["efficiency"] < 1
    assert four["by_lemma"] is None  # 32 samples per rank: another batch
    text = CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout
    text = " ".join(text.split())
    assert "four: 4 workers, 128 samples per step" in text and "other batch: no lemma" in text


def test_other_options_are_refused(tmp_path: Path) -> None:
    run = str(script_run(tmp_path / "run", 2))
    result = CliRunner().invoke(cli, ["predict", "--advise", run, "--world-sizes", "4"])
    assert result.exit_code == 2 or isinstance(result.exception, UsageError)


def test_traced_steps_unlike_the_others_are_told() -> None:
    figures = AdviceFigures(
        num_workers=1,
        batch=4,
        compute_ns=5e5,
        overhead_ns=5e8,
        weight_bytes=None,
        bandwidth_bytes_per_s=None,
        parallel_efficiency=None,
        samples_per_s=2000.0,
    )
    text = advice_text(advise(figures, 0.8), "run", runs_beside([("run", figures)], None))
    assert "Measured: 1 worker," in text
    assert "a step of the run takes 2.00 ms" in " ".join(text.split())
    alike = replace(figures, overhead_ns=2e6)
    assert "a step of the run" not in advice_text(
        advise(alike, 0.8), "run", runs_beside([("run", alike)], None)
    )
