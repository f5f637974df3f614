"""`perfscope predict` on run directories of a data-parallel script whose truth is known, and on bad input."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perfscope.cli.main import cli
from perfscope.errors import PerfscopeError, RunDirectoryError, UsageError
from tests.support.synthetic_run import BACKEND, SyntheticRun, comm, span

MS = 1_000_000
GRADIENT = 4_000_000
LATENCY_NS, BANDWIDTH = 100_000, 0.1  # bytes per ns


def transfer_ns(num_ranks: int) -> int:
    return round(2 * (num_ranks - 1) * LATENCY_NS + 2 * (num_ranks - 1) / num_ranks * GRADIENT / BANDWIDTH)


def script_run(
    path: Path, num_ranks: int, *, windows: bool = True, one_host: bool = False, **manifest: Any
) -> Path:
    """Steps of forward 20, backward 20, one blocking all_reduce, optimizer 2 ms; 32 samples per rank."""
    run = SyntheticRun(path, world_size=num_ranks, expected_ranks=num_ranks, **manifest)
    exchange = transfer_ns(num_ranks) if num_ranks > 1 else 0
    step = 42 * MS + exchange
    for rank in range(num_ranks):
        host = "node0" if one_host else f"node{rank}"
        run.rank(
            rank,
            host=host,
            world_size=num_ranks,
            backend="gloo",
            affinity=[0],
            num_threads=1,
            groups=[{"name": "0", "ranks": list(range(num_ranks))}],
            root={
                "name": "Net",
                "type": "DistributedDataParallel",
                "data_parallel": True,
                "dp_size": num_ranks,
            },
        )
        run.write(
            f"ranks/{rank}/layers.json",
            {
                "root": "Net",
                "layers": [
                    {
                        "layer": "fc",
                        "type": "Linear",
                        "params": GRADIENT // 4,
                        "param_bytes": GRADIENT,
                        "param_shapes": [[1000, GRADIENT // 4000]],
                    }
                ],
            },
        )
        count = 20
        traced = range(5, 9) if windows else range(0)
        run.steps(
            rank,
            [step] * count,
            samples=[32] * count,
            window=[0 if index in traced else -1 for index in range(count)],
        )
        if windows:
            marks = [(number, number * step, (number + 1) * step) for number in traced]
            rows = []
            for index, (_, start, _end) in enumerate(marks):
                rows += [
                    span(start, 20 * MS, "compute", phase="forward", layer="fc"),
                    span(start + 20 * MS, 20 * MS, "compute", phase="backward", layer="fc"),
                    span(start + 40 * MS + exchange, 2 * MS, "compute", phase="optimizer"),
                ]
                if exchange:
                    size = {"in_bytes": GRADIENT, "out_bytes": GRADIENT, "group_size": num_ranks}
                    rows.append(comm(start + 40 * MS, exchange, index, lane=BACKEND, **size))
            run.window(rank, rows, marks, host=host)
    return path


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    return script_run(tmp_path / "two", 2)


def ask(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["predict", *map(str, words)])


def refusal(*words: str | Path) -> str:
    """The one line of an error on purpose."""
    result = ask(*words)
    assert isinstance(result.exception, PerfscopeError), result.output
    line = str(result.exception)
    assert "\n" not in line
    return line


def test_a_script_is_predicted_within_five_per_cent_of_what_it_would_take(two_ranks: Path) -> None:
    result = ask(two_ranks, "--world-sizes", "4,8", "--mode", "weak", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert [one["num_ranks"] for one in document["predictions"]] == [4, 8]
    for one in document["predictions"]:
        truth = 42 * MS + transfer_ns(one["num_ranks"])
        assert one["step_ns"] == pytest.approx(truth, rel=0.05)
        assert one["scheme"] == "dp.ddp"
        assert one["batch"] == 32 * one["num_ranks"]


def test_a_run_of_one_rank_takes_its_buckets_from_the_layers(tmp_path: Path) -> None:
    alone = script_run(tmp_path / "one", 1)
    result = ask(alone, "--world-sizes", "2", "--mode", "weak", "--network", "100us,0.8Gbit", "--json")
    assert result.exit_code == 0, result.output
    one = json.loads(result.stdout)["predictions"][0]
    assert one["exposed_comm_ns"] == pytest.approx(transfer_ns(2), rel=0.01)
    assert any("layers.json" in warning for warning in one["warnings"])


def test_plain_data_parallel_needs_no_torch(two_ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
    result = ask(two_ranks, "--world-sizes", "4", "--mode", "weak")
    assert result.exit_code == 0, result.output
    assert "dp.ddp" in result.stdout


def test_the_text_has_the_table_the_best_scheme_the_links_and_the_warnings(two_ranks: Path) -> None:
    result = ask(two_ranks, "--world-sizes", "4")
    assert result.exit_code == 0, result.output
    for words in (
        "strong scaling is assumed (the runs have one number of ranks)",
        "95 % interval",
        "Efficiency is relative to a scheme's own smallest run, 2 ranks at a batch of 64: dp.ddp",
        "× best: samples/s over",
        "Links between hosts",
        "fitted to 4 calls",
        "4 ranks are beyond the 2 measured",
        "only one local batch was measured",
    ):
        assert words in result.stdout


def test_the_mode_is_read_from_runs_of_several_sizes(tmp_path: Path) -> None:
    runs = [script_run(tmp_path / str(num), num) for num in (1, 2)]
    result = ask(*runs, "--world-sizes", "4")
    assert "weak scaling: samples per rank stay the same" in result.stdout
    assert "own smallest run, 1 rank at a batch of 32: dp.ddp" in result.stdout


@pytest.mark.parametrize("sizes", ["0", "-2", "2,x", "", "2,,4", "5000", "1.5", "²"])
def test_world_sizes_that_are_none(two_ranks: Path, sizes: str) -> None:
    assert "whole numbers from 1 to 4,096" in refusal(two_ranks, f"--world-sizes={sizes}")


def test_hosts_that_the_ranks_do_not_fill(tmp_path: Path) -> None:
    run = script_run(tmp_path / "two", 2, one_host=True)
    result = ask(run, "--world-sizes", "2,3", "--mode", "weak")
    assert result.exit_code == 0
    assert "not predicted: dp.ddp at 3 ranks: 3 ranks do not divide into hosts of 2" in result.stdout


def test_an_unknown_network(two_ranks: Path) -> None:
    line = refusal(two_ranks, "--world-sizes", "4", "--network", "carrier-pigeon")
    assert "carrier-pigeon" in line
    assert "edr" in line


def test_an_unknown_scheme_of_a_script(two_ranks: Path) -> None:
    assert "its own scheme" in refusal(two_ranks, "--world-sizes", "4", "--schemes", "hy.owt")
    assert "empty name" in refusal(two_ranks, "--world-sizes", "4", "--schemes", "dp.ddp,")


def test_a_link_class_that_was_never_measured(tmp_path: Path) -> None:
    run = script_run(tmp_path / "two", 2, one_host=True)
    assert "give --network" in refusal(run, "--world-sizes", "4", "--mode", "weak")
    helped = ask(run, "--world-sizes", "4", "--mode", "weak", "--network", "1gbit")
    assert helped.exit_code == 0
    assert "given as '1gbit', not measured" in helped.stdout


def test_far_beyond_the_largest_run(two_ranks: Path) -> None:
    assert "--extrapolate" in refusal(two_ranks, "--world-sizes", "16", "--mode", "weak")
    assert ask(two_ranks, "--world-sizes", "16", "--mode", "weak", "--extrapolate").exit_code == 0


def test_runs_that_cannot_serve_are_left_out_with_the_reason(two_ranks: Path, tmp_path: Path) -> None:
    bare = script_run(tmp_path / "bare", 2, windows=False)
    half = script_run(tmp_path / "half", 2, status="running")
    assert "no traced window" in refusal(bare, "--world-sizes", "4")
    assert "not finished" in refusal(half, "--world-sizes", "4")
    result = ask(two_ranks, bare, half, "--world-sizes", "4", "--mode", "weak", "--json")
    assert result.exit_code == 0
    notes = json.loads(result.stdout)["notes"]
    assert any(note.startswith("bare is left out") for note in notes)
    assert any(note.startswith("half is left out") for note in notes)


def test_several_batches_need_a_choice(tmp_path: Path) -> None:
    runs = [script_run(tmp_path / str(num), num) for num in (1, 2)]
    assert "say which with --batch" in refusal(*runs, "--world-sizes", "4", "--mode", "strong")
    assert ask(*runs, "--world-sizes", "4", "--mode", "strong", "--batch", "64").exit_code == 0


def test_a_folder_that_is_neither_run_nor_study(tmp_path: Path) -> None:
    result = ask(tmp_path, "--world-sizes", "4")
    assert isinstance(result.exception, RunDirectoryError)
    assert "neither a run directory nor a study" in str(result.exception)
    (tmp_path / "study.json").write_text('{"cells": []}')
    assert "no finished run" in refusal(tmp_path, "--world-sizes", "4")
    (tmp_path / "study.json").write_text("{")
    assert "cannot be read as a study" in refusal(tmp_path, "--world-sizes", "4")


def test_a_study_stands_for_its_finished_runs(two_ranks: Path) -> None:
    rows = [{"path": two_ranks.name, "status": "done"}, {"path": "gone", "status": "failed"}]
    (two_ranks.parent / "study.json").write_text(json.dumps({"cells": [{"runs": rows}]}))
    assert ask(two_ranks.parent, "--world-sizes", "4", "--mode", "weak").exit_code == 0


def bench_run(path: Path, scheme: str, num_ranks: int) -> Path:
    """A script's run dressed as one of `perfscope bench run`."""
    config = {
        "scheme": scheme,
        "model": "mlp",
        "num_ranks": num_ranks,
        "num_hosts": num_ranks,
        "batch": 32 * num_ranks,
        "input_shape": [3, 8, 8],
    }
    places = [{"rank": rank, "host": f"node{rank}"} for rank in range(num_ranks)]
    record = {
        "name": scheme,
        "full_name": scheme,
        "model": "mlp",
        "num_ranks": num_ranks,
        "input_shape": [3, 8, 8],
        "num_classes": 16,
        "dtype": "float32",
        "batch": 32 * num_ranks,
        "places": places,
    }
    return script_run(path, num_ranks, scheme=record, command=["python", json.dumps(config)])


