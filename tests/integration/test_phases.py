"""Phases of a distributed run in its reports."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.integration.run_support import PERFSCOPE, run

PROGRAM = """
import time
import torch, perfscope
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    with perfscope.phase("rollout"):
        time.sleep(0.005 * (rank + 1))
    with torch.profiler.record_function("learn"):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_reports_have_the_phases_of_every_rank(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = run(
        *("torchrun", "--standalone", "--nproc-per-node", "2", "train.py"),
        cwd=tmp_path,
        options=("--ceilings", "off"),
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    report = (*PERFSCOPE, "report", str(tmp_path / "run"))
    document = json.loads(subprocess.run([*report, "--json"], capture_output=True, check=True).stdout)
    phases = {phase["name"]: phase for phase in document["phases"]}
    assert set(phases) == {"rollout", "learn"}
    rollout = phases["rollout"]
    assert [(rank["rank"], rank["count"]) for rank in rollout["ranks"]] == [(0, 12), (1, 12)]
    first, second = (rank["ns"] for rank in rollout["ranks"])
    assert first >= 12 * 5e6 and second >= 12 * 10e6
    assert rollout["ns"] == round((first + second) / 2) and rollout["source"] == "perfscope"
    assert not [gap for gap in document["missing"] if gap["figure"] in ("file", "file_lines")]
    text = subprocess.run([*report, "--section", "phases"], capture_output=True, check=True, text=True).stdout
    assert "rollout" in text and "learn" in text
    timeline = (tmp_path / "timeline.csv", tmp_path / "phases.csv")
    for path, options in zip(timeline, ((), ("--table", "phases")), strict=True):
        command = [*PERFSCOPE, "export", str(tmp_path / "run"), "--format", "csv", *options, "-o", str(path)]
        subprocess.run(command, capture_output=True, check=True)
    assert "perfscope.phase:rollout" in timeline[0].read_text()
    assert "rollout" in timeline[1].read_text()
