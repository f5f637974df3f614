"""Storage traffic of the job and of ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfscope.collectors.cgroup import NO_RANK
from perfscope.collectors.context import Context, captured_context, live_context
from perfscope.collectors.storage import IoCounters, device_name, parse_blkio, parse_io_stat
from tests.support.hardware import by_series, copy, faulty, machine, names, tree, write

IO_STAT = (
    "259:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n"
    "8:16\n"
    "253:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n"
)
JOB = "sys/fs/cgroup/job1/io.stat"


def job_machine(tmp_path: Path, text: str = IO_STAT) -> Context:
    root = copy("two-socket-remote", tmp_path / "tree", "proc", "sys/fs/cgroup")
    write(root, {JOB: text, "proc/partitions": "major minor  #blocks  name\n\n 259        0  500 nvme0n1\n"})
    return captured_context(root, pids=lambda: (225,))


def test_bytes_of_the_job_by_device(tmp_path: Path) -> None:
    collector = IoCounters()
    collector.open(job_machine(tmp_path))
    readings = by_series(collector.sample())
    assert readings["job_read_bytes{device=nvme0n1}"] == 4096
    assert readings["job_written_bytes{device=nvme0n1}"] == 8192
    assert readings["job_read_bytes{device=253:0}"] == 4096, "a device that nobody names keeps its number"
    assert not any("8:16" in key for key in readings), "a device without traffic says nothing"
    collector.close()


def test_a_device_that_is_used_later_appears_then(tmp_path: Path) -> None:
    ctx = job_machine(tmp_path, "")
    collector = IoCounters()
    collector.open(ctx)
    assert not any(key.startswith("job") for key in by_series(collector.sample()))
    write(ctx.root, {JOB: "259:0 rbytes=512 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n"})
    assert by_series(collector.sample())["job_read_bytes{device=nvme0n1}"] == 512
    collector.close()


def test_device_names_from_sysfs(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/pci0/block/sda").mkdir(parents=True)
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/8:0").symlink_to("../../devices/pci0/block/sda")
    ctx = captured_context(tmp_path)
    assert device_name(ctx, "8:0") == "sda"
    assert device_name(ctx, "9:9") == "9:9"


def test_version_1_of_cgroups(tmp_path: Path) -> None:
    lines = "8:0 Read 100\n8:0 Write 200\n8:0 Sync 300\n8:0 Total 300\nTotal 300\n"
    write(
        tmp_path,
        {
            "proc/77/cgroup": "5:blkio:/batch/7\n",
            "sys/fs/cgroup/blkio/batch/7/blkio.throttle.io_service_bytes": lines,
        },
    )
    collector = IoCounters()
    collector.open(captured_context(tmp_path, pids=lambda: (77,)))
    assert by_series(collector.sample()) == {
        "job_read_bytes{device=8:0}": 100,
        "job_written_bytes{device=8:0}": 200,
    }
    collector.close()


def test_formats() -> None:
    assert parse_io_stat(IO_STAT)["259:0"] == {"read": 4096, "written": 8192}
    assert parse_io_stat("") == {}
    with pytest.raises(ValueError, match="N/A"):
        parse_io_stat("8:0 rbytes=N/A wbytes=1")
    assert parse_blkio("8:0 Read 1\n\nTotal 1\n") == {"8:0": {"read": 1}}


def test_bytes_of_a_rank() -> None:
    collector = IoCounters()
    collector.open(machine("two-socket-remote"))
    readings = by_series(collector.sample())
    assert readings["rank_read_chars{pid=225}"] == 1403582
    assert readings["rank_read_bytes{pid=225}"] == 0
    assert readings["rank_written_bytes{pid=225}"] == 0
    collector.close()


def test_ranks_of_another_user_are_said_once_and_the_job_goes_on(tmp_path: Path) -> None:
    ctx = faulty(job_machine(tmp_path))
    ctx.fail("/proc/225/io", "EACCES")
    capability = IoCounters().probe(ctx)
    assert capability.available
    assert {absent.what for absent in capability.absent} == {
        "rank_read_bytes",
        "rank_written_bytes",
        "rank_read_chars",
    }
    assert all("same user" in absent.remedy for absent in capability.absent)
    collector = IoCounters()
    collector.open(ctx)
    for _ in range(2):
        assert {key.partition("_")[0] for key in by_series(collector.sample())} == {"job"}
    (fact,) = collector.facts()
    assert fact.labels == {"pid": "225"}
    collector.close()


def test_a_rank_that_ends_is_no_fault(tmp_path: Path) -> None:
    ctx = faulty(job_machine(tmp_path))
    collector = IoCounters()
    collector.open(ctx)
    assert "rank_read_bytes{pid=225}" in by_series(collector.sample())
    ctx.fail("/proc/225/io", "ESRCH")
    assert "rank_read_bytes{pid=225}" not in by_series(collector.sample())
    assert not collector.facts()
    collector.close()


def test_a_job_whose_group_vanishes_ends_and_ranks_go_on(tmp_path: Path) -> None:
    ctx = faulty(job_machine(tmp_path))
    collector = IoCounters()
    collector.open(ctx)
    collector.sample()
    ctx.fail(f"/{JOB}", "ENODEV")
    for _ in range(2):
        assert {key.partition("_")[0] for key in by_series(collector.sample())} == {"rank"}
    assert [fact.value["what"] for fact in collector.facts()] == ["io.stat"]
    collector.close()


def test_nothing_is_known_without_a_rank() -> None:
    capability = IoCounters().probe(machine("two-socket-before", pids=tuple))
    assert not capability.available
    assert capability.reason == NO_RANK


def test_what_this_process_reads_is_counted(tmp_path: Path) -> None:
    pid = os.getpid()
    ctx = live_context(pids=lambda: (pid,))
    collector = IoCounters()
    collector.open(ctx)
    first = by_series(collector.sample()).get(f"rank_read_chars{{pid={pid}}}")
    if first is None:
        pytest.skip(f"/proc/PID/io: {collector.facts()}")
    place = tmp_path / "data"
    place.write_bytes(b"x" * 300_000)
    place.read_bytes()
    second = by_series(collector.sample())[f"rank_read_chars{{pid={pid}}}"]
    assert second is not None
    assert second - first >= 300_000
    collector.close()


@pytest.mark.parametrize("name", names())
def test_every_tree_can_be_probed_and_read(name: str) -> None:
    collector = IoCounters()
    ctx = captured_context(tree(name))
    capability = collector.probe(ctx)
    assert capability.available or capability.reason
    collector.open(ctx)
    collector.sample()
    collector.close()
