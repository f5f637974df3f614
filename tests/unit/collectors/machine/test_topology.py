"""What a host is made of, as topology.json says it, against hwloc's reading of the same machines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfscope.collectors.context import Context, captured_context, live_context
from perfscope.collectors.gpu.nvidia import devices as nvml_devices
from perfscope.collectors.machine.pci import lane_bytes_per_s, normal_address, path_between, place_of
from perfscope.collectors.machine.topology import read_topology
from perfscope.kernel_text import parse_cpulist
from tests.support import hardware

Topology = dict[str, Any]
CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
REAL = [name for name in hardware.names() if name.startswith(("two-socket", "knl-flat", "vm-"))]


def read(ctx: Context) -> Topology:
    return read_topology(ctx, "host")


def topology_of(name: str) -> Topology:
    return read(captured_context(hardware.tree(name)))


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


# hwloc as the oracle


@dataclass
class Seen:
    """What lstopo's XML says, in our words."""

    packages: dict[int, set[int]]
    cores: dict[int, int]
    nodes: dict[int, tuple[int | None, int, set[int]]]  # package (None: not told), memory, CPUs near it
    nics: dict[str, str]
    caches: set[tuple[int, str, int, frozenset[int]]]
    link_gb_per_s: dict[str, float]


def bits(text: str) -> set[int]:
    number = int("".join(part.removeprefix("0x").rjust(8, "0") for part in text.split(",")), 16)
    return {bit for bit in range(number.bit_length()) if number >> bit & 1}


def parse_lstopo(xml: str) -> Seen:
    seen = Seen({}, {}, {}, {}, set(), {})
    root = ElementTree.fromstring(xml)
    inside: dict[str, int] = {}
    for package in root.iterfind(".//object[@type='Package']"):
        number = int(package.attrib["os_index"])
        seen.packages[number] = bits(package.attrib["cpuset"])
        seen.cores[number] = len(package.findall(".//object[@type='Core']"))
        inside |= {
            node.attrib["os_index"]: number for node in package.iterfind(".//object[@type='NUMANode']")
        }
    for node in root.iterfind(".//object[@type='NUMANode']"):
        index, memory = node.attrib["os_index"], int(node.attrib["local_memory"])
        seen.nodes[int(index)] = (inside.get(index), memory, bits(node.attrib["cpuset"]))
    kinds = {"0": "Unified", "1": "Data", "2": "Instruction"}
    for cache in root.iterfind(".//object[@cache_size]"):
        a = cache.attrib
        cpus = frozenset(bits(a["cpuset"]))
        seen.caches.add((int(a["depth"]), kinds[a["cache_type"]], int(a["cache_size"]), cpus))
    for device in root.iterfind(".//object[@type='PCIDev']"):
        seen.link_gb_per_s[device.attrib["pci_busid"]] = float(device.attrib["pci_link_speed"])
        for interface in device.iterfind("object[@osdev_type='2']"):
            seen.nics[interface.attrib["name"]] = device.attrib["pci_busid"]
    return seen


def lstopo_of(root: Path) -> str:
    program = shutil.which("lstopo-no-graphics")
    if program is None:
        pytest.skip("lstopo-no-graphics (hwloc) is not installed")
    environment = {
        **os.environ,
        "HWLOC_FSROOT": str(root),
        "HWLOC_THISSYSTEM": "0",
        "HWLOC_COMPONENTS": "linux,stop",  # else it mixes in the CPUID of the machine it runs on
    }
    command = [program, "--whole-io", "--of", "xml"]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def assert_agrees(topology: Topology, seen: Seen) -> None:
    assert {p["package"]: set(parse_cpulist(p["cpus"])) for p in topology["packages"]} == seen.packages
    assert {p["package"]: p["cores"] for p in topology["packages"]} == seen.cores
    ours = {node["node"]: node["memory_bytes"] for node in topology["numa_nodes"]}
    assert ours == {node: memory for node, (_, memory, _) in seen.nodes.items()}
    for node in topology["numa_nodes"]:
        # hwloc leaves a node without CPUs and without HMAT outside; we put it where it is nearest.
        assert seen.nodes[node["node"]][0] in (node["package"], None)
        if node["kind"] == "cpu":
            assert set(parse_cpulist(node["cpus"])) == seen.nodes[node["node"]][2]
        else:
            assert node["cpus"] == ""
    on_pci = {nic["name"]: nic["pci"] for nic in topology["nics"] if nic["pci"]}
    assert on_pci == seen.nics
    for nic in topology["nics"]:
        if nic["pcie"]:
            link = nic["pcie"]
            bytes_per_s = link["width"] * lane_bytes_per_s(link["speed_gt_s"])
            assert bytes_per_s / 1e9 == pytest.approx(seen.link_gb_per_s[nic["pci"]])


