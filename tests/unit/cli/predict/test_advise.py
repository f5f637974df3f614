"""`perfscope predict --advise` on a run whose truth is known, and on bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from perfscope.analysis.machine.results import MemoryLimit
from perfscope.analysis.predict.advice import AdviceFigures, advice_figures, advise, runs_beside
from perfscope.analysis.run import analyze_run
from perfscope.cli.main import cli
from perfscope.cli.predict.advice import advice_text
from perfscope.errors import UsageError
from perfscope.ingest.run import ingest_run
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.lemmas import Gap
from perfscope.vocabulary.memory import LimitOf
from tests.unit.cli.predict.test_command import script_run


def test_the_document_has_formula_source_and_reason(tmp_path: Path) -> None:
    run = script_run(tmp_path / "run", 2)
    result = CliRunner().invoke(cli, ["predict", "--advise", str(run), "--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    workers, _, servers, fitting = document["items"]
    # forward and backward are 40 ms of compute; the optimizer and the exchange are overhead
    assert document["figures"]["compute_ns"] == pytest.approx(40e6, rel=0.01)
    assert workers["measured"] == 2
    assert workers["formula"] and "1709.06622" in workers["source"]
    assert servers["value"] is None and "weights" in servers["reason"]
    assert fitting["value"] is None and "CPUs" in fitting["reason"] and fitting["source"] is None


def test_values_are_put_into_the_formulas_and_what_is_missing_says_how_to_record_it(tmp_path: Path) -> None:
    run = script_run(tmp_path / "run", 2)
    text = CliRunner().invoke(cli, ["predict", "--advise", str(run)], catch_exceptions=False).stdout
    document = json.loads(
        CliRunner().invoke(cli, ["predict", "--advise", str(run), "--json"], catch_exceptions=False).stdout
    )
    workers, _, servers, _ = document["items"]
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


def test_the_samples_that_gpus_hold_follow_from_their_peaks_and_what_the_model_keeps(tmp_path: Path) -> None:
    archive = Path(__file__).parents[3] / "data" / "gpu_runs" / "clean.tar.gz"
    shutil.unpack_archive(archive, tmp_path / "run", filter="data")
    ingest_run(tmp_path / "run")
    analysis = analyze_run(RunReader(tmp_path / "run"))
    # As an H100 measured them of gpt2-124m with AdamW, 16 samples of 1,024 tokens in 16 bits.
    kept = {"parameter_bytes": 496_186_368, "gradient_bytes": 496_186_368, "optimizer_bytes": 992_373_328}
    rank = replace(
        analysis.ranks[0], peak_device_bytes=55_271_290_880, samples_per_step=16.0, buffer_bytes=0, **kept
    )
    limit = MemoryLimit(
        host=rank.host, of=LimitOf.DEVICE, name="0", limit_bytes=85_520_809_984, peak_bytes=64_270_172_160,
        peak_at_ns=0, headroom_bytes=21_250_637_824, headroom_ratio=0.248,
    )  # fmt: skip
    machine: Any = SimpleNamespace(memory_limits=(limit,))
    figures = advice_figures(replace(analysis, ranks=(rank,), machine=machine))
    fitting = advise(figures, 0.8).items[3]
    assert fitting.value == int((0.92 * 85.52081 - 1.984746) / ((55.27129 - 1.984746) / 16)) == 23
    assert figures.weight_bytes == kept["parameter_bytes"]
    unknown = replace(rank, optimizer_bytes=None)
    figures = advice_figures(replace(analysis, ranks=(unknown,), machine=machine))
    assert advise(figures, 0.8).items[3].gap is Gap.MEMORY_NOT_KNOWN
