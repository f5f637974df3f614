"""Data loaders that are really slow: what is named, and what removing the cause is predicted to save."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.slow_store import slow_store

PROGRAM = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

CAUSE, NUM, FOLDER = sys.argv[1], int(sys.argv[2]), sys.argv[3]

class Samples(Dataset):
    def __len__(self):
        return 8 * NUM
    def __getitem__(self, index):
        if CAUSE == "decode":
            end = time.thread_time() + 0.004
            while time.thread_time() < end:
                pass
        if CAUSE == "slow_worker" and get_worker_info().id == 1:
            time.sleep(0.008)
        if FOLDER:
            with open(os.path.join(FOLDER, "%d.bin" % index), "rb") as file:
                file.read()
        return torch.full((16,), float(index))

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for number, batch in enumerate(DataLoader(Samples(), 8, shuffle=True, num_workers=2)):
    if number == 4:
        begin = time.perf_counter()
    loss = model(batch).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.004)
print((time.perf_counter() - begin) / (NUM - 5) * 1e9, loss.item())
"""


def trained(
    program: Path, *args: str, out: Path | None = None, group: Path | None = None
) -> tuple[float, str]:
    """(mean ns from batch to batch, loss) of a training, recorded into `out`, in the cgroup `group`."""
    command = [sys.executable, str(program), *args]
    if out is not None:
        cli = [sys.executable, "-m", "perfscope", "run", "--ceilings", "off", "-o", str(out), "--"]
        command = [*cli, *command]
    if group is not None:
        command = ["sh", "-c", f'echo $$ > {group}; exec "$@"', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    mean, loss = done.stdout.split()
    return float(mean), loss


def reported(run: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "perfscope", "report", str(run), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def check(run: Path, mean_with: float, mean_without: float, kind: str, cause: str) -> None:
    """The cause is named, and the saving predicted without it is near the real one."""
    report = reported(run)
    (loading,) = report["loading"]
    assert loading["cause"] == cause, loading
    finding = next(entry for entry in report["findings"] if entry["id"] == kind)
    assert abs(loading["replayed_ns"] / loading["period_ns"] - 1) < 0.1
    real = mean_with - mean_without
    assert real > 0.5 * mean_with
    # The two trainings run one after the other: other load does not hit both alike.
    assert 0.5 < finding["gain_ns"] / real < 1.5, (finding, mean_with, mean_without)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(("cause", "kind"), [("decode", "decode_bound"), ("slow_worker", "slow_worker")])
def test_a_planted_cause_of_slow_workers(program: Path, tmp_path: Path, cause: str, kind: str) -> None:
    mean_with, loss = trained(program, cause, "40", "", out=tmp_path / "run")
    mean_without, plain_loss = trained(program, "none", "40", "")
    assert loss == plain_loss  # what is recorded changes no batch
    check(tmp_path / "run", mean_with, mean_without, kind, cause)


@pytest.mark.slow
@pytest.mark.torch
def test_a_store_that_gives_few_bytes_per_second(program: Path, tmp_path: Path) -> None:
    with slow_store(tmp_path, files=40 * 8, size=1 << 16, bytes_per_s=20 << 20) as (folder, group):
        mean_with, loss = trained(program, "none", "40", str(folder), out=tmp_path / "run", group=group)
        # The same files again, from the page cache now, by the same slow device.
        mean_without, again = trained(program, "none", "40", str(folder), group=group)
    assert loss == again
    check(tmp_path / "run", mean_with, mean_without, "store_bound", "store")
    # A node's free memory holds these 20 MiB: the second pass is the first one's cache.
    assert 1 / 1.5 < predicted(tmp_path / "run", "node_cache", 1) / mean_without < 1.5


@pytest.mark.slow
@pytest.mark.torch
def test_a_store_four_times_as_fast_is_predicted(program: Path, tmp_path: Path) -> None:
    means = {}
    for factor in (1, 4):
        (tmp_path / f"{factor}").mkdir()
        store = slow_store(tmp_path / f"{factor}", files=40 * 8, size=1 << 16, bytes_per_s=factor * 10 << 20)
        with store as (folder, group):
            out = tmp_path / f"run{factor}"
            means[factor], _ = trained(program, "none", "40", str(folder), out=out, group=group)
    assert means[4] < 0.5 * means[1]
    assert 1 / 1.5 < predicted(tmp_path / "run1", "faster_store", 4) / means[4] < 1.5


def predicted(run: Path, change: str, factor: float) -> float:
    """From one batch to the next with something changed, ns."""
    (loading,) = reported(run)["loading"]
    of_change = (entry for entry in loading["predictions"] if entry["change"] == change)
    return float(next(entry["period_ns"] for entry in of_change if entry["factor"] == factor))
