"""What `perfscope check` holds the head against: bases that are none, and results that must not get lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfscope.cli.check.command import command
from perfscope.gate.store import BaselineError, open_store
from tests.integration.run_support import PERFSCOPE, user_environment
from tests.integration.test_check import LEVEL, QUICK, STAND_IN, check, git, keep, sides, times, training

SLOW = [1.1 * ms for ms in LEVEL]


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def named(kind: str, level: Sequence[float], first: int, folder: Path) -> list[Path]:
    return [
        times(folder, f"{kind}{first + n}", ms, start_unix_ns=first + n + 1) for n, ms in enumerate(level)
    ]


# --- a base that is the head --------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two commits; what runs would be seen by the file `ran`."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for number in range(2):
        (folder / "mine").mkdir(exist_ok=True)
        (folder / "mine" / "__init__.py").write_text(f"NUMBER = {number}\n")
        (folder / "train.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"number {number}")
    return folder


def test_the_same_code_on_both_sides_is_inconclusive_before_anything_runs(project: Path) -> None:
    done = check(*QUICK, "--base-ref", "HEAD", "--json", "--", sys.executable, "train.py", cwd=project)
    assert done.returncode == 3, done.stderr
    assert "nothing to compare" in document(done)["headline"]
    assert not (project.parent / "ran").exists() and not (project / "perfscope-runs").exists()


def test_a_base_that_imports_the_heads_packages_is_inconclusive_before_anything_runs(project: Path) -> None:
    environment = project.parent / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "first.pth").write_text("import first; first.install()\n")
    (site / "first.py").write_text(
        "import importlib.util, sys\n"
        f"MAPPING = {{'mine': {str(project / 'mine')!r}}}\n"
        "class Finder:\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        if name == 'mine':\n"
        "            place = MAPPING['mine']\n"
        "            return importlib.util.spec_from_file_location(\n"
        "                name, place + '/__init__.py', submodule_search_locations=[place])\n"
        "def install():\n"
        "    sys.meta_path.insert(0, Finder)\n"
    )
    python = environment / "bin" / "python"
    done = check(*QUICK, "--base-ref", "HEAD~1", "--json", "--", python, "train.py", cwd=project)
    assert done.returncode == 3, done.stderr
    assert "mine from the working tree" in document(done)["headline"]
    assert not (project.parent / "ran").exists()


def test_what_is_known_of_the_base_stands_in_the_result(project: Path) -> None:
    shutil.copy(STAND_IN, project / "train.py")
    git(project, "commit", "-q", "-am", "a stand-in")
    (project / "mine" / "__init__.py").write_text("NUMBER = 3\n")
    words = ("--pairs", "7", "--base-ref", "HEAD", "--json", "-o", "out", "--", sys.executable, "train.py")
    done = check(*QUICK, *words, "26", cwd=project)
    (said,) = [reason for reason in document(done)["reasons"] if "working tree as it is" in reason]
    assert "1 tracked file" in said and said in (project / "out" / "check.json").read_text()


# --- runs of two checks -------------------------------------------------------------------------------------


def check_folder(place: Path, base: Sequence[float], head: Sequence[float], outcome: str = "pass") -> Path:
    """What a check leaves, with files of step times for runs."""
    place.mkdir(parents=True)
    known: dict[str, Any] = {"outcome": outcome}
    for side, level in (("base", base), ("head", head)):
        made = [times(place, f"{side}{n}", ms, pair=n) for n, ms in enumerate(level)]
        known[side] = {"runs": [{"name": path.name, "pair": n} for n, path in enumerate(made)]}
    (place / "check.json").write_text(json.dumps(known))
    return place


def test_runs_of_two_checks_are_no_pairs(tmp_path: Path) -> None:
    one = check_folder(tmp_path / "runs" / "a", LEVEL, LEVEL)
    two = check_folder(tmp_path / "runs" / "b", LEVEL, SLOW)
    assert document(check(two, "--against", one, "--json", cwd=tmp_path))["pairs"] == []
    loose = check(*sorted(two.glob("head*")), "--against", *sorted(two.glob("base*")), "--json", cwd=tmp_path)
    assert len(document(loose)["pairs"]) == len(LEVEL)


def test_a_baseline_of_the_settings_does_not_take_the_place_of_a_checks_own_base(tmp_path: Path) -> None:
    folder = check_folder(tmp_path / "out", LEVEL, SLOW)
    keep(tmp_path, "b.json", *named("old", [2 * ms for ms in LEVEL], 0, tmp_path))
    (tmp_path / "perfscope.toml").write_text('[check]\nbaseline = "b.json"\nname = "cnn"\n')
    done = check(folder, "--json", cwd=tmp_path)
    assert done.returncode == 1 and len(document(done)["pairs"]) == len(LEVEL), done.stderr
    assert check(folder, "--baseline", "b.json", cwd=tmp_path).returncode == 0


# --- histories and baselines --------------------------------------------------------------------------------


def test_a_history_that_is_the_baseline_does_not_learn_a_regression(tmp_path: Path) -> None:
    keep(tmp_path, "h.sqlite", *named("old", LEVEL, 0, tmp_path))
    words = ("--baseline", "h.sqlite", "--history", "h.sqlite", "--name", "cnn")
    for first in (100, 200):
        done = check(*words, *named("new", [1.5 * ms for ms in LEVEL], first, tmp_path), cwd=tmp_path)
        assert done.returncode == 1, done.stdout
        assert "runs are not added to h.sqlite" in done.stderr
    assert check(*words, *named("same", LEVEL, 300, tmp_path), cwd=tmp_path).returncode == 0
    (entry,) = open_store(tmp_path / "h.sqlite").entries()
    assert entry.num_runs == 2 * len(LEVEL)


@pytest.mark.parametrize(
    ("level", "baseline", "code"), [(SLOW, False, 1), (LEVEL, False, 5), (LEVEL, True, 4)]
)
def test_a_history_that_cannot_be_written_does_not_swallow_the_verdict(
    level: list[float], baseline: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise BaselineError("cannot write h.sqlite: no space left")

    monkeypatch.setattr("perfscope.cli.check.finish.add_to_history", full)
    monkeypatch.chdir(tmp_path)
    words = [*sides(tmp_path, LEVEL, level), "--history", "h.sqlite"]
    if baseline:
        Path("perfscope.toml").write_text('[check]\nbaseline = "h.sqlite"\n')
    done = CliRunner().invoke(command, [str(word) for word in words])
    assert done.exit_code == code, done.output
    assert ("Regression" if code == 1 else "Pass") in done.stdout
    assert "no space left" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_history_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "h.sqlite").write_text("no database")
    words = ("-o", "out", "--history", "h.sqlite", "--base-cmd", "true", "--", "true")
    done = check(*QUICK, *words, cwd=tmp_path)
    assert done.returncode == 5 and "h.sqlite" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_baseline_of_another_machine_is_noticed_after_one_run(tmp_path: Path) -> None:
    old = [times(tmp_path, f"old{n}", 26, fingerprint={"cpu": "Other"}, start_unix_ns=n) for n in range(6)]
    keep(tmp_path, "b.json", *old)
    words = ("--baseline", "b.json", "--name", "cnn", "-o", "out", "--", *training(26))
    done = check(*QUICK, *words, cwd=tmp_path)
    assert done.returncode == 4, done.stdout + done.stderr
    assert str(tmp_path / "out") in done.stderr and "Other" in done.stdout
    assert [path.name for path in (tmp_path / "out").glob("*.log")] == ["01-head.log"]
    assert json.loads((tmp_path / "out" / "check.json").read_bytes())["outcome"] == "no_baseline"


def test_a_baseline_with_too_few_runs_is_noticed_after_one_run(tmp_path: Path) -> None:
    run = [*PERFSCOPE, "run", "-o", "known", "--no-trace", "--ceilings", "off", "--", *training(26)]
    subprocess.run(run, cwd=tmp_path, env=user_environment(), check=True, capture_output=True)
    keep(tmp_path, "b.json", tmp_path / "known")
    words = ("--baseline", "b.json", "--name", "cnn", "-o", "out", "--", *training(26))
    done = check(*QUICK, *words, cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "1 run of baseline b.json" in done.stdout
    assert len(list((tmp_path / "out").glob("*.log"))) == 1


def test_sides_that_cannot_be_compared_are_noticed_after_one_pair(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(STAND_IN.read_text().replace("100_000, 32]", "100_000, 64]"))
    base = f"{sys.executable} {other} 26"
    done = check(*QUICK, "-o", "out", "--base-cmd", base, "--", *training(26), cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "samples per step differs" in done.stdout
    assert len(list((tmp_path / "out").glob("*.log"))) == 2


def test_a_killed_check_leaves_what_can_be_judged(tmp_path: Path) -> None:
    words = [*QUICK, "-o", "out", "--all-pairs", "--base-cmd", " ".join(training(26)), "--", *training(26)]
    process = subprocess.Popen(
        [*PERFSCOPE, "check", *words],
        cwd=tmp_path,
        env=user_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "out" / "03-base").exists() and not (tmp_path / "out" / "03-head").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    left = json.loads((tmp_path / "out" / "check.json").read_bytes())
    assert left["outcome"] == "inconclusive" and "did not come to its end" in left["headline"]
    done = check("out", "--json", cwd=tmp_path)
    assert done.returncode == 3 and len(document(done)["pairs"]) == 2
