"""`perfscope bench list | run`: what they print, refuse and leave behind.

Update the golden texts with PERFSCOPE_UPDATE_GOLDEN=1, and read the diff.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from perfscope.cli.bench import options as bench_options
from perfscope.cli.bench.run import has_elder
from perfscope.cli.bench.text import verdict_text
from perfscope.cli.formatting import exposed
from perfscope.errors import PerfscopeError, UsageError
from perfscope.rundir.reader import RunReader
from perfscope.runners.catalogue.scheme_docs import BEGIN, END, render
from perfscope.runners.sweep.state import DONE, CellState, Run, Study
from perfscope.runners.sweep.summary import study_rows
from tests.integration.run_support import PERFSCOPE, user_environment

GOLDEN = Path(__file__).parents[1] / "golden" / "bench"
ACTUAL = Path(__file__).parents[1] / "golden" / "actual"
DOCS = Path(__file__).parents[2] / "docs"
SMALL = ("--input", "3x16x16", "--batch", "8", "--ceilings", "off", "--sample-interval", "off")


def bench(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`perfscope bench <words>` to its end."""
    return subprocess.run(
        [*PERFSCOPE, "bench", *words],
        cwd=cwd,
        env=user_environment(COLUMNS="100"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def check_golden(name: str, actual: str) -> None:
    path = GOLDEN / name
    if os.environ.get("PERFSCOPE_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(actual, encoding="utf-8")
    if not path.exists() or actual != path.read_text(encoding="utf-8"):
        ACTUAL.mkdir(parents=True, exist_ok=True)
        (ACTUAL / f"bench-{name}").write_text(actual, encoding="utf-8")
        pytest.fail(f"{path} differs from {ACTUAL / f'bench-{name}'}; see this file's docstring")


def invoke(*words: str) -> str:
    """stdout of a bench command in this process."""
    from perfscope.cli.main import cli

    result = CliRunner().invoke(cli, ["bench", *words], catch_exceptions=False, terminal_width=100)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_list_golden(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = invoke("list")
    assert max(map(len, text.splitlines())) <= columns
    check_golden(f"list-{columns}.txt", text)


def test_help_of_run_golden() -> None:
    check_golden("run-help.txt", invoke("run", "--help").replace("Usage: cli ", "Usage: perfscope "))


def test_help_of_sweep_golden() -> None:
    check_golden("sweep-help.txt", invoke("sweep", "--help").replace("Usage: cli ", "Usage: perfscope "))


def test_list_tells_all_about_one_scheme() -> None:
    text = " ".join(invoke("list", "dp.packed").split())
    assert text.startswith("dp.packed: ")
    assert "all-reduce" in text and "splits data (dp)" in text and "equal to serial training's" in text


def test_list_as_json_has_every_scheme_model_and_modifier() -> None:
    document = json.loads(invoke("list", "--json"))
    assert document["schema_version"] == 1
    assert {"serial", "dp.ddp", "hy.owt", "easgd.original"} <= {one["name"] for one in document["schemes"]}
    assert {"alexnet", "vgg16", "googlenet", "resnet50"} <= {one["name"] for one in document["models"]}
    assert {"+fp16", "+topk", "+powersgd"} <= {one["name"] for one in document["modifiers"]}


def test_list_of_a_family_holds_only_that_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    names = [line.split()[0] for line in invoke("list", "--family", "easgd").splitlines() if line[:2] == "  "]
    assert names and all(name.startswith("easgd.") for name in names)


def test_asking_for_help_loads_no_torch() -> None:
    for words in (["--help"], ["run", "--help"], ["sweep", "--help"]):
        command = [sys.executable, "-X", "importtime", "-m", "perfscope", "bench", *words]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in log.splitlines() if "|" in line}
        assert not loaded & {"torch", "numpy", "pyarrow", "matplotlib"}, words


def test_without_torch_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_options, "find_spec", lambda name: None)
    with pytest.raises(
        PerfscopeError, match=r'^the bench runners need torch: pip install "perfscope-hpc\[torch\]"$'
    ):
        bench_options.require_torch()


REFUSED = {
    "unknown scheme": (["dp.pakced"], "did you mean dp.packed"),
    "unknown model": (["serial", "--model", "alexnt"], "did you mean alexnet"),
    "unknown modifier": (["dp.packed+fp17"], "did you mean +fp16"),
    "modifier it cannot take": (["serial", "--modifier", "fp16"], "cannot take +fp16"),
    "modifier twice": (["dp.packed+fp16", "--modifier", "fp16"], "twice"),
    "mesh that is none": (["dp.packed", "--mesh", "2x2"], "must be AXIS=PARTS"),
    "mesh of another size": (["dp.packed", "--mesh", "2,1", "--ranks", "4"], "has 2 places, but there are 4"),
    "mesh the scheme cannot use": (["dp.packed", "--mesh", "1,2"], "tp must be 1"),
    "batch that does not divide": (["dp.packed", "--ranks", "2", "--batch", "7"], "cannot be cut into 2"),
    "no pixels": (["serial", "--input", "3x32"], "must be CHANNELSxHEIGHTxWIDTH"),
    "unstable elastic rate": (["easgd.sync_ar", "--ranks", "2", "--moving-rate", "0.9"], "below 2/(N+1)"),
    "cluster that is none": (["dp.packed", "--cluster", "2by2"], "is no cluster"),
    "more ranks than the cluster": (
        ["dp.packed", "--cluster", "2x2", "--ranks", "2", "--dry-run"],
        "the run has 2",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_one_line_before_anything_starts(name: str, tmp_path: Path) -> None:
    from perfscope.cli.main import cli
    from perfscope.errors import EXIT_USAGE

    words, expected = REFUSED[name]
    place = tmp_path / "run"
    with pytest.raises((PerfscopeError, click.ClickException)) as caught:
        cli.main(["bench", "run", *words, "-o", str(place)], standalone_mode=False)
    line = str(caught.value)
    assert expected in line and "\n" not in line
    assert getattr(caught.value, "exit_code", None) == EXIT_USAGE
    assert not place.exists()


def test_a_refusal_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    result = bench("run", "dp.pakced", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("perfscope: ")
    assert list(tmp_path.iterdir()) == []


def test_dry_run_prints_the_plan_and_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = invoke("run", "dp.packed", "--ranks", "2", "--input", "3x16x16", "--batch", "8", "--dry-run")
    assert "mesh       dp=2 = 2 ranks" in text
    assert "dp: ranks 0, 1 on host0" in text
    assert "perfscope.runners.rank" in text
    plan = json.loads(invoke("run", "dp.packed", "--ranks", "2", "--input", "3x16x16", "--dry-run", "--json"))
    # a ring all-reduce of |W| e between 2 ranks: each sends 2 (P-1)/P = 1 time the gradient
    expected = 2 * 4 * plan["scheme"]["num_params"]
    assert plan["scheme"]["predicted"]["bytes_algorithmic_per_step"] == {"loopback": expected}
    assert list(tmp_path.iterdir()) == []


def test_a_plan_tells_servers_threads_and_settings_that_are_ignored() -> None:
    words = ("run", "--ranks", "3", "--dry-run", "--threads", "1", "--period", "2", "--microbatches", "4")
    text = invoke(*words, "ps.sync", "--moving-rate", "0.1")
    assert "1 server (rank 0) + 2 workers, 16 samples each" in text and "server: ranks" not in text
    assert "1 thread per rank" in text
    for note in ("ps.sync has no period; --period", "--microbatches is ignored", "--moving-rate is ignored"):
        assert note in text
    assert "is ignored" not in invoke("run", "dp.local_sgd", "--period", "3", "--dry-run")
    assert "is ignored" not in invoke("run", "easgd.sync_ar", "--moving-rate", "0.1", "--dry-run")
    assert "is ignored" not in invoke("run", "pp.gpipe", "--microbatches", "2", "--dry-run")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("topk", "+topk: "),
        ("+topk(0.1)", "+topk: "),
        ("+prio", "dp.perlayer"),
        ("smallcnn", "smallcnn: "),
        ("dp", "dp.hsdp"),
    ],
)
def test_list_shows_modifiers_models_and_families_by_name(name: str, expected: str) -> None:
    assert expected in invoke("list", name)


def test_a_traced_step_stands_beside_its_exposed_share() -> None:
    assert exposed(9e6, 0.33) == "33 % of a traced step of 27.3 ms"
    assert exposed(0.0, 0.0) == "0 % of a traced step" and exposed(None, None) == "–"


@pytest.mark.slow
@pytest.mark.torch
def test_a_run_that_diverges_says_so_and_how_periods_fit(tmp_path: Path) -> None:
    words = ("run", "serial", *SMALL, "--steps", "8", "--no-trace")
    wild = bench(*words, "--lr", "1000", "-o", "wild", cwd=tmp_path)
    assert wild.returncode == 0 and "Training diverged: lower --lr" in wild.stdout
    calm = bench(
        "run", "dp.local_sgd", *SMALL, "--steps", "12", "--overhead", "100%", "-o", "c", cwd=tmp_path
    )
    assert calm.returncode == 0 and "diverged" not in calm.stdout
    options: Any = RunReader(tmp_path / "c").run.all_options
    assert options["steps_per_window"] == 4


@pytest.mark.torch
def test_a_run_is_an_ordinary_run_directory_and_its_bytes_are_those_predicted(tmp_path: Path) -> None:
    result = bench(
        "run",
        "dp.packed",
        "--ranks",
        "2",
        *SMALL,
        "--steps",
        "6",
        "--windows",
        "1",
        "--json",
        "-o",
        "run",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    figures = document["figures"]
    sent = figures["bytes_per_step"]
    assert sent["recorded"] == sent["predicted"] == {"loopback": 2 * 4 * document["scheme"]["num_params"]}
    assert (
        sent["wire"]["loopback"] >= sent["predicted"]["loopback"]
    )  # others on this host use the loopback, too
    assert figures["missing"] == {}
    assert figures["samples_per_s"] > 0 and figures["exposed_comm_ns"] > 0
    assert figures["held_out_loss"] is not None and figures["peak_rss_bytes"] > 50e6
    manifest = RunReader(tmp_path / "run").run
    assert manifest.attached_ranks == 2 and manifest.name == "dp.packed"
    assert manifest.scheme is not None
    assert manifest.scheme.full_name == "dp.packed"
    assert manifest.scheme.document["places_are"] == "recorded"
    text = verdict_text(document["scheme"], figures)
    assert text.startswith("dp.packed on smallcnn, 2 ranks: ")
    assert "within hosts" in text and "between hosts" not in text and "Skipped" not in text
    figures["details"] = {"loss_scale": 32768.0, "skipped_updates": 1}
    skipped = "Skipped updates 1 of 6 (gradients not finite in float16), loss scale 32,768\n"
    assert skipped in verdict_text(document["scheme"], figures)
    same_figures(tmp_path, "run", result.stdout)


def same_figures(folder: Path, run: str, printed: str) -> None:
    """The closing lines, a study's row and the report of one run say the same."""
    figures = json.loads(printed)["figures"]
    of_cell = Run(repeat=1, path=run, status=DONE, figures=figures)
    cell = CellState(name="c", scheme="s", settings={}, cluster=None, digest="", runs=[of_cell])
    study = Study(title="t", machine={}, repeats=1, seed=0, cells=[cell])
    (row,) = study_rows(study)
    reported = subprocess.run(
        [*PERFSCOPE, "report", run, "--json"],
        cwd=folder,
        env=user_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    report = json.loads(reported.stdout)
    told = report["bench"]
    assert report["throughput_samples_per_s"] == told["samples_per_s"] == figures["samples_per_s"]
    assert report["run"]["options"]["samples_per_step"] == told["batch"]
    plain = ("samples_per_s", "step_p10_ns", "step_median_ns", "exposed_comm_ns", "exposed_comm_ratio")
    for name in (*plain, "held_out_loss", "peak_rss_bytes"):
        assert figures[name] == told[name] == row.median(name), name
    assert (figures["first_loss"], figures["final_loss"]) == (told["first_loss"], told["last_loss"])
    assert row.median("final_loss") == told["last_loss"]
    for kind in ("predicted", "recorded", "predicted_wire", "wire"):
        of_links = {link["link_class"]: link[kind] for link in told["links"] if link[kind] is not None}
        assert figures["bytes_per_step"][kind] == of_links, kind
        assert row.median(f"{kind} within hosts") == sum(of_links.values())


@pytest.mark.parametrize(("local_rank", "expected"), [("0", False), ("1", True)])
def test_of_the_ranks_of_a_host_the_first_alone_measures_its_peaks(local_rank: str, expected: bool) -> None:
    joined = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": "2"}
    assert has_elder({**joined, "MASTER_ADDR": "a", "MASTER_PORT": "1"}) is expected
    assert not has_elder({})


@pytest.mark.slow
@pytest.mark.torch
def test_a_librarys_calls_are_recorded_by_the_traced_window_alone(tmp_path: Path) -> None:
    words = ("run", "dp.fsdp", "--ranks", "2", *SMALL, "--steps", "7", "--json")
    traced = bench(*words, "--windows", "1", "--overhead", "100%", "-o", "traced", cwd=tmp_path)
    assert traced.returncode == 0, traced.stderr
    sent = json.loads(traced.stdout)["figures"]["bytes_per_step"]
    assert sent["recorded"]["loopback"] == pytest.approx(sent["predicted"]["loopback"])
    blind = bench(*words, "--no-trace", "-o", "blind", cwd=tmp_path)
    figures = json.loads(blind.stdout)["figures"]
    assert figures["bytes_per_step"]["recorded"] is None
    assert "no window was traced" in figures["missing"]["recorded"]


@pytest.mark.torch
def test_serial_says_its_speed_and_losses(tmp_path: Path) -> None:
    result = bench("run", "serial", *SMALL, "--steps", "4", "--no-trace", "-o", "run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("serial on smallcnn, 1 rank: ") and "samples/s" in lines[0]
    assert lines[1].startswith("Training loss ")
    assert lines[2].startswith("exposed communication is missing: ")
    again = bench("run", "serial", *SMALL, "-o", "run", cwd=tmp_path)
    assert again.returncode == 2 and "--force" in again.stderr


def test_docs_of_schemes_are_current() -> None:
    text = (DOCS / "schemes.md").read_text(encoding="utf-8")
    assert render(text) == text, "docs/schemes.md is old: make schemes-doc"


def test_what_was_written_by_hand_into_the_docs_is_kept() -> None:
    own = f"{BEGIN}\n## Measured here\n\nhy.owt wins.\n{END}"
    assert own in render(f"old head\n{own}\nold tail")
    assert f"{BEGIN}\n{END}" in render("")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["serial", "--seeds", "2"], "name their directory with -o DIR"),
        (["--framework", "torch", "--seeds", "2"], "leave out --seeds"),
        (["serial", "--target", "accuracy=2"], "at most 1"),
    ],
)
def test_seeds_and_targets_that_cannot_be_are_one_line(options: list[str], words: str) -> None:
    from perfscope.cli.main import cli

    result = CliRunner().invoke(cli, ["bench", "run", *options])
    assert isinstance(result.exception, UsageError) and words in str(result.exception)
