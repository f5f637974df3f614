"""Bytes that each mounted file system reads and writes, by all processes of this host.

Local file systems by their block device, Lustre and NFS by their clients' own counts. BeeGFS and GPFS keep
theirs behind tools that need root, so their mounts are named as not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from perfscope.collectors.base import SECOND_NS, Absent, BaseCollector, Capability, Reading, words_of
from perfscope.collectors.context import Context
from perfscope.rundir.metrics import COUNTER, Metric, Series

_SOURCE = "/proc/diskstats, Lustre llite stats, /proc/self/mountstats (NFS)"
READ = Metric(
    name="mount_read_bytes",
    unit="bytes",
    kind=COUNTER,
    source=_SOURCE,
    description="bytes that a mounted file system read from its device or servers",
)
WRITTEN = Metric(
    name="mount_written_bytes",
    unit="bytes",
    kind=COUNTER,
    source=_SOURCE,
    description="bytes that it wrote there",
)
_SECTOR = 512  # of /proc/diskstats, whatever the device's own is
_LUSTRE = ("/proc/fs/lustre/llite/*/stats", "/sys/kernel/debug/lustre/llite/*/stats")
_UNCOUNTED = {
    "beegfs": "the BeeGFS client counts bytes for beegfs-ctl alone",
    "gpfs": "GPFS counts bytes for mmpmon alone, which needs root",
}

Counts = dict[str, tuple[int, int]]  # mount -> bytes read, written


_Reader = Callable[[Context, "Sequence[Mount]"], Counts]


class Mount(Struct, frozen=True):
    """A line of /proc/self/mountinfo."""

    device: str  # major:minor
    path: str
    kind: str  # of file system
    source: str


class MountBytes(BaseCollector):
    """Once a second, of mounts that were there at the start."""

    name = "mounts"
    slow = True
    min_interval_ns = SECOND_NS

    def probe(self, ctx: Context) -> Capability:
        mounts = read_mounts(ctx.read_or("/proc/self/mountinfo"))
        counted, reasons = _readers(ctx, mounts)
        absent = tuple(
            Absent(what=f"mount_read_bytes of {mount.path}", reason=_UNCOUNTED[mount.kind])
            for mount in mounts
            if mount.kind in _UNCOUNTED
        )
        return self.capability(
            metrics=(READ, WRITTEN) if counted else (),
            source=_SOURCE,
            reason="" if counted else "; ".join(reasons) or "no mounted file system counts its bytes",
            absent=absent,
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._mounts = read_mounts(ctx.read_or("/proc/self/mountinfo"))
        self._readers = _readers(ctx, self._mounts)[0]
        self._series: dict[str, tuple[Series, Series]] = {}

    def sample(self) -> Sequence[Reading]:
        readings: list[Reading] = []
        for read in tuple(self._readers):
            begin = self._ctx.clock()
            counts, why = _count(read, self._ctx, self._mounts)
            end = self._ctx.clock()
            if why:
                self._readers.remove(read)
                self.stopped("mounts", {}, why)
            for path, values in counts.items():
                series = self._series.setdefault(path, (_series(READ, path), _series(WRITTEN, path)))
                readings += [
                    Reading(one_series, value, begin, end)
                    for one_series, value in zip(series, values, strict=True)
                ]
        return readings


def _readers(ctx: Context, mounts: Sequence[Mount]) -> tuple[list[_Reader], list[str]]:
    """What can be read here and counts a mount, and why others cannot be read."""
    tried = {read: _count(read, ctx, mounts) for read in _READERS}
    reasons = [why for _, why in tried.values() if why]
    return [read for read, (counts, _) in tried.items() if counts], reasons


def _count(read: _Reader, ctx: Context, mounts: Sequence[Mount]) -> tuple[Counts, str]:
    """What a reader counts, and why it cannot."""
    try:
        return read(ctx, mounts), ""
    except (OSError, ValueError, IndexError) as error:
        return {}, words_of(error)


def _series(metric: Metric, path: str) -> Series:
    return Series(metric, {"mount": path})


def read_mounts(text: str) -> list[Mount]:
    """Mounts of a mountinfo file; of several of one device, the first."""
    mounts: dict[tuple[str, str], Mount] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) >= 5 and len(kinds) >= 2:
            mount = Mount(fields[2], fields[4].replace("\\040", " "), kinds[0], kinds[1])
            mounts.setdefault((mount.device, mount.source), mount)
    return list(mounts.values())


def local_bytes(ctx: Context, mounts: Sequence[Mount]) -> Counts:
    """Of mounts whose device is a block device. Raises OSError, ValueError."""
    try:
        text = ctx.read("/proc/diskstats")
    except FileNotFoundError:
        return {}
    paths = {mount.device: mount.path for mount in mounts}
    counts: Counts = {}
    for line in text.splitlines():
        parts = line.split(None, 2)  # most lines are of devices without a mount
        path = paths.get(":".join(parts[:2]))
        numbers = parts[2].split() if path is not None and len(parts) > 2 else ()
        if path is not None and len(numbers) > 7:
            counts[path] = (int(numbers[3]) * _SECTOR, int(numbers[7]) * _SECTOR)
    return counts


def lustre_bytes(ctx: Context, mounts: Sequence[Mount]) -> Counts:
    """Of Lustre mounts, by llite; what the client's cache had is in it. Raises OSError, ValueError."""
    counts: Counts = {}
    for file in next((files for pattern in _LUSTRE if (files := ctx.glob(pattern))), []):
        name = file.split("/")[-2].rpartition("-")[0]  # scratch-ffff8800 is one mount of scratch
        path = next(
            (
                mount.path
                for mount in mounts
                if mount.kind == "lustre" and mount.source.rpartition("/")[2] == name
            ),
            None,
        )
        rows = {line.split()[0]: line.split() for line in ctx.read(file).splitlines() if line.strip()}
        if path is not None:
            sums = [rows.get(key, []) for key in ("read_bytes", "write_bytes")]
            reads, writes = (int(fields[6]) if len(fields) > 6 else 0 for fields in sums)
            counts[path] = (reads, writes)
    return counts


def nfs_bytes(ctx: Context, mounts: Sequence[Mount]) -> Counts:
    """Of NFS mounts, from and to their servers. Raises OSError, ValueError."""
    counts: Counts = {}
    path = ""
    for line in ctx.read_or("/proc/self/mountstats").splitlines():
        fields = line.split()
        if line.startswith("device ") and " with fstype " in line:
            name = line.partition(" mounted on ")[2].partition(" with fstype ")[0]
            path = name if line.partition(" with fstype ")[2].startswith("nfs") else ""
        elif path and fields[:1] == ["bytes:"] and len(fields) > 6:
            counts[path] = (int(fields[5]), int(fields[6]))
    return counts


_READERS: tuple[_Reader, ...] = (local_bytes, lustre_bytes, nfs_bytes)
