"""`perfscope baseline`: which runs it keeps and which not, and what it says of a file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perfscope.cli.baseline import command
from perfscope.errors import PerfscopeError, UsageError
from perfscope.gate.records import Fingerprint, RunFigures
from perfscope.gate.store import BaselineError, open_store
from perfscope.gate.store.json_file import render
from tests.support.gate_store_runs import numbered, recorded_runs
from tests.support.synthetic_run import SyntheticRun

MS = 1_000_000
START = 1_780_000_000_000_000_000


def baseline(*words: object) -> Result:
    """In this process; errors are raised."""
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without settings of its own, whatever lies above the directory for temporary files."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(path: Path, number: int, *, step_ms: float = 20.0, steps: int = 60, **manifest: Any) -> Path:
    """A run directory of two ranks, as `perfscope run` leaves it without traces."""
    run = SyntheticRun(
        path,
        **{
            "name": "train",
            "host": "node0",
            "expected_ranks": 2,
            "attached_ranks": 2,
            "exit": {"code": 0, "signal": None},
            "start_unix_ns": START + number,
            "git": {"commit": "abcdef0123456789", "dirty": False},
            **manifest,
        },
    )
    for rank in range(2):
        run.rank(rank, world_size=2)
        run.steps(rank, [round((step_ms + index % 3) * MS) for index in range(steps)])
    return path


@pytest.fixture
def runs(project: Path) -> list[Path]:
    return [trained(project / "runs" / f"main-{number}", number) for number in range(6)]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch, project: Path) -> Callable[..., Path]:
    """Stands for a run directory whose measurement gives the figures of a recorded run, changed."""
    known: dict[str, RunFigures] = {}
    monkeypatch.setattr("perfscope.gate.measure.measure_run", lambda _, name: replace(known[name], name=name))

    def make(name: str, run: RunFigures) -> Path:
        trained(project / name, 0)
        known[name] = run
        return Path(name)

    return make


# --- update -------------------------------------------------------------------------------------------------


def test_runs_are_measured_and_kept_under_the_scripts_name(runs: list[Path]) -> None:
    done = baseline("update", "b.json", *runs)
    (entry,) = open_store(Path("b.json")).entries()
    assert (entry.name, entry.num_runs, entry.commits) == ("train", 6, ("abcdef0123456789",))
    assert (entry.first_start_unix_ns, entry.last_start_unix_ns) == (START, START + 5)
    kept = open_store(Path("b.json")).runs("train", entry.key)
    assert [run.name for run in kept] == [f"main-{number}" for number in range(6)]
    assert all(run.metrics["step_p10"] == pytest.approx(20 * MS) for run in kept)
    first, second = done.stdout.splitlines()
    assert first == "b.json: train: 6 runs, 6 new, step p10 20.0 ms ± 0.0 %"
    assert "2 ranks" in second
    assert entry.key in second
    assert done.stderr == ""


def test_the_same_runs_again_change_nothing_and_that_is_said(runs: list[Path]) -> None:
    baseline("update", "b.json", *runs)
    content = Path("b.json").read_bytes()
    assert "6 runs, 0 new, step" in baseline("update", "b.json", *runs[2:]).stdout
    assert Path("b.json").read_bytes() == content


def test_keep_and_replace_say_what_was_dropped(runs: list[Path]) -> None:
    baseline("update", "b.json", *runs[:5])
    done = baseline("update", "b.json", runs[5], "--keep", "5")
    assert "5 runs, 1 new, 1 dropped" in done.stdout
    done = baseline("update", "b.json", runs[0], "--replace")
    assert "1 run, 1 new, 5 dropped" in done.stdout
    assert done.stderr == (
        "perfscope: 1 undisturbed run of train with this fingerprint: a check needs 5 or more and is "
        "inconclusive with fewer\n"
    )


def test_fingerprints_and_benchmarks_are_kept_apart(runs: list[Path], project: Path) -> None:
    newer = trained(project / "newer", 50, packages={"torch": "9.9"})
    other = trained(project / "other", 60, name="finetune")
    done = baseline("update", "b.json", *runs, newer, other)
    assert [line.split(",")[0] for line in done.stdout.splitlines()[::2]] == [
        "b.json: train: 6 runs",
        "b.json: train: 1 run",
        "b.json: finetune: 1 run",
    ]
    assert len(done.stderr.splitlines()) == 2
    assert len(open_store(Path("b.json")).nearest("train")) == 2


def test_the_name_is_the_options_else_the_settings(runs: list[Path], project: Path) -> None:
    (project / "perfscope.toml").write_text('[check]\nname = "resnet"\n')
    baseline("update", "b.json", *runs)
    baseline("update", "b.json", *runs, "--name", "by hand")
    assert [entry.name for entry in open_store(Path("b.json")).entries()] == ["by hand", "resnet"]


def test_a_history_is_updated_alike(runs: list[Path]) -> None:
    assert "h.sqlite: train: 6 runs, 6 new" in baseline("update", "h.sqlite", *runs).stdout
    assert baseline("list", "h.sqlite").stdout.splitlines()[1].startswith("train")


def test_a_file_of_own_step_times_is_a_run_that_needs_a_name(project: Path) -> None:
    own = project / "own.json"
    own.write_text(json.dumps({"perfscope_steps": 1, "steps_ns": [10 * MS] * 40}))
    with pytest.raises(UsageError, match="name the benchmark with --name"):
        baseline("update", "b.json", own)
    assert not Path("b.json").exists()
    assert "b.json: own: 1 run, 1 new" in baseline("update", "b.json", own, "--name", "own").stdout


def test_runs_that_prove_nothing_are_left_out_with_the_reason(runs: list[Path], project: Path) -> None:
    failed = trained(project / "failed", 90, exit={"code": 3, "signal": None})
    short = trained(project / "short", 91, steps=12)
    no_run = project / "empty"
    no_run.mkdir()
    done = baseline("update", "b.json", *runs, failed, short, no_run)
    said = done.stderr.splitlines()
    assert len(said) == 3
    assert said[0] == f"perfscope: {failed}: left out, its command ended with exit code 3"
    assert said[1].startswith(f"perfscope: {short}: left out, only ")
    assert said[2].startswith(f"perfscope: {no_run}: left out, ")
    assert open_store(Path("b.json")).entries()[0].num_runs == 6
    content = Path("b.json").read_bytes()
    with pytest.raises(PerfscopeError, match=r"no run was kept, b\.json is as it was"):
        baseline("update", "b.json", failed, short, "--replace")
    assert Path("b.json").read_bytes() == content


def test_a_disturbed_run_is_kept_only_on_demand_and_does_not_count_for_a_check(
    figures: Callable[..., Path],
) -> None:
    run = recorded_runs()[0]
    names = [figures(f"run{number}", replace(numbered(number), clean=True)) for number in range(4)]
    names.append(figures("noisy", replace(run, clean=False, clean_reason="Other processes took 0.6 CPUs.")))
    done = baseline("update", "b.json", *names)
    assert "noisy: left out, disturbed: Other processes took 0.6 CPUs. Repeat it" in done.stderr
    assert "4 undisturbed runs of train" in done.stderr
    done = baseline("update", "b.json", *names, "--allow-disturbed")
    assert "5 runs, 1 new" in done.stdout
    assert "4 undisturbed runs of train" in done.stderr
    assert "5 runs, 1 of them disturbed" in baseline("show", "b.json").stdout


def test_sides_and_pairs_of_an_earlier_check_are_not_kept(figures: Callable[..., Path]) -> None:
    baseline("update", "b.json", figures("run1", replace(numbered(1), side="head", pair=3)))
    (entry,) = open_store(Path("b.json")).entries()
    (run,) = open_store(Path("b.json")).runs("train", entry.key)
    assert (run.side, run.pair) == ("", None)


@pytest.mark.parametrize("outcome", ["regression", "inconclusive"])
def test_a_check_that_is_no_pass_is_kept_only_on_demand(
    outcome: str, runs: list[Path], project: Path
) -> None:
    head = {"runs": [{"name": run.name, "pair": n} for n, run in enumerate(runs)]}

    def check(outcome: str) -> None:
        document = {"outcome": outcome, "base": {"runs": []}, "head": head}
        (project / "runs" / "check.json").write_text(json.dumps(document))

    check(outcome)
    with pytest.raises(
        PerfscopeError, match=f"outcome is {outcome}, not pass.*--allow-regression"
    ) as refused:
        baseline("update", "b.json", "runs")
    assert "\n" not in str(refused.value) and not Path("b.json").exists()
    assert "6 runs, 6 new" in baseline("update", "b.json", "runs", "--allow-regression").stdout
    check("pass")
    assert "6 runs, 6 new" in baseline("update", "c.json", "runs").stdout


def test_nothing_is_measured_for_a_file_that_cannot_be_updated(runs: list[Path]) -> None:
    with pytest.raises(BaselineError, match="is a directory"):
        baseline("update", *runs)  # FILE was forgotten
    Path("b.json").write_text("<<<<<<< HEAD\n")
    with pytest.raises(BaselineError, match="has merge conflict markers"):
        baseline("update", "b.json", *runs)
    with pytest.raises(UsageError, match="is not there"):
        baseline("update", "c.json", "runs/none")
    with pytest.raises(UsageError, match="must not be empty"):
        baseline("update", "c.json", *runs, "--name", " ")
    assert not Path("c.json").exists()


# --- show and list ------------------------------------------------------------------------------------------


@pytest.fixture
def kept(project: Path) -> Path:
    """Eight real runs, and one of a machine with a GPU."""
    runs = recorded_runs()
    gpu = Fingerprint(
        cpu="Xeon", num_cpus=16, gpus=("NVIDIA H100",), world_size=4, batch=256, scheme="dp.ddp"
    )
    around = replace(runs[0].surroundings, commit="0123456789abcdef", hosts=("gpu-7",))
    other = replace(runs[0], fingerprint=gpu, metrics={"step_p10": 5e6, "energy": 12.5}, surroundings=around)
    path = project / "b.json"
    path.write_bytes(render({("cnn", runs[0].fingerprint): runs, ("cnn", gpu): [other]}))
    return path


def test_list_has_a_line_for_each_entry(kept: Path) -> None:
    head, *lines = baseline("list", kept).stdout.splitlines()
    assert head.split()[:3] == ["benchmark", "key", "runs"]
    assert len(lines) == 2
    (eight,) = (line for line in lines if "8 runs" in line)
    assert "27.5 ms   2026-11-21  AMD EPYC, 2 CPUs, torch 2.13.0+cpu, perfscope 0.1.0, 2 ranks" in eight
    document = json.loads(baseline("list", kept, "--json").stdout)
    assert document["schema_version"] == 1
    assert sorted(entry["num_runs"] for entry in document["entries"]) == [1, 8]
    assert {entry["fingerprint"]["scheme"] for entry in document["entries"]} == {"", "dp.ddp"}


def test_show_has_machine_dates_commits_and_every_metric_with_its_spread(kept: Path) -> None:
    text = baseline("show", kept).stdout
    for expected in (
        "fingerprint  Xeon, 16 CPUs, NVIDIA H100, 4 ranks, batch 256, dp.ddp",
        "hosts        gpu-7",
        "commits      0123456789",
        "2026-11-21 21:26 UTC to 2026-11-21 21:",
        "Energy per step",
        "12.5 J",
        "not measured: Peak memory, Peak device memory, Energy per step",
    ):
        assert expected in text, text
    document = json.loads(baseline("show", kept, "--json").stdout)
    (entry,) = (one for one in document["entries"] if one["num_runs"] == 8)
    times = sorted(run.metrics["step_p10"] for run in recorded_runs())
    middle = (times[3] + times[4]) / 2
    away = sorted(abs(time - middle) for time in times)
    assert entry["metrics"]["step_p10"] == {
        "title": "Step time, p10",
        "unit": "ns",
        "median": middle,
        "spread_ratio": pytest.approx(1.4826 * (away[3] + away[4]) / 2 / middle),
        "low": times[0],
        "high": times[-1],
        "num_runs": 8,
    }
    assert set(entry["metrics"]) == set(recorded_runs()[0].metrics)
    assert entry["absent"]["energy"] == "no energy counter was readable"


def test_show_can_be_limited_to_a_benchmark_that_is_there(kept: Path) -> None:
    assert baseline("show", kept, "--name", "cnn").stdout == baseline("show", kept).stdout
    with pytest.raises(BaselineError, match=r"there is no benchmark rnn in .*b\.json; it keeps cnn"):
        baseline("show", kept, "--name", "rnn")


def test_the_settings_may_name_the_file(kept: Path, project: Path) -> None:
    with pytest.raises(UsageError, match="the settings name no baseline"):
        baseline("list")
    (project / "perfscope.toml").write_text('[check]\nbaseline = "b.json"\n')
    assert "8 runs" in baseline("list").stdout
    assert "8 runs" in baseline("show").stdout


def test_hostile_names_are_shown_harmless(project: Path) -> None:
    hostile = "\x1b[2J\u202etrain\n\U0001f9d9"
    run = replace(numbered(0, hosts=("\x1b]0;x",)), fingerprint=Fingerprint(cpu="\u202e", scheme="a\nb"))
    open_store(project / "b.json", create=True).put(hostile, [run])
    for words in (["list"], ["show"], ["list", "--json"], ["show", "--json"]):
        text = baseline(words[0], "b.json", *words[1:]).stdout
        assert not set(text) & {"\x1b", "\u202e"}
        assert "\U0001f9d9" in (json.loads(text)["entries"][0]["name"] if "--json" in words else text)
    assert len(baseline("list", "b.json").stdout.splitlines()) == 2


def test_an_empty_history_is_said_to_be_empty(project: Path) -> None:
    open_store(project / "h.db", create=True)
    assert baseline("list", "h.db").stdout == baseline("show", "h.db").stdout == "h.db keeps no runs\n"


def test_a_missing_baseline_ends_with_exit_code_4() -> None:
    with pytest.raises(BaselineError, match=r"there is no baseline none\.json; make it with") as missing:
        baseline("list", "none.json")
    assert missing.value.exit_code == 4


@pytest.mark.parametrize("words", [["--help"], ["update", "--help"]])
def test_help_has_examples_and_loads_nothing_heavy(words: list[str]) -> None:
    code = f"from perfscope.cli.baseline import command; command({words})"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
    )
    assert "Examples:\n    perfscope baseline update perfscope-baseline.json" in done.stdout
    loaded = {
        line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line
    }
    assert not loaded & {"torch", "numpy", "pyarrow", "matplotlib", "msgspec", "sqlite3", "jinja2"}


@pytest.mark.slow
def test_two_updates_at_once_keep_both(runs: list[Path]) -> None:
    """The commands themselves: what they hold while runs are measured must not undo the other's work."""
    code = "from perfscope.cli.baseline import command; command()"
    words = [sys.executable, "-c", code, "update", "b.json"]
    both = [subprocess.Popen([*words, *map(str, part)]) for part in (runs[:3], runs[3:])]
    assert [process.wait(60) for process in both] == [0, 0]
    (entry,) = open_store(Path("b.json")).entries()
    assert entry.num_runs == 6
