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


def traffic(tmp_path: Path, calls: list[dict[str, Any]]) -> dict[tuple[str, str], LinkTraffic]:
    file = SampleFile()
    for interface in ("eth0", "eth1", "lo"):
        file.rate("net_tx_bytes", TICKS, 50e6, unit="bytes", interface=interface, netns="1")
    links = [{"host": HOST, "hosts": [HOST, "other"], "calls": calls, "numa": [], "missing": []}]
    ceilings = {"entries": [], "missing": [], "links": links}
    run = SampledRun(tmp_path, file, topology=two_nodes(nics=NICS), ceilings=ceilings)
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
