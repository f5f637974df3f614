"""The communication of a run, by layer and by axis, from what all ranks' windows hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from perfscope.analysis.communication_results import axes_of, rank_communication, run_communication
from perfscope.analysis.group_axes import AxisOfCalls, CommGroup, GroupAxes
from perfscope.analysis.rank_facts import world_size
from perfscope.analysis.ranks import RankFiles
from perfscope.analysis.results import CollectiveResult, Communication
from perfscope.analysis.source import RunSource
from perfscope.rundir.scheme_records import SchemeRecord
from perfscope.vocabulary.links import LinkClass


def with_communication(
    source: RunSource, ranks: RankFiles, collectives: Sequence[CollectiveResult]
) -> tuple[RankFiles, Communication | None, AxisOfCalls]:
    """The ranks with their own communication, that of the mean rank, and the axis of each kind of call.

    Args:
        source: the run.
        ranks: of the run.
        collectives: of the run.
    """
    comm = ranks.traces.layers.comm
    axes = axes_of(
        comm,
        source.run.scheme,
        ranks.traces.descriptions,
        world_size(source.run, source.rank_records),
    )
    exposed = {
        result.rank: result.breakdown_ns.exposed_comm
        for result in ranks.results
        if result.breakdown_ns is not None
    }
    results = tuple(
        replace(result, communication=rank_communication(comm, result.rank, axes, exposed[result.rank]))
        if result.rank in exposed
        else result
        for result in ranks.results
    )
    groups = {group: use.collectives for group, use in comm.uses.items()}
    links = _links(source.run.scheme, groups, axes, ranks)
    whole = run_communication(comm, axes, exposed, collectives, links)
    axis_of = {
        (collective, group.name): axes.of(group, collective).name
        for group, use in comm.uses.items()
        for collective in use.collectives
    }
    return replace(ranks, results=results), whole, axis_of


def _links(
    scheme: SchemeRecord | None,
    groups: Mapping[CommGroup, Collection[str]],
    axes: GroupAxes,
    ranks: RankFiles,
) -> dict[str, LinkClass]:
    """Axis -> class of its links: the scheme's prediction, else what the hosts of its groups leave open.

    Between devices of one host it is not known.
    """
    links = _predicted_links(scheme) if scheme is not None else {}
    has_devices = any(result.device_ns is not None for result in ranks.results)
    hosts = ranks.hosts
    for group, collectives in groups.items():
        members = group.members or (tuple(hosts) if group.size == len(hosts) else ())
        if not members or any(rank not in hosts for rank in members):
            continue
        is_inside = len({hosts[rank] for rank in members}) == 1
        if not is_inside or not has_devices:
            link = LinkClass.LOOPBACK if is_inside else LinkClass.ETHERNET
            for collective in collectives:
                links.setdefault(axes.of(group, collective).name, link)
    return links


def _predicted_links(scheme: SchemeRecord) -> dict[str, LinkClass]:
    """Axis -> the class of links over which the scheme's calls move most bytes."""
    moved: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for calls in scheme.calls_of_rank.values():
        for call in calls:
            for link, num_bytes in call.links.items():
                moved[call.axis][link] += num_bytes * call.count / max(call.every, 1)
    most = {axis: max(by_link, key=lambda link: by_link[link]) for axis, by_link in moved.items() if by_link}
    known = {link.value for link in LinkClass}
    return {axis: LinkClass(link) for axis, link in most.items() if link in known}