@pytest.mark.parametrize("name", REAL)
def test_hwloc_sees_the_same_machine(name: str) -> None:
    seen = parse_lstopo(lstopo_of(hardware.tree(name)))
    assert seen.packages  # the oracle itself found a machine
    assert_agrees(topology_of(name), seen)


def test_hwloc_on_the_running_machine_saw_the_same() -> None:
    seen = parse_lstopo(hardware.data_file("two-socket-lstopo.xml").read_text())
    topology = topology_of("two-socket-before")
    assert_agrees(topology, seen)
    caches = {
        (cache["level"], cache["type"], cache["size_bytes"], frozenset(parse_cpulist(cache["cpus"])))
        for cache in topology["caches"]
    }
    assert caches == seen.caches


# Nodes and their kinds


def test_two_sockets_and_a_node_that_only_has_memory() -> None:
    topology = topology_of("two-socket-before")
    expected = hardware.expected("two-socket-results.json")
    first, second, third = topology["numa_nodes"]
    assert (topology["sockets"], topology["sub_numa"]) == (2, False)
    assert [node["kind"] for node in (first, second, third)] == ["cpu", "cpu", "fast"]
    assert first["hmat"] == {
        "read_bandwidth_bytes_per_s": 90_000_000_000,
        "write_bandwidth_bytes_per_s": 90_000_000_000,
        "read_latency_ns": 100,
        "write_latency_ns": 100,
    }
    assert third["hmat"]["read_bandwidth_bytes_per_s"] == 380_000_000_000
    assert (third["distances"], third["distance_nodes"]) == ([31, 41, 10], [0, 1, 2])
    assert (third["package"], third["tier"]) == (0, 4)
    nics = {nic["name"]: nic for nic in topology["nics"]}
    for name, (path, node, cpus, _, mac) in expected["nic_numa"].items():
        assert path.endswith(nics[name]["pci"])
        assert (nics[name]["numa_node"], nics[name]["cpus"], nics[name]["mac"]) == (int(node), cpus, mac)


def test_a_far_node_without_hmat_is_not_called_fast() -> None:
    # MCDRAM's distances, but nothing that says it is MCDRAM: the model is QEMU's and there is no HMAT.
    kinds = [node["kind"] for node in topology_of("knl-flat-quadrant-before")["numa_nodes"]]
    assert kinds == ["cpu", "memory_only"]


def test_slow_memory_with_hmat_is_not_called_fast(tmp_path: Path) -> None:
    root = hardware.copy("two-socket-before", tmp_path / "tree")
    for access in (0, 1):
        (root / NODE / f"node2/access{access}/initiators/read_bandwidth").write_text("30000\n")
    kinds = [node["kind"] for node in read(captured_context(root))["numa_nodes"]]
    assert kinds == ["cpu", "cpu", "memory_only"]


def test_memory_only_nodes_of_a_knights_landing_are_mcdram(tmp_path: Path) -> None:
    root = hardware.copy("knl-flat-snc4-before", tmp_path / "tree")
    cpuinfo = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 87\nmodel name\t: KNL\n"
    (root / "proc/cpuinfo").write_text(cpuinfo)
    topology = read(captured_context(root))
    assert [node["kind"] for node in topology["numa_nodes"]] == ["cpu"] * 4 + ["mcdram"] * 4
    assert {node["package"] for node in topology["numa_nodes"]} == {0}
    assert topology["sub_numa"] is True
    assert topology["packages"][0]["nodes"] == [0, 1, 2, 3]


def test_holes_in_the_node_numbers(tmp_path: Path) -> None:
    put(tmp_path, {f"{NODE}/online": "0,2,10\n"})
    for node, row in ((0, "10 21 31"), (2, "21 10 41"), (10, "31 41 10")):
        put(
            tmp_path,
            {
                f"{NODE}/node{node}/distance": row + "\n",
                f"{NODE}/node{node}/cpulist": "" if node == 10 else f"{node}\n",
                f"{NODE}/node{node}/meminfo": f"Node {node} MemTotal:  512 kB\n",
            },
        )
    for cpu in (0, 2):
        put(tmp_path, {f"{CPU}/cpu{cpu}/topology/physical_package_id": f"{cpu // 2}\n"})
    nodes = read(captured_context(tmp_path))["numa_nodes"]
    assert [node["node"] for node in nodes] == [0, 2, 10]
    assert nodes[1]["distance_nodes"] == [0, 2, 10]
    assert nodes[2]["package"] == 0  # nearest by distance: nothing else says it
    assert nodes[2]["memory_bytes"] == 512 * 1024


