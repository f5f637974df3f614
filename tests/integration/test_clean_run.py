"""Was the machine ours alone? Real neighbors beside real trainings, and none."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.run_support import PERFSCOPE, user_environment

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
]  # alone on the machine: the other tests are neighbors, too
NOISE = "perfscope-noise"
TRAINING = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    optimizer.zero_grad()
    model(torch.ones(64, 256)).square().mean().backward()
    optimizer.step()
"""


def train(
    tmp_path: Path, seconds: float, noise: list[subprocess.Popen[bytes]] | None = None
) -> dict[str, Any]:
    """The JSON report of a run; `noise` gets two busy strangers that start in the middle of it."""
    pytest.importorskip("torch")
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    command = [*PERFSCOPE, "run", "--ceilings", "off", "-o", "run", "--", sys.executable, str(script)]
    run = subprocess.Popen([*command, str(seconds)], cwd=tmp_path, env=user_environment())
    if noise is not None:
        samples = tmp_path / "run" / "hosts"
        while run.poll() is None and not list(samples.glob("*/samples.jsonl")):
            time.sleep(0.05)
        time.sleep(2)
        busy = tmp_path / NOISE
        busy.write_text("#!/bin/sh\nwhile :; do :; done\n")
        busy.chmod(0o755)
        noise += [subprocess.Popen([str(busy)]) for _ in range(2)]
    try:
        assert run.wait(60) == 0
    finally:
        for process in noise or ():
            process.kill()
            process.wait()
    report = [*PERFSCOPE, "report", "run", "--json"]
    answer = subprocess.run(report, cwd=tmp_path, env=user_environment(), capture_output=True, check=True)
    document: dict[str, Any] = json.loads(answer.stdout)
    return document


def test_a_neighbour_that_starts_during_the_run_is_named_with_its_time(tmp_path: Path) -> None:
    noise: list[subprocess.Popen[bytes]] = []
    began = time.time_ns()
    machine = train(tmp_path, 8, noise)["machine"]
    assert machine["clean"] is False
    blamed = [one for one in machine["disturbances"] if NOISE in " ".join([one["title"], *one["evidence"]])]
    assert blamed, machine["disturbances"]
    assert blamed[0]["start_ns"] > began + 1_500_000_000  # not before it came
    text = subprocess.run(
        [*PERFSCOPE, "report", "run", "--full"],
        cwd=tmp_path,
        env=user_environment(),
        capture_output=True,
        check=True,
    ).stdout.decode()
    assert NOISE in text
    assert text.index("isturbed") < text.index("Median step time")  # said before any figure


def test_a_run_alone_accuses_nobody(tmp_path: Path) -> None:
    machine = train(tmp_path, 6)["machine"]
    told = json.dumps(machine["disturbances"])
    # Whoever else was busy here meanwhile may rightly be named; the training and perfscope itself may not.
    assert "training.py" not in told and "perfscope" not in told
    if machine["clean"] is False:
        pytest.skip(f"this machine was not quiet: {machine['clean_reason']}")
    assert machine["clean"] is True
