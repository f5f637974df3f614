"""What `perfscope run` says last: what bounds the step, and never at the expense of the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfscope.cli.run_verdict import is_small, verdict_lines
from tests.integration.run_support import PERFSCOPE, read_manifest, run, said, user_environment

pytestmark = pytest.mark.torch
TRAINING = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 60):
    optimizer.zero_grad()
    model(torch.ones(32, 64)).square().mean().backward()
    optimizer.step()
sys.exit(int(sys.argv[1]))
"""
OPTIONS = ("--ceilings", "off", "--sample-interval", "off")


@pytest.fixture
def script(tmp_path: Path) -> str:
    pytest.importorskip("torch")
    path = tmp_path / "training.py"
    path.write_text(TRAINING)
    return str(path)


def test_a_run_ends_with_the_verdict_of_its_report(tmp_path: Path, script: str) -> None:
    environment = user_environment(PERFSCOPE_VERDICT="1")
    ended = run(sys.executable, script, "0", cwd=tmp_path, options=OPTIONS, environment=environment)
    assert ended.returncode == 0 and ended.stdout == b""
    lines = said(ended.stderr)
    after = lines[lines.index(next(line for line in lines if line.startswith("next: "))) + 1 :]
    assert 1 <= len(after) <= 2
    listed = subprocess.run(
        [*PERFSCOPE, "list", str(tmp_path), "--json"],
        env=environment, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    report = subprocess.run(
        [*PERFSCOPE, "report", str(tmp_path / "run"), "--text"],
        env=environment, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    headline = after[0].split(" (")[0]
    assert headline[:40] in listed and headline[:40] in " ".join(report.split())


@pytest.mark.parametrize(("code", "environment"), [("3", {"PERFSCOPE_VERDICT": "1"}), ("0", {})])
def test_a_failed_command_or_a_user_who_wants_none_gets_no_verdict(
    tmp_path: Path, script: str, code: str, environment: dict[str, str]
) -> None:
    ended = run(
        sys.executable,
        script,
        code,
        cwd=tmp_path,
        options=OPTIONS,
        environment=user_environment(**environment),
    )
    assert ended.returncode == int(code)
    assert said(ended.stderr)[-1].startswith("next: ")
    assert not (tmp_path / "run" / "derived").exists()


def test_the_analysis_ends_when_it_takes_too_long_or_is_to_stop(tmp_path: Path, script: str) -> None:
    assert run(sys.executable, script, "0", cwd=tmp_path, options=OPTIONS).returncode == 0
    began = time.monotonic()
    assert verdict_lines(tmp_path / "run", lambda: False, limit_s=0.05) == ()
    assert verdict_lines(tmp_path / "run", lambda: time.monotonic() > began + 0.1) == ()
    assert verdict_lines(tmp_path / "no run", lambda: False) == ()


def test_workers_of_the_analysis_end_although_signals_are_held_back(tmp_path: Path, script: str) -> None:
    options = (*OPTIONS, "--overhead", "50%", "--windows", "4")
    assert run(sys.executable, script, "0", "3000", cwd=tmp_path, options=options).returncode == 0
    assert len(list((tmp_path / "run" / "ranks" / "0" / "windows").iterdir())) > 1
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        assert verdict_lines(tmp_path / "run", lambda: False)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def test_a_large_run_is_left_to_the_report(tmp_path: Path, script: str) -> None:
    assert run(sys.executable, script, "0", cwd=tmp_path, options=OPTIONS).returncode == 0
    assert is_small(tmp_path / "run")
    with (tmp_path / "run" / "ranks" / "0" / "steps.jsonl").open("ab") as file:
        file.truncate(33 << 20)
    assert not is_small(tmp_path / "run")


def test_an_interrupt_during_the_analysis_leaves_run_and_exit_code_whole(tmp_path: Path, script: str) -> None:
    command = [*PERFSCOPE, "run", "-o", "run", *OPTIONS, "--", sys.executable, script, "0"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=user_environment(PERFSCOPE_VERDICT="1"), stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    for line in process.stderr:
        if b"next: " in line:
            os.kill(process.pid, signal.SIGINT)
            break
    _, left = process.communicate(timeout=60)
    assert process.returncode == 0, left
    assert read_manifest(tmp_path / "run")["status"] == "finished"
