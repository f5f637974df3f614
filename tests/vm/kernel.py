"""A Debian kernel for the emulated machines: downloaded once, unpacked, and packed into an initrd.

Nothing is installed on this machine. The cache keeps vmlinuz and the modules that may be needed.
"""

from __future__ import annotations

import fcntl
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

KERNEL_PACKAGE = "linux-image-amd64"  # the generic one: the cloud kernel has neither 9p nor rdma_rxe
# Where the modules below and all they depend on live, under lib/modules/VERSION/kernel/.
_FOLDERS = (
    "arch/x86/crypto/",
    "crypto/",
    "drivers/infiniband/core/",
    "drivers/infiniband/sw/",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
    "drivers/virtio/",
    "fs/9p/",
    "fs/configfs/",
    "fs/fscache/",
    "fs/netfs/",
    "fs/overlayfs/",
    "lib/",
    "net/9p/",
    "net/core/",
    "net/ipv4/",
    "net/ipv6/",
    "net/sched/",
)
# In this order; what they depend on comes before them.
MODULES = (
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "crc32_generic",
    "virtio_net",
    "rdma_rxe",
    "rdma_ucm",
    "sch_netem",
)


class NoKernel(Exception):
    """No kernel can be had here; the message says why."""


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel: vmlinuz, and modules/NAME.ko with '_' for '-' in names."""

    folder: Path

    @property
    def image(self) -> Path:
        return self.folder / "vmlinuz"

    def modules_in_order(self, wanted: Sequence[str] = MODULES) -> list[Path]:
        """`wanted` and what they depend on, each after what it needs; what is built in is left out."""
        order: list[Path] = []

        def visit(name: str) -> None:
            path = self.folder / "modules" / f"{name.replace('-', '_')}.ko"
            if path in order or not path.exists():
                return
            for needed in _depends(path.read_bytes()):
                visit(needed)
            order.append(path)

        for name in wanted:
            visit(name)
        return order


def kernel(cache: Path) -> Kernel:
    """The kernel in `cache`, downloaded first where it is not there; by one process, should several ask.

    Raises:
        NoKernel: no apt, no such package, no network, or a package laid out in another way.
    """
    unpacked = Kernel(cache / f"kernel-{zlib.crc32(repr(_FOLDERS).encode()):08x}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not unpacked.image.exists():
                _fetch(cache, unpacked)
    except (OSError, subprocess.SubprocessError, tarfile.TarError, lzma.LZMAError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else ""
        reason = said.splitlines()[-1] if said else error
        raise NoKernel(f"no kernel package {KERNEL_PACKAGE}: {reason}") from error
    return unpacked


def _fetch(cache: Path, unpacked: Kernel) -> None:
    partial = cache / "kernel.partial"
    shutil.rmtree(partial, ignore_errors=True)
    package = _download(cache)
    _unpack(package, partial)
    package.unlink()
    if not (partial / "vmlinuz").exists() or not (partial / "modules" / "9p.ko").exists():
        raise NoKernel(f"the package {KERNEL_PACKAGE} has no vmlinuz or no 9p module where they are expected")
    partial.rename(unpacked.folder)


def _download(cache: Path) -> Path:
    def output(*command: str) -> str:
        done = subprocess.run(command, cwd=cache, capture_output=True, text=True, check=True, timeout=240)
        return done.stdout

    def current() -> re.Match[str] | None:
        said = subprocess.run(
            ["apt-cache", "depends", KERNEL_PACKAGE], capture_output=True, text=True, check=False
        )
        return re.search(r"Depends: (linux-image-\S+)", said.stdout)

    found = current()
    if not found and os.geteuid() == 0:  # no list of packages yet, as in a fresh container
        output("apt-get", "update")
        found = current()
    if not found:
        raise NoKernel(f"apt knows no package {KERNEL_PACKAGE} (a Debian package; try apt-get update)")
    output("apt-get", "download", found[1])
    return next(cache.glob(f"{found[1]}_*.deb"))


def _unpack(package: Path, folder: Path) -> None:
    (folder / "modules").mkdir(parents=True)
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacking:
        with tarfile.open(fileobj=unpacking.stdout, mode="r|") as archive:
            for member in archive:
                _keep(member.name.removeprefix("./").removeprefix("usr/"), archive, member, folder)
        if unpacking.wait() != 0:
            raise OSError("dpkg-deb failed")


def _keep(name: str, archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    inside = re.match(r"lib/modules/[^/]+/kernel/(.*)$", name)
    wanted = name.startswith("boot/vmlinuz-") or (inside and inside[1].startswith(_FOLDERS))
    file: IO[bytes] | None = archive.extractfile(member) if wanted and member.isreg() else None
    if file is None:
        return
    data = file.read()
    if inside is None:
        (folder / "vmlinuz").write_bytes(data)
        return
    if name.endswith(".xz"):  # Debian 13 and later
        data = lzma.decompress(data)
    stem = Path(name).name.split(".ko")[0]
    (folder / "modules" / f"{stem.replace('-', '_')}.ko").write_bytes(data)


def _depends(module: bytes) -> list[str]:
    found = re.search(rb"\0depends=([^\0]*)\0", module)
    return [name for name in (found[1].decode().split(",") if found else []) if name]


def initrd(unpacked: Kernel, busybox: Path, init: str) -> bytes:
    """A root with busybox, the modules and `init`, as the kernel wants it: a newc cpio archive."""
    modules = unpacked.modules_in_order()
    entries: list[tuple[str, int, bytes]] = [
        ("bin", 0o40755, b""),
        ("modules", 0o40755, b""),
        ("dev", 0o40755, b""),
        ("bin/busybox", 0o100755, busybox.read_bytes()),
        ("init", 0o100755, init.encode()),
        ("modules.order", 0o100644, "\n".join(path.name for path in modules).encode()),
    ]
    entries += [(f"modules/{path.name}", 0o100644, path.read_bytes()) for path in modules]
    return _cpio(entries)


def _cpio(entries: Iterable[tuple[str, int, bytes]]) -> bytes:
    """The newc format: hexadecimal header, name and data, each padded to four bytes."""
    archive = bytearray()
    for inode, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        encoded = name.encode() + b"\0"
        numbers = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        archive += b"070701" + b"".join(b"%08X" % number for number in numbers) + encoded
        archive += b"\0" * (-len(archive) % 4) + data
        archive += b"\0" * (-len(archive) % 4)
    return bytes(archive)
