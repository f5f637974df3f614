"""Peaks of links as `perfscope doctor --links` measured them, in place of link speeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.machine.results import LinkTraffic
from perfscope.analysis.run import analyze_run
from tests.support.synthetic_samples import HOST, SampledRun, SampleFile, ticks, two_nodes

TICKS = ticks(0, 40)
NICS = [{"id": f"nic:eth{n}", "name": f"eth{n}", "speed_bits_per_s": 10**9, "numa_node": 0} for n in (0, 1)]


def message(num_bytes: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "transport": "tcp",
        "collective": "send",
        "num_ranks": 2,
        "bytes": num_bytes,
        "seconds": [seconds] * 3,
        **more,
    }


def traffic(
    tmp_path: Path, calls: list[dict[str, Any]], nics: list[dict[str, Any]] = NICS
) -> dict[tuple[str, str], LinkTraffic]:
    file = SampleFile()
    for interface in ("eth0", "eth1", "lo"):
        file.rate("net_tx_bytes", TICKS, 50e6, unit="bytes", interface=interface, netns="1")
    links = [{"host": HOST, "hosts": [HOST, "other"], "calls": calls, "numa": [], "missing": []}]
    ceilings = {"entries": [], "missing": [], "links": links}
    run = SampledRun(tmp_path, file, topology=two_nodes(nics=nics), ceilings=ceilings)
    machine = analyze_run(run.read()).machine
    assert machine is not None
    return {(row.name, row.direction): row for row in machine.traffic}


def test_a_measured_link_replaces_the_speed_of_its_interface_only(tmp_path: Path) -> None:
    """The largest message counts: small ones fit a queue."""
    ends = {"hosts": [HOST, "other"], "interfaces": ["eth0", "wire9"], "link_class": "ethernet"}
    inside = {"hosts": [HOST, HOST], "interfaces": ["lo", "lo"], "link_class": "loopback"}
    found = traffic(
        tmp_path,
        [
            message(1000, 1e-6, **ends),
            message(8_000_000, 0.08, **ends),
            message(8_000_000, 0.004, **inside),
        ],
    )
    peaks: dict[str, Any] = {
        name: (row.peak_bytes_per_s, row.peak_source) for (name, _), row in found.items()
    }
    assert peaks["eth0"] == (pytest.approx(100e6), "measured, doctor --links")
    assert peaks["eth1"] == (125e6, "link speed")
    assert peaks["lo"] == (pytest.approx(2e9), "measured, doctor --links")


def test_links_of_other_hosts_say_nothing_about_this_one(tmp_path: Path) -> None:
    ends = {"hosts": ["other", "third"], "interfaces": ["eth0", "eth0"], "link_class": "ethernet"}
    found = traffic(tmp_path, [message(8_000_000, 0.08, **ends)])
    assert found["eth0", "sent"].peak_source == "link speed"
    assert found["lo", "sent"].peak_source == "loopback has no peak"


def test_traffic_beyond_what_one_connection_reached_is_held_against_the_link_speed(tmp_path: Path) -> None:
    """50 MB/s were sent; one connection had reached 20."""
    ends = {"hosts": [HOST, "other"], "interfaces": ["eth0", "eth0"], "link_class": "ethernet"}
    inside = {"hosts": [HOST, HOST], "interfaces": ["lo", "lo"], "link_class": "loopback"}
    found = traffic(tmp_path, [message(8_000_000, 0.4, **ends), message(8_000_000, 0.4, **inside)])
    assert found["eth0", "sent"].peak_bytes_per_s == 125e6
    assert found["eth0", "sent"].peak_source == "link speed"
    assert found["lo", "sent"].peak_bytes_per_s is None


@pytest.mark.parametrize("calls", [[{"hosts": 5}], [{"seconds": ["fast"]}], ["text"]])
def test_damaged_calls_leave_the_link_speed(tmp_path: Path, calls: list[Any]) -> None:
    assert traffic(tmp_path, calls)["eth0", "sent"].peak_source == "link speed"


@pytest.mark.parametrize(
    ("speed_bits", "inside_s", "source"),
    [
        (100e9, 0.002, "link speed"),  # 2 of 4 GB/s that one connection moves at all: it may be full
        (100e9, None, "link speed"),  # nothing is known of one connection, but 2 GB/s is fast for one
        (17e9, 0.002, "measured, doctor --links"),  # it fills the link
        (100e9, 0.0008, "measured, doctor --links"),  # 2 of 10 GB/s: something else than the connection
        (None, 0.002, None),
    ],
)
def test_what_one_connection_reaches_is_no_peak_of_a_faster_link(
    tmp_path: Path, speed_bits: float | None, inside_s: float | None, source: str | None
) -> None:
    ends = {"hosts": [HOST, "other"], "interfaces": ["eth0", "eth0"], "link_class": "ethernet"}
    inside = {"hosts": [HOST, HOST], "interfaces": ["lo", "lo"], "link_class": "loopback"}
    calls = [message(8_000_000, 0.004, **ends)]
    calls += [] if inside_s is None else [message(8_000_000, inside_s, **inside)]
    nics = [{"id": "nic:eth0", "name": "eth0", "speed_bits_per_s": speed_bits, "numa_node": 0}]
    row = traffic(tmp_path, calls, nics)["eth0", "sent"]
    assert (row.peak_source if row.peak_bytes_per_s else None) == source


GPUS = [
    {
        "id": f"gpu:{n}",
        "index": n,
        "uuid": f"GPU-{n}{n}",
        "pci": f"0000:{n}b:00.0",
        "name": "X",
        "vendor": "NVIDIA",
    }
    for n in range(2)
]


@pytest.mark.parametrize(
    ("calls", "peaks"),
    [
        # CUDA_VISIBLE_DEVICES=1,0: the first that PyTorch saw is the driver's second.
        ([("cuda:0", "GPU-11", ""), ("cuda:1", "GPU-00", "")], {"0": 2e9, "1": 1e9}),
        ([("cuda:0", "", "0000:1b:00.0")], {"1": 1e9}),
        ([("cuda:0", "", "")], {}),  # by an earlier version, which saw one GPU of two: not known which
        ([("cuda:0", "", ""), ("cuda:1", "", "")], {"0": 1e9, "1": 2e9}),
    ],
)
def test_copies_are_of_the_gpu_with_the_same_identity(
    tmp_path: Path, calls: list[tuple[str, str, str]], peaks: dict[str, float]
) -> None:
    file = SampleFile()
    for gpu in ("0", "1"):
        file.rate("pcie_tx_bytes", TICKS, 5e8, unit="bytes", gpu=gpu)
    copies = [
        {
            **{"transport": "copy", "collective": "send", "num_ranks": 2, "hosts": [HOST, HOST]},
            **{"device": device, "uuid": uuid, "pci": pci, "direction": "d2h", "memory": "pinned"},
            **{"bytes": 10**8, "seconds": [0.1 / (number + 1)] * 3},
        }
        for number, (device, uuid, pci) in enumerate(calls)
    ]
    links = [{"host": HOST, "hosts": [HOST], "calls": copies, "numa": [], "missing": []}]
    run = SampledRun(tmp_path, file, topology=two_nodes(gpus=GPUS), ceilings={"links": links})
    machine = analyze_run(run.read()).machine
    assert machine is not None
    found = {row.name: row.peak_bytes_per_s for row in machine.traffic if row.peak_bytes_per_s}
    assert found == {f"GPU {gpu} PCIe": pytest.approx(peak) for gpu, peak in peaks.items()}