# Adapters


def test_unknown_speed_unknown_node_and_virtual_interfaces() -> None:
    nics = {nic["name"]: nic for nic in topology_of("two-socket-before")["nics"]}
    assert nics["eth0"]["speed_bits_per_s"] is None  # the file says -1
    assert nics["eth1"]["speed_bits_per_s"] == 10_000_000_000
    assert (nics["dummy0"]["virtual"], nics["dummy0"]["speed_bits_per_s"]) == (True, None)  # EINVAL
    assert (nics["eth0"]["virtual"], nics["eth0"]["mtu"], nics["eth0"]["state"]) == (False, 1500, "up")
    assert "lo" not in nics
    (eth0,) = [nic for nic in topology_of("vm-nothing-available")["nics"] if not nic["virtual"]]
    assert (eth0["pci"], eth0["numa_node"], eth0["cpus"]) == ("0000:00:03.0", None, "")  # -1: not told


def test_many_virtual_interfaces_are_cut_short_and_counted(tmp_path: Path) -> None:
    for number in range(40):
        folder = f"sys/devices/virtual/net/veth{number}"
        put(tmp_path, {f"{folder}/ifindex": f"{number}\n", f"{folder}/type": "1\n"})
        (tmp_path / "sys/class/net").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"sys/class/net/veth{number}").symlink_to(f"../../devices/virtual/net/veth{number}")
    put(tmp_path, {"sys/class/net/bonding_masters": "\n"})
    topology = read(captured_context(tmp_path))
    assert len(topology["nics"]) == 16
    assert topology["notes"] == ["24 more virtual network interfaces"]


def test_fabric_ports_and_their_kinds() -> None:
    ports = {port["id"]: port for tree in hardware.names() for port in topology_of(tree)["fabric_ports"]}
    kinds = {name: port["kind"] for name, port in ports.items()}
    assert kinds == {
        "port:hfi1_0/1": "omnipath",
        "port:mlx4_0/1": "roce",
        "port:mlx5_0/1": "infiniband",
        "port:rxe0/1": "rxe",
        "port:rxe1/1": "rxe",
    }
    assert ports["port:mlx5_0/1"]["rate_bits_per_s"] == 200_000_000_000
    assert (ports["port:mlx5_0/1"]["pci"], ports["port:mlx5_0/1"]["numa_node"]) == ("0000:5e:00.0", 0)
    assert ports["port:mlx4_0/1"]["numa_node"] == 1
    # Software: the rate is invented, the place is that of the interface below.
    rxe = next(p for p in topology_of("two-socket-before")["fabric_ports"] if p["device"] == "rxe0")
    assert (rxe["rate_bits_per_s"], rxe["netdev"]) == (None, "eth0")
    assert (rxe["pci"], rxe["numa_node"], rxe["state"]) == ("0000:81:00.0", 1, "ACTIVE")


def pci_device(root: Path, path: str, **files: str) -> None:
    folder = f"sys/devices/{path}"
    put(root, {f"{folder}/{name}": text + "\n" for name, text in files.items()})
    (root / folder).mkdir(parents=True, exist_ok=True)
    link = root / "sys/bus/pci/devices" / path.rpartition("/")[2]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../../devices/{path}")


SWITCH = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
PATHS = {
    "gpu": f"{SWITCH}/0000:3c:00.0/0000:3d:00.0",
    "same_switch": f"{SWITCH}/0000:3c:01.0/0000:3e:00.0",
    "second_switch": f"{SWITCH}/0000:3c:02.0/0000:40:00.0/0000:41:00.0/0000:42:00.0",
    "same_bridge": "pci0000:3a/0000:3a:02.0/0000:50:00.0",
    "same_node": "pci0000:5d/0000:5d:00.0/0000:5e:00.0",
    "other_socket": "pci0000:ae/0000:ae:00.0/0000:af:00.0",
}


@pytest.mark.parametrize(
    ("other", "path"),
    [
        ("same_switch", "PIX"),
        ("second_switch", "PXB"),
        ("same_bridge", "PHB"),
        ("same_node", "NODE"),
        ("other_socket", "SYS"),
    ],
)
def test_what_lies_between_two_adapters(tmp_path: Path, other: str, path: str) -> None:
    for name, where in PATHS.items():
        pci_device(tmp_path, where, numa_node="1" if name == "other_socket" else "0")
    ctx = captured_context(tmp_path)
    places = [place_of(ctx, f"/sys/devices/{PATHS[name]}") for name in ("gpu", other)]
    assert path_between(places[0], places[1], 2) == path
    assert path_between(places[1], places[0], 2) == path


