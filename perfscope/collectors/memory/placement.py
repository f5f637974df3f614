"""On which NUMA node the memory of each rank lies, and where the rank may run.

Asked of the kernel page by page for a sample (move_pages with no target moves nothing), which costs the same
whatever the size of the process. numa_maps knows exactly, but holds the process's memory map while it walks
every page: it is read once per rank, while the rank is small, for its policy.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from perfscope.collectors.base import SECOND_NS, BaseCollector, Capability, Fact, Reading, reason_of
from perfscope.collectors.context import Context
from perfscope.collectors.memory.numa_maps import Mappings, NumaMaps, parse_numa_maps, status_fields
from perfscope.collectors.nodes import node_cpus, online_nodes
from perfscope.kernel_text import parse_cpulist
from perfscope.rundir.metrics import DERIVED, GAUGE, Metric, Series

PAGES_PER_SAMPLE = 512  # 0.1 ms; the share of a node is known to within 4 % (2 sigma)
_ROUNDS = 4
RANKS_PER_SAMPLE = 2  # of several, in turn: the cost per second stays the same
_SEVERAL_NODES_NS = 2 * SECOND_NS
_ONE_NODE_NS = 60 * SECOND_NS
_MAPS_NS = 10 * SECOND_NS  # between readings of /proc/PID/maps: a millisecond for a big process
_NUMA_MAPS_LIMIT = 512 << 20  # bytes resident; up to 15 ms of walking
_UNKNOWN = "unknown"
_STATUS = ("Cpus_allowed_list", "Mems_allowed_list", "RssAnon", "VmRSS")
_ALLOW = "run the sampler as the same user as the ranks; in a container add CAP_SYS_NICE (--cap-add SYS_NICE)"


def _metric(source: str, description: str) -> Metric:
    return Metric(
        name="rank_pages",
        unit="pages",
        kind=GAUGE,
        source=source,
        description=description,
        quality=DERIVED,
        resolution="",
    )


SAMPLED = _metric(
    f"move_pages(2) of up to {PAGES_PER_SAMPLE} pages drawn from /proc/PID/maps, scaled to RssAnon",
    "private memory of a rank on the node, estimated from a sample",
)
COUNTED = _metric(
    "/proc/PID/numa_maps, all mappings, files included",
    "memory of a rank on the node, as numa_maps counts it",
)


@dataclass(slots=True)
class _Rank:
    pid: int
    labels: dict[str, str]
    series: dict[int, Series] = field(default_factory=dict)
    mappings: Mappings | None = None
    mapped_ns: int = 0
    mapped_pages: int = 0  # in memory at that time
    alive: list[int] = field(default_factory=list)  # addresses whose page was in memory
    binding: dict[str, object] = field(default_factory=dict)
    numa_maps: NumaMaps | None = None
    due_ns: int = 0
    sampling: bool = True  # move_pages works on it


class NumaPlacement(BaseCollector):
    """Pages of each rank by node (gauge, estimated), and the fact `binding` when it is new or changes."""

    name = "numa.placement"
    slow = True
    min_interval_ns = SECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self._ranks: dict[int, _Rank] = {}
        self._nodes: list[int] = []
        self._cpu_nodes: dict[int, int] = {}
        self._chance = random.Random(0)

    def probe(self, ctx: Context) -> Capability:
        nodes = online_nodes(ctx)
        counted = not ctx.live
        if not nodes:
            return self.capability(reason="no NUMA nodes: built without CONFIG_NUMA")
        return self.capability(
            metrics=(COUNTED if counted else SAMPLED,),
            source="/proc/PID/numa_maps" if counted else "move_pages(2), /proc/PID/{maps,status,numa_maps}",
            detail=f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}",
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._nodes = online_nodes(ctx)
        self._cpu_nodes = {cpu: node for node in self._nodes for cpu in node_cpus(ctx, node)}
        self._period_ns = _SEVERAL_NODES_NS if len(self._nodes) > 1 else _ONE_NODE_NS

    def sample(self) -> Sequence[Reading]:
        now = self._ctx.clock()
        pids = self._ctx.pids()
        for pid in [pid for pid in self._ranks if pid not in pids]:
            del self._ranks[pid]
        for pid in pids:
            if pid not in self._ranks:
                self._ranks[pid] = _Rank(pid, {"pid": str(pid)})
        due = sorted(
            (rank for rank in self._ranks.values() if rank.due_ns <= now), key=lambda rank: rank.due_ns
        )
        readings: list[Reading] = []
        for rank in due[:RANKS_PER_SAMPLE]:
            rank.due_ns = now + self._period_ns
            readings += self._visit(rank)
        return readings

    def _visit(self, rank: _Rank) -> list[Reading]:
        """Binding and placement of one rank; nothing where it has ended."""
        try:
            status = status_fields(self._ctx.read(f"/proc/{rank.pid}/status"), _STATUS)
        except OSError:
            return []  # it has just ended: the next list of ranks is without it
        self._read_numa_maps(rank, status)
        self._tell_binding(rank, status)
        if rank.sampling:
            try:
                return self._sampled(rank, status)
            except OSError as error:
                if self._ctx.live and error.errno in (errno.ESRCH, errno.ENOENT):
                    return []
                self._stop_sampling(rank, error)
        return self._counted(rank)

    def _sampled(self, rank: _Rank, status: dict[str, str]) -> list[Reading]:
        """Estimated pages by node.

        Raises:
            OSError: maps cannot be read, or move_pages is not allowed.
        """
        begin = self._ctx.clock()
        resident = _kib(status.get("RssAnon") or status.get("VmRSS")) * 1024 // self._ctx.page_size
        mappings = self._mappings(rank, begin, resident)
        nodes = self._draw(rank, mappings)
        end = self._ctx.clock()
        if not nodes:
            return []
        counts = Counter(nodes)
        pages = {node: round(count * resident / len(nodes)) for node, count in counts.items()}
        return self._readings(rank, SAMPLED, pages, begin, end)

    def _draw(self, rank: _Rank, mappings: Mappings) -> list[int]:
        """Nodes of the sample. Address space without pages is common (arenas, reservations): addresses
        without one are drawn anew, a few times now and again at the next visit."""
        nodes: list[int] = []
        for _ in range(_ROUNDS):
            addresses = rank.alive + mappings.draw(PAGES_PER_SAMPLE - len(rank.alive), self._chance)
            if not addresses:
                break
            states = self._ctx.syscalls.move_pages(rank.pid, addresses)
            placed = [
                (address, state) for address, state in zip(addresses, states, strict=True) if state >= 0
            ]
            rank.alive = [address for address, _ in placed]
            nodes = [state for _, state in placed]
            if len(nodes) >= PAGES_PER_SAMPLE // 2:
                break
        return nodes

    def _mappings(self, rank: _Rank, now: int, resident: int) -> Mappings:
        grown = abs(resident - rank.mapped_pages) > rank.mapped_pages // 8  # by mappings not yet known
        if rank.mappings is None or grown or now - rank.mapped_ns > _MAPS_NS:
            rank.mappings = Mappings(self._ctx.read(f"/proc/{rank.pid}/maps"), self._ctx.page_size)
            rank.mapped_pages = resident
            rank.mapped_ns, rank.alive = now, []  # memory has come and gone: draw from all of it
        return rank.mappings

    def _stop_sampling(self, rank: _Rank, error: OSError) -> None:
        rank.sampling = False
        if self._ctx.live:
            remedy = f"; {_ALLOW}" if error.errno in (errno.EPERM, errno.EACCES) else ""
            self.stopped("rank_pages by move_pages", rank.labels, reason_of(error) + remedy)

    def _counted(self, rank: _Rank) -> list[Reading]:
        """What numa_maps said, once: of a machine that runs, it is not walked again."""
        if rank.numa_maps is None:
            return []
        begin = self._ctx.clock()
        pages = rank.numa_maps.pages
        if self._ctx.live:
            rank.numa_maps = None
        return self._readings(rank, COUNTED, pages, begin, self._ctx.clock())

    def _readings(
        self, rank: _Rank, metric: Metric, pages: dict[int, int], begin: int, end: int
    ) -> list[Reading]:
        for node in (*self._nodes, *pages):
            if node not in rank.series or rank.series[node].metric is not metric:
                rank.series[node] = Series(metric, {**rank.labels, "node": str(node)})
        return [Reading(item, pages.get(node, 0), begin, end) for node, item in rank.series.items()]

    def _read_numa_maps(self, rank: _Rank, status: dict[str, str]) -> None:
        """Once per rank: it has just started and is small."""
        if rank.binding or _kib(status.get("VmRSS")) * 1024 > _NUMA_MAPS_LIMIT:
            return
        try:
            text = self._ctx.read(f"/proc/{rank.pid}/numa_maps")
        except OSError:
            return  # another user's process: the binding then says that the policy is not known
        rank.numa_maps = parse_numa_maps(text, self._ctx.page_size)

    def _tell_binding(self, rank: _Rank, status: dict[str, str]) -> None:
        cpus, mems = status.get("Cpus_allowed_list", ""), status.get("Mems_allowed_list", "")
        if rank.binding.get("cpus") == cpus and rank.binding.get("mems_allowed") == mems:
            return
        if not rank.binding:
            numa_maps = rank.numa_maps
            rank.binding = {
                "policy": numa_maps.policy if numa_maps else _UNKNOWN,
                "policies": dict(numa_maps.policies) if numa_maps else {},
            }
        rank.binding |= {"cpus": cpus, "cpu_nodes": self._nodes_of(cpus), "mems_allowed": mems}
        self._facts.append(Fact("binding", rank.labels, dict(rank.binding)))

    def _nodes_of(self, cpus: str) -> list[int]:
        try:
            return _sorted_nodes(self._cpu_nodes.get(cpu, -1) for cpu in parse_cpulist(cpus))
        except ValueError:
            return []


def _sorted_nodes(nodes: Iterable[int]) -> list[int]:
    return sorted({node for node in nodes if node >= 0})


def _kib(text: str | None) -> int:
    """``80676 kB`` -> 80676; 0 where it is something else."""
    word = (text or "").split()[:1]
    return int(word[0]) if word and word[0].isdigit() else 0
