"""topology.json of three kinds of host, made by hand for the report's tests."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.rundir.host_records import TopologyRecord, with_document
from perfscope.rundir.typed import read_as

GIB = 1 << 30


def topology_record(document: Mapping[str, object]) -> TopologyRecord:
    """A topology.json as the reader gives it."""
    return read_as(TopologyRecord, with_document(document))


def vm_topology(host: str = "node01") -> dict[str, object]:
    """A guest with two CPUs and one NUMA node."""
    return {
        "schema_version": 1,
        "host": host,
        "kernel": "6.12.0",
        "machine": "x86_64",
        "cpu_model": "Intel(R) Xeon(R) Processor @ 2.60GHz",
        "logical_cpus": 2,
        "online_cpus": "0-1",
        "affinity": "0-1",
        "sockets": 1,
        "threads_per_core": 2,
        "cpu_limit": None,
        "memory_bytes": 8 * GIB - 41_000_000,
        "packages": [{"package": 0, "cpus": "0-1", "nodes": [0]}],
        "caches": [{"level": 3, "type": "Unified", "size_bytes": 33 << 20, "cpus": "0-1"}],
        "numa_nodes": [
            {
                "node": 0,
                "cpus": "0-1",
                "memory_bytes": 8 * GIB - 41_000_000,
                "distances": [10],
                "distance_nodes": [0],
                "kind": "cpu",
                "package": 0,
                "hmat": None,
                "tier": None,
            }
        ],
        "sub_numa": False,
        "gpus": [],
        "nics": [
            {
                "id": "nic:eth0",
                "name": "eth0",
                "pci": "0000:00:03.0",
                "numa_node": 0,
                "cpus": "0-1",
                "speed_bits_per_s": None,
                "mtu": 1500,
                "state": "up",
                "virtual": False,
                "mac": None,
            },
            {
                "id": "nic:docker0",
                "name": "docker0",
                "pci": None,
                "numa_node": None,
                "cpus": None,
                "speed_bits_per_s": None,
                "mtu": 1500,
                "state": "down",
                "virtual": True,
                "mac": None,
            },
        ],
        "fabric_ports": [],
        "links": [],
        "notes": [],
    }


def _gpu(index: int, node: int) -> dict[str, object]:
    return {
        "id": f"gpu:{index}",
        "index": index,
        "pci": f"0000:{0x18 + 0x11 * index:02x}:00.0",
        "vendor": "NVIDIA",
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{index}",
        "memory_bytes": 80 * GIB,
        "numa_node": node,
        "cpus": "0-55",
        "pcie": {
            "speed_gt_s": 32.0,
            "width": 16,
            "max_speed_gt_s": 32.0,
            "max_width": 16,
            "peak_bytes_per_s": 63.0e9,
        },
    }


def gpu_topology(host: str = "gpu01", *, num_nics: int = 4) -> dict[str, object]:
    """Two sockets, eight GPUs joined by NVLink, InfiniBand ports on either socket."""
    gpus = [_gpu(index, index // 4) for index in range(8)]
    links: list[dict[str, object]] = [
        {
            "a": f"gpu:{a}",
            "b": f"gpu:{b}",
            "class": "gpu_link",
            "kind": "NVLink",
            "path": "NV18",
            "num_links": 18,
            "peak_bytes_per_s": 450e9,
        }
        for a in range(8)
        for b in range(a + 1, 8)
    ]
    ports, half = [], num_nics // 2
    for number in range(num_nics):
        node = number // half
        ports.append(
            {
                "id": f"port:mlx5_{number}/1",
                "device": f"mlx5_{number}",
                "port": 1,
                "kind": "infiniband",
                "link_layer": "InfiniBand",
                "rate_bits_per_s": 400e9,
                "state": "ACTIVE",
                "pci": f"0000:{0x1B + 9 * number:02x}:00.0",
                "numa_node": node,
                "netdev": f"ib{number}",
            }
        )
        for index in range(8):
            path = "PIX" if index // (8 // num_nics) == number else "NODE" if index // 4 == node else "SYS"
            link = {"a": f"gpu:{index}", "b": f"port:mlx5_{number}/1", "class": "pcie", "path": path}
            links.append(link | {"peak_bytes_per_s": 63.0e9})
    nic = {
        "name": "eno1",
        "id": "nic:eno1",
        "pci": "0000:04:00.0",
        "numa_node": 0,
        "cpus": "0-55",
        "speed_bits_per_s": 25e9,
        "mtu": 1500,
        "state": "up",
        "virtual": False,
        "mac": None,
    }
    nodes = [
        {
            "node": node,
            "cpus": f"{56 * node}-{56 * node + 55},{112 + 56 * node}-{167 + 56 * node}",
            "memory_bytes": 1024 * GIB,
            "distances": [10, 21] if node == 0 else [21, 10],
            "distance_nodes": [0, 1],
            "kind": "cpu",
            "package": node,
            "hmat": None,
            "tier": 4,
        }
        for node in range(2)
    ]
    return vm_topology(host) | {
        "cpu_model": "Intel(R) Xeon(R) Platinum 8480C",
        "logical_cpus": 224,
        "online_cpus": "0-223",
        "sockets": 2,
        "memory_bytes": 2048 * GIB,
        "packages": [{"package": n, "cpus": nodes[n]["cpus"], "nodes": [n]} for n in range(2)],
        "caches": [
            {"level": 3, "type": "Unified", "size_bytes": 105 << 20, "cpus": nodes[n]["cpus"]}
            for n in range(2)
        ],
        "numa_nodes": nodes,
        "gpus": gpus,
        "nics": [nic],
        "fabric_ports": ports,
        "links": links,
    }


def knl_topology(host: str = "knl01") -> dict[str, object]:
    """A Knights Landing in SNC-4, flat: four nodes of DDR4 with CPUs, four of MCDRAM without."""
    nodes = []
    for node in range(8):
        near, fast = node % 4, node >= 4
        far = [
            10 if other == node else 31 if other % 4 == near else 41 if fast or other >= 4 else 21
            for other in range(8)
        ]
        cpus = "" if fast else f"{17 * near}-{17 * near + 16}"
        nodes.append(
            {
                "node": node,
                "cpus": cpus,
                "memory_bytes": 4 * GIB if fast else 24 * GIB,
                "distances": far,
                "distance_nodes": list(range(8)),
                "kind": "mcdram" if fast else "cpu",
                "package": None if fast else 0,
                "hmat": None,
                "tier": None,
            }
        )
    port = {
        "id": "port:hfi1_0/1",
        "device": "hfi1_0",
        "port": 1,
        "kind": "omnipath",
        "link_layer": "InfiniBand",
        "rate_bits_per_s": 100e9,
        "state": "ACTIVE",
        "pci": "0000:05:00.0",
        "numa_node": 1,
        "netdev": "ib0",
    }
    return vm_topology(host) | {
        "cpu_model": "Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz",
        "logical_cpus": 68,
        "online_cpus": "0-67",
        "threads_per_core": 1,
        "memory_bytes": 112 * GIB,
        "packages": [{"package": 0, "cpus": "0-67", "nodes": [0, 1, 2, 3]}],
        "caches": [],
        "numa_nodes": nodes,
        "sub_numa": True,
        "nics": [],
        "fabric_ports": [port],
    }
