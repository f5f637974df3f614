"""Counts of Lustre's OSTs, of made-up trees in the format of clients' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.collectors.context import captured_context
from perfscope.collectors.lustre_osts import MOST_OSTS, LustreOsts, ost_counts, ost_files
from tests.support.hardware import by_series, write

STATS = (
    "snapshot_time             1700000000.123456 secs.usecs\n"
    "req_waittime              40 samples [usec] 51 900 8000 4000000\n"
    "req_active                40 samples [reqs] 1 4 60 120\n"
    "read_bytes                7 samples [bytes] 4096 1048576 3145728 1099511627776\n"
    "write_bytes               2 samples [bytes] 512 512 1024 524288\n"
    "ost_read                  7 samples [usec] 100 900 5000 3000000\n"
    "ost_write                 2 samples [usec] 100 900 1000 1000000\n"
)
PROC, DEBUG = "proc/fs/lustre/osc", "sys/kernel/debug/lustre/osc"


def name(number: int) -> str:
    return f"scratch-OST{number:04x}-osc-ffff8800"


def test_bytes_and_times_of_each_target_are_counted(tmp_path: Path) -> None:
    idle = "snapshot_time 1.5 secs.nsecs\nreq_waittime 3 samples [usec] 10 20 45 800\n"
    write(tmp_path, {f"{PROC}/{name(0)}/stats": STATS, f"{PROC}/{name(10)}/stats": idle})
    collector, ctx = LustreOsts(), captured_context(tmp_path)
    capability = collector.probe(ctx)
    assert len(capability.metrics) == 4 and not capability.absent
    collector.open(ctx)
    assert by_series(collector.sample()) == {
        "ost_read_bytes{ost=scratch-OST0000}": 3145728,
        "ost_written_bytes{ost=scratch-OST0000}": 1024,
        "ost_requests{ost=scratch-OST0000}": 40,
        "ost_request_time{ost=scratch-OST0000}": 8_000_000,
        "ost_read_bytes{ost=scratch-OST000a}": 0,
        "ost_written_bytes{ost=scratch-OST000a}": 0,
        "ost_requests{ost=scratch-OST000a}": 3,
        "ost_request_time{ost=scratch-OST000a}": 45_000,
    }
    collector.close()


def test_the_files_may_be_in_debugfs_and_those_of_servers_are_left_out(tmp_path: Path) -> None:
    files = {f"{DEBUG}/{name(1)}/stats": STATS, f"{DEBUG}/scratch-OST0001-osc-MDT0000/stats": STATS}
    write(tmp_path, files)
    assert list(ost_files(captured_context(tmp_path))) == ["scratch-OST0001"]


def test_times_that_a_version_does_not_count_are_absent_with_the_reason(tmp_path: Path) -> None:
    only_bytes = "snapshot_time 1.0 secs.nsecs\nread_bytes 1 samples [bytes] 4096 4096 4096\n"
    write(tmp_path, {f"{PROC}/{name(0)}/stats": only_bytes})
    capability = LustreOsts().probe(captured_context(tmp_path))
    assert [metric.name for metric in capability.metrics] == ["ost_read_bytes", "ost_written_bytes"]
    assert [absent.what for absent in capability.absent] == ["ost_requests", "ost_request_time"]


def test_reads_and_writes_stand_for_requests_where_these_have_no_row() -> None:
    text = "\n".join(line for line in STATS.splitlines() if not line.startswith("req_"))
    counts = {metric.name: value for metric, value in ost_counts(text).items()}
    assert counts["ost_requests"] == 9 and counts["ost_request_time"] == 6_000_000


@pytest.mark.parametrize("text", ["", "hello\n", "read_bytes many samples [bytes] 1 2 3\n"])
def test_what_is_no_such_file_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        ost_counts(text)


def test_a_target_that_becomes_unreadable_ends_its_counts_alone(tmp_path: Path) -> None:
    write(tmp_path, {f"{PROC}/{name(number)}/stats": STATS for number in (0, 1)})
    collector, ctx = LustreOsts(), captured_context(tmp_path)
    collector.open(ctx)
    (tmp_path / PROC / name(0) / "stats").unlink()
    readings = by_series(collector.sample())
    assert set(readings) == {key for key in readings if "OST0001" in key} and len(readings) == 4


def test_of_very_many_targets_some_are_read_and_the_others_are_stated(tmp_path: Path) -> None:
    write(tmp_path, {f"{PROC}/{name(number)}/stats": STATS for number in range(MOST_OSTS + 3)})
    [absent] = LustreOsts().probe(captured_context(tmp_path)).absent
    assert absent.what == "3 more OSTs"


def test_a_host_without_lustre_says_so(tmp_path: Path) -> None:
    capability = LustreOsts().probe(captured_context(tmp_path))
    assert not capability.metrics and "no Lustre client" in capability.reason
