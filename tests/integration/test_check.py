"""`perfscope check` as a user calls it: exit codes, ways to name a base, what it prints and leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.gate.sequential import fewest_pairs
from perfscope.gate.settings import ALPHA
from perfscope.vocabulary.heap import STILL_HEAP
from tests.integration.run_support import PERFSCOPE, user_environment

STAND_IN = Path(__file__).parent.parent / "data" / "gate" / "stand_in.py"
FEWEST = fewest_pairs(ALPHA)
QUICK = ("--sample-interval", "off", "--no-trace", "--seed", "1")


def check(
    *words: str | Path, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PERFSCOPE, "check", *map(str, words)],
        cwd=cwd,
        env=environment or user_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def training(ms: float, *more: str) -> list[str]:
    return [sys.executable, str(STAND_IN), str(ms), *more]


def times(folder: Path, name: str, ms: float, **more: Any) -> Path:
    """A file of 50 step times a little above `ms`."""
    steps = [round(ms * 1e6 * (1 + 0.001 * (k % 7))) for k in range(50)]
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"perfscope_steps": 1, "steps_ns": steps, "name": name, **more}))
    return path


def sides(folder: Path, base: Sequence[float], head: Sequence[float], **more: Any) -> list[str | Path]:
    """Words that name pairs of files of step times."""
    new = [times(folder, f"head{n}", ms, pair=n, **more) for n, ms in enumerate(head)]
    old = [times(folder, f"base{n}", ms, pair=n) for n, ms in enumerate(base)]
    return [*new, "--against", *old]


LEVEL = [26.0, 26.3, 25.8, 26.1, 26.2, 25.9, 26.05, 26.15]


def test_equal_runs_pass_with_exit_code_0_and_a_verdict_first(tmp_path: Path) -> None:
    done = check(*sides(tmp_path, LEVEL, LEVEL[1:] + LEVEL[:1]), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.lstrip().splitlines()[0].startswith("Pass")


def test_slower_runs_are_a_regression_with_exit_code_1(tmp_path: Path) -> None:
    done = check(*sides(tmp_path, LEVEL, [1.1 * v for v in LEVEL]), "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["outcome"] == "regression"
    deciding = next(one for one in document["metrics"] if one["id"] == "step_p10")
    assert deciding["worse"] == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing to check"),
        (["--", sys.executable, "x.py"], "no base to compare with"),
        (["nowhere"], "nowhere is not there"),
        (["--base-cmd", "a", "--base-ref", "b", "--", "c"], "both name a base"),
        (["--base-cmd", "'a", "--", "c"], "cannot be split"),
        (["--threshold", "lots", "--base-cmd", "a", "--", "c"], "lots"),
        (["--metric", "speed=error", "--base-cmd", "a", "--", "c"], "speed"),
        (["--format", "xml=f", "--base-cmd", "a", "--", "c"], "NAME=FILE"),
        (["--allow", "weather", "--base-cmd", "a", "--", "c"], "weather"),
        (["--link", "data", "--base-cmd", "a", "--", "c"], "--base-ref"),
        (["--calibrate"], "--calibrate needs"),
        (["--config", "nowhere.toml", "--base-cmd", "a", "--", "c"], "nowhere.toml"),
        (["--"], "nothing behind"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2_and_one_line(
    tmp_path: Path, words: list[str], says: str
) -> None:
    done = check(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 4


def test_too_few_runs_are_inconclusive_with_exit_code_3(tmp_path: Path) -> None:
    done = check(*sides(tmp_path, LEVEL[:4], [2 * v for v in LEVEL[:4]]), cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert f"at least {FEWEST}" in done.stdout


def test_another_fingerprint_is_inconclusive_until_it_is_allowed(tmp_path: Path) -> None:
    words = sides(tmp_path, LEVEL, [1.2 * v for v in LEVEL], fingerprint={"torch": "2.14.0"})
    done = check(*words, cwd=tmp_path)
    assert done.returncode == 3 and "torch version" in done.stdout
    assert check(*words, "--allow", "torch", cwd=tmp_path).returncode == 1


def test_a_missing_baseline_is_exit_code_4(tmp_path: Path) -> None:
    done = check("--baseline", "nowhere.json", times(tmp_path, "a", 26), cwd=tmp_path)
    assert done.returncode == 4
    assert "nowhere.json" in done.stderr + done.stdout and "Traceback" not in done.stderr


def test_a_baseline_of_another_machine_is_exit_code_4_and_says_what_is_kept(tmp_path: Path) -> None:
    old = [times(tmp_path, f"old{n}", 26, fingerprint={"cpu": "Other"}, start_unix_ns=n) for n in range(6)]
    keep(tmp_path, "b.json", *old)
    new = [times(tmp_path, f"new{n}", 26, start_unix_ns=100 + n) for n in range(6)]
    done = check("--baseline", "b.json", "--name", "cnn", *new, cwd=tmp_path)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "Other" in done.stdout
    same = [
        times(tmp_path, f"same{n}", 29, fingerprint={"cpu": "Other"}, start_unix_ns=200 + n) for n in range(6)
    ]
    assert check("--baseline", "b.json", "--name", "cnn", *same, cwd=tmp_path).returncode == 1


def keep(folder: Path, file: str, *runs: Path) -> None:
    made = subprocess.run(
        [*PERFSCOPE, "baseline", "update", file, "--name", "cnn", *map(str, runs)],
        cwd=folder,
        env=user_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr


def test_what_is_allowed_to_differ_may_differ_from_a_baseline_too(tmp_path: Path) -> None:
    old = [
        times(tmp_path, f"old{n}", 26, fingerprint={"torch": "2.12"}, start_unix_ns=n + 1) for n in range(6)
    ]
    keep(tmp_path, "b.json", *old)
    new = [
        times(tmp_path, f"new{n}", 30, fingerprint={"torch": "2.13"}, start_unix_ns=n + 50) for n in range(6)
    ]
    words: list[str | Path] = ["--baseline", "b.json", "--name", "cnn", *new]
    assert check(*words, cwd=tmp_path).returncode == 4
    assert check(*words, "--allow", "torch", cwd=tmp_path).returncode == 1


def test_a_run_is_not_compared_with_itself_in_the_baseline(tmp_path: Path) -> None:
    runs = [times(tmp_path, f"r{n}", 26 + n / 100, start_unix_ns=n + 1) for n in range(6)]
    keep(tmp_path, "b.json", *runs)
    done = check("--baseline", "b.json", "--name", "cnn", *runs, cwd=tmp_path)
    assert done.returncode == 3, done.stdout
    assert "6 runs in b.json as well: judged, not compared with themselves" in done.stderr


def test_pin_heap_gives_both_sides_the_same_heap(tmp_path: Path) -> None:
    ended = check(
        *QUICK,
        *("--pin-heap", "--json", "-o", tmp_path / "runs"),
        *("--base-cmd", " ".join(training(26)), "--", *training(26)),
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["settings"]["pin_heap"] is True
    runs = sorted((tmp_path / "runs").glob("*/run.json"))
    assert {path.parent.name.partition("-")[2] for path in runs} == {"base", "head"}
    for path in runs:
        environment = json.loads(path.read_text())["environment"]
        assert {name: environment.get(name) for name in STILL_HEAP} == dict(STILL_HEAP)


def test_two_commands_are_run_in_pairs_and_the_slower_one_is_a_regression(tmp_path: Path) -> None:
    done = check(
        *QUICK,
        *("-o", "out", "--junit", "junit.xml", "--markdown", "check.md", "--history", "h.sqlite"),
        *("--base-cmd", " ".join(training(26)), "--", *training(30)),
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    assert "[1/16]" in done.stderr and "pair 1: head +1" in done.stderr
    document = json.loads((tmp_path / "out" / "check.json").read_bytes())
    assert len(document["pairs"]) == FEWEST and document["stopped"]
    assert (tmp_path / "junit.xml").read_text().startswith("<?xml")
    assert "egression" in (tmp_path / "check.md").read_text()
    assert (tmp_path / "h.sqlite").exists()
    again = check("out", cwd=tmp_path)
    assert again.returncode == 1, again.stderr
    lenient = check("out", "--threshold", "40%", cwd=tmp_path)
    assert lenient.returncode == 0, lenient.stderr
    # As a check leaves it that found every run of the head disturbed.
    document["left_out"] = [
        {"name": run["name"], "side": "head", "reason": "disturbed", "disturbed": True}
        for run in document["head"]["runs"]
    ]
    document["head"]["runs"] = []
    (tmp_path / "out" / "check.json").write_text(json.dumps(document))
    assert check("out", cwd=tmp_path).returncode == 1
    shutil.copytree(tmp_path / "out" / "01-head", tmp_path / "copy")
    copied = check("out/01-head", "--against", "copy", cwd=tmp_path)
    assert copied.returncode == 2 and "are the same run" in copied.stderr


def test_a_command_that_fails_is_exit_code_5_with_its_last_words(tmp_path: Path) -> None:
    done = check(
        *QUICK, "--base-cmd", " ".join(training(26)), "--", *training(26, "--fail", "3"), cwd=tmp_path
    )
    assert done.returncode == 5, done.stderr
    assert "exit code 3" in done.stdout and "out of luck" in done.stdout


def test_a_command_that_trains_nothing_is_exit_code_5(tmp_path: Path) -> None:
    done = check(*QUICK, "--base-cmd", "true", "--", "true", cwd=tmp_path)
    assert done.returncode == 5
    assert "no rank was recorded" in done.stdout


@pytest.mark.slow  # waiting with a limit: tests/unit/test_children.py
def test_a_run_that_takes_too_long_is_ended_and_is_exit_code_5(tmp_path: Path) -> None:
    done = check(
        *QUICK,
        *("--timeout", "3", "--base-cmd", " ".join(training(26, "--sleep", "60"))),
        *("--", *training(26, "--sleep", "60")),
        cwd=tmp_path,
    )
    assert done.returncode == 5
    assert "longer than 3 s" in done.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_training_and_says_where_the_runs_are(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    slow = training(26, "--sleep", "60")
    process = subprocess.Popen(
        [*PERFSCOPE, "check", *QUICK, "-o", "out", "--base-cmd", " ".join(slow), "--", *slow],
        cwd=tmp_path,
        env=user_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out/*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    (place,) = tmp_path.glob("out/*/run.json")
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert json.loads(place.read_bytes())["status"] != "running", "the training was ended, not left behind"
    assert "interrupted" in said and "Traceback" not in said


STUBBORN = """
import os, pathlib, signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
pathlib.Path(f"worker-{os.getpid()}").touch()
time.sleep(300)
"""


@pytest.mark.slow
def test_a_second_signal_leaves_nothing_of_torchrun_whose_workers_do_not_listen(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(STUBBORN)
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "train.py",
    ]
    process = subprocess.Popen(
        [*PERFSCOPE, "check", *QUICK, "-o", "out", "--base-cmd", " ".join(words), "--", *words],
        cwd=tmp_path,
        env=user_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 100
    while len(list(tmp_path.glob("worker-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    workers = [Path("/proc", path.name.removeprefix("worker-")) for path in tmp_path.glob("worker-*")]
    assert len(workers) == 2 and all(path.exists() for path in workers)
    process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert process.poll() is None, "torchrun waits for its workers"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    left = [path for path in workers if path.exists() and "\nState:\tZ" not in (path / "status").read_text()]
    assert not left


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits of a training; the second is slower."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    shutil.copy(STAND_IN, folder / "stand_in.py")
    for ms in (26, 30):
        (folder / "train.py").write_text(
            f"import sys\nsys.argv = ['stand_in.py', '{ms}']\nexec(open('stand_in.py').read())\n"
        )
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"{ms} ms")
    return folder


def test_a_git_reference_is_run_in_a_worktree_that_is_gone_afterwards(repository: Path) -> None:
    done = check(*QUICK, "--base-ref", "HEAD~1", "--", sys.executable, "train.py", cwd=repository)
    assert done.returncode == 1, done.stderr
    assert "26 ms" in done.stderr, "the base's commit is named"
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert len(listed.stdout.splitlines()) == 1


def test_an_unknown_reference_and_a_missing_git_are_one_line(repository: Path) -> None:
    words = (*QUICK, "--base-ref", "no-such-branch", "--", sys.executable, "train.py")
    done = check(*words, cwd=repository)
    assert done.returncode == 2 and "no-such-branch" in done.stderr
    nothing = repository / "empty-path"
    nothing.mkdir()
    done = check(*words, cwd=repository, environment=user_environment(PATH=str(nothing)))
    assert done.returncode == 5 and "git" in done.stderr
    assert "Traceback" not in done.stderr


def test_github_actions_gets_annotations_and_a_summary(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    environment = user_environment(GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
    done = check(*sides(tmp_path, LEVEL, [1.1 * v for v in LEVEL]), cwd=tmp_path, environment=environment)
    assert done.returncode == 1
    assert "::error" in done.stdout
    assert "egression" in summary.read_text()


@pytest.mark.slow  # the figures: tests/unit/gate/test_calibrate.py
def test_the_same_command_twice_measures_the_noise(tmp_path: Path) -> None:
    done = check(*QUICK, "--calibrate", "--pairs", str(FEWEST), "--", *training(26), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "%" in done.stdout and "pairs" in done.stdout


def test_settings_come_from_the_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.perfscope.check]\nthreshold = "30%"\n')
    done = check(*sides(tmp_path, LEVEL, [1.1 * v for v in LEVEL]), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_same_runs_on_both_sides_are_no_comparison(tmp_path: Path) -> None:
    runs = [times(tmp_path, f"r{n}", ms) for n, ms in enumerate(LEVEL)]
    done = check(*runs, "--against", *runs, cwd=tmp_path)
    assert done.returncode == 2 and "r0.json is on both sides" in done.stderr
    link = tmp_path / "other.json"
    link.symlink_to(runs[0])
    done = check(*runs[1:], link, "--against", runs[0], cwd=tmp_path)
    assert done.returncode == 2 and "r0.json is on both sides" in done.stderr
    done = check(runs[0], link, "--against", runs[1], cwd=tmp_path)
    assert done.returncode == 2 and "other.json is named twice" in done.stderr


def test_a_closed_stdout_does_not_turn_a_pass_into_a_regression_nor_hide_one(tmp_path: Path) -> None:
    for head, code in ((LEVEL[1:] + LEVEL[:1], 0), ([1.1 * v for v in LEVEL], 1)):
        words = [*PERFSCOPE, "check", *map(str, sides(tmp_path, LEVEL, head)), "--junit", "j.xml"]
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            words, cwd=tmp_path, env=user_environment(), stdout=writing, stderr=subprocess.PIPE, check=False
        )
        os.close(writing)
        assert done.returncode == code, done.stderr
        assert (tmp_path / "j.xml").stat().st_size, "files are written all the same"
        (tmp_path / "j.xml").unlink()


def test_a_check_whose_output_and_errors_nobody_reads_still_says_its_verdict(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = ["check", *QUICK, "--base-cmd", " ".join(training(26)), "--", *training(26, "--fail", "3")]
    done = subprocess.run(
        [*PERFSCOPE, *words],
        cwd=tmp_path,
        env=user_environment(),
        stdout=writing,
        stderr=writing,
        check=False,
    )
    assert done.returncode == 5
    done = subprocess.run(
        [*PERFSCOPE, "check", "nowhere"], cwd=tmp_path, env=user_environment(), stderr=writing, check=False
    )
    os.close(writing)
    assert done.returncode == 2


def judged(folder: Path, names: dict[str, list[str]], **pair: int | None) -> Path:
    """The folder of a check that named these runs."""
    folder.mkdir()
    runs = {side: {"runs": [{"name": name, **pair} for name in own]} for side, own in names.items()}
    (folder / "check.json").write_text(json.dumps(runs))
    return folder


def test_runs_of_a_check_that_are_gone_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    folder = judged(tmp_path / "out", {"base": ["01-base"], "head": ["01-head", "02-head"]}, pair=1)
    done = check(folder, "--json", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    left_out = {Path(one["name"]).name: one["reason"] for one in json.loads(done.stdout)["left_out"]}
    assert set(left_out) == {"01-base", "01-head", "02-head"}
    assert all("gone" in reason for reason in left_out.values())
    typing_error = check(folder / "03-head", "--against", folder / "01-base", cwd=tmp_path)
    assert typing_error.returncode == 2 and "03-head is not there" in typing_error.stderr


def test_the_base_of_a_check_against_a_baseline_is_not_looked_for_beside_its_runs(tmp_path: Path) -> None:
    folder = judged(tmp_path / "out", {"base": ["01-head"], "head": ["02-head"]}, pair=None)
    done = check(folder, cwd=tmp_path)
    assert done.returncode == 2 and "one side only" in done.stderr
