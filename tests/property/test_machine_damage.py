"""A topology, ceilings or samples file with anything in the wrong place never stops the analysis of a run."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analysis.run import analyze_run
from tests.support.synthetic_run import span
from tests.support.synthetic_samples import SampledRun, SampleFile, ticks, two_nodes

TIMES = ticks(0, 40, 1.0)
TOPOLOGY = two_nodes(
    cpu_limit=4.0,
    caches=[{"level": 3, "type": "Unified", "size_bytes": 1 << 25}],
    gpus=[{"id": "gpu:0", "index": 0, "name": "X", "numa_node": 0, "pcie": {"peak_bytes_per_s": 63e9}}],
    nics=[{"name": "eth0", "numa_node": 1, "speed_bits_per_s": 1_000_000_000}],
    fabric_ports=[{"device": "mlx5_0", "port": 1, "kind": "infiniband", "rate_bits_per_s": 1e11}],
    links=[{"a": "gpu:0", "b": "gpu:1", "class": "nvlink", "path": "NV18", "peak_bytes_per_s": 450e9}],
)
CEILINGS = {
    "entries": [
        {
            "kind": "stream_triad",
            "device": "cpu",
            "node": 0,
            "threads": 4,
            "value": 5e10,
            "unit": "bytes_per_s",
        },
        {
            "kind": "gemm",
            "device": "cpu",
            "node": None,
            "dtype": "float32",
            "value": 1e12,
            "spread_ratio": 0.2,
        },
        {"kind": "device_copy", "device": "cuda:0", "value": 3e12},
    ],
    "theoretical": [
        {"what": "DRAM", "where": "socket 0", "value": 1e11, "unit": "bytes_per_s", "source": "s"}
    ],
    "missing": [{"what": "device GEMM", "reason": "no torch"}],
    "pressure": {"cpu_some_ratio": 0.5},
}
odd = st.sampled_from([None, [], {}, "", "x", -1, 0, 1.5, True, [1, "a"], {"a": 1}, "0-99999999999", 10**30])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every key and element below `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, one in items for found in ((*path, key), *places(one, (*path, key)))]


def damaged(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    result = copy.deepcopy(document)
    target: Any = result
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return result


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(places(TOPOLOGY)), st.sampled_from(places(CEILINGS)), odd, odd, st.booleans())
def test_damage_is_passed_over(
    in_topology: tuple[Any, ...], in_ceilings: tuple[Any, ...], first: Any, second: Any, on_gpu: bool
) -> None:
    topology, ceilings = damaged(TOPOLOGY, in_topology, first), damaged(CEILINGS, in_ceilings, second)
    analyze(sampled(), topology, ceilings, on_gpu=on_gpu)


def sampled() -> SampleFile:
    """Every kind of counter that has a path of its own through the analysis."""
    file = SampleFile()
    file.rate("neighbour_cpu", TIMES, 10, scale=1e7)
    file.rate("cpu_busy", TIMES, 400, scale=1e7, cpu="all")
    file.rate("cpu_busy", TIMES, 400, scale=1e7, node="0")
    file.rate("net_tx_bytes", TIMES, 1e6, unit="bytes", interface="eth0", netns="1")
    file.rate("fabric_tx_bytes", TIMES, 1e6, unit="bytes", port="mlx5_0/1")
    file.rate("dram_read_bytes", TIMES, 1e9, unit="bytes", socket="0", channel="0")
    file.rate("nvlink_tx_bytes", TIMES, 1e6, unit="bytes", gpu="0", link="0")
    file.rate("pcie_tx_bytes", TIMES, 1e6, unit="bytes", gpu="0", limit=2**32)
    file.add("node_memory_free", TIMES, [1000] * len(TIMES), kind="gauge", unit="bytes", node="0")
    file.add("rank_pages", TIMES, [1000] * len(TIMES), kind="gauge", unit="pages", pid="100", node="1")
    file.rate("rapl_energy", TIMES, 1e8, scale=1e-6, unit="joules", domain="package-0", limit=2**32)
    file.rate("gpu_throttle_time", TIMES, 1e8, gpu="0", reason="sw_power_cap")
    file.add("gpu_power", TIMES, [300.5] * len(TIMES), kind="gauge", unit="watts", gpu="0")
    file.fact("binding", 1, {"pid": "100"}, {"cpus": "0-3", "cpu_nodes": [0], "policy": "default"})
    file.fact("neighbour", 15, {"pid": "9"}, {"command": "x", "user": "u", "cpu_ns": 10**9, "since_ns": 5})
    file.fact("absent", 1, {}, {"what": "power", "reason": "none"}, collector="power")
    file.end("every rank has ended", cpu_ns=10**8, wall_ns=10**10, ticks=100, late_ticks=1)
    return file


class DamagedFile(SampleFile):
    """A sample file with other values in some places."""

    def __init__(self, whole: list[Any], damage: list[tuple[tuple[Any, ...], Any]]) -> None:
        super().__init__()
        self._lines = copy.deepcopy(whole)
        for path, value in damage:
            target: Any = self._lines
            for key in path[:-1]:
                is_there = isinstance(target, (dict, list)) and (
                    key in target if isinstance(target, dict) else isinstance(key, int) and key < len(target)
                )
                target = target[key] if is_there else None
            if isinstance(target, dict) or (isinstance(target, list) and path[-1] in range(len(target))):
                target[path[-1]] = copy.deepcopy(value)  # one value may be drawn for several places


LINES = [json.loads(line) for line in sampled().text.splitlines()]
PLACES = places(LINES)
# Rows outnumber what says what they mean: each kind is drawn as often.
IN_ROWS = [path for path in PLACES if isinstance(LINES[path[0]], list)]
ELSEWHERE = [path for path in PLACES if not isinstance(LINES[path[0]], list)]
far = st.sampled_from(
    [1e30, -1e30, 1e300, 5e-324, 0.5, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 10**18, 10**17, "counter"]
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.one_of(st.sampled_from(IN_ROWS), st.sampled_from(ELSEWHERE)), st.one_of(odd, far)),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_damaged_samples_are_passed_over(damage: list[tuple[tuple[Any, ...], Any]], on_gpu: bool) -> None:
    analyze(DamagedFile(LINES, damage), TOPOLOGY, CEILINGS, on_gpu=on_gpu)


def analyze(file: SampleFile, topology: dict[str, Any], ceilings: dict[str, Any], *, on_gpu: bool) -> None:
    """Nothing is raised, warnings included, and the host is there."""
    with tempfile.TemporaryDirectory() as folder:
        run = SampledRun(
            Path(folder),
            file,
            topology=topology,
            ceilings=ceilings,
            ranks=[{"pid": 100, "device": "cuda:0 X" if on_gpu else "cpu", "affinity": [0, 1, 2, 3]}],
        )
        work = {"layer": "a", "phase": "forward", "flops": 10**9, "bytes_read": 10**6}
        run.run.window(0, [span(0, 10**6, "compute", **work)], [(0, 0, 10**7)])
        machine = analyze_run(run.read()).machine
    assert machine is not None and machine.hosts == ("node0",)
