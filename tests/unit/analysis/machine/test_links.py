"""Bytes on links, energy and stacks, against what was put into the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.machine.results import LinkTraffic, MachineAnalysis, WireBytes
from perfscope.analysis.machine.stacks import top_frames
from perfscope.analysis.machine.wire import RankHosts, algorithmic
from perfscope.analysis.run import analyze_run
from perfscope.messages.missing import cause_text, figure_text
from perfscope.rundir.host_records import StacksRecord
from perfscope.rundir.typed import read_as
from perfscope.vocabulary.links import LinkClass
from tests.support.synthetic_run import comm, span
from tests.support.synthetic_samples import HOST, SampledRun, SampleFile, ticks, two_nodes

FAST = ticks(0, 40)
MS = 1_000_000
S = 1_000_000_000


def machine_of(run: SampledRun) -> MachineAnalysis:
    machine = analyze_run(run.read()).machine
    assert machine is not None
    return machine


def by_name(machine: MachineAnalysis) -> dict[tuple[str, str], LinkTraffic]:
    return {(one.name, one.direction): one for one in machine.traffic}


def test_traffic_is_that_of_the_steps_with_its_peak_and_errors(tmp_path: Path) -> None:
    file = SampleFile()
    file.rate(
        "net_tx_bytes",
        FAST,
        lambda t: 80e6 if 10 <= t < 30 else 1e9,
        unit="bytes",
        interface="eth0",
        netns="1",
    )
    file.rate("net_rx_bytes", FAST, 10e6, unit="bytes", interface="eth0", netns="1")
    file.rate("net_tx_bytes", FAST, 5e6, unit="bytes", interface="lo", netns="1")
    file.rate("net_rx_bytes", FAST, 0, unit="bytes", interface="docker0", netns="1")
    file.rate("net_errors", FAST, 0, unit="events", interface="eth0", netns="1")
    file.rate("tcp_retransmits", FAST, 2, unit="events", netns="1")
    nics = [{"id": "nic:eth0", "name": "eth0", "speed_bits_per_s": 1_000_000_000, "numa_node": 1}]
    found = by_name(machine_of(SampledRun(tmp_path, file, topology=two_nodes(nics=nics))))
    sent = found["eth0", "sent"]
    assert sent.bytes == pytest.approx(20 * 80e6, rel=0.02)
    assert sent.mean_bytes_per_s == pytest.approx(80e6, rel=0.02)
    assert (sent.peak_bytes_per_s, sent.peak_source, sent.numa_node) == (125e6, "link speed", 1)
    assert (sent.errors, found["eth0", "received"].errors) == (80, 0)
    loopback = found["lo", "sent"]
    assert (loopback.link_class, loopback.peak_bytes_per_s) == ("loopback", None)
    assert loopback.peak_source == "loopback has no peak"
    assert not any(name == "docker0" for name, _ in found)


def test_a_saturated_port_says_so_and_a_software_one_has_no_peak(tmp_path: Path) -> None:
    file = SampleFile()
    top = 2**32 - 1
    values = [min(top, top - 10**8 + round(t * 5e6)) for t in FAST]
    file.add(
        "fabric_tx_bytes", FAST, values, kind="saturating", limit=top, scale=4, unit="bytes", port="mlx5_0/1"
    )
    file.rate("fabric_tx_bytes", FAST, 1e6, unit="bytes", port="rxe0/1")
    ports = [
        {"device": "mlx5_0", "port": 1, "kind": "infiniband", "rate_bits_per_s": 100e9, "numa_node": 0},
        {"device": "rxe0", "port": 1, "kind": "rxe", "rate_bits_per_s": 2.5e9, "numa_node": -1},
    ]
    found = by_name(machine_of(SampledRun(tmp_path, file, topology=two_nodes(fabric_ports=ports))))
    hardware, software = found["mlx5_0/1", "sent"], found["rxe0/1", "sent"]
    assert (hardware.quality, hardware.peak_bytes_per_s) == ("saturated", 12.5e9)
    assert hardware.mean_bytes_per_s == pytest.approx(20e6, rel=0.01)
    assert (software.quality, software.peak_bytes_per_s, software.numa_node) == ("exact", None, None)


def test_channels_of_a_socket_are_added_and_compared_with_its_own_triad(tmp_path: Path) -> None:
    file = SampleFile()
    for channel in range(6):
        more = {"unit": "bytes", "scale": 64, "socket": "1", "channel": str(channel)}
        file.rate("dram_read_bytes", FAST, 1e8, **more)
    entries = [
        {
            "kind": "stream_triad",
            "device": "cpu",
            "node": node,
            "value": value,
            "unit": "bytes_per_s",
            "threads": 4,
        }
        for node, value in ((0, 90e9), (1, 80e9), (1, 85e9))
    ]
    run = SampledRun(tmp_path, file, topology=two_nodes(), ceilings={"entries": entries})
    machine = machine_of(run)
    (read,) = machine.traffic
    assert (read.name, read.direction, read.link_class, read.numa_node) == (
        "socket 1 DRAM",
        "read",
        "memory",
        1,
    )
    assert read.mean_bytes_per_s == pytest.approx(6 * 64e8)
    assert (read.peak_bytes_per_s, read.peak_source) == (85e9, "measured")
    track = next(one for one in machine.tracks if one.title == "socket 1 DRAM read")
    assert track.mean[0] == pytest.approx(6 * 64e8) and track.peak == 85e9


def test_resctrl_tells_local_from_remote_traffic(tmp_path: Path) -> None:
    file = SampleFile()
    for metric, rate in (("mbm_total_bytes", 10e9), ("mbm_local_bytes", 7e9)):
        file.rate(metric, FAST, rate, unit="bytes", domain="0", group="")
    found = {
        one.link_class: one for one in machine_of(SampledRun(tmp_path, file, topology=two_nodes())).traffic
    }
    assert found[LinkClass.INTRA_NUMA].mean_bytes_per_s == pytest.approx(7e9)
    assert found[LinkClass.CROSS_NUMA].mean_bytes_per_s == pytest.approx(3e9)


def wire_run(
    path: Path, sent: dict[str, float], *, num: int = 4, gpu: bool = False, step_s: float = 0.1
) -> SampledRun:
    """`num` ranks all-reduce 1 MB in every step; `sent` gives bytes per second of each interface or GPU."""
    file = SampleFile()
    for name, rate in sent.items():
        if gpu:
            file.rate("nvlink_tx_bytes", FAST, rate / 1024, unit="bytes", scale=1024, gpu=name, link="0")
        else:
            file.rate("net_tx_bytes", FAST, rate, unit="bytes", interface=name, netns="1")
    groups = [{"name": "0", "ranks": list(range(num))}]
    device = {"device": "cuda:0 X"} if gpu else {}
    ranks = [{"pid": 100 + k, "groups": groups, **device} for k in range(num)]
    run = SampledRun(path, file, topology=two_nodes(), ranks=ranks, step_s=step_s)
    steps = [(k, round((15 + k * step_s) * S), round((15 + (k + 1) * step_s) * S)) for k in range(4)]
    for rank in range(num):
        calls = [comm(start + MS, 5 * MS, k, in_bytes=10**6) for k, start, _ in steps]
        run.run.window(rank, [*calls, span(steps[0][1], MS, "compute")], steps)
    return run


def whole(machine: MachineAnalysis) -> WireBytes:
    return next(one for one in machine.wire if one.window == -1)


def test_wire_bytes_of_a_ring_agree_with_the_formula(tmp_path: Path) -> None:
    """4 ranks, 1 MB: 2 (n - 1) = 6 MB a step in all, ten steps a second."""
    machine = machine_of(wire_run(tmp_path, {"lo": 60e6}))
    run = whole(machine)
    assert (run.link_class, run.links) == ("loopback", ("lo",))
    assert run.wire_bytes == pytest.approx(run.algorithmic_bytes, rel=1e-3)
    assert run.algorithmic_bytes == pytest.approx(19.9 * 60e6, rel=0.01)
    window = next(one for one in machine.wire if one.window == 0)
    assert window.wire_bytes == pytest.approx(window.algorithmic_bytes, rel=0.01)
    assert window.dur_ns == 400 * MS and window.covered_ns <= 2 * window.dur_ns


def test_a_window_shorter_than_the_readings_around_it_is_not_compared(tmp_path: Path) -> None:
    machine = machine_of(wire_run(tmp_path, {"lo": 600e6}, step_s=0.01))
    window = next(one for one in machine.wire if one.window == 0)
    assert window.wire_bytes is None and "the readings around it are 100 ms apart" in window.reason
    assert window.algorithmic_bytes == 24 * 10**6
    assert whole(machine).wire_bytes == pytest.approx(whole(machine).algorithmic_bytes, rel=0.01)


def test_ranks_in_namespaces_of_their_own_talk_over_interfaces(tmp_path: Path) -> None:
    run = whole(machine_of(wire_run(tmp_path, {"lo": 1e3, "va": 10e6, "vb": 10e6}, num=2)))
    assert (run.link_class, run.links) == ("ethernet", ("va", "vb"))
    assert run.wire_bytes == pytest.approx(run.algorithmic_bytes, rel=0.01)


def test_ranks_on_gpus_of_one_host_talk_over_nvlink(tmp_path: Path) -> None:
    run = whole(machine_of(wire_run(tmp_path, {"0": 10e6, "1": 10e6}, num=2, gpu=True)))
    assert (run.link_class, run.links) == ("gpu_link", ("GPU 0", "GPU 1"))
    assert run.wire_bytes == pytest.approx(run.algorithmic_bytes, rel=0.01)


def test_a_ring_over_two_hosts_crosses_twice(tmp_path: Path) -> None:
    """4 ranks on 2 hosts: each host sends 2 (n - 1) / n of the tensor over its port, and as much inside."""
    run = wire_run(tmp_path, {"eth0": 15e6, "lo": 15e6})
    for rank in (2, 3):
        path = f"ranks/{rank}/rank.json"
        meta = json.loads((tmp_path / path).read_text())
        run.run.write(path, {**meta, "host": "node1"})
    samples = (tmp_path / f"hosts/{HOST}/samples.jsonl").read_text()
    run.run.write("hosts/node1/samples.jsonl", samples)
    rows = {one.link_class: one for one in machine_of(run).wire if one.window == -1}
    assert set(rows) == {"loopback", "ethernet"}
    for row in rows.values():
        assert row.wire_bytes == pytest.approx(row.algorithmic_bytes, rel=0.01)
        assert row.algorithmic_bytes == pytest.approx(2 * 19.9 * 15e6, rel=0.01)


def energy_run(path: Path, file: SampleFile, **more: Any) -> SampledRun:
    meta = {"root": {"name": "Net", "type": "DistributedDataParallel", "data_parallel": True, "dp_size": 2}}
    ranks = [{"pid": 100 + k, "world_size": 2, **meta, **more} for k in range(2)]
    return SampledRun(path, file, topology=two_nodes(), ranks=ranks)


def test_energy_of_the_steps_is_that_of_packages_memory_and_gpus(tmp_path: Path) -> None:
    """psys holds the packages, core is part of one: neither is added."""
    file = SampleFile()
    top = 262_143_328_850
    for domain, watts in (
        ("package-0", 100),
        ("package-1", 50),
        ("dram-0", 10),
        ("core-0", 80),
        ("psys", 300),
    ):
        values = [round(t * watts * 1e6 + top - 5e9) % top for t in FAST]  # wraps within the run
        file.add("rapl_energy", FAST, values, limit=top, scale=1e-6, unit="joules", domain=domain)
    file.rate("gpu_energy", FAST, 250_000, scale=1e-3, unit="joules", gpu="0")
    file.add("gpu_power", FAST, [240_000] * len(FAST), kind="gauge", scale=1e-3, unit="watts", gpu="0")
    file.add("gpu_power", FAST, [90_000] * len(FAST), kind="gauge", scale=1e-3, unit="watts", gpu="1")
    machine = machine_of(energy_run(tmp_path, file))
    assert {one.domain: round(one.mean_watts) for one in machine.energy} == {
        "CPU package 0": 100,
        "CPU package 1": 50,
        "DRAM 0": 10,
        "GPU 0": 250,
        "GPU 1": 90,
    }
    assert sum(one.joules for one in machine.energy) == pytest.approx(500 * 20, rel=1e-3)
    # 40 steps of 0.5 s, 64 samples each
    assert machine.joules_per_sample == pytest.approx(500 * 20 / (40 * 64), rel=1e-3)


def test_the_whole_platform_counts_only_where_no_package_is_readable(tmp_path: Path) -> None:
    file = SampleFile()
    file.rate("rapl_energy", FAST, 300e6, scale=1e-6, unit="joules", domain="psys")
    machine = machine_of(energy_run(tmp_path, file))
    assert [(one.domain, round(one.mean_watts)) for one in machine.energy] == [("whole platform (psys)", 300)]


def test_energy_that_was_not_read_is_missing_with_its_reason(tmp_path: Path) -> None:
    file = SampleFile()
    file.rate("cpu_busy", FAST, 100, scale=1e7, cpu="all")
    machine = machine_of(energy_run(tmp_path / "none", file))
    assert machine.energy == () and machine.joules_per_sample is None
    assert no_energy(machine) == "no energy counter was read"
    for collector, reason in (
        ("power", "no intel-rapl"),
        ("power.perf", "paranoid is 4"),
        ("nvml", "no GPU"),
    ):
        file.fact("absent", 0, {}, {"what": collector, "reason": reason}, collector=collector)
    machine = machine_of(energy_run(tmp_path / "told", file))
    assert no_energy(machine) == "RAPL: no intel-rapl; RAPL through perf: paranoid is 4; GPUs: no GPU"
    file = SampleFile()
    file.rate("rapl_energy", ticks(0, 20), 1e8, scale=1e-6, unit="joules", domain="package-0")
    machine = machine_of(energy_run(tmp_path / "half", file))
    assert machine.energy == ()
    assert no_energy(machine) == "energy was read in less than 90 % of the steps' time"


def no_energy(machine: MachineAnalysis) -> str:
    return next(cause_text(one) for one in machine.missing if "energy" in figure_text(one))


def test_top_frames_come_from_all_hosts_and_count_recursion_once() -> None:
    frames = [
        {"name": "main", "file": "train.py", "line": 3},
        {"name": "step", "file": "train.py", "line": 10},
        {"name": "step", "file": "train.py", "line": 12},
        {"name": "copy", "file": "data.py", "line": 7},
    ]
    one: dict[str, object] = {
        "shared": {"frames": frames},
        "profiles": [
            {"type": "sampled", "samples": [[0, 1, 2], [0, 3], [0, 99], []], "weights": [3.0, 1.0, 5.0, 1.0]},
            {"type": "evented", "events": []},
        ],
    }
    other: dict[str, object] = {
        "shared": {"frames": frames[:2]},
        "profiles": [{"type": "sampled", "samples": [[0, 1]], "weights": [4.0]}],
    }
    found = {
        frame.name: frame
        for frame in top_frames([read_as(StacksRecord, document) for document in (one, other, {})])
    }
    assert list(found) == ["step", "copy", "main"]
    assert (found["step"].self_ratio, found["step"].total_ratio, found["step"].line) == (7 / 8, 7 / 8, 10)
    assert (found["main"].self_ratio, found["main"].total_ratio, found["main"].line) == (0.0, 1.0, None)
    assert top_frames([]) == ()


def test_a_call_of_one_of_several_unnamed_groups_has_no_formula() -> None:
    job = RankHosts(host_of={0: "a", 1: "b", 2: "a"}, groups={"0": (0, 1), "1": (1, 2)}, on_gpu=False)
    assert job.members("1") == (1, 2)
    assert job.members("unknown") == ()
    assert algorithmic("all_reduce", job.members("unknown"), job.host_of) == {}
    assert RankHosts(host_of=job.host_of, groups={}, on_gpu=False).members("default") == (0, 1, 2)
