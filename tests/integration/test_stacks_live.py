"""Python stacks of real processes with the real py-spy: found, and without the training noticing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.collectors.base import Fact
from perfscope.collectors.context import Context, live_context
from perfscope.collectors.stacks import bursts as stacks
from perfscope.collectors.stacks.bursts import StackBursts
from perfscope.rundir.layout import STACKS_JSON
from tests.integration.run_support import TRAIN, run, user_environment
from tests.unit.collectors.stacks.test_stacks import check_speedscope

# A training's habits without its frameworks: a loop, a loader thread, signals, a child, floats on stdout.
TRAINING = """
import hashlib, queue, signal, subprocess, sys, threading, time
batches = queue.Queue(2)
def load_batches(count):
    for index in range(count):
        batches.put([(index * 31 + k) % 97 / 97 for k in range(2000)])
def forward(batch, weight):
    return sum(x * weight for x in batch)
def train_step(weight):
    batch = batches.get()
    loss = forward(batch, weight)
    return weight - 1e-4 * loss
def main(seconds, code):
    count, weight, digest = 0, 1.0, hashlib.sha256()
    signal.signal(signal.SIGUSR1, lambda *_: None)
    threading.Thread(target=load_batches, args=(10**9,), daemon=True, name="loader").start()
    while count < 400:
        weight = train_step(weight)
        digest.update(repr(weight).encode())
        count += 1
    print(count, repr(weight), digest.hexdigest(), flush=True)
    child = subprocess.run([sys.executable, "-c", "print('child ended')"], capture_output=True, text=True)
    print(child.stdout.strip(), child.returncode, flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        weight = train_step(weight)
    print("last words", file=sys.stderr)
    sys.exit(code)
main(float(sys.argv[1]), int(sys.argv[2]))
"""


def why_not() -> str:
    program = stacks.find_py_spy()
    return "py-spy is not installed" if program is None else stacks.why_no_ptrace(live_context(), program)[0]


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "may look into processes")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "ROUND_NS", 0)
    monkeypatch.setattr(stacks, "SHORTEST_GAP_NS", 0)
    monkeypatch.setattr(stacks, "BURST_S", 1)


def start(tmp_path: Path, seconds: float, code: int = 0) -> subprocess.Popen[str]:
    script = tmp_path / "train_like.py"
    script.write_text(TRAINING)
    return subprocess.Popen(
        [sys.executable, str(script), str(seconds), str(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def alive(ranks: list[subprocess.Popen[str]]) -> list[int]:
    return [rank.pid for rank in ranks if rank.poll() is None]


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for rank in started:
        rank.kill()
        rank.communicate()


def context(ranks: list[subprocess.Popen[str]], out: Path) -> Context:
    return live_context(pids=lambda: alive(ranks), out_dir=out, options={"stacks": True})


def document(out: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((out / STACKS_JSON).read_text())
    return loaded


def frames_of(found: dict[str, Any], profile: int = 0) -> set[str]:
    frames = found["shared"]["frames"]
    return {frames[index]["name"] for stack in found["profiles"][profile]["samples"] for index in stack}


def test_bursts_see_the_training_and_leave_its_output_and_code_alone(
    tmp_path: Path, ranks: list[subprocess.Popen[str]]
) -> None:
    alone = start(tmp_path, 0.1, 7)
    expected = alone.communicate(timeout=60)
    ranks += [start(tmp_path, 4, 7), start(tmp_path, 4, 7)]
    pids = alive(ranks)
    collector = StackBursts()
    ctx = context(ranks, tmp_path)
    assert collector.probe(ctx).available
    collector.open(ctx)
    facts: list[Fact] = []
    while alive(ranks):
        collector.sample()
        facts += collector.facts()
        time.sleep(0.05)
    collector.close()
    facts += collector.facts()
    for rank in ranks:
        assert rank.communicate() == expected
        assert rank.returncode == alone.returncode == 7
    assert facts == []
    found = document(tmp_path)
    check_speedscope(found)
    assert sorted(profile["name"] for profile in found["profiles"]) == sorted(f"rank pid {p}" for p in pids)
    for index in range(2):
        assert {"<module>", "main", "train_step"} <= frames_of(found, index)
    assert found["perfscope"]["bursts"] >= 2
    assert found["perfscope"]["cpu_ns"] > 0


def test_what_a_burst_saw_before_its_rank_was_killed_is_kept(
    tmp_path: Path, ranks: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "BURST_S", 30)
    ranks.append(start(tmp_path, 60))
    collector = StackBursts()
    collector.open(context(ranks, tmp_path))
    time.sleep(0.5)  # the interpreter is up
    collector.sample()
    time.sleep(2)
    ranks[0].kill()
    ranks[0].wait()
    began = time.monotonic()
    while not (tmp_path / STACKS_JSON).exists() and time.monotonic() - began < 20:
        collector.sample()
        time.sleep(0.02)
    assert {"main", "train_step"} <= frames_of(document(tmp_path))
    collector.close()
    assert collector.facts() == []


def test_closing_in_the_middle_of_a_burst_keeps_what_it_saw(
    tmp_path: Path, ranks: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "BURST_S", 30)
    monkeypatch.setattr(stacks, "_GOODBYE_S", 10)  # the machine may be crowded; 0.2 s is for the sampler
    ranks.append(start(tmp_path, 60))
    collector = StackBursts()
    collector.open(context(ranks, tmp_path))
    time.sleep(0.5)
    collector.sample()
    time.sleep(2)
    collector.close()
    assert {"main", "train_step"} <= frames_of(document(tmp_path))
    assert ranks[0].poll() is None


@pytest.mark.torch
def test_a_run_with_stacks_has_the_losses_and_the_code_of_one_without(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = user_environment(STEPS="4000", EXIT="7")
    outputs = []
    for options in ([], ["--stacks"]):
        folder = tmp_path / ("with" if options else "without")
        folder.mkdir()
        done = run(
            sys.executable,
            TRAIN,
            cwd=folder,
            options=["--ceilings", "off", "--no-trace", *options],
            environment=environment,
        )
        outputs.append((done.returncode, done.stdout))
    assert outputs[0] == outputs[1]
    assert outputs[0][0] == 7
    (found,) = [json.loads(path.read_bytes()) for path in tmp_path.glob(f"with/run/hosts/*/{STACKS_JSON}")]
    check_speedscope(found)
    assert "train" in frames_of(found)
    assert not list(tmp_path.glob(f"without/run/hosts/*/{STACKS_JSON}"))


SAMPLER = """
import os, signal, sys, time
from pathlib import Path
from perfscope.collectors.context import live_context
from perfscope.collectors.stacks.bursts import StackBursts
signal.signal(signal.SIGINT, signal.SIG_IGN)
pid = int(sys.argv[1])
collector = StackBursts()
collector.open(live_context(pids=lambda: [pid], out_dir=Path(sys.argv[2]), options={"stacks": True}))
collector.sample()
print(collector._running[0].child, flush=True)
time.sleep(60)
"""


def test_py_spy_does_not_outlive_a_killed_sampler_for_long(
    tmp_path: Path, ranks: list[subprocess.Popen[str]]
) -> None:
    ranks.append(start(tmp_path, 60))
    time.sleep(0.5)
    sampler = subprocess.Popen(
        [sys.executable, "-c", SAMPLER, str(ranks[0].pid), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert sampler.stdout is not None
    child = int(sampler.stdout.readline())
    sampler.send_signal(signal.SIGKILL)
    sampler.communicate()
    deadline = time.monotonic() + 30
    while runs(child):
        assert time.monotonic() < deadline, "py-spy is still there"
        time.sleep(0.05)
    assert ranks[0].poll() is None


def runs(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_process_of_another_user_ends_the_stacks_with_the_reason(
    tmp_path: Path, ranks: list[subprocess.Popen[str]]
) -> None:
    ranks.append(start(tmp_path, 60))
    script = (
        "import os, sys\n"
        "from perfscope.collectors.stacks import bursts as stacks\n"
        "from perfscope.collectors.context import live_context\n"
        "ctx = live_context(pids=lambda: [int(sys.argv[1])], options={'stacks': True})\n"
        "program = stacks.find_py_spy()\n"
        "stacks.find_py_spy = lambda: program\n"  # another user may not reach it where it is installed
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "found = stacks.StackBursts().probe(ctx)\n"
        "print(found.available, found.reason, '|', found.remedy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(ranks[0].pid)], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("False process "), done.stdout + done.stderr
    assert "may not be looked into: Permission denied | sudo sysctl" in done.stdout
