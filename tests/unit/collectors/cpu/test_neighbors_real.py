"""CPU used by others, with real processes.

Other programs run on this machine too, so every bound is one that they cannot break.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from perfscope.collectors.base import Fact
from perfscope.collectors.context import Context, captured_context, live_context
from perfscope.collectors.cpu.neighbors import (
    Neighbors,
    busy_ticks,
)
from perfscope.collectors.process_table import (
    INITIAL_PID_NAMESPACE,
    ProcessTable,
    descends,
    increments,
    read_process,
)
from tests.support import hardware

BUSY = """
import time
open("/proc/self/comm", "w").write("{name}")
end = time.monotonic() + {seconds}
while time.monotonic() < end: pass
"""
ORPHAN = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {code!r}], stdout=subprocess.DEVNULL).pid)
"""
WORKERS = """
import subprocess, sys
for _ in range(12): subprocess.run([sys.executable, "-S", "-c", {code!r}])
"""


def own_ticks(pid: int) -> int:
    process = read_process(live_context(), pid)
    return process.cpu_ticks if process else 0


@pytest.fixture
def orphan() -> Iterator[Callable[..., int]]:
    """Start a busy process that nobody of ours is the parent of; gives its pid."""
    pids: list[int] = []

    def start(seconds: float = 60, **environment: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", ORPHAN.format(code=BUSY.format(seconds=seconds, name="stranger"))],
            env={"PATH": os.environ["PATH"], **environment},
            stdout=subprocess.PIPE,
            check=True,
        )
        pids.append(int(done.stdout))
        return pids[-1]

    yield start
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def watch(ctx: Context, enough: Callable[[], bool]) -> tuple[int, int, list[Fact]]:
    """(neighbours' ticks, machine's busy ticks, facts) until it is enough."""
    collector = Neighbors()
    assert collector.probe(ctx).available
    before = busy_ticks(Path("/proc/stat").read_bytes())[0]
    collector.open(ctx)
    facts = list(collector.facts())
    for _ in range(200):
        time.sleep(0.25)
        done = enough()
        readings = collector.sample()  # none where the last look cost so much that the next one waits
        facts += collector.facts()
        if done and readings:
            break
    after = busy_ticks(Path("/proc/stat").read_bytes())[0]
    collector.close()
    (reading,) = readings
    assert isinstance(reading.value, int)
    return reading.value, after - before, facts


def test_a_real_stranger_is_seen_and_named(orphan: Callable[..., int]) -> None:
    pid = orphan()
    begin = own_ticks(pid)
    ticks, _, facts = watch(live_context(), lambda: own_ticks(pid) - begin > 50)
    assert ticks >= 40
    (fact, *_) = [f for f in facts if f.name == "neighbour" and f.value["name"] == "stranger"]
    assert fact.value["pid"] == pid and fact.value["user"]
    assert float(str(fact.value["cpus"])) >= 0.1


def test_a_real_orphan_of_the_run_is_no_stranger(orphan: Callable[..., int], tmp_path: Path) -> None:
    pid = orphan(PERFSCOPE_RUN_DIR=str(tmp_path))
    begin = own_ticks(pid)
    ctx = live_context(out_dir=tmp_path / "hosts" / "h")
    ticks, busy, facts = watch(ctx, lambda: own_ticks(pid) - begin > 50)
    assert ticks <= max(busy - 50, 0) + 10
    assert pid not in [f.value.get("pid") for f in facts]


def test_real_children_that_come_and_go_are_ours() -> None:
    """What data loader workers do: short lives, waited for by their parent, never seen by a scan."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = WORKERS.format(code=BUSY.format(seconds=0.1, name="worker"))
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        ctx = live_context(pids=lambda: [parent.pid])
        ticks, busy, facts = watch(ctx, lambda: parent.poll() is not None)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * os.sysconf("SC_CLK_TCK")
    assert used > 10
    assert ticks <= max(busy - used, 0) + 25
    assert parent.pid not in [f.value.get("pid") for f in facts]


def test_scanning_this_machine_finds_ourselves() -> None:
    ctx = live_context()
    processes = ProcessTable(ctx)
    table = processes.scan()
    me = next(process for process in table.values() if process.pid == os.getpid())
    assert me.parent == os.getppid() and not me.kernel
    assert descends(ctx, os.getpid(), [os.getppid()])
    assert not descends(ctx, os.getppid(), [os.getpid()])
    assert all(ticks >= 0 for ticks in increments(table, processes.scan()).values())
    processes.close()


def test_processes_that_end_leave_no_file_open() -> None:
    def num_open() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = num_open()
    processes = ProcessTable(live_context())
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in {pid for pid, _ in processes.scan()}
        child.communicate(b"\n")
    table = processes.scan()
    assert child.pid not in {pid for pid, _ in table}
    assert num_open() <= before + len(table) + 3  # others come and go meanwhile
    processes.close()
    assert num_open() == before


def test_with_few_files_allowed_processes_are_still_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    processes = ProcessTable(live_context())
    assert os.getpid() in {pid for pid, _ in processes.scan()}
    assert os.getpid() in {pid for pid, _ in processes.scan()}
    processes.close()


@pytest.mark.parametrize("name", hardware.names())
def test_captured_machines_can_be_looked_at(name: str) -> None:
    seconds = iter(range(0, 10**12, 10**9))
    ctx = captured_context(hardware.tree(name), clock=lambda: next(seconds))
    collector = Neighbors()
    if not collector.probe(ctx).available:
        assert not ctx.exists("/proc/stat")
        return
    collector.open(ctx)
    (reading,) = collector.sample()
    assert reading.value == 0  # nothing changes in a picture
    collector.close()


def test_the_initial_pid_namespace_has_a_fixed_number() -> None:
    assert INITIAL_PID_NAMESPACE == 4026531836