def test_other_schemes_need_torch_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, plain = bench_run(tmp_path / "owt", "hy.owt", 2), bench_run(tmp_path / "ddp", "dp.ddp", 2)
    found = importlib.util.find_spec

    def without_torch(name: str, package: str | None = None) -> object:
        return None if name == "torch" else found(name, package)

    monkeypatch.setattr("perfscope.cli.predict.runs.find_spec", without_torch, raising=False)
    monkeypatch.setattr("perfscope.cli.bench.options.find_spec", without_torch)
    # Last: what is imported meanwhile would keep it.
    monkeypatch.setattr("importlib.util.find_spec", without_torch)
    assert 'pip install "perfscope-hpc[torch]"' in refusal(run, "--world-sizes", "4", "--mode", "weak")
    line = refusal(plain, "--world-sizes", "4", "--mode", "weak", "--schemes", "hy.owt")
    assert 'pip install "perfscope-hpc[torch]"' in line
    result = ask(plain, "--world-sizes", "4", "--mode", "weak")
    assert result.exit_code == 0, result.output


def test_schemes_of_bench_runs_are_planned_by_the_runners(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = bench_run(tmp_path / "ddp", "dp.ddp", 2)
    schemes = "dp.ddp,mp.filter,hy.filter_dp,pp.gpipe"
    result = ask(run, "--world-sizes", "2,4", "--batch", "64", "--schemes", schemes, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    found = {(one["scheme"], one["num_ranks"]): one for one in document["predictions"]}
    assert {scheme for scheme, _ in found} >= {"dp.ddp", "mp.filter", "hy.filter_dp"}
    params = (192 * 256 + 256) + (256 * 128 + 128) + (128 * 16 + 16)
    assert dict(found["dp.ddp", 4]["bytes_by_link"])["ethernet"] == 4 * params
    assert found["hy.filter_dp", 4]["mesh"] == "2 x 2"
    with pytest.raises(UsageError, match=r"nonsense"):
        raise refusal_of(run, "--world-sizes", "4", "--schemes", "dp.nonsense")
    cut = ask(run, "--world-sizes", "3,4", "--batch", "64", "--mode", "strong", "--json")
    reasons = [one["reason"] for one in json.loads(cut.stdout)["refusals"]]
    assert any("cannot be cut into 3 equal parts" in reason for reason in reasons)


def test_groups_that_divide_layers_hold_all_their_samples(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from perfscope.cli.predict.plans import bench_plans
    from perfscope.cli.predict.runs import load_runs

    configs = load_runs([bench_run(tmp_path / "ddp", "dp.ddp", 2)]).configs
    schemes = ("dp.ddp", "mp.filter", "hy.owt", "hy.filter_dp", "pp.gpipe")
    plans, _ = bench_plans(configs, schemes, [4], 1, {4: 64})
    held = {one.scheme: one.whole for one in plans}
    assert held == {"dp.ddp": None, "mp.filter": 64, "hy.owt": 64, "hy.filter_dp": 32} | (
        {"pp.gpipe": None} if "pp.gpipe" in held else {}
    )


def refusal_of(*words: str | Path) -> BaseException:
    error = ask(*words).exception
    assert error is not None
    return error
