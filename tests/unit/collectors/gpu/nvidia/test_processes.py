"""Processes on the GPUs that are no ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.collectors.gpu.nvidia.processes import NvmlProcesses
from perfscope.collectors.process_table import INITIAL_PID_NAMESPACE
from tests.support.nvml_readings import Clock, clock, opened, two, values
from tests.support.nvml_stand_in import NOT_FOUND, StandIn

__all__ = ["clock", "two"]


def proc(root: Path, *, container: bool = False, **parents: int) -> Path:
    """A /proc with processes pNUMBER=parent."""
    (root / "proc/self/ns").mkdir(parents=True)
    namespace = 4026532999 if container else INITIAL_PID_NAMESPACE
    (root / "proc/self/ns/pid").symlink_to(f"pid:[{namespace}]")
    for name, parent in parents.items():
        pid = int(name[1:])
        folder = root / f"proc/{pid}"
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a) b) S {parent} " + " ".join(["0"] * 48))
    return root


def test_a_process_that_is_no_ranks_is_foreign(two: StandIn, clock: Clock, tmp_path: Path) -> None:
    root = proc(tmp_path, p1=0, p100=1, p101=100, p102=101, p900=1)
    two.world["names"] = {"900": "/usr/bin/python3"}
    two.world["gpus"][0]["processes"] = [
        {"pid": 100, "usedGpuMemory": 1},
        {"pid": 102, "usedGpuMemory": 2},  # a grandchild of the rank
        {"pid": 900, "usedGpuMemory": 7 << 30},
        {"pid": 901, "usedGpuMemory": None},  # another container's: not in /proc
    ]
    collector = opened(NvmlProcesses, clock, root=root, ranks=[100])
    readings = collector.sample()
    assert values(readings, "gpu_foreign_processes", gpu="0") == [2]
    assert values(readings, "gpu_foreign_memory", gpu="0") == [7 << 30]
    assert values(readings, "gpu_foreign_processes", gpu="1") == [0]
    collector.sample()
    named = [fact for fact in collector.facts() if fact.name == "neighbour"]
    assert [(fact.labels["kind"], fact.value["pid"], fact.value["name"]) for fact in named] == [
        ("gpu", 900, "python3"),
        ("gpu", 901, ""),
    ]  # each once


def test_memory_of_strangers_may_be_unknown(two: StandIn, clock: Clock, tmp_path: Path) -> None:
    two.world["gpus"][0]["processes"] = [{"pid": 900, "usedGpuMemory": None}]
    collector = opened(NvmlProcesses, clock, root=proc(tmp_path, p100=1), ranks=[100])
    readings = collector.sample()
    assert values(readings, "gpu_foreign_processes", gpu="0") == [1]
    assert values(readings, "gpu_foreign_memory", gpu="0") == [None]


@pytest.mark.parametrize("processes", [{"error": NOT_FOUND}, []])
def test_an_idle_gpu_has_no_strangers(two: StandIn, clock: Clock, tmp_path: Path, processes: Any) -> None:
    two.world["gpus"][0]["processes"] = processes
    collector = opened(NvmlProcesses, clock, root=proc(tmp_path, p100=1), ranks=[100])
    assert values(collector.sample(), "gpu_foreign_processes", gpu="0") == [0]


def test_in_a_container_with_other_pids_nobody_is_called_foreign(
    two: StandIn, clock: Clock, tmp_path: Path
) -> None:
    root = proc(tmp_path, container=True, p1=0, p100=1)
    two.world["gpus"][0]["processes"] = [{"pid": 54321, "usedGpuMemory": 1}]
    collector = opened(NvmlProcesses, clock, root=root, ranks=[100])
    for _ in range(20):
        assert values(collector.sample(), "gpu_foreign_processes", gpu="0") == [None]
    facts = collector.facts()
    assert len(facts) == 1 and "cannot be matched" in str(facts[0].value["text"])
    # A driver that translates pids shows a rank: from then on strangers can be told.
    two.world["gpus"][0]["processes"].append({"pid": 100, "usedGpuMemory": 1})
    assert values(collector.sample(), "gpu_foreign_processes", gpu="0") == [1]


def test_an_old_driver_lists_processes_by_version_2(two: StandIn, clock: Clock, tmp_path: Path) -> None:
    two.missing.add("nvmlDeviceGetComputeRunningProcesses_v3")
    two.world["gpus"][0]["processes"] = [{"pid": 900, "usedGpuMemory": 3}]
    collector = opened(NvmlProcesses, clock, root=proc(tmp_path, p100=1), ranks=[100])
    assert values(collector.sample(), "gpu_foreign_memory", gpu="0") == [3]
