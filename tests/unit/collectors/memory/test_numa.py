"""NUMA collectors against captured machines, and against this one."""

from __future__ import annotations

import errno
import mmap
import os
import random
import sys
from pathlib import Path

import pytest

from perfscope.collectors.base import Fact
from perfscope.collectors.cgroup import NO_RANK
from perfscope.collectors.context import Context, captured_context, live_context
from perfscope.collectors.memory.numa import NumaCounters
from perfscope.collectors.memory.numa_maps import Mappings, parse_numa_maps
from perfscope.collectors.memory.placement import PAGES_PER_SAMPLE, NumaPlacement
from perfscope.collectors.memory.usage import NumaMemory
from perfscope.collectors.nodes import online_nodes
from perfscope.collectors.pace import Pace
from perfscope.rundir.metrics import DERIVED
from tests.support.hardware import by_series, copy, expected, faulty, machine, tree, write

MIB_PAGES = (1 << 20) // 4096
PATTERNS = sorted({"two-socket", "knl-flat-quadrant", "knl-flat-snc4"})
PARTS = ("proc", "sys/devices/system/node", "sys/fs/cgroup")  # of a tree: what these collectors read
NUMASTAT = "/sys/devices/system/node/node{}/numastat"


def numastat(ctx: Context) -> dict[str, float | int | None]:
    collector = NumaCounters()
    collector.open(ctx)
    readings = by_series(collector.sample())
    collector.close()
    return readings


def difference(before: str, after: str) -> dict[str, float]:
    first, second = numastat(machine(before)), numastat(machine(after))
    assert first.keys() == second.keys()
    return {key: (second[key] or 0) - (first[key] or 0) for key in first}


@pytest.mark.parametrize("name", PATTERNS)
def test_every_node_has_its_counters_memory_only_ones_too(name: str) -> None:
    nodes = expected(f"{name}-results.json")["nodes"]
    capability = NumaCounters().probe(machine(f"{name}-before"))
    readings = numastat(machine(f"{name}-before"))
    assert capability.available
    assert f"{len(nodes)} nodes" in capability.detail
    assert all(f"numa_hit{{node={node}}}" in readings for node in nodes)
    assert len(readings) == 6 * len(nodes)


def test_numastat_is_what_the_file_says() -> None:
    readings = numastat(machine("two-socket-remote"))
    assert readings["numa_hit{node=2}"] == 19655
    assert readings["other_node{node=2}"] == 19655
    assert readings["interleave_hit{node=2}"] == 233
    assert readings["local_node{node=2}"] == 0


def test_memory_bound_to_a_remote_node_shows_as_hits_of_other_nodes() -> None:
    """64 MiB by a process on node 0, bound to node 2: intended, hence no miss, and not local."""
    gained = difference("two-socket-before", "two-socket-remote")
    assert gained["other_node{node=2}"] == gained["numa_hit{node=2}"]
    assert gained["numa_hit{node=2}"] >= 64 * MIB_PAGES
    assert gained["numa_miss{node=2}"] == gained["numa_foreign{node=2}"] == 0


def test_units_say_that_they_are_events_not_bytes() -> None:
    for metric in NumaCounters().probe(machine("two-socket-before")).metrics:
        assert metric.unit == "pages"
        assert "huge page is one event" in metric.resolution


