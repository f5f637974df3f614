"""Ranks of the same run that live under another host name, but on this kernel: emulated hosts, containers.

Each host's sampler leaves in hosts/<host>/kernel which kernel it runs on and how that numbers processes.
Where another host of the run has left the same, its hosts/<host>/pids are processes that can be seen here.
On every other host the same number is another process.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from perfscope.collectors.base import SECOND_NS
from perfscope.collectors.context import Context
from perfscope.rundir import layout
from perfscope.rundir.files import names_in

KERNEL = "kernel"
LOOK_NS = 5 * SECOND_NS  # a run may have hundreds of hosts on a slow file system
_BOOT = "/proc/sys/kernel/random/boot_id"


class SameKernel:
    """Ranks of the run's other hosts on this kernel.

    Args:
        ctx: its `out_dir` is this host's folder in the run; without one there are no other hosts.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._own = _name_of_kernel(ctx)
        self._verdicts: dict[str, bool] = {}
        self._next_ns: int | None = None
        self._pids: frozenset[int] = frozenset()
        if ctx.out_dir is not None and self._own:
            with suppress(OSError):  # then other hosts do not know us; no more is lost
                (ctx.out_dir / KERNEL).write_text(self._own + "\n")

    def pids(self) -> frozenset[int]:
        """Their pids, looked up now and then; some may have ended."""
        now = self._ctx.clock()
        if self._ctx.out_dir is not None and self._own and (self._next_ns is None or now >= self._next_ns):
            self._next_ns = now + LOOK_NS
            self._pids = self._look(self._ctx.out_dir)
        return self._pids

    def _look(self, host_folder: Path) -> frozenset[int]:
        pids: set[int] = set()
        for host in names_in(host_folder.parent):
            if host == host_folder.name or self._verdicts.get(host) is False:
                continue
            if host not in self._verdicts and not self._judge(host_folder.parent / host, host):
                continue
            pids.update(
                int(name) for name in names_in(host_folder.parent / host / layout.PIDS) if name.isdigit()
            )
        return frozenset(pids)

    def _judge(self, folder: Path, host: str) -> bool:
        """Whether that host is on this kernel; asked again while it has not said."""
        try:
            named = (folder / KERNEL).read_text().strip()
        except OSError:
            return False
        if named:
            self._verdicts[host] = named == self._own
        return self._verdicts.get(host, False)


def _name_of_kernel(ctx: Context) -> str:
    """This boot of this kernel, and the PID namespace; "" where it is not known."""
    boot = ctx.read_or(_BOOT)
    try:
        namespace = str(ctx.path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
    return f"{boot} {namespace}" if boot else ""
