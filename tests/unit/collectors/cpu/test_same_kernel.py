"""Ranks of the run under another host name: ours on this kernel, strangers where only the number agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.collectors.context import Context
from perfscope.collectors.cpu.neighbors import Neighbors
from perfscope.collectors.cpu.same_kernel import KERNEL, LOOK_NS, SameKernel

BOOT = "4f5c1f0e-0000-4000-8000-000000000001"


class Run:
    """A run directory and a machine with processes 100 (our rank), 200 and 900."""

    def __init__(self, root: Path) -> None:
        self.machine = root / "machine"
        self.hosts = root / "run" / "hosts"
        self.now = 10**9
        (self.machine / "proc/sys/kernel/random").mkdir(parents=True)
        (self.machine / "proc/sys/kernel/random/boot_id").write_text(f"{BOOT}\n")
        (self.machine / "proc/self/ns").mkdir(parents=True)
        (self.machine / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
        for pid in (1, 100, 200, 900):
            (self.machine / f"proc/{pid}").mkdir()
        self.use(0, 0, 0)
        (self.hosts / "host0/pids").mkdir(parents=True)
        (self.hosts / "host0/pids/100").touch()

    def use(self, *ticks: int) -> None:
        for pid, own in zip((1, 100, 200, 900), (0, *ticks), strict=True):
            fields = f"1 1 0 -1 0 0 0 0 0 {own} 0 0 0 20 0 1 0 0 0 0"
            (self.machine / f"proc/{pid}/stat").write_text(f"{pid} (p) S {min(pid - 1, 1)} {fields}\n")
        (self.machine / "proc/stat").write_text(f"cpu {sum(ticks)} 0 0 0\ncpu0 0 0 0 0\n")

    def other_host(self, *pids: int, boot: str = BOOT) -> None:
        folder = self.hosts / "host1"
        (folder / "pids").mkdir(parents=True, exist_ok=True)
        (folder / KERNEL).write_text(f"{boot} pid:[4026531836]\n")
        for pid in pids:
            (folder / f"pids/{pid}").touch()

    @property
    def ctx(self) -> Context:
        return Context(
            root=self.machine,
            clock=lambda: self.now,
            pids=lambda: [100],
            out_dir=self.hosts / "host0",
        )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def neighbour_ticks(run: Run) -> int:
    collector = Neighbors()
    collector.open(run.ctx)
    run.now += 10**9
    run.use(90, 70, 30)
    (reading,) = collector.sample()
    collector.close()
    assert isinstance(reading.value, int)
    return reading.value


def test_a_rank_of_another_host_on_this_kernel_is_no_neighbour(run: Run) -> None:
    run.other_host(200)
    assert neighbour_ticks(run) == 30


def test_the_same_number_on_another_machine_is_somebody_else(run: Run) -> None:
    run.other_host(200, boot="4f5c1f0e-0000-4000-8000-000000000002")
    assert neighbour_ticks(run) == 70 + 30


def test_a_host_that_has_not_said_where_it_runs_is_another_machine(run: Run) -> None:
    run.other_host(200)
    (run.hosts / "host1" / KERNEL).unlink()
    assert neighbour_ticks(run) == 70 + 30


def test_a_rank_that_was_taken_for_a_stranger_becomes_ours(run: Run) -> None:
    collector = Neighbors()
    collector.open(run.ctx)
    run.now += LOOK_NS + 1
    run.use(90, 70, 30)
    assert collector.sample()[0].value == 100
    run.other_host(200)
    run.now += LOOK_NS + 1
    run.use(90, 170, 31)
    assert collector.sample()[0].value == 101
    collector.close()


def test_each_host_says_which_kernel_it_runs_on(run: Run) -> None:
    SameKernel(run.ctx)
    assert (run.hosts / "host0" / KERNEL).read_text() == f"{BOOT} pid:[4026531836]\n"


def test_without_a_run_or_a_boot_id_there_is_nobody_else(run: Run, tmp_path: Path) -> None:
    run.other_host(200)
    assert SameKernel(Context(root=run.machine)).pids() == frozenset()
    (run.machine / "proc/sys/kernel/random/boot_id").unlink()
    assert SameKernel(run.ctx).pids() == frozenset()
    assert not (run.hosts / "host0" / KERNEL).exists()
