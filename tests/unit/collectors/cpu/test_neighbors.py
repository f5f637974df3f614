"""CPU used by others: known amounts in a made-up /proc, then real processes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfscope.collectors.base import Fact
from perfscope.collectors.context import Context
from perfscope.collectors.cpu.neighbors import (
    COMMAND_LENGTH,
    MAX_NAMED,
    Neighbors,
    busy_ticks,
    command_of,
)
from perfscope.collectors.process_table import (
    parse_stat,
)

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
        self.collector = Neighbors()
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
    collector = Neighbors()
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
    """Where the two clocks differ for long, a neighbor that comes later is still seen."""
    machine = Machine(tmp_path, Fake(100), cpus=2)
    for _ in range(20):
        assert machine.second(50, p100=60) == 0
    assert machine.second(160, p100=60) == 100 - 4


def test_a_later_process_of_the_same_pid_is_another(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), Fake(101, 100, own=500))
    machine.processes[100].reaped += 500
    assert machine.second(40, born=[Fake(101, 1, own=40, start=77, name="stress")]) == 40


def test_neighbours_of_a_name_are_told_as_one_every_10_s(tmp_path: Path) -> None:
    machine = Machine(
        tmp_path, Fake(100), Fake(901, name="stress"), Fake(902, name="stress"), Fake(903, name="idle")
    )
    machine.second(200, p901=100, p902=90, p903=5)
    (fact,) = machine.collector.facts()
    assert fact.labels == {"kind": "cpu"}
    assert fact.value["name"] == "stress" and fact.value["pid"] == 901 and fact.value["processes"] == 2
    assert fact.value["cpus"] == pytest.approx(1.9) and fact.value["seconds"] == 1
    for _ in range(9):
        machine.second(190, p901=100, p902=90)
        assert machine.collector.facts() == []
    machine.second(190, p901=100, p902=90)
    assert neighbours(machine.collector.facts()) == [("stress", 1.9)]


def test_a_neighbour_whose_use_changes_is_told_again_after_3_s(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), Fake(900, name="stress"))
    machine.second(15, p900=15)  # it began late in this second
    assert neighbours(machine.collector.facts()) == [("stress", 0.15)]
    for _ in range(2):
        machine.second(100, p900=100)
        assert machine.collector.facts() == []
    machine.second(100, p900=100)
    (fact,) = machine.collector.facts()
    assert (fact.value["cpus"], fact.value["seconds"]) == (1.0, 3.0)
    for _ in range(3):
        machine.second(5, p900=5)
    (fact,) = machine.collector.facts()
    assert (fact.value["cpus"], fact.value["seconds"]) == (0.05, 3.0)  # a fall is told below the threshold


def test_a_neighbour_that_ends_is_told_a_last_time(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), Fake(900, name="stress"))
    machine.second(80, p900=80)
    machine.second(90, p900=90)
    assert neighbours(machine.collector.facts()) == [("stress", 0.8)]
    machine.second(10, ended=[900])
    (fact,) = machine.collector.facts()
    assert (fact.value["cpus"], fact.value["seconds"]) == (0.45, 2.0)
    for _ in range(2):
        machine.second(0)
    assert machine.collector.facts() == []
    machine.second(0)
    machine.second(70, born=[Fake(901, own=70, start=5, name="stress")])
    (fact,) = machine.collector.facts()
    assert (fact.value["cpus"], fact.value["seconds"]) == (0.7, 1.0)  # without the pause


def test_facts_of_a_neighbour_cover_all_it_used(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), Fake(900, name="stress"))
    uses = [30, 100, 100, 100, 100, 20, 20, 20, 20, 60, 60, 60, 90, 90, 90, 90]
    facts: list[Fact] = []
    for ticks in [*uses, 0]:
        machine.second(ticks, p900=ticks)
        facts += machine.collector.facts()
    told = [(float(str(f.value["cpus"])), float(str(f.value["seconds"]))) for f in facts]
    assert sum(seconds for _, seconds in told) == len(uses) + 1
    assert sum(cpus * seconds for cpus, seconds in told) == pytest.approx(sum(uses) / 100, abs=0.05)


def test_a_neighbours_command_is_told_without_secrets(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Fake(100), Fake(900, name="train"), Fake(901, name="other"))
    command = b"python\0-m\0train\0--api-key\0hunter2\0--note=a\x1b[31mb\nc\0" + b"x" * 200 + b"\0"
    (tmp_path / "proc/900/cmdline").write_bytes(command)
    machine.second(80, p900=50, p901=30)
    first, second = machine.collector.facts()
    assert str(first.value["command"]).startswith("python -m train --api-key <redacted> --note=a[31mb c xxx")
    assert len(str(first.value["command"])) == COMMAND_LENGTH
    assert "command" not in second.value
    (tmp_path / "proc/900/cmdline").unlink()
    for _ in range(10):
        machine.second(50, p900=50)
    (again,) = [f for f in machine.collector.facts() if f.value["name"] == "train"]
    assert again.value["command"] == first.value["command"]  # as it was when it could be read


def test_of_a_command_line_that_is_cut_the_cut_argument_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    token = b"hf_" + b"a" * 4000
    (tmp_path / "proc/7/cmdline").write_bytes(b"train\0" + token + b"\0" + b"hf_" + b"b" * 4000)
    assert command_of(Context(root=tmp_path), 7) == "train <redacted>"
    assert command_of(Context(root=tmp_path), 8) == ""


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
    (absent,) = Neighbors().probe(ctx).absent
    assert "hidepid" in absent.reason and "remount" in absent.remedy
    assert Neighbors().probe(Context(root=root, euid=0)).absent == ()
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
    capability = Neighbors().probe(Context(root=tmp_path))
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
    assert process.cpu_ticks == 14 + 15 and process.reaped == 16 + 17 and process.start == 22


@pytest.mark.parametrize("text", [b"", b"7 (x) S", b"no process", b"x (y) S " + b"z " * 50])
def test_lines_that_are_no_process_are_none(text: bytes) -> None:
    assert parse_stat(text) is None
