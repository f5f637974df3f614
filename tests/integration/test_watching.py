"""`perfscope run --live` and `--metrics-file` beside a real training."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.integration.run_support import PERFSCOPE, said, user_environment

TRAINING = """
import time, torch
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(120):
    optimizer.zero_grad()
    model(torch.ones(32, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)
"""


def states(file: Path, seen: set[str], over: threading.Event) -> None:
    """Collect what a reader sees in the file, as often as it can."""
    while not over.is_set():
        if file.exists():
            seen.add(file.read_text())
        time.sleep(0.01)


@pytest.mark.torch
def test_a_line_and_whole_metrics_come_while_the_training_goes_on(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    script, file = tmp_path / "training.py", tmp_path / "train.prom"
    script.write_text(TRAINING)
    seen: set[str] = set()
    over = threading.Event()
    reader = threading.Thread(target=states, args=(file, seen, over))
    reader.start()
    options = ["--live", "--live-interval", "1s", "--metrics-file", str(file), "--metrics-interval", "1s"]
    options += ["--ceilings", "off", "-o", str(tmp_path / "run"), "--no-trace"]
    command = [*PERFSCOPE, "run", *options, "--", "python", str(script)]
    try:
        answer = subprocess.run(command, env=user_environment(), capture_output=True, timeout=120, check=True)
    finally:
        over.set()
        reader.join()
    lines = [line for line in said(answer.stderr) if "ms a step" in line]
    assert lines and all("step " in line and " samples/s" in line for line in lines)
    assert any("CPUs busy" in line for line in lines)
    found = [
        {sample.name: sample.value for family in families for sample in family.samples}
        for families in map(parser.text_string_to_metric_families, seen)
    ]
    assert all(text.endswith("\n") and "perfscope_run_running{" in text for text in seen)  # no half file
    steps = {values["perfscope_run_steps_total"] for values in found if "perfscope_run_steps_total" in values}
    assert len(steps) > 1 and max(steps) == 120
    assert any(values.get("perfscope_rank_step_seconds", 0) >= 0.05 for values in found)
    assert any("perfscope_host_busy_cpus" in values for values in found)
    last = file.read_text()
    assert "perfscope_run_running{" in last and "perfscope_rank" not in last


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--metrics-file", "none/train.prom"], "none is no directory that can be written"),
        (["--metrics-file", "."], "is a directory"),
        (["--live", "--live-interval", "10ms"], "--live-interval is shorter than 0.5 s"),
        (["--hang-after", "soon"], "'soon' is not a time"),
        (["--hang-after", "0s"], "'0s' is shorter than 1 s; `off` looks for no hangs"),
        (["--hang-after", "20ms"], "'20ms' is shorter than 1 s"),
    ],
)
def test_what_cannot_be_watched_is_refused_before_the_command_starts(
    tmp_path: Path, options: list[str], words: str
) -> None:
    command = [*PERFSCOPE, "run", *options, "--", "touch", "started"]
    answer = subprocess.run(
        command, cwd=tmp_path, env=user_environment(), capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2 and words in answer.stderr
    assert not list(tmp_path.iterdir())
