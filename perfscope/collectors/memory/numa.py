"""NUMA allocation counters of each node (numastat): who got memory from where it was wanted.

They count allocation *events*, not bytes and not accesses: a huge page is one event, like a 4 KiB page, and
memory on another node that was asked for there is a hit. Locality is local_node against other_node, a
policy that could not be kept is numa_miss here and numa_foreign there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.collectors.base import SECOND_NS, BaseCollector, Capability, Reading, reason_of, words_of
from perfscope.collectors.context import Context, KeptFile
from perfscope.collectors.nodes import NODES, node_cpus, online_nodes
from perfscope.collectors.pace import Pace
from perfscope.rundir.metrics import COUNTER, Metric, Series

_RESOLUTION = "allocation events; a huge page is one event whatever its size"
_MEANING = {
    "numa_hit": "allocations that got the node they wanted",
    "numa_miss": "allocations that got this node and wanted another",
    "numa_foreign": "allocations that wanted this node and got another",
    "interleave_hit": "interleaved allocations on the intended node",
    "local_node": "allocations on this node by a CPU of this node",
    "other_node": "allocations on this node by a CPU of another node",
}
METRICS = {
    name: Metric(
        name=name,
        unit="pages",
        kind=COUNTER,
        source=f"{NODES}/nodeN/numastat",
        description=meaning,
        resolution=_RESOLUTION,
    )
    for name, meaning in _MEANING.items()
}


@dataclass(slots=True)
class _Node:
    labels: dict[str, str]
    file: KeptFile
    names: list[bytes]
    series: list[Series | None]  # by position in the file; None: a counter that we do not know


class NumaCounters(BaseCollector):
    """numastat of every node, memory-only ones included."""

    name = "numa"
    min_interval_ns = SECOND_NS // 2  # placement changes slowly, and a read from a cold cache costs 90 µs

    def __init__(self) -> None:
        super().__init__()
        self._nodes: list[_Node] = []
        self._pace = Pace()

    def probe(self, ctx: Context) -> Capability:
        nodes = [node for node in online_nodes(ctx) if ctx.exists(f"{NODES}/node{node}/numastat")]
        metrics = tuple(METRICS.values())
        if not nodes:
            return self.capability(
                reason=f"no {NODES}/nodeN/numastat: the kernel is built without CONFIG_NUMA",
            )
        if ctx.read_or("/proc/sys/vm/numa_stat") == "0":
            return self.capability(
                metrics=metrics,
                source=f"{NODES}/nodeN/numastat",
                reason="vm.numa_stat is 0: the counters are disabled",
                remedy="sysctl vm.numa_stat=1 (as root)",
            )
        bare = [node for node in nodes if not node_cpus(ctx, node)]
        without = f", {len(bare)} of them without CPUs" if bare else ""
        return self.capability(
            metrics=metrics,
            source=f"{NODES}/nodeN/numastat",
            detail=f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}{without}",
        )

    def open(self, ctx: Context) -> None:
        self._clock = ctx.clock
        for node in online_nodes(ctx):
            labels = {"node": str(node)}
            try:
                file = ctx.keep(f"{NODES}/node{node}/numastat")
                names = file.read().split()[::2]
            except OSError as error:
                self.stopped("numastat", labels, reason_of(error))
                continue
            node_metrics = [METRICS.get(name.decode("ascii", "replace")) for name in names]
            series = [Series(metric, labels) if metric else None for metric in node_metrics]
            self._nodes.append(_Node(labels, file, names, series))

    def sample(self) -> Sequence[Reading]:
        begin = self._clock()
        if begin < self._pace.next_ns:
            return ()
        values: list[tuple[Series, int]] = []
        for node in tuple(self._nodes):
            values += self._counts_of(node)
        end = self._clock()
        self._pace.took(begin, end)
        return [Reading(series, value, begin, end) for series, value in values]

    def close(self) -> None:
        for node in self._nodes:
            node.file.close()
        self._nodes.clear()

    def _counts_of(self, node: _Node) -> list[tuple[Series, int]]:
        """A node that was unplugged, or gives nonsense: its counters end, the others' go on."""
        try:
            return _counts(node)
        except (OSError, ValueError) as error:
            self._nodes.remove(node)
            node.file.close()
            self.stopped("numastat", node.labels, words_of(error))
            return []


def _counts(node: _Node) -> list[tuple[Series, int]]:
    """One reading of a node.

    Raises:
        OSError: the node is gone.
        ValueError: not the format of when it was opened.
    """
    fields = node.file.read().split()
    if fields[::2] != node.names:
        raise ValueError("other counters than before")
    counts = zip(node.series, fields[1::2], strict=True)
    return [(series, int(count)) for series, count in counts if series is not None]
