"""Lines of Lustre's OSTs: rates of each, the mean time of a request, and of many the slowest."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.ost_lines import ost_tracks
from perfscope.analysis.machine.results import CounterTrack
from perfscope.analysis.machine.topology import Topology
from perfscope.rundir.host_records import CeilingsRecord, TopologyRecord
from tests.support.synthetic_samples import SampleFile

MS = 1_000_000
TIMES = [0.0, 2.0, 4.0, 6.0]


def lines_of(folder: Path, latency_ms: dict[str, float]) -> dict[str, CounterTrack]:
    """Each target answers 10 requests in the first and last interval, none between; 1 MB/s is read."""
    file = SampleFile(interval_s=2.0)
    for ost, each in latency_ms.items():
        file.rate("ost_read_bytes", TIMES, 1e6, unit="bytes", ost=ost)
        file.add("ost_written_bytes", TIMES, [0, 0, 0, 0], unit="bytes", ost=ost)
        file.add("ost_requests", TIMES, [5, 15, 15, 25], unit="requests", ost=ost)
        waits = [round(each * MS * number) for number in (5, 15, 15, 25)]
        file.add("ost_request_time", TIMES, waits, ost=ost)
    host = Host(
        name="node0",
        samples=file.read(folder),
        topology=Topology.of(TopologyRecord()),
        ceilings=CeilingsRecord(),
        ranks=[],
        steps_ns=None,
    )
    return {track.title: track for track in ost_tracks(host)}


def test_each_target_has_its_rate_and_the_mean_time_of_its_requests(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, {"scratch-OST0000": 2.0, "scratch-OST0001": 5.0})
    assert set(lines) == {
        f"scratch-OST000{number}{what}" for number in (0, 1) for what in (" read", ", time per request")
    }
    assert lines["scratch-OST0000 read"].mean == pytest.approx([1e6] * 3)
    slow = lines["scratch-OST0001, time per request"]
    assert slow.unit == "ns" and slow.mean == pytest.approx([5.0 * MS] * 2)  # no point without an answer


def test_of_many_targets_the_bytes_are_added_up_and_the_slowest_is_named(tmp_path: Path) -> None:
    latency = {f"scratch-OST{number:04x}": 1.0 for number in range(12)} | {"scratch-OST000b": 9.0}
    lines = lines_of(tmp_path, latency)
    assert set(lines) == {
        "12 OSTs of scratch read",
        "scratch-OST000b, time per request, slowest of 12",
    }
    assert lines["12 OSTs of scratch read"].mean == pytest.approx([12e6] * 3)
