"""Links between devices: rails of the topology picture, and a table of the ways between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from perfscope import units
from perfscope.reports.display import visible
from perfscope.reports.model import Column, Rail, Table, Value
from perfscope.vocabulary.links import LinkClass

Json = Mapping[str, object]
Pair = frozenset[str]

MOST_DEVICES = 24
PATHS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's PCIe host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between sockets",
}


def _links(topology: Json) -> dict[Pair, Json]:
    value = topology.get("links")
    link_rows = [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
    return {
        frozenset((str(row.get("a")), str(row.get("b")))): row
        for row in link_rows
        if row.get("a") != row.get("b")
    }


def device_names(topology: Json) -> dict[str, str]:
    """Short names of devices by id: ``GPU 0``, ``mlx5_0/1``, ``eth0``."""
    names: dict[str, str] = {}
    for key in ("gpus", "fabric_ports", "nics"):
        listed = topology.get(key)
        for row in listed if isinstance(listed, list) else []:
            if isinstance(row, Mapping) and isinstance(row.get("id"), str):
                name = f"GPU {row.get('index')}" if key == "gpus" else str(row["id"]).partition(":")[2]
                names[visible(row["id"], 80)] = visible(name, 40)
    return names


def rails(topology: Json, names: Mapping[str, str]) -> tuple[Rail, ...]:
    """GPUs reachable from one another over their vendor's links, one rail per group."""
    linked = {
        pair: row
        for pair, row in _links(topology).items()
        if row.get("class") == LinkClass.GPU_LINK and len(pair) == 2
    }
    rails_found = []
    for members in _groups(linked):
        inside = [row for pair, row in linked.items() if pair <= members]
        kind = visible(inside[0].get("kind") or "link", 12)
        paths = Counter(visible(row.get("path") or kind, 12) for row in inside)
        all_to_all = len(inside) == len(members) * (len(members) - 1) // 2
        peaks = [row.get("peak_bytes_per_s") for row in inside]
        peak = peaks[0] if all(other == peaks[0] for other in peaks) else None
        title = f"{kind} {'/'.join(sorted(paths))}" if len(paths) <= 3 and set(paths) != {kind} else kind
        if len(members) > 2:
            title += ", all to all" if all_to_all else ", not all to all"
        if isinstance(peak, (int, float)) and not isinstance(peak, bool):
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


def paths_table(topology: Json) -> Table | None:
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
            path = visible(link.get("path") or link.get("class") or "", 12) if link else ""
            row.append("·" if device == other else path or None)
            if path in PATHS:
                used[path] = f"over {PATHS[path]}"
            elif link and link.get("class") == LinkClass.GPU_LINK:
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


def _link_words(link: Json) -> str:
    kind, number = visible(link.get("kind") or "link", 12), link.get("num_links")
    return f"{number} {kind}s" if isinstance(number, int) and number > 1 else kind
