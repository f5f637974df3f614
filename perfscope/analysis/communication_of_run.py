"""The communication of a run, by layer and by axis, from what all ranks' windows hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perfscope.analysis.communication_record import RunComm
from perfscope.analysis.communication_results import Link, axes_of, communications
from perfscope.analysis.group_axes import AxisOfCalls, CommGroup, GroupAxes, GroupAxis
from perfscope.analysis.machine.results import WireBytes
from perfscope.analysis.machine.topology import Topology
from perfscope.analysis.rank_facts import has_unseen_calls, world_size
from perfscope.analysis.ranks import RankFiles
from perfscope.analysis.results import CollectiveResult, CommGroupResult, Communication
from perfscope.analysis.source import RunSource
from perfscope.rundir.scheme_records import SchemeRecord
from perfscope.vocabulary.communication import DEFAULT_GROUP
from perfscope.vocabulary.links import BETWEEN_HOSTS, LinkClass, NoLink

if TYPE_CHECKING:
    from concurrent.futures import Executor


def without_unseen(source: RunSource, ranks: RankFiles) -> RankFiles:
    """Where ranks communicate only in threads that are not traced, their communication is unknown, not 0."""
    records = source.rank_records
    results = tuple(
        replace(rank, comm_ns=None, unknown=(*rank.unknown, "exposed_comm"))
        if rank.comm_ns == 0 and rank.rank in records and has_unseen_calls(records[rank.rank])
        else rank
        for rank in ranks.results
    )
    return replace(ranks, results=results)


def with_communication(
    source: RunSource,
    ranks: RankFiles,
    collectives: Sequence[CollectiveResult],
    executor: Executor | None = None,
) -> tuple[RankFiles, Communication | None, tuple[CommGroupResult, ...]]:
    """The ranks with their own communication, that of the mean rank, and the groups with their axes.

    Args:
        source: the run.
        ranks: of the run.
        collectives: of the run.
        executor: does the work of each rank; None = this process.
    """
    comm = ranks.traces.layers.comm
    axes = axes_of(
        comm,
        source.run.scheme,
        ranks.traces.descriptions,
        world_size(source.run, source.rank_records) or _size_of_default(collectives),
    )
    groups = {group: use.collectives for group, use in comm.uses.items()}
    links = _links(source, groups, axes, ranks)
    exposed = {
        result.rank: result.breakdown_ns.exposed_comm
        for result in ranks.results
        if result.breakdown_ns is not None and "exposed_comm" not in result.unknown
    }
    of_rank, mean_rank = communications(comm, axes, exposed, collectives, links, executor)
    results = tuple(
        replace(result, communication=of_rank.get(result.rank)) if result.rank in exposed else result
        for result in ranks.results
    )
    comm_groups = _results(groups, axes)
    ranks.traces.layers.comm = RunComm()  # half of what is kept of a rank, and not asked for again
    return replace(ranks, results=results), mean_rank, comm_groups


def _size_of_default(collectives: Sequence[CollectiveResult]) -> int | None:
    """Ranks of the default group, where nothing states the world's and all its collectives agree."""
    sizes = {result.group_size for result in collectives if result.group == DEFAULT_GROUP}
    return sizes.pop() if len(sizes) == 1 else None


def axis_of_calls(groups: Sequence[CommGroupResult]) -> AxisOfCalls:
    """The axis of each kind of call: (collective, group) -> name."""
    return {(collective, group.group): group.axis for group in groups for collective in group.collectives}


def _results(groups: Mapping[CommGroup, Collection[str]], axes: GroupAxes) -> tuple[CommGroupResult, ...]:
    """Of every group, the kinds of calls of each axis; in order of axis and name."""
    kinds: dict[tuple[GroupAxis, CommGroup], list[str]] = defaultdict(list)
    for group, collectives in groups.items():
        for collective in collectives:
            kinds[axes.of(group, collective), group].append(collective)
    return tuple(
        CommGroupResult(
            group=group.name,
            axis=axis.name,
            inferred=axis.inferred,
            group_size=group.size or None,
            collectives=tuple(sorted(collectives)),
        )
        for (axis, group), collectives in sorted(kinds.items())
    )


