"""Bytes by mounted file system, of made-up trees."""

from __future__ import annotations

from pathlib import Path

from perfscope.collectors.context import Context, captured_context
from perfscope.collectors.mounts import MountBytes, read_mounts
from tests.support.hardware import by_series, write

MOUNTINFO = (
    "22 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw\n"
    "23 1 259:1 / /again rw,relatime - ext4 /dev/nvme0n1p1 rw\n"
    "24 1 0:45 / /scratch rw - lustre 10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch rw\n"
    "25 1 0:46 / /home/my\\040data rw - nfs4 server:/home rw\n"
    "26 1 0:47 / /bee rw - beegfs beegfs_nodev rw\n"
    "27 1 0:48 / /proc rw - proc proc rw\n"
)
FILES = {
    "proc/self/mountinfo": MOUNTINFO,
    "proc/diskstats": " 259 1 nvme0n1p1 10 0 2048 5 20 0 4096 7 0 0 0\n 8 0 sda 1 0 8 0 1 0 8 0 0 0 0\n",
    "proc/fs/lustre/llite/scratch-ffff8800/stats": (
        "snapshot_time 1.0 secs.nsecs\n"
        "read_bytes 7 samples [bytes] 1 4096 28672\n"
        "write_bytes 1 samples [bytes] 512 512 512\n"
    ),
    "proc/self/mountstats": (
        "device rootfs mounted on / with fstype ext4\n"
        "device server:/home mounted on /home/my data with fstype nfs4 statvers=1.1\n"
        "\tbytes:\t1 2 3 4 5000 6000 7 8\n"
    ),
}


def tree(tmp_path: Path, **changed: str) -> Context:
    write(tmp_path, {**FILES, **changed})
    return captured_context(tmp_path)


def test_local_lustre_and_nfs_mounts_are_counted_and_others_named(tmp_path: Path) -> None:
    collector, ctx = MountBytes(), tree(tmp_path)
    capability = collector.probe(ctx)
    assert [absent.what for absent in capability.absent] == ["mount_read_bytes of /bee"]
    collector.open(ctx)
    readings = by_series(collector.sample())
    assert readings == {
        "mount_read_bytes{mount=/}": 2048 * 512,
        "mount_written_bytes{mount=/}": 4096 * 512,
        "mount_read_bytes{mount=/scratch}": 28672,
        "mount_written_bytes{mount=/scratch}": 512,
        "mount_read_bytes{mount=/home/my data}": 5000,
        "mount_written_bytes{mount=/home/my data}": 6000,
    }
    collector.close()


def test_a_mount_of_a_device_counts_once() -> None:
    assert [mount.path for mount in read_mounts(MOUNTINFO) if mount.device == "259:1"] == ["/"]


def test_a_host_without_such_mounts_says_why(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/mountinfo": "27 1 0:48 / /proc rw - proc proc rw\n"})
    capability = MountBytes().probe(captured_context(tmp_path))
    assert not capability.metrics and "no mounted file system" in capability.reason


def test_a_file_that_becomes_unreadable_ends_its_counts_alone(tmp_path: Path) -> None:
    collector, ctx = MountBytes(), tree(tmp_path)
    collector.open(ctx)
    write(tmp_path, {"proc/diskstats": " 259 1 nvme0n1p1 10 0 many 5 20 0 4096 7 0 0 0\n"})
    assert "mount_read_bytes{mount=/}" not in by_series(collector.sample())
    assert "mount_read_bytes{mount=/scratch}" in by_series(collector.sample())