def test_two_host_bridges_without_a_node_are_of_one_socket_only_where_there_is_one(tmp_path: Path) -> None:
    for name in ("same_node", "other_socket"):
        pci_device(tmp_path, PATHS[name], numa_node="-1")
    ctx = captured_context(tmp_path)
    places = [place_of(ctx, f"/sys/devices/{PATHS[name]}") for name in ("same_node", "other_socket")]
    assert path_between(places[0], places[1], 1) == "NODE"
    assert path_between(places[0], places[1], 2) == "SYS"


@pytest.fixture
def gpu_machine(tmp_path: Path) -> Path:
    """Two GPUs and an adapter behind one switch, known by the driver's files only."""
    link = {"current_link_speed": "2.5 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
    width = {"current_link_width": "16", "max_link_width": "16"}
    pci_device(tmp_path, f"{SWITCH}/0000:3c:00.0", **{**link, "max_link_speed": "16.0 GT/s PCIe"})
    pci_device(tmp_path, PATHS["gpu"], numa_node="1", local_cpulist="4-7", **link, **width)
    pci_device(tmp_path, PATHS["same_bridge"], numa_node="1", local_cpulist="4-7", **link, **width)
    pci_device(tmp_path, PATHS["same_switch"], numa_node="1", **link, **{**width, "current_link_width": "8"})
    folder = f"{PATHS['same_switch']}/net/eth0"
    put(tmp_path, {f"sys/devices/{folder}/ifindex": "2\n", f"sys/devices/{folder}/type": "1\n"})
    (tmp_path / "sys/class/net").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0").symlink_to(f"../../devices/{folder}")
    for address in ("0000:50:00.0", "0000:3D:00.0"):
        text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\nGPU UUID: \t GPU-0a1b\n"
        put(tmp_path, {f"proc/driver/nvidia/gpus/{address}/information": text})
    return tmp_path


def test_gpus_without_nvml_come_from_the_drivers_files(gpu_machine: Path) -> None:
    topology = read(captured_context(gpu_machine))
    first, second = topology["gpus"]
    assert (first["id"], first["pci"], first["name"]) == ("gpu:0", "0000:3d:00.0", "NVIDIA H100 80GB HBM3")
    assert (first["numa_node"], first["cpus"], first["uuid"]) == (1, "4-7", "GPU-0a1b")
    assert (second["id"], second["pci"]) == ("gpu:1", "0000:50:00.0")
    # Idle now at 2.5 GT/s; the port above it can do 16 at most: 16 lanes of 16 GT/s with 128b/130b.
    assert first["pcie"]["speed_gt_s"] == 2.5
    assert first["pcie"]["peak_bytes_per_s"] == round(16 * 16e9 * 128 / 130 / 8)
    assert topology["links"] == [
        {"a": "gpu:0", "b": "gpu:1", "class": "pcie", "path": "PHB", "peak_bytes_per_s": 31507692308},
        {"a": "gpu:0", "b": "nic:eth0", "class": "pcie", "path": "PIX", "peak_bytes_per_s": 31507692308},
        {"a": "gpu:1", "b": "nic:eth0", "class": "pcie", "path": "PHB", "peak_bytes_per_s": 31507692308},
    ]


def test_what_nvml_says_goes_before_sysfs(gpu_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = {
        "a": "gpu:0",
        "b": "gpu:1",
        "class": "gpu_link",
        "kind": "NVLink",
        "path": "NV18",
        "num_links": 18,
        "peak_bytes_per_s": 450e9,
    }
    gpu = {"id": "gpu:0", "index": 0, "pci": "00000000:3D:00.0", "name": "H100", "memory_bytes": 85 << 30}
    other = {"id": "gpu:1", "index": 1, "pci": "00000000:50:00.0"}
    monkeypatch.setattr(nvml_devices, "list_gpus", lambda _nvml, _ctx: [gpu, other])
    monkeypatch.setattr(nvml_devices, "gpu_links", lambda _nvml, _ctx: [link])
    ctx = captured_context(gpu_machine, library=lambda _load: object())
    topology = read(ctx)
    found = topology["gpus"][0]
    assert (found["pci"], found["name"], found["memory_bytes"]) == ("0000:3d:00.0", "H100", 85 << 30)
    assert (found["numa_node"], found["cpus"]) == (1, "4-7")
    links = [(one["class"], one["path"]) for one in topology["links"]]
    assert links == [("gpu_link", "NV18"), ("pcie", "PIX"), ("pcie", "PHB")]


def test_a_fault_in_nvml_costs_the_gpus_no_more(gpu_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_nvml: object, _ctx: Context) -> list[dict[str, object]]:
        raise RuntimeError("GPU is lost")

    monkeypatch.setattr(nvml_devices, "list_gpus", broken)
    monkeypatch.setattr(nvml_devices, "gpu_links", broken)
    topology = read(captured_context(gpu_machine, library=lambda _load: object()))
    assert len(topology["gpus"]) == 2
    assert any("GPU is lost" in note for note in topology["notes"])
    assert len(topology["nics"]) == 1


@pytest.mark.parametrize(
    ("told", "normal"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00010000:01:00.0", "00010000:01:00.0"),
    ],
)
def test_spellings_of_pci_addresses(told: str, normal: str) -> None:
    assert normal_address(told) == normal


# Faults


def test_this_machine_is_json_and_has_the_basics() -> None:
    topology = json.loads(json.dumps(read_topology(live_context(), "this-host")))
    assert topology["host"] == "this-host"
    assert topology["logical_cpus"] == os.cpu_count()
    assert topology["memory_bytes"] > 1 << 20
    assert topology["affinity"] == sorted(os.sched_getaffinity(0))
    assert topology["numa_nodes"] or not Path("/", NODE).exists()


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    topology = json.loads(json.dumps(read(captured_context(tmp_path))))
    for key in ("cpu_model", "sockets", "memory_bytes", "cpu_limit", "online_cpus", "logical_cpus"):
        assert topology[key] is None, key
    for key in ("numa_nodes", "packages", "caches", "gpus", "nics", "fabric_ports", "links", "notes"):
        assert topology[key] == [], key


@pytest.mark.parametrize("text", ["", "garbage\n", "-1\n", "99999999999999999999999999\n", "\udcff\x00"])
def test_files_that_hold_something_else(tmp_path: Path, text: str) -> None:
    root = hardware.copy("two-socket-before", tmp_path / "tree")
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.name != "MANIFEST.json":
            path.write_bytes(text.encode("utf-8", "surrogateescape"))
    topology = json.loads(json.dumps(read(captured_context(root))))
    assert {node["node"] for node in topology["numa_nodes"]} <= {0, 1, 2}


def test_files_that_may_not_be_read(tmp_path: Path) -> None:
    root = hardware.copy("two-socket-before", tmp_path / "tree")
    names = [f"{NODE}/node{node}/{file}" for node in range(3) for file in ("meminfo", "distance")]
    ctx = captured_context(root, errors=dict.fromkeys([*names, "proc/cpuinfo"], "EACCES"))
    topology = read(ctx)
    nodes = topology["numa_nodes"]
    assert [(node["memory_bytes"], node["distances"]) for node in nodes] == [(None, [])] * 3
    assert (topology["cpu_model"], topology["sockets"]) == (None, 2)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            },
            2.0,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_cpus_that_the_control_groups_grant(
    tmp_path: Path, files: dict[str, str], limit: float | None
) -> None:
    put(tmp_path, files)
    assert read(captured_context(tmp_path))["cpu_limit"] == limit


def test_a_large_machine_is_read_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = 200
    put(tmp_path, {f"{CPU}/online": f"0-{cpus - 1}\n"})
    for cpu in range(cpus):
        base = f"{CPU}/cpu{cpu}"
        put(tmp_path, {f"{base}/topology/physical_package_id": f"{cpu // 100}\n"})
        put(tmp_path, {f"{base}/topology/thread_siblings_list": f"{cpu}\n"})
        put(tmp_path, {f"{base}/cache/index0/level": "1\n", f"{base}/cache/index0/type": "Data\n"})
        put(
            tmp_path,
            {f"{base}/cache/index0/shared_cpu_list": f"{cpu}\n", f"{base}/cache/index0/size": "32K\n"},
        )
    for number in range(4):
        text = "Model: \t\t NVIDIA H100 80GB HBM3\n"
        put(tmp_path, {f"proc/driver/nvidia/gpus/0000:{number}b:00.0/information": text})
    reads: list[str] = []
    plain = Context.read

    def counted(ctx: Context, name: str) -> str:
        reads.append(name)
        return plain(ctx, name)

    monkeypatch.setattr(Context, "read", counted)
    topology = read(captured_context(tmp_path))
    assert (topology["sockets"], len(topology["caches"])) == (2, cpus)
    assert len(topology["gpus"]) == 4
    assert len(reads) < 7 * cpus
