"""CPU used by others: known amounts in a made-up /proc, then real processes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfscope.collectors.base import Fact
from perfscope.collectors.context import Context, captured_context, live_context
from perfscope.collectors.cpu.neighbours import MAX_NAMED, Neighbours, busy_ticks
from perfscope.collectors.process_table import (
    INITIAL_PID_NAMESPACE,
    ProcessTable,
    descends,
    increments,
    parse_stat,
    read_process,
)
from tests import hardware

KERNEL = 0x00200000


@dataclass
class Fake:
    """One process of a made-up machine; times in ticks."""

    pid: int
    parent: int = 1
    own: int = 0
    reaped: int = 0
    name: str = "python3"
    start: int = 0
    flags: int = 0


class Machine:
    """A /proc whose processes use what they are told, and a clock that is told the time."""

    def __init__(self, root: Path, *processes: Fake, cpus: int = 4) -> None:
        self.root = root
        self.cpus = cpus
        self.now = 10_000_000_000
        self.busy = 1000
        self.ranks: list[int] = [100]
        self.processes: dict[int, Fake] = {}
        (root / "proc").mkdir(parents=True)
        for process in (Fake(1, 0, name="systemd"), *processes):
            self.processes[process.pid] = process
        self.write()
        self.collector = Neighbours()
        self.ctx = Context(root=root, clock=lambda: self.now, pids=lambda: self.ranks)
        assert self.collector.probe(self.ctx).available
        self.collector.open(self.ctx)

    def write(self) -> None:
        line = f"cpu  {self.busy} 0 0 99999 5 7 9 3 0 0\n"
        per_cpu = "".join(f"cpu{cpu} 0 0 0 0 0 0 0 0 0 0\n" for cpu in range(self.cpus))
        (self.root / "proc/stat").write_text(line + per_cpu + "intr 1 2 3\nctxt 4\n")
        for folder in (self.root / "proc").iterdir():
            if folder.name.isdigit() and int(folder.name) not in self.processes:
                (folder / "stat").unlink()
                folder.rmdir()
        for process in self.processes.values():
            folder = self.root / "proc" / str(process.pid)
            folder.mkdir(exist_ok=True)
            fields = f"{process.own} 0 {process.reaped} 0 20 0 1 0 {process.start} 0 0"
            (folder / "stat").write_text(
                f"{process.pid} ({process.name}) S {process.parent} 1 1 0 -1 {process.flags} "
                f"0 0 0 0 {fields}\n"
            )

    def second(
        self,
        busy: int,
        ended: Sequence[int] = (),
        born: Sequence[Fake] = (),
        used: Mapping[int, int] | None = None,
        **own: int,
    ) -> int:
        """A second passes: the machine uses `busy` ticks, process N used[N] or own["pN"]. The counter."""
        self.now += 1_000_000_000
        self.busy += busy
        for pid, ticks in [*(used or {}).items(), *((int(name[1:]), ticks) for name, ticks in own.items())]:
            self.processes[pid].own += ticks
        for pid in ended:
            del self.processes[pid]
        for process in born:
            self.processes[process.pid] = process
        self.write()
        (reading,) = self.collector.sample()
        assert isinstance(reading.value, int)
        return reading.value


def neighbours(facts: Sequence[Fact], kind: str = "cpu") -> list[tuple[object, object]]:
    return [
        (f.value["name"], f.value["cpus"])
        for f in facts
        if f.name == "neighbour" and f.labels["kind"] == kind
    ]


def test_what_is_not_ours_is_a_neighbours(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), Fake(101, 100, name="worker"), Fake(900, name="stress"))
    assert machine.second(200, p100=90, p101=60, p900=50) == 50
    assert machine.second(150, p100=90, p101=60) == 50
    series = machine.collector.sample()[0].series
    assert series.metric.scale == 1e7 and series.metric.quality == "derived"


def test_a_worker_that_came_and_went_between_two_looks_is_ours(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100))
    machine.processes[100].reaped += 80
    assert machine.second(100, p100=20) == 0


def test_a_worker_that_was_seen_and_ended_is_counted_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), Fake(101, 100))
    assert machine.second(30, p101=30) == 0
    machine.processes[100].reaped += 80  # its whole life: 30 before, 50 since
    assert machine.second(50 + 25, ended=[101]) == 25  # somebody else's, not seen


def test_a_grandchild_that_ends_with_its_parent_is_counted_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), Fake(101, 100), Fake(102, 101))
    assert machine.second(60, p101=20, p102=40) == 0
    machine.processes[100].reaped += 20 + 40 + 30
    assert machine.second(30, ended=[101, 102]) == 0


def test_the_last_moments_of_a_rank_are_nobody_elses(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), Fake(200), Fake(900, name="stress"))
    machine.ranks = [100, 200]
    assert machine.second(200, p100=100, p200=100) == 0
    assert machine.second(190, ended=[200], p100=80, p900=15) == 15  # 95 were used by a rank that is gone


def test_a_neighbour_that_came_and_went_is_counted_though_it_was_not_seen(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100))
    assert machine.second(140, p100=100) == 40


def test_a_neighbours_short_lived_children_are_named_after_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), Fake(900, name="make"))
    machine.processes[900].reaped += 70
    machine.second(70)
    assert neighbours(machine.collector.facts()) == [("make", 0.7)]


def test_ancestors_count_with_their_own_time_only(tmp_path: Path) -> None:
    machine = Machine(
        tmp_path,
        Fake(50, 1, name="bash"),
        Fake(60, 50, name="mpirun"),
        Fake(100, 60),
        Fake(900, 50, name="make"),
    )
    assert machine.second(160, p50=5, p60=25, p100=100, p900=30) == 30


def test_whoever_has_the_run_in_its_environment_is_ours_with_all_below(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "proc/900").mkdir(parents=True)
    (root / "proc/900/environ").write_bytes(b"A=1\0PERFSCOPE_RUN_DIR=/runs/x\0B=2\0")
    for process in (Fake(1, 0), Fake(100), Fake(900), Fake(901, 900), Fake(902)):
        folder = root / f"proc/{process.pid}"
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{process.pid} (p) S {process.parent} " + " ".join(["0"] * 48))
    (root / "proc/stat").write_text("cpu 0 0 0 0\ncpu0 0 0 0 0\n")
    collector = Neighbours()
    out_dir = Path("/runs/x/hosts/h")
    seconds = iter(range(0, 10**12, 10**9))
    collector.open(Context(root=root, clock=lambda: next(seconds), pids=lambda: [100], out_dir=out_dir))
    for pid, ticks in ((900, 50), (901, 50), (902, 9)):
        stat = root / f"proc/{pid}/stat"
        words = stat.read_text().split()
        words[13] = str(ticks)
        stat.write_text(" ".join(words))
    (root / "proc/stat").write_text("cpu 109 0 0 0\ncpu0 109 0 0 0\n")
    (reading,) = collector.sample()
    assert reading.value == 9


def test_kernel_threads_and_interrupts_are_nobodys(tmp_path: Path) -> None:
    machine = Machine(
        tmp_path,
        Fake(100),
        Fake(2, 0, name="kthreadd", flags=KERNEL),
        Fake(30, 2, name="kswapd0", flags=KERNEL),
    )
    assert machine.second(180, p100=100, p30=80) == 0
    facts = machine.collector.facts()
    assert neighbours(facts, "cpu") == []
    assert neighbours(facts, "kernel") == [("kernel threads", 0.8)]
    assert busy_ticks(b"cpu  10 2 3 4 5 600 700 8 9 1\ncpu0 1\ncpu1 1\nintr") == (15, 2)


def test_grain_of_the_clocks_does_not_add_up(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), cpus=1)
    for _ in range(50):
        machine.second(98, p100=100)
        counter = machine.second(102, p100=100)
    assert counter == 0


def test_a_debt_is_soon_forgotten(tmp_path: Path) -> None:
    """Where the two clocks differ for long, a neighbour that comes later is still seen."""
    machine = Machine(tmp_path, Fake(100), cpus=2)
    for _ in range(20):
        assert machine.second(50, p100=60) == 0
    assert machine.second(160, p100=60) == 100 - 4


def test_a_later_process_of_the_same_pid_is_another(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), Fake(101, 100, own=500))
    machine.processes[100].reaped += 500
    assert machine.second(40, born=[Fake(101, 1, own=40, start=77, name="stress")]) == 40


def test_neighbours_of_a_name_are_told_as_one_at_most_every_10_s(tmp_path: Path) -> None:
    machine = Machine(
        tmp_path, Fake(100), Fake(901, name="stress"), Fake(902, name="stress"), Fake(903, name="idle")
    )
    machine.second(200, p901=100, p902=90, p903=5)
    (fact,) = machine.collector.facts()
    assert fact.labels == {"kind": "cpu"}
    assert fact.value["name"] == "stress" and fact.value["pid"] == 901 and fact.value["processes"] == 2
    assert fact.value["cpus"] == pytest.approx(1.9) and fact.value["seconds"] == 1
    for _ in range(9):
        machine.second(100, p901=100)
        assert machine.collector.facts() == []
    machine.second(100, p901=100)
    assert neighbours(machine.collector.facts()) == [("stress", 1.0)]


def test_the_largest_few_are_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), *(Fake(900 + n, name=f"n{n}") for n in range(8)))
    machine.second(8 * 30, used={900 + n: 30 + n for n in range(8)})
    named = [name for name, _ in neighbours(machine.collector.facts())]
    assert named == ["n7", "n6", "n5", "n4", "n3"] and len(named) == MAX_NAMED


def test_hidden_processes_leave_the_sum(tmp_path: Path) -> None:
    root = tmp_path / "m"
    machine = Machine(root, Fake(100))
    (root / "proc/self").mkdir()
    (root / "proc/self/mounts").write_text("proc /proc proc rw,nosuid,relatime,hidepid=invisible 0 0\n")
    ctx = Context(root=root, euid=1000)
    (absent,) = Neighbours().probe(ctx).absent
    assert "hidepid" in absent.reason and "remount" in absent.remedy
    assert Neighbours().probe(Context(root=root, euid=0)).absent == ()
    assert machine.second(130, p100=100) == 30
    assert neighbours(machine.collector.facts()) == []


def test_a_source_that_breaks_ends_the_reading_with_a_reason(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100))
    (tmp_path / "proc/stat").write_text("what?\n")
    machine.now += 1_000_000_000
    assert machine.collector.sample() == ()
    (fact,) = machine.collector.facts()
    assert fact.name == "stopped" and fact.value["what"] == "neighbour_cpu"
    assert machine.collector.sample() == ()
    assert machine.collector.facts() == []


@pytest.mark.parametrize("text", [None, "", "cpu\n", "nothing of the kind\n"])
def test_a_machine_without_the_source_is_said(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "proc").mkdir()
    if text is not None:
        (tmp_path / "proc/stat").write_text(text)
    capability = Neighbours().probe(Context(root=tmp_path))
    assert not capability.available and capability.reason.startswith("/proc/stat: ")


def test_the_moment_after_opening_is_too_short_to_judge(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), Fake(900, name="stress"))
    machine.processes[900].own += 1  # one tick in 2 ms would be five CPUs
    machine.busy += 1
    machine.write()
    machine.now += 2_000_000
    assert [reading.value for reading in machine.collector.sample()] == [0]
    assert machine.collector.facts() == []
    assert machine.second(20, p900=20) == 21
    assert neighbours(machine.collector.facts()) == [("stress", 0.21)]


def test_a_costly_scan_is_made_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, Fake(100))
    spent = iter(range(0, 10**12, 30_000_000))  # 30 ms a look
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(spent))
    machine.second(0)
    machine.now += 8_000_000_000
    assert machine.collector.sample() == ()
    machine.now += 1_000_000_000
    assert len(machine.collector.sample()) == 1


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("7 (a) b (c) S 1", "a) b (c"),
        ("7 () S 1", ""),
        ("7 (new\nline) S 1", "new\nline"),
    ],
)
def test_names_may_hold_anything(line: str, name: str) -> None:
    process = parse_stat(f"{line} {' '.join(map(str, range(5, 53)))}".encode())
    assert process is not None
    assert (process.pid, process.parent, process.name) == (7, 1, name)
    assert process.own == 14 + 15 and process.reaped == 16 + 17 and process.start == 22


@pytest.mark.parametrize("text", [b"", b"7 (x) S", b"no process", b"x (y) S " + b"z " * 50])
def test_lines_that_are_no_process_are_none(text: bytes) -> None:
    assert parse_stat(text) is None


# Real processes. Other programs run on this machine too, so every bound is one that they cannot break.

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
    return process.own if process else 0


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
    collector = Neighbours()
    assert collector.probe(ctx).available
    before = busy_ticks(Path("/proc/stat").read_bytes())[0]
    collector.open(ctx)
    facts = list(collector.facts())
    for _ in range(200):
        time.sleep(0.25)
        done = enough()
        (reading,) = collector.sample()
        facts += collector.facts()
        if done:
            break
    after = busy_ticks(Path("/proc/stat").read_bytes())[0]
    collector.close()
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
    collector = Neighbours()
    if not collector.probe(ctx).available:
        assert not ctx.exists("/proc/stat")
        return
    collector.open(ctx)
    (reading,) = collector.sample()
    assert reading.value == 0  # nothing changes in a picture
    collector.close()


def test_the_initial_pid_namespace_has_a_fixed_number() -> None:
    assert INITIAL_PID_NAMESPACE == 4026531836
