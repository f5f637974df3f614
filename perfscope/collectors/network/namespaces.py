"""The network namespaces that ranks live in, each with one file kept open in it.

A namespace is seen from outside through /proc/PID/net of any process in it. Who reads /sys/class/net sees
what the mount of sysfs belongs to, which in a container is another one.
"""

from __future__ import annotations

from collections.abc import Callable

from perfscope.collectors.context import Context, KeptFile

LOOK_AGAIN_NS = 10_000_000_000  # a process may move to another namespace after it has started


class NetNamespaces:
    """Keeps /proc/PID/net/<name> open for each namespace of the ranks.

    Our own namespace where there are no ranks (yet). When the last rank has gone, what was open stays open,
    so that a last reading is possible.

    Args:
        ctx: gives the ranks.
        name: file below /proc/PID/net.
        lost: called with the namespace and the reason when its file cannot be opened.
    """

    def __init__(self, ctx: Context, name: str, lost: Callable[[str, OSError], None]) -> None:
        self._ctx = ctx
        self._name = name
        self._lost = lost
        self._pids: tuple[int, ...] | None = None
        self._look_ns = 0
        self._told: set[str] = set()
        self.files: dict[str, KeptFile] = {}

    def refresh(self, now: int) -> bool:
        """Follow ranks that came or went. Whether the set of namespaces has changed."""
        pids = tuple(self._ctx.pids())
        if self._pids is not None and (not pids or (pids == self._pids and now < self._look_ns)):
            return False
        self._pids, self._look_ns = pids, now + LOOK_AGAIN_NS
        wanted: dict[str, str] = {}
        for process in [*map(str, pids), *([] if pids else own_process(self._ctx))]:
            wanted.setdefault(namespace_of(self._ctx, process), process)
        if len(wanted) > 1 or self.files:
            wanted.pop("", None)  # that rank has ended meanwhile
        if pids and not wanted:
            return False
        return self._follow(wanted)

    def _follow(self, wanted: dict[str, str]) -> bool:
        before = set(self.files)
        for namespace in before - set(wanted):
            self.drop(namespace)  # an open file would keep the namespace and its devices alive
        for namespace, process in wanted.items():
            if namespace in self.files:
                continue
            try:
                self.files[namespace] = self._ctx.keep(f"/proc/{process}/net/{self._name}")
            except OSError as error:
                if namespace not in self._told:
                    self._told.add(namespace)
                    self._lost(namespace, error)
        return set(self.files) != before

    def drop(self, namespace: str) -> None:
        """Close the file of one namespace."""
        kept = self.files.pop(namespace, None)
        if kept is not None:
            kept.close()

    def close(self) -> None:
        for namespace in list(self.files):
            self.drop(namespace)


def own_process(ctx: Context) -> list[str]:
    """What stands below /proc for us: ``self``; in a captured tree any process that was captured."""
    if ctx.exists("/proc/self/net"):
        return ["self"]
    captured = ctx.glob("/proc/[0-9]*/net")
    return [name.split("/")[2] for name in captured[:1]]


def namespace_of(ctx: Context, process: str) -> str:
    """Number of a process's network namespace; "" = not known (gone, or another user's)."""
    try:
        target = ctx.path(f"/proc/{process}/ns/net").readlink().name
    except OSError:
        return ""
    return target.removeprefix("net:[").removesuffix("]")
