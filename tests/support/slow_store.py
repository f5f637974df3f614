"""A store that gives few bytes per second: a loop device whose reads the kernel throttles for one cgroup.

Everything is real but the disk: files of an ext4 file system, reads that sleep in the kernel, the page cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_V1 = Path("/sys/fs/cgroup/blkio")
_V2 = Path("/sys/fs/cgroup")


@contextmanager
def slow_store(folder: Path, files: int, size: int, bytes_per_s: int) -> Iterator[tuple[Path, Path]]:
    """A mounted folder `d` with so many files of `size` bytes, and a slow `cgroup.procs`.

    Nothing of the files is in the page cache at first. Skips the test where the system cannot do it.
    """
    v1 = (_V1 / "blkio.throttle.read_bps_device").exists()
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists() or shutil.which("mkfs.ext4") is None:
        pytest.skip("a loop device needs root and mkfs.ext4")
    if not v1 and "io" not in (_V2 / "cgroup.subtree_control").read_text().split():
        pytest.skip("no cgroup can throttle reads here")
    image, mount = folder / "image", folder / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(2 * files * size + (64 << 20))
    _run("mkfs.ext4", "-q", str(image))
    loop = _run("losetup", "-f", "--show", str(image)).strip()
    group = (_V1 if v1 else _V2) / f"slow-{uuid.uuid4().hex[:8]}"
    try:
        _run("mount", loop, str(mount))
        (mount / "d").mkdir()
        for number in range(files):
            (mount / "d" / f"{number}.bin").write_bytes(os.urandom(size))
        _run("umount", str(mount))
        _run("mount", loop, str(mount))  # the page cache forgets the files
        group.mkdir()
        device = Path(loop).stat().st_rdev
        limit = f"{os.major(device)}:{os.minor(device)} "
        if v1:
            (group / "blkio.throttle.read_bps_device").write_text(f"{limit}{bytes_per_s}")
        else:
            (group / "io.max").write_text(f"{limit}rbps={bytes_per_s}")
        yield mount / "d", group / "cgroup.procs"
    finally:
        subprocess.run(["umount", str(mount)], check=False, capture_output=True)
        subprocess.run(["losetup", "-d", loop], check=False, capture_output=True)
        if group.exists():
            group.rmdir()


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout
