"""The control group that holds all ranks of this host: versions 1 and 2, and both at once ("hybrid").

Its files count the whole job, data loader workers included, which no /proc/PID file does. Ranks in groups
of their own (a Slurm task each) share the nearest ancestor. The root group counts the whole machine, so a
job in it has none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from perfscope.collectors.context import Context, KeptFile
from perfscope.collectors.machine.environment import container

_BASE = "/sys/fs/cgroup"
_NEVER_IN_ROOT = ("cgroup.type", "cpu.max", "memory.current", "memory.max")
NO_RANK = "no training process is known"
IN_ROOT = "the ranks are in the root cgroup, which counts the whole machine"
_ACCOUNTING = "--scope -p CPUAccounting=yes -p MemoryAccounting=yes -p IOAccounting=yes perfscope run ..."
_ELSEWHERE = "give the job a batch step or a container of its own: either has a cgroup of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCgroup:
    """Folders with the job's files.

    Attributes:
        v2: folder of the unified hierarchy; "" = none, or the root.
        v1: controller -> folder.
        reason: why there is none at all; "" when there is one.
        has_rank: a rank is known whose group it is.
    """

    v2: str = ""
    v1: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    has_rank: bool = True

    def remedy(self, ctx: Context) -> str:
        """How to get the files that are missing; "" while no rank is known, and where nothing would help."""
        return own_group(ctx) if self.has_rank else ""

    def lacks(self, name: str) -> str:
        """Why there is no file `name`."""
        why = "it is in the root group, or the controller is not enabled"
        return self.reason or f"the job has no cgroup of its own with {name}: {why}"

    def file(self, ctx: Context, v2: str, controller: str, v1: str) -> tuple[str, int]:
        """Path and version of a file: `v2` of the unified hierarchy, else `v1` of the controller; ("", 0)."""
        if self.v2 and ctx.exists(f"{self.v2}/{v2}"):
            return f"{self.v2}/{v2}", 2
        folder = self.v1.get(controller)
        if v1 and folder and ctx.exists(f"{folder}/{v1}"):
            return f"{folder}/{v1}", 1
        return "", 0


class JobWatch:
    """Finds the job's cgroup, and again when ranks appear. It only ever widens: a rank that ends stays."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._seen: set[int] = set()
        self._paths: dict[str, str] = {}
        self.group = JobCgroup(reason=NO_RANK, has_rank=False)
        self.look()

    def look(self) -> bool:
        """Whether the group is another one than before. Cheap while no rank is new."""
        new = [pid for pid in self._ctx.pids() if pid not in self._seen]
        if not new:
            return False
        for pid in new:
            paths = _memberships(self._ctx, pid)
            if paths:
                self._seen.add(pid)
            for controller, path in paths.items():
                self._paths[controller] = _shared(self._paths.get(controller, path), path)
        group = _located(self._ctx, self._paths)
        changed, self.group = group != self.group, group
        return changed


class JobFile:
    """A file of the job's cgroup kept open, whose counters go on where they stood when the group widens."""

    def __init__(self, ctx: Context, path: str) -> None:
        self.path = path
        self._ctx = ctx
        self._file: KeptFile | None = None
        self._offsets: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._fresh = False

    def read(self) -> bytes:
        """Its text.

        Raises:
            OSError: cannot be read; the group may be gone.
        """
        if self._file is None:
            self._file = self._ctx.keep(self.path)
        return self._file.read()

    def move(self, path: str) -> None:
        """Read another group's file from now on."""
        self.close()
        self.path, self._fresh = path, True

    def spliced(self, raw: Iterable[tuple[str, int]]) -> dict[str, int]:
        """Counters by name, continued across moves."""
        values: dict[str, int] = {}
        for name, value in raw:
            if self._fresh and name in self._last:
                self._offsets[name] = self._last[name] - value
            values[name] = self._last[name] = value + self._offsets.get(name, 0)
        self._fresh = False
        return values

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def own_group(ctx: Context) -> str:
    """How a run gets a cgroup of its own on this machine; "" in a container, which cannot make any."""
    if container(ctx):
        return ""
    if ctx.exists("/run/systemd/system"):
        if ctx.euid == 0:
            return f"start the run in a cgroup of its own: systemd-run {_ACCOUNTING}"
        bus = ctx.live and os.environ.get("DBUS_SESSION_BUS_ADDRESS")
        if bus or ctx.exists(f"/run/user/{ctx.euid}/bus"):
            return f"start the run in a cgroup of its own: systemd-run --user {_ACCOUNTING}"
    return _ELSEWHERE


def job_cgroup(ctx: Context) -> JobCgroup:
    """The job's group now; before there are ranks, that of this process, from which they are started."""
    if not ctx.pids() and ctx.live:
        return _located(ctx, _memberships(ctx, "self"))
    return JobWatch(ctx).group


def _memberships(ctx: Context, pid: int | str) -> dict[str, str]:
    """/proc/PID/cgroup: controller -> path; "" is the unified hierarchy."""
    paths: dict[str, str] = {}
    for line in ctx.read_or(f"/proc/{pid}/cgroup").splitlines():
        _, _, remainder = line.partition(":")
        controllers, colon, path = remainder.partition(":")
        if not colon or "/.." in path:  # above the root of our cgroup namespace: not to be seen from here
            continue
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _shared(path: str, other: str) -> str:
    """The nearest common ancestor of two paths."""
    shared = []
    for mine, theirs in zip(path.split("/"), other.split("/"), strict=False):
        if mine != theirs:
            break
        shared.append(mine)
    return "/".join(shared) or "/"


def _located(ctx: Context, paths: Mapping[str, str]) -> JobCgroup:
    if not paths:
        return JobCgroup(reason=NO_RANK, has_rank=False)
    v2 = _v2_folder(ctx, paths.get("", ""))
    v1 = {name: folder for name, path in paths.items() if name and (folder := _v1_folder(ctx, name, path))}
    return JobCgroup(v2=v2, v1=v1, reason="" if v2 or v1 else IN_ROOT)


def _v2_folder(ctx: Context, path: str) -> str:
    mount = f"{_BASE}/unified" if ctx.exists(f"{_BASE}/unified") else _BASE
    if not path or (mount == _BASE and not ctx.exists(f"{_BASE}/cgroup.controllers")):
        return ""
    folder = _below(ctx, mount, path)
    if folder == mount and not any(ctx.exists(f"{folder}/{name}") for name in _NEVER_IN_ROOT):
        return ""
    return folder


def _v1_folder(ctx: Context, controller: str, path: str) -> str:
    mount = f"{_BASE}/{controller.removeprefix('name=')}"
    if not ctx.exists(mount):
        return ""
    folder = _below(ctx, mount, path)
    return "" if folder == mount and ctx.exists(f"{mount}/release_agent") else folder


def _below(ctx: Context, mount: str, path: str) -> str:
    """The group's folder; the mount itself where a container sees only its own part of the tree."""
    folder = mount + path.rstrip("/")
    return folder if ctx.exists(folder) else mount