def test_holes_in_node_ids_stay_holes(tmp_path: Path) -> None:
    root = copy("two-socket-before", tmp_path / "tree", *PARTS)
    for path in sorted((root / "sys/devices/system/node/node1").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    (root / "sys/devices/system/node/node1").rmdir()
    write(root, {"sys/devices/system/node/online": "0,2\n"})
    ctx = captured_context(root)
    assert online_nodes(ctx) == [0, 2]
    assert {key[-2] for key in numastat(ctx)} == {"0", "2"}


def test_frozen_counters_are_not_read_and_the_remedy_is_named(tmp_path: Path) -> None:
    root = copy("two-socket-before", tmp_path / "tree", *PARTS)
    write(root, {"proc/sys/vm/numa_stat": "0\n"})
    capability = NumaCounters().probe(captured_context(root))
    assert not capability.available
    assert "counters are disabled" in capability.reason
    assert "sysctl vm.numa_stat=1" in capability.remedy


def test_a_node_that_is_unplugged_ends_only_its_own_series() -> None:
    ctx = faulty(machine("two-socket-before"))
    collector = NumaCounters()
    collector.open(ctx)
    assert len(collector.sample()) == 18
    ctx.fail(NUMASTAT.format(1), "ENODEV")
    assert {reading.series.labels["node"] for reading in collector.sample()} == {"0", "2"}
    (fact,) = collector.facts()
    assert fact == Fact("stopped", {"node": "1"}, {"what": "numastat", "reason": os.strerror(errno.ENODEV)})
    ctx.failing.clear()
    assert len(collector.sample()) == 12
    assert not collector.facts()
    collector.close()
    collector.close()


def test_text_in_place_of_a_number_ends_that_node(tmp_path: Path) -> None:
    root = copy("two-socket-before", tmp_path / "tree", *PARTS)
    collector = NumaCounters()
    collector.open(captured_context(root))
    good = (root / NUMASTAT.format(0).lstrip("/")).read_text()
    write(root, {NUMASTAT.format(0): good.replace("numa_miss 0", "numa_miss N/A")})
    assert {reading.series.labels["node"] for reading in collector.sample()} == {"1", "2"}
    assert [fact.labels for fact in collector.facts()] == [{"node": "0"}]
    collector.close()


def test_a_counter_that_this_version_does_not_know_moves_no_other(tmp_path: Path) -> None:
    root = copy("two-socket-before", tmp_path / "tree", *PARTS)
    before = numastat(captured_context(root))
    good = (root / NUMASTAT.format(0).lstrip("/")).read_text()
    write(root, {NUMASTAT.format(0): good.replace("numa_miss", "numa_novel 77\nnuma_miss")})
    assert numastat(captured_context(root)) == before


def test_one_small_file_per_node_and_sample() -> None:
    ctx = faulty(machine("knl-flat-snc4-before"))
    collector = NumaCounters()
    collector.open(ctx)
    ctx.reads.clear()
    collector.sample()
    assert ctx.reads == [NUMASTAT.format(node) for node in range(8)]
    collector.close()


def test_a_machine_without_numa_says_so() -> None:
    for collector in (NumaCounters(), NumaPlacement()):
        capability = collector.probe(machine("genoa-umc-before"))
        assert not capability.available
        assert "CONFIG_NUMA" in capability.reason


def test_dear_reads_are_spaced_out_and_a_single_slow_one_is_not_taken_for_dear() -> None:
    pace = Pace()
    for begin, lasted in ((0, 5_000_000), (10_000_000, 20_000), (20_000_000, 20_000)):
        pace.took(begin, begin + lasted)
    assert pace.next_ns == 0
    for begin in (30_000_000, 40_000_000, 50_000_000):
        pace.took(begin, begin + 300_000)
    assert pace.next_ns == 50_000_000 + 300_000_000
    for begin in (60_000_000, 70_000_000, 80_000_000):
        pace.took(begin, begin + 9_000_000)
    assert pace.next_ns == 80_000_000 + 1_000_000_000


# Memory of nodes and of the job


def memory(ctx: Context) -> dict[str, float | int | None]:
    collector = NumaMemory()
    collector.open(ctx)
    readings = by_series(collector.sample())
    collector.close()
    return readings


def test_memory_of_nodes_and_of_the_job_in_bytes() -> None:
    readings = memory(machine("two-socket-interleave"))
    assert readings["node_memory_total{node=0}"] == 727164 * 1024
    assert readings["node_memory_free{node=2}"] == 503288 * 1024
    assert readings["job_memory_anon{node=0}"] == 78135296
    assert readings["job_memory_anon{node=1}"] == 94191616
    assert readings["job_memory_file{node=1}"] == 1826816


def test_balancing_counters_move_when_balancing_is_on() -> None:
    before, after = memory(machine("two-socket-before")), memory(machine("two-socket-balancing"))
    moved = (after["numa_pages_migrated{}"] or 0) - (before["numa_pages_migrated{}"] or 0)
    assert moved > 10_000
    assert "balancing: on" in NumaMemory().probe(machine("two-socket-balancing")).detail
    assert "balancing: off" in NumaMemory().probe(machine("two-socket-remote")).detail


def test_without_a_rank_the_job_is_absent_and_the_nodes_are_read() -> None:
    ctx = machine("two-socket-remote", pids=tuple)
    capability = NumaMemory().probe(ctx)
    assert capability.available
    assert {absent.what: absent.reason for absent in capability.absent} == {
        "job_memory_anon": NO_RANK,
        "job_memory_file": NO_RANK,
    }
    assert not any(key.startswith("job") for key in memory(ctx))


def test_a_job_of_cgroup_version_1_is_counted_in_pages_with_its_children(tmp_path: Path) -> None:
    """In the hybrid layout the memory controller is version 1, beside an empty unified tree."""
    root = copy("vm-nothing-available", tmp_path / "tree", *PARTS)
    lines = (
        "total=9 N0=9\nanon=3 N0=3\nfile=6 N0=6\nhierarchical_anon=500 N0=500\nhierarchical_file=70 N0=70\n"
    )
    write(
        root,
        {
            "proc/4242/cgroup": "4:memory:/batch/job7\n1:cpu,cpuacct:/\n0::/\n",
            "sys/fs/cgroup/memory/release_agent": "",
            "sys/fs/cgroup/memory/batch/job7/memory.numa_stat": lines,
        },
    )
    readings = memory(captured_context(root, pids=lambda: (4242,)))
    assert readings["job_memory_anon{node=0}"] == 500 * 4096
    assert readings["job_memory_file{node=0}"] == 70 * 4096


def test_a_node_without_meminfo_ends_only_itself() -> None:
    ctx = faulty(machine("two-socket-before"))
    collector = NumaMemory()
    collector.open(ctx)
    ctx.fail("/sys/devices/system/node/node2/meminfo", "ENODEV")
    ctx.fail("/proc/vmstat", "EACCES")
    readings = by_series(collector.sample())
    assert "node_memory_free{node=1}" in readings
    assert "node_memory_free{node=2}" not in readings
    assert sorted(str(fact.value["what"]) for fact in collector.facts()) == ["meminfo", "vmstat"]
    collector.sample()
    assert not collector.facts()
    collector.close()


# Placement


@pytest.mark.parametrize(
    ("name", "policy", "case"),
    [
        ("two-socket-remote", "bind:2", "remote"),
        ("two-socket-interleave", "interleave:0-1", "interleave"),
        ("knl-flat-quadrant-remote", "bind:1", "remote"),
        ("knl-flat-snc4-remote", "bind:7", "remote"),
    ],
)
def test_placement_and_policy_of_captured_processes(name: str, policy: str, case: str) -> None:
    """numactl --membind shows in numa_maps only; the pages are what the capture's own script counted."""
    collector = NumaPlacement()
    collector.open(machine(name))
    readings = collector.sample()
    found = {reading.series.labels["node"]: (reading.value or 0) / MIB_PAGES for reading in readings}
    counted = expected(f"{name.rpartition('-')[0]}-results.json")["numa"][case]["numa_maps_MiB"]
    assert {node: round(mib, 1) for node, mib in found.items()} == {**dict.fromkeys(found, 0), **counted}
    assert all(reading.series.metric.quality == DERIVED for reading in readings)
    assert all("numa_maps" in reading.series.metric.source for reading in readings)
    (fact,) = collector.facts()
    assert fact.name == "binding"
    assert fact.value["policy"] == policy
    collector.close()


def test_binding_names_cpus_their_nodes_and_allowed_memory() -> None:
    collector = NumaPlacement()
    collector.open(machine("two-socket-remote"))
    collector.sample()
    (fact,) = collector.facts()
    assert fact.labels == {"pid": "225"}
    assert fact.value["cpus"] == "0-1"
    assert fact.value["cpu_nodes"] == [0]
    assert fact.value["mems_allowed"] == "0-2"
    assert list(fact.value["policies"]) == ["bind:2"]  # type: ignore[call-overload]


def test_a_changed_binding_is_told_once(tmp_path: Path) -> None:
    root = copy("two-socket-remote", tmp_path / "tree", *PARTS)
    now = [0]
    collector = NumaPlacement()
    collector.open(captured_context(root, pids=lambda: (225,), clock=lambda: now[0]))
    collector.sample()
    assert len(collector.facts()) == 1
    now[0] += 60_000_000_000
    collector.sample()
    assert not collector.facts()
    status = root / "proc/225/status"
    status.write_text(status.read_text().replace("Cpus_allowed_list:\t0-1", "Cpus_allowed_list:\t2-3"))
    now[0] += 60_000_000_000
    collector.sample()
    (fact,) = collector.facts()
    assert (fact.value["cpus"], fact.value["cpu_nodes"], fact.value["policy"]) == ("2-3", [1], "bind:2")


def test_numa_maps_counts_huge_pages_in_their_own_unit_and_skips_cut_lines() -> None:
    text = (
        "7f0 bind:1 anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=2048\n"
        "7f1 default anon=4 N0=4 kernelpagesize_kB=4\n"
        "7f2 default file=/x\n"
        "7f3 prefer"
    )
    maps = parse_numa_maps(text, 4096)
    assert maps.pages == {0: 512 + 4, 1: 1024}
    assert maps.policies == {"bind:1": 1536, "default": 4, "prefer": 0}
    assert maps.policy == "bind:1"
    assert parse_numa_maps("", 4096).policy == "default"


def test_pages_are_drawn_from_writable_private_memory_of_no_file_by_size() -> None:
    text = (
        "1000-2000 r--p 00000000 00:00 0 \n"
        "10000-20000 rw-p 00000000 00:00 0                          [heap]\n"
        "30000-31000 rw-p 00000000 08:01 99                         /lib/x.so\n"
        "40000-50000 rw-s 00000000 00:01 12                         /dev/shm/y\n"
        "100000-130000 rw-p 00000000 00:00 0 \n"
        "200000-2000"
    )
    mappings = Mappings(text, 0x1000)
    assert mappings.num_pages == 16 + 48
    drawn = mappings.draw(4000, random.Random(1))
    assert all(0x10000 <= one < 0x20000 or 0x100000 <= one < 0x130000 for one in drawn)
    assert all(one % 0x1000 == 0 for one in drawn)
    assert sum(one < 0x20000 for one in drawn) / len(drawn) == pytest.approx(16 / 64, abs=0.03)
    assert set(mappings.draw(4000, random.Random(2))) == set(drawn)  # every page is reached
    assert Mappings("", 4096).draw(5, random.Random(0)) == []


class PagesOnNodes:
    """A stand-in for move_pages: even pages on node 0, odd ones on node 1, every eighth not in memory."""

    def __init__(self) -> None:
        self.error = 0
        self.asked = 0

    def move_pages(self, pid: int, addresses: list[int]) -> list[int]:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        self.asked += len(addresses)
        pages = [address // 4096 for address in addresses]
        return [-2 if page % 8 == 7 else page % 2 for page in pages]

    def perf_event_open(self, *_: object, **__: object) -> int:
        raise OSError(errno.ENOSYS, "not here")


def test_sampled_pages_are_scaled_to_the_resident_set() -> None:
    syscalls = PagesOnNodes()
    collector = NumaPlacement()
    collector.open(machine("two-socket-remote", syscalls=syscalls))
    readings = collector.sample()
    pages = {reading.series.labels["node"]: reading.value or 0 for reading in readings}
    resident = 73764 * 1024 // 4096
    assert sum(pages.values()) == pytest.approx(resident, abs=2)
    assert pages["0"] / resident == pytest.approx(4 / 7, abs=0.08)
    assert pages["2"] == 0
    assert "move_pages" in readings[0].series.metric.source
    assert syscalls.asked <= 4 * PAGES_PER_SAMPLE


def test_a_rank_that_may_not_be_asked_is_given_up_and_the_other_goes_on() -> None:
    class Refusing(PagesOnNodes):
        def move_pages(self, pid: int, addresses: list[int]) -> list[int]:
            if pid == os.getppid():
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            return super().move_pages(pid, addresses)

    now = [0]
    collector = NumaPlacement()
    pids = (os.getppid(), os.getpid())
    collector.open(live_context(pids=lambda: pids, syscalls=Refusing(), clock=lambda: now[0]))
    seen: set[str] = set()
    for _ in range(3):
        now[0] += 70_000_000_000
        seen |= {
            reading.series.labels["pid"]
            for reading in collector.sample()
            if "move_pages" in reading.series.metric.source
        }
    assert seen == {str(os.getpid())}
    stopped = [fact for fact in collector.facts() if fact.name == "stopped"]
    assert [fact.labels for fact in stopped] == [{"pid": str(os.getppid())}]
    assert "SYS_NICE" in str(stopped[0].value["reason"])


def test_ranks_come_and_go() -> None:
    pids = [999_999_999]
    collector = NumaPlacement()
    collector.open(machine("two-socket-remote", pids=lambda: tuple(pids)))
    assert collector.sample() == []
    pids[:] = [225]
    assert collector.sample()
    pids.clear()
    assert collector.sample() == []
    assert all(fact.name == "binding" for fact in collector.facts())


def test_many_ranks_are_visited_in_turn(tmp_path: Path) -> None:
    root = copy("two-socket-remote", tmp_path / "tree", *PARTS)
    files = {name: (root / "proc/225" / name).read_text() for name in ("status", "maps", "numa_maps")}
    for pid in range(1000, 1008):
        write(root, {f"proc/{pid}/{name}": text for name, text in files.items()})
    now = [0]
    collector = NumaPlacement()
    collector.open(captured_context(root, pids=lambda: tuple(range(1000, 1008)), clock=lambda: now[0]))
    visits = []
    for _ in range(4):
        visits.append({reading.series.labels["pid"] for reading in collector.sample()})
        now[0] += 1_000_000_000
    assert all(len(one) == 2 for one in visits)
    assert set().union(*visits) == {str(pid) for pid in range(1000, 1008)}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="move_pages is Linux's")
def test_move_pages_finds_the_pages_of_this_process() -> None:
    """32 MiB that were just written are in memory, on nodes that are online."""
    ctx = live_context(pids=lambda: (os.getpid(),))
    if not online_nodes(ctx):
        pytest.skip("this kernel has no NUMA nodes")
    with mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area.write(b"x" * len(area))
        collector = NumaPlacement()
        collector.open(ctx)
        readings = collector.sample()
        stopped = [fact for fact in collector.facts() if fact.name == "stopped"]
        if stopped:
            pytest.skip(f"move_pages: {stopped[0].value['reason']}")
        pages = {int(reading.series.labels["node"]): reading.value or 0 for reading in readings}
    assert set(pages) == set(online_nodes(ctx))
    assert sum(pages.values()) * ctx.page_size > 32 << 20
    assert all("move_pages" in reading.series.metric.source for reading in readings)


def test_every_tree_can_be_read_whatever_it_holds() -> None:
    for name in ("skx-2s-hdr-before", "knl-opa-before", "genoa-umc-before", "vm-nothing-available"):
        for make in (NumaCounters, NumaMemory, NumaPlacement):
            collector = make()
            ctx = captured_context(tree(name))
            capability = collector.probe(ctx)
            assert capability.available or capability.reason
            collector.open(ctx)
            collector.sample()
            collector.close()
