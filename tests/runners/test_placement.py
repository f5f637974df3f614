"""Ranks onto NUMA domains, cores and GPUs: captured machines, then this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.starting.placement import (
    Core,
    HostTopology,
    bind_this_process,
    plan_placement,
    read_topology,
)
from tests.support import hardware


def machine(num_domains: int, cores: int, siblings: int = 1) -> HostTopology:
    """Siblings are numbered like on Intel's: second threads after all first ones."""
    total = num_domains * cores
    return HostTopology(
        tuple(
            Core(tuple(core + total * thread for thread in range(siblings)), core // cores)
            for core in range(total)
        )
    )


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def cpus(topology: HostTopology, num_ranks: int, bind: str = "numa") -> list[tuple[int, ...]]:
    return [slot.cpus for slot in plan_placement(num_ranks, topology, bind)]


def test_two_sockets_as_captured() -> None:
    topology = read_topology(hardware.tree("two-socket-before"))
    assert cpus(topology, 2) == [(0, 1), (2, 3)]
    assert [slot.node for slot in plan_placement(4, topology)] == [0, 0, 1, 1]
    assert cpus(topology, 1) == [(0, 1, 2, 3)]


def test_a_knights_landing_in_four_domains_as_captured() -> None:
    topology = read_topology(hardware.tree("knl-flat-snc4-before"))
    slots = plan_placement(4, topology)
    assert [slot.node for slot in slots] == [0, 1, 2, 3]  # 4..7 are memory without CPUs
    assert [slot.num_cores for slot in slots] == [1, 1, 1, 1]


def test_a_machine_without_numa_is_one_domain() -> None:
    topology = read_topology(hardware.tree("vm-nothing-available"))
    slots = plan_placement(2, topology)
    assert [slot.cpus for slot in slots] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("domains", "ranks", "nodes"),
    [
        (2, 8, [0, 0, 0, 0, 1, 1, 1, 1]),
        (4, 8, [0, 0, 1, 1, 2, 2, 3, 3]),
        (2, 3, [0, 0, 1]),
        (2, 2, [0, 1]),
        (4, 2, [None, None]),  # two whole domains each
    ],
)
def test_consecutive_ranks_fill_domains_in_order(domains: int, ranks: int, nodes: list[int | None]) -> None:
    slots = plan_placement(ranks, machine(domains, 8))
    assert [slot.node for slot in slots] == nodes


@pytest.mark.parametrize("bind", ["numa", "core"])
@pytest.mark.parametrize("ranks", range(1, 17))
def test_nobody_shares_a_core_while_there_are_enough(ranks: int, bind: str) -> None:
    topology = machine(2, 8, siblings=2)
    slots = plan_placement(ranks, topology, bind)
    taken = list(chain.from_iterable(slot.cpus for slot in slots))
    assert len(taken) == len(set(taken))
    assert all(len(slot.cpus) == 2 * slot.num_cores for slot in slots)  # siblings stay together
    if bind == "core" or ranks in (1, 2, 4, 8, 16):
        sizes = [slot.num_cores for slot in slots]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == 16


def test_domains_of_unequal_size_get_ranks_in_proportion() -> None:
    cores = [Core((cpu,), 0) for cpu in range(6)] + [Core((cpu,), 1) for cpu in range(6, 8)]
    slots = plan_placement(4, HostTopology(tuple(cores)))
    assert [slot.node for slot in slots] == [0, 0, 0, 1]
    assert [slot.num_cores for slot in slots] == [2, 2, 2, 2]


def test_more_ranks_than_cores() -> None:
    topology = machine(1, 2)
    slots = plan_placement(3, topology)
    assert all(slot.shared and slot.num_cores == 1 and slot.cpus == (0, 1) for slot in slots)
    with pytest.raises(BenchError, match="3 ranks and 2 usable cores"):
        plan_placement(3, topology, "core")


def test_only_cpus_that_the_process_may_use_count() -> None:
    root = hardware.tree("two-socket-before")
    assert cpus(read_topology(root, {1, 2, 3}), 2) == [(1,), (2, 3)]
    assert cpus(read_topology(root, {2, 3}), 2) == [(2,), (3,)]
    with pytest.raises(BenchError, match="no CPU"):
        plan_placement(1, read_topology(root, {77}))


def test_siblings_are_one_core(tmp_path: Path) -> None:
    write(
        tmp_path, **{"sys/devices/system/cpu/online": "0-3", "sys/devices/system/node/node0/cpulist": "0-3"}
    )
    for cpu in range(4):
        name = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(tmp_path, **{name: f"{cpu % 2},{cpu % 2 + 2}"})
    assert cpus(read_topology(tmp_path), 2, "core") == [(0, 2), (1, 3)]
    assert cpus(read_topology(tmp_path, {0, 2, 3}), 2, "core") == [(0, 2), (3,)]


