"""`perfscope predict`: which runs are taken, how the mode and the batch are settled, and what errors say."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from perfscope.analysis.predict.records import Refusal
from perfscope.cli.predict.command import settle_mode
from perfscope.cli.predict.runs import load_runs
from perfscope.cli.predict.text import grouped
from perfscope.errors import EXIT_USAGE, EXIT_USER, PerfscopeError
from tests.unit.cli.predict.test_command import MS, ask, bench_run, refusal, script_run


def code_of(*words: str | Path) -> int:
    error = ask(*words).exception
    assert isinstance(error, PerfscopeError)
    return error.exit_code


def test_one_rank_of_a_script_is_where_its_own_data_parallelism_begins(tmp_path: Path) -> None:
    runs = [script_run(tmp_path / str(num), num) for num in (1, 2)]
    assert {run.plan.scheme for run in load_runs(runs).runs} == {"dp.ddp"}
    document = json.loads(ask(*runs, "--world-sizes", "2,4", "--json").stdout)
    (base,) = document["references"]
    assert (base["num_ranks"], base["scheme"], base["measured"]) == (1, "dp.ddp", True)
    two, four = document["predictions"]
    assert two["measured_step_ns"] > 42 * MS
    assert abs(two["misfit"]) < 0.05
    assert four["measured_step_ns"] is None


def test_a_scripts_batch_is_whole_and_strong_scaling_is_read_from_it(tmp_path: Path) -> None:
    """samples/s times the median step is 95.99999999999999 and the like: rounding is no other batch."""
    options = {"samples_per_step": 96}
    runs = load_runs([script_run(tmp_path / str(num), num, options=options) for num in (1, 2, 3)]).runs
    assert [run.plan.batch for run in runs] == [96.0, 96.0, 96.0]
    mode, why = settle_mode(runs, None)
    assert mode == "strong"
    assert "96 samples per step are divided over the ranks" in why  # type: ignore[operator]


def test_a_run_that_cannot_be_read_is_left_out_with_a_note(tmp_path: Path) -> None:
    good, bad = script_run(tmp_path / "good", 2), script_run(tmp_path / "bad", 2)
    (bad / "run.json").write_text("{")
    rows = [{"path": run.name, "status": "done"} for run in (bad, good)]
    (tmp_path / "study.json").write_text(json.dumps({"cells": [{"runs": rows}]}))
    result = ask(tmp_path, "--world-sizes", "4", "--mode", "weak", "--json")
    assert result.exit_code == 0, result.output
    (note,) = [one for one in json.loads(result.stdout)["notes"] if "left out" in one]
    assert note.startswith("bad is left out: ")
    assert "no run can be used: bad is left out" in refusal(bad, "--world-sizes", "4")


def test_runs_that_cannot_serve_exit_1_and_a_wrong_command_line_2(tmp_path: Path) -> None:
    bare, good = script_run(tmp_path / "bare", 2, windows=False), script_run(tmp_path / "good", 2)
    assert code_of(bare, "--world-sizes", "4") == EXIT_USER
    assert code_of(good, "--world-sizes", "400") == EXIT_USER
    assert code_of(good, "--world-sizes", "x") == EXIT_USAGE
    assert code_of(good, "--world-sizes", "4", "--network", "pigeon") == EXIT_USAGE


def test_without_torch_only_the_schemes_that_need_it_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owt, plain = bench_run(tmp_path / "owt", "hy.owt", 2), bench_run(tmp_path / "ddp", "dp.ddp", 2)
    words = (owt, plain, "--world-sizes", "4", "--mode", "weak", "--schemes", "dp.ddp", "--json")
    if importlib.util.find_spec("torch") is not None:
        planned = json.loads(ask(*words).stdout)["predictions"][0]["compute_ns"]
    found = importlib.util.find_spec

    def without_torch(name: str, package: str | None = None) -> object:
        return None if name == "torch" else found(name, package)

    monkeypatch.setattr("perfscope.cli.predict.runs.find_spec", without_torch)
    monkeypatch.setattr("perfscope.cli.bench.options.find_spec", without_torch)
    # Last: what is imported meanwhile would keep it.
    monkeypatch.setattr("importlib.util.find_spec", without_torch)
    result = ask(*words)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert any("owt is left out: what hy.owt sends is planned with torch" in one for one in document["notes"])
    if found("torch") is not None:
        assert document["predictions"][0]["compute_ns"] == pytest.approx(planned, rel=0.01)


def test_a_batch_that_cannot_be_cut_names_one_that_all_sizes_can_use(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = bench_run(tmp_path / "ddp", "dp.ddp", 2)
    asked = ("--world-sizes", "4,8", "--mode", "strong")
    line = refusal(run, *asked, "--batch", "66")
    assert "a batch of 66 cannot be cut into 8 equal parts, one per trainer; --batch 264" in line
    assert ask(run, *asked, "--batch", "264", "--extrapolate").exit_code == 0
    weak = ask(run, "--world-sizes", "4", "--mode", "weak", "--batch", "32", "--schemes", "dp.ddp")
    assert weak.exit_code == 0, weak.output


def test_the_batch_of_a_million_is_refused(tmp_path: Path) -> None:
    run = script_run(tmp_path / "two", 2)
    line = refusal(run, "--world-sizes", "2", "--batch", "1000000")
    assert "500,000 samples per rank are more than 4 x off the 32 measured" in line


def test_ranks_on_one_host_and_on_many_are_not_the_same(tmp_path: Path) -> None:
    run = script_run(tmp_path / "two", 2, one_host=True)
    words = (run, "--world-sizes", "8", "--mode", "weak", "--network", "hdr", "--json")
    one, two = (
        json.loads(ask(*words, "--ranks-per-host", num).stdout)["predictions"][0]["exposed_comm_ns"]
        for num in ("1", "2")
    )
    assert two > 20 * one  # the ring's stages inside a host, at 0.1 bytes per ns, set its pace


def test_refusals_with_one_reason_are_one_line() -> None:
    rows = [
        Refusal(scheme=scheme, num_ranks=num, reason="no")
        for scheme in ("hy.owt", "mp.filter")
        for num in (8, 16)
    ]
    rows.append(Refusal(scheme="hy.auto", num_ranks=8, reason="no"))
    assert grouped(rows) == [("hy.owt and mp.filter at 8 and 16 ranks", "no"), ("hy.auto at 8 ranks", "no")]


def test_help_shows_an_example_with_batch_and_mode() -> None:
    result = ask("--help")
    assert "--mode strong --batch 48" in result.stdout


def test_small_efficiencies_keep_their_digits(tmp_path: Path) -> None:
    run = script_run(tmp_path / "two", 2)
    words = ("--world-sizes", "8", "--mode", "weak", "--network", "1s,1Mbit")
    result = ask(run, *words)
    assert result.exit_code == 0, result.output
    assert " 0 % (0 % to 0 %)" not in result.stdout


def test_ranks_that_only_the_others_know_of_are_missing(tmp_path: Path) -> None:
    """A launcher that does not say how many ranks there are: rank.json does."""
    run = script_run(tmp_path / "run", 2)
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, "world_size": None, "expected_ranks": None}))
    shutil.rmtree(run / "ranks" / "1")
    assert "1 of 2 ranks are missing" in refusal(run, "--world-sizes", "4")
