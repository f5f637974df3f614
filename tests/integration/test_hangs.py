"""Hangs of real trainings: noticed while they are recorded, said once, in the report after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perfscope.collectors.stacks.bursts import find_py_spy
from tests.integration.run_support import PERFSCOPE, said, user_environment

pytestmark = [pytest.mark.torch, pytest.mark.slow]
TRAINING = """
import sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, number):
        while STUCK and rank == 1 and number == 30:
            time.sleep(0.01)
        return torch.ones(8, 64)

def average():
    for value in model.parameters():
        dist.all_reduce(value.grad)

def validate():
    model.eval()
    with torch.no_grad():
        for _, batch in zip(range(20), torch.utils.data.DataLoader(Data(), batch_size=None)):
            model(batch)
            time.sleep(0.35)
    model.train()

class Slow:
    def write(self, data):
        time.sleep(0.5)
        return len(data)
    def flush(self):
        pass

def train(pause):
    for step, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=None)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        time.sleep(0.03)
        if step == 30 and rank == 1:
            pause()
        average()
        optimizer.step()
"""
FLOOR_S = 3.0


def script(folder: Path, pause: str, *, stuck: bool = False) -> Path:
    path = folder / "training.py"
    path.write_text(f"STUCK = {stuck}\n{TRAINING}\n\ndef pause():\n    {pause}\n\ntrain(pause)\n")
    return path


def line_of(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


@contextmanager
def recorded(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`perfscope run` of a training with two ranks, in a process group of its own."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--ceilings", "off", "--hang-after", f"{FLOOR_S:g}s", "--no-trace"]
    command = [*PERFSCOPE, "run", "-o", str(path.parent / "run"), *options, "--", *torchrun, str(path)]
    process = subprocess.Popen(
        command, env=user_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            end_ranks(path.parent / "run")


def end_ranks(run: Path) -> None:
    """Ranks that outlive their launcher."""
    for file in run.glob("ranks/*/rank.json"):
        pid = json.loads(file.read_bytes())["pid"]
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if str(run.parent).encode() in arguments:
            os.kill(pid, signal.SIGKILL)


def read(file: Path) -> list[str]:
    return file.read_text().splitlines()


def await_hang(run: Path) -> dict[str, Any]:
    """The line that is written when a hang is noticed."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        for file in run.glob("hosts/*/hangs.jsonl"):
            line: dict[str, Any] = json.loads(file.read_text().splitlines()[0])
            return line
        time.sleep(0.2)
    raise AssertionError("no hang was noticed")


def report(run: Path) -> tuple[str, dict[str, Any]]:
    """The summary, and the JSON; HTML and PDF are written."""
    environment = {**user_environment(), "COLUMNS": "120"}
    command = [*PERFSCOPE, "report", str(run)]
    summary, document = (
        subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=True).stdout
        for more in ([], ["--json"])
    )
    return " ".join(summary.split()), json.loads(document)


def test_a_rank_that_does_not_enter_a_collective_is_named_also_after_the_run_was_ended(
    tmp_path: Path,
) -> None:
    path, run = script(tmp_path, "time.sleep(600)"), tmp_path / "run"
    with recorded(path) as training:
        line = await_hang(run)
        time.sleep(2 * FLOOR_S)  # it is said once
        training.send_signal(signal.SIGTERM)
        _, stderr = training.communicate(timeout=60)
    assert training.returncode != 0
    spoken = [text for text in said(stderr) if "made no step" in text]
    assert len(spoken) == 1 and spoken[0].startswith("ranks 0, 1 have made no step for ")
    assert [rank["rank"] for rank in line["ranks"]] == [0, 1]
    assert all(20 <= rank["steps"] <= 30 for rank in line["ranks"])  # the latest 0.2 s may be in memory
    summary, document = report(run)
    (hang,) = document["hangs"]
    assert hang["end"] == "run_failed" and hang["stood_ns"] >= 2 * FLOOR_S * 1e9
    assert "Ranks 0, 1 had made no step for" in summary.partition("Step ")[0]
    html = (run / "report.html").read_text()
    assert "had made no step for" in html and 'id="hangs"' in html
    if find_py_spy() is not None:
        pause, average = line_of(path, "time.sleep(600)"), line_of(path, "dist.all_reduce")
        places = {rank["rank"]: (rank["call"], rank["line"], rank["function"]) for rank in hang["ranks"]}
        assert places == {0: ("all_reduce", average, "average"), 1: ("", pause, "pause")}
        first = f"rank 1 is at training.py:{pause} (pause)"
        second = f"rank 0 is in all_reduce, called from training.py:{average} (average)"
        assert spoken[0].endswith(f"{first}; {second}")
        assert f"Find out why rank 1 did not get past training.py:{pause} (pause)" in summary


def test_an_endless_loop_in_a_data_loader_is_named_after_everything_was_killed(tmp_path: Path) -> None:
    path, run = script(tmp_path, "pass", stuck=True), tmp_path / "run"
    with recorded(path) as training:
        await_hang(run)
        os.killpg(training.pid, signal.SIGKILL)
    summary, document = report(run)
    (hang,) = document["hangs"]
    assert hang["end"] == "not_closed" and hang["stood_ns"] is None
    assert "made no step any more" in summary.partition("Step ")[0]
    if find_py_spy() is not None:
        of_loader = next(rank for rank in hang["ranks"] if rank["rank"] == 1)
        assert (of_loader["function"], of_loader["call"]) == ("Data.__getitem__", "")


def test_a_training_that_pauses_and_goes_on_says_how_long_it_stood(tmp_path: Path) -> None:
    path, run = script(tmp_path, f"time.sleep({3 * FLOOR_S})"), tmp_path / "run"
    with recorded(path) as training:
        _, stderr = training.communicate(timeout=120)
    assert training.returncode == 0
    assert sum("made no step" in text for text in said(stderr)) == 1
    summary, document = report(run)
    (hang,) = document["hangs"]
    assert hang["end"] == "resumed" and hang["stood_ns"] >= 3 * FLOOR_S * 1e9
    assert "and then went on" in summary and "had made no step" not in summary


@pytest.mark.parametrize("pause", ["pass", "validate()", "torch.save({'model': [1]}, Slow())"])
def test_evaluations_and_checkpoints_are_no_hangs(tmp_path: Path, pause: str) -> None:
    """The evaluation and the checkpoint of rank 1 take longer than the floor; rank 0 waits for it."""
    path, run = script(tmp_path, pause), tmp_path / "run"
    with recorded(path) as training:
        _, stderr = training.communicate(timeout=120)
    assert training.returncode == 0
    assert not [text for text in said(stderr) if "made no step" in text]
    assert not list(run.glob("hosts/*/hangs.jsonl"))
    marked = [json.loads(line)["part"] for file in run.glob("ranks/1/marks.jsonl") for line in read(file)]
    assert {"pass": "input", "validate()": "evaluation"}.get(pause, "checkpoint") in {*marked, "input"}