@pytest.fixture
def gpu_machine(tmp_path: Path) -> Path:
    """Two sockets of four cores; three GPUs on socket 1, one on socket 0; a display and a network adapter."""
    write(tmp_path, **{"sys/devices/system/cpu/online": "0-7"})
    for node, listed in ((0, "0-3"), (1, "4-7")):
        write(tmp_path, **{f"sys/devices/system/node/node{node}/cpulist": listed})
    devices = [("01", 1, "A"), ("41", 1, "B"), ("81", 0, "C"), ("c1", 1, "D")]
    for bus, node, letter in devices:
        address = f"0000:{bus}:00.0"
        folder = f"sys/bus/pci/devices/{address}"
        told = {"vendor": "0x10de", "class": "0x030200", "numa_node": str(node)}
        write(tmp_path, **{f"{folder}/{name}": text for name, text in told.items()})
        write(tmp_path, **{f"proc/driver/nvidia/gpus/{address}/information": f"GPU UUID: \t GPU-{letter}000"})
    write(tmp_path, **{"sys/bus/pci/devices/0000:02:00.0/vendor": "0x1a03"})
    write(tmp_path, **{"sys/bus/pci/devices/0000:02:00.0/class": "0x030000"})
    return tmp_path


def test_a_rank_sits_beside_its_gpu(gpu_machine: Path) -> None:
    topology = read_topology(gpu_machine)
    assert topology.gpu_nodes == (1, 1, 0, 1)
    slots = plan_placement(4, topology)
    assert [slot.gpu for slot in slots] == [0, 1, 2, 3]
    assert [slot.node for slot in slots] == [1, 1, 0, 1]
    assert slots[2].cpus == (0, 1, 2, 3)
    assert sorted(chain(*(slots[rank].cpus for rank in (0, 1, 3)))) == [4, 5, 6, 7]


def test_visible_gpus_are_counted_as_cuda_does(gpu_machine: Path) -> None:
    assert read_topology(gpu_machine, environment={"CUDA_VISIBLE_DEVICES": "2,1"}).gpu_nodes == (0, 1)
    assert read_topology(gpu_machine, environment={"CUDA_VISIBLE_DEVICES": "GPU-C,GPU-A"}).gpu_nodes == (0, 1)
    assert read_topology(gpu_machine, environment={"CUDA_VISIBLE_DEVICES": "2,-1,1"}).gpu_nodes == (0,)
    assert read_topology(gpu_machine, environment={"CUDA_VISIBLE_DEVICES": ""}).gpu_nodes == ()


def test_too_few_gpus_are_left_out_of_it(gpu_machine: Path) -> None:
    slots = plan_placement(5, read_topology(gpu_machine))
    assert [slot.gpu for slot in slots] == [None] * 5


def test_unbound_ranks_share_the_cores_out() -> None:
    slots = plan_placement(3, machine(2, 4), "none")
    assert [slot.num_cores for slot in slots] == [2, 2, 2]


def bound(bind: str, local_rank: int, local_size: int, **environment: str) -> dict[str, object]:
    """What a fresh process of this machine says, and where it then may run."""
    code = (
        "import json, os, sys; from perfscope.runners.starting.placement import bind_this_process as bind;"
        "from perfscope.runners.config import BenchConfig as C; done = json.loads(sys.argv[1]);"
        "said = bind(C(scheme='serial', bind=done[0], device='cpu', num_ranks=done[2]), done[1], done[2]);"
        "said['affinity'] = sorted(os.sched_getaffinity(0)); print(json.dumps(said))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, json.dumps([bind, local_rank, local_size])],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    found: dict[str, object] = json.loads(answer.stdout)
    return found


def test_this_process_is_bound_for_good() -> None:
    own = sorted(os.sched_getaffinity(0))
    first, last = bound("core", 0, 1), bound("numa", 1, 2)
    assert first["cpus"] == first["affinity"] == own
    assert last["cpus"] == last["affinity"]
    if len(own) > 1:
        other = bound("numa", 0, 2)
        assert not set(other["affinity"]) & set(last["affinity"]) or other["notes"]  # type: ignore[call-overload]


def test_unbound_is_left_alone() -> None:
    said = bound("none", 0, 2)
    assert said["affinity"] == sorted(os.sched_getaffinity(0))
    assert said["cpus"] == [] and said["threads"] >= 1  # type: ignore[operator]


def test_what_an_outer_launcher_has_bound_stays() -> None:
    said = bound("core", 5, 6, PERFSCOPE_BENCH_BOUND="1")
    assert said["affinity"] == said["cpus"] == sorted(os.sched_getaffinity(0))
    assert said["bind"] == "launcher" and "left out" in str(said["notes"])


def test_emulated_hosts_share_the_one_machine(tmp_path: Path) -> None:
    """Rank 3 is local rank 1 of host 1; among the machine's ranks it is the last of four."""
    root = hardware.tree("two-socket-before")
    config = BenchConfig(scheme="serial", num_ranks=4, num_hosts=2, bind="none")
    environment = {"PERFSCOPE_CLUSTER": "2x2@1gbit", "RANK": "3"}
    said = bind_this_process(config, 1, 2, root=root, environment=environment)
    assert said["threads"] == 1  # two CPUs at most are allowed here, four ranks want them