def _links(
    source: RunSource,
    groups: Mapping[CommGroup, Collection[str]],
    axes: GroupAxes,
    ranks: RankFiles,
) -> dict[str, Link]:
    """Axis -> its links: the scheme's prediction, else what the hosts of its groups leave open.

    Of an axis with groups of several kinds the kind that reaches furthest counts.
    """
    scheme = source.run.scheme
    predicted = _predicted_links(scheme) if scheme is not None else {}
    has_devices = any(result.device_ns is not None for result in ranks.results)
    devices = _Devices(source) if has_devices else None
    links: dict[str, Link] = {}
    for group, collectives in groups.items():
        members = group.members or (tuple(ranks.hosts) if group.size == len(ranks.hosts) else ())
        link = _link_of({ranks.hosts.get(rank, "") for rank in members}, members, devices)
        for axis in {axes.of(group, collective).name for collective in collectives}:
            links[axis] = max(link, links.get(axis, link), key=_REACH.index)
    return links | {axis: Link(link) for axis, link in predicted.items()}


class _Devices:
    """The GPUs of the ranks, and what topology.json says is between them."""

    def __init__(self, source: RunSource) -> None:
        self._source = source
        self._topologies: dict[str, Topology] = {}

    def link(self, host: str, members: Sequence[int]) -> LinkClass | None:
        """Between the GPUs of these ranks of a host; None if that is not known."""
        if host not in self._topologies:
            self._topologies[host] = Topology.of(self._source.topology(host))
        topology, environment = self._topologies[host], self._source.run.environment
        records = self._source.rank_records
        gpus = [topology.gpu_of(records[rank].device, environment) for rank in members if rank in records]
        gpu_by_id = {gpu.id: gpu for gpu in gpus if gpu is not None}
        return topology.link_between(gpu_by_id.values()) if len(gpu_by_id) == len(members) else None


def _link_of(hosts: Collection[str], members: Sequence[int], devices: _Devices | None) -> Link:
    """Of a group whose ranks are on these hosts; "" = a host is not known."""
    if not hosts:
        return Link(None, NoLink.NO_MEMBERS)
    if "" in hosts:
        return Link(None, NoLink.NO_HOSTS)
    if len(hosts) > 1:
        return Link(None, NoLink.BETWEEN_HOSTS)
    if devices is None:
        return Link(LinkClass.LOOPBACK)
    link = devices.link(next(iter(hosts)), members)
    return Link(None, NoLink.BETWEEN_DEVICES) if link is None else Link(link)


_REACH = (
    *(Link(LinkClass.LOOPBACK), Link(LinkClass.GPU_LINK), Link(LinkClass.PCIE)),
    *(Link(None, NoLink.BETWEEN_DEVICES), Link(None, NoLink.BETWEEN_HOSTS)),
    *(Link(None, NoLink.NO_HOSTS), Link(None, NoLink.NO_MEMBERS)),
)


def with_ports(communication: Communication | None, wire: Iterable[WireBytes]) -> Communication | None:
    """Axes between hosts with the links that carried the run's bytes from host to host, by their counters.

    Args:
        communication: of the run.
        wire: of the run's hosts.
    """
    carried = {entry.link_class: entry.links for entry in wire if entry.link_class in BETWEEN_HOSTS}
    if communication is None or len(carried) != 1:
        return communication
    ((link, ports),) = carried.items()
    axes = [
        replace(entry, link_class=link, no_link=None, ports=ports)
        if entry.no_link is NoLink.BETWEEN_HOSTS or entry.link_class in BETWEEN_HOSTS
        else entry
        for entry in communication.by_axis
    ]
    return replace(communication, by_axis=tuple(axes))


def _predicted_links(scheme: SchemeRecord) -> dict[str, LinkClass]:
    """Axis -> the class of links over which the scheme's calls move most bytes."""
    moved: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for calls in scheme.calls_of_rank.values():
        for call in calls:
            for link, num_bytes in call.links.items():
                moved[call.axis][link] += num_bytes * call.count / max(call.every, 1)
    most = {axis: max(by_link, key=lambda link: by_link[link]) for axis, by_link in moved.items() if by_link}
    link_names = {link.value for link in LinkClass}
    return {axis: LinkClass(link) for axis, link in most.items() if link in link_names}
