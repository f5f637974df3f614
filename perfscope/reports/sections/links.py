"""Links between devices: rails of the topology picture, and a table of the ways between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from perfscope import units
from perfscope.reports.display import visible
from perfscope.reports.model import Column, Rail, Table, Value
from perfscope.rundir.host_records import LinkRow, TopologyRecord
from perfscope.vocabulary.links import LinkClass

Pair = frozenset[str]

MOST_DEVICES = 24
PATHS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's PCIe host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between sockets",
}


def _links(topology: TopologyRecord) -> dict[Pair, LinkRow]:
    return {frozenset((link.a, link.b)): link for link in topology.links if link.a != link.b}


def device_names(topology: TopologyRecord) -> dict[str, str]:
    """Short names of devices by id: ``GPU 0``, ``mlx5_0/1``, ``eth0``."""
    names = {gpu.id: f"GPU {gpu.index}" for gpu in topology.gpus}
    network = [*(port.id for port in topology.fabric_ports), *(nic.id for nic in topology.nics)]
    names |= {device: device.partition(":")[2] for device in network}
    return {visible(device, 80): visible(name, 40) for device, name in names.items() if device}


def rails(topology: TopologyRecord, names: Mapping[str, str]) -> tuple[Rail, ...]:
    """GPUs reachable from one another over their vendor's links, one rail per group."""
    linked = {
        pair: link
        for pair, link in _links(topology).items()
        if link.link_class == LinkClass.GPU_LINK and len(pair) == 2
    }
    rails_found = []
    for members in _groups(linked):
        inside = [link for pair, link in linked.items() if pair <= members]
        kind = visible(inside[0].kind or "link", 12)
        paths = Counter(visible(link.path or kind, 12) for link in inside)
        all_to_all = len(inside) == len(members) * (len(members) - 1) // 2
        peaks = [link.peak_bytes_per_s for link in inside]
        peak = peaks[0] if all(other == peaks[0] for other in peaks) else None
        title = f"{kind} {'/'.join(sorted(paths))}" if len(paths) <= 3 and set(paths) != {kind} else kind
        if len(members) > 2:
            title += ", all to all" if all_to_all else ", not all to all"
        if peak is not None:
            title += f", {units.format_rate(peak)} each way"
        ordered = tuple(name for name in names if name in members)
        rails_found.append(Rail(title=title, link_class=LinkClass.GPU_LINK, members=ordered))
    return tuple(rail for rail in rails_found if len(rail.members) > 1)


def _groups(pairs: Iterable[Pair]) -> list[frozenset[str]]:
    """Connected components, in the order in which they are met."""
    groups: list[frozenset[str]] = []
    for pair in pairs:
        touching = [group for group in groups if group & pair]
        joined = pair.union(*touching)
        groups = [group for group in groups if group not in touching]
        groups.append(joined)
    return groups


def paths_table(topology: TopologyRecord) -> Table | None:
    """Which way leads from each GPU to each other device; None below two GPUs."""
    links, names = _links(topology), device_names(topology)
    linked = {device for pair in links for device in pair}
    gpus = [device for device in names if device.startswith("gpu:") and device in linked]
    linked_devices = [device for device in names if device in linked][:MOST_DEVICES]
    if len(gpus) < 2:
        return None
    rows: list[tuple[Value, ...]] = []
    used: dict[str, str] = defaultdict(str)
    for device in gpus[:MOST_DEVICES]:
        row: list[Value] = [names[device]]
        for other in linked_devices:
            link = links.get(frozenset((device, other)))
            path = visible(link.path or link.link_class, 12) if link else ""
            row.append("·" if device == other else path or None)
            if path in PATHS:
                used[path] = f"over {PATHS[path]}"
            elif link and link.link_class == LinkClass.GPU_LINK:
                used[path] = _link_words(link)
        rows.append(tuple(row))
    ordered = [path for path in used if path not in PATHS] + [path for path in PATHS if path in used]
    legend = "; ".join(f"{path}: {used[path]}" for path in ordered)
    return Table(
        id="paths-table",
        title="Ways between devices",
        columns=(
            Column(key="from", title="From", primary=True),
            *(Column(key=f"to-{n}", title=names[device]) for n, device in enumerate(linked_devices)),
        ),
        rows=tuple(rows),
        caption=f"{legend}." if legend else "",
    )


def _link_words(link: LinkRow) -> str:
    kind, number = visible(link.kind or "link", 12), link.num_links
    return f"{number} {kind}s" if number is not None and number > 1 else kind
