"""Sections "Memory, links and energy" and "Python on the host": where data lay, moved, and what it cost."""

from __future__ import annotations

from perfscope import units
from perfscope.analysis.machine.results import LinkTraffic, MachineAnalysis, RankPlacement, WireBytes
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.links import TITLES
from perfscope.messages.lists import plural
from perfscope.messages.sentences import capital
from perfscope.reports.display import visible
from perfscope.reports.model import (
    Bar,
    Block,
    ChartPart,
    Column,
    RowNote,
    Section,
    StackedBars,
    Table,
    Unit,
    Value,
)
from perfscope.reports.sections.flame import stack_icicle
from perfscope.vocabulary.links import LinkClass

MOST_BARS = 32
MOST_NODES = 8
# Colors that tell NUMA nodes apart; the names are those of the palette's parts.
NODE_COLORS = ("compute", "input_wait", "optimizer", "copy", "forward", "exposed_comm", "host", "backward")
QUALITY_WORDS = {"exact": "", "saturated": "counter at its top", "ambiguous": "a wrap may be missing"}


def traffic_section(analysis: RunAnalysis) -> Section | None:
    machine = analysis.machine
    if machine is None:
        return None
    blocks: list[Block] = [*_locality(machine)]
    if machine.traffic:
        blocks.append(_traffic_table(machine))
    if machine.wire:
        blocks.append(_wire_table(machine))
    if machine.energy:
        blocks.append(_energy_table(machine))
    if not blocks:
        return None
    return Section(
        id="traffic",
        title="Memory, links and energy",
        lead=_lead(machine),
        blocks=tuple(blocks),
        tables="spaced",
    )


def _lead(machine: MachineAnalysis) -> str:
    parts = []
    shares = [p.local_ratio for p in machine.placements if p.local_ratio is not None]
    if shares:
        mean, worst = sum(shares) / len(shares), min(machine.placements, key=_local)
        parts.append(f"{units.format_ratio(mean, 0)} of the ranks' memory is local to their CPUs")
        if len(shares) > 1 and worst.local_ratio is not None and worst.local_ratio < mean - 0.05:
            parts[-1] += f" (rank {worst.rank}: {units.format_ratio(worst.local_ratio, 0)})"
    if machine.joules_per_sample is not None:
        joules = units.format_si(machine.joules_per_sample, "J")
        parts.append(f"a sample takes {joules}")
    if machine.traffic:
        parts.append(f"link bytes and rates are over {_counted(machine)}")
    sentence = "; ".join(parts)
    return f"{capital(sentence)}." if parts else ""


def _counted(machine: MachineAnalysis) -> str:
    """The time that sums and means of links go over."""
    if machine.steps_start_ns is None or machine.steps_end_ns is None:
        return "all readings"
    lasted = units.format_ns(machine.steps_end_ns - machine.steps_start_ns)
    return f"the training steps ({lasted}, first start to last end)"


def _local(placement: RankPlacement) -> float:
    return 2.0 if placement.local_ratio is None else placement.local_ratio


def _locality(machine: MachineAnalysis) -> list[Block]:
    if not machine.placements:
        return []
    blocks: list[Block] = []
    placements = [p for p in machine.placements if p.memory_nodes]
    nodes = sorted({node for p in placements for node in p.memory_nodes})
    if len(nodes) > 1 or any((p.local_ratio or 0) < 1 for p in placements):
        blocks.append(_locality_chart(placements, nodes))
    blocks.append(_placement_table(machine))
    return blocks


def _locality_chart(placements: list[RankPlacement], nodes: list[int]) -> StackedBars:
    charted = sorted(placements, key=_local)[:MOST_BARS] if len(placements) > MOST_BARS else placements
    drawn = nodes[:MOST_NODES]
    parts = [ChartPart(key=NODE_COLORS[n], title=f"node {node}") for n, node in enumerate(drawn)]
    if len(nodes) > MOST_NODES:
        drawn, parts = nodes[: MOST_NODES - 1], parts[: MOST_NODES - 1]
        parts.append(
            ChartPart(key=NODE_COLORS[MOST_NODES - 1], title=f"{len(nodes) - len(drawn)} other nodes")
        )
    of = f" The {MOST_BARS} least local of {len(placements):,} ranks." if len(placements) > MOST_BARS else ""
    return StackedBars(
        id="locality-chart",
        title="Memory of each rank by NUMA node",
        parts=tuple(parts),
        bars=tuple(_locality_bar(placement, drawn, len(parts)) for placement in charted),
        caption=f"At the end: the share on the nodes of the rank's own CPUs.{of}",
        unit=Unit.RATIO,
    )


def _locality_bar(placement: RankPlacement, drawn: list[int], num_parts: int) -> Bar:
    values = [max(placement.memory_nodes.get(node, 0.0), 0.0) for node in drawn]
    if num_parts > len(drawn):
        values.append(max(sum(placement.memory_nodes.values()) - sum(values), 0.0))
    local = placement.local_ratio
    return Bar(
        label=f"rank {placement.rank} on {_nodes(placement.cpu_nodes)}",
        values=tuple(values),
        note=f"CPUs {visible(placement.cpus, 60)}; {visible(placement.source)}",
        end=units.MISSING if local is None else f"{units.format_ratio(local, 0)} local",
    )


def _nodes(nodes: tuple[int, ...]) -> str:
    if not nodes:
        return "node ?"
    more = " …" if len(nodes) > 6 else ""
    return f"{plural('node', len(nodes))} {', '.join(map(str, nodes[:6]))}{more}"


def _placement_table(machine: MachineAnalysis) -> Table:
    several = len(machine.hosts) > 1
    return Table(
        id="placement-table",
        terminal_rows=8,
        title="CPU and memory placement of ranks",
        columns=(
            Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
            Column(key="host", title="Host"),
            Column(key="cpus", title="CPUs", primary=True),
            Column(key="nodes", title="On nodes", hint="NUMA nodes of those CPUs", primary=True),
            Column(key="policy", title="Memory policy", unit=Unit.CODE),
            Column(key="memory", title="Memory on", primary=True),
            Column(
                key="local", title="Local", unit=Unit.RATIO, primary=True, hint="on the nodes of its own CPUs"
            ),
            Column(key="device", title="GPU's node", unit=Unit.COUNT),
            Column(key="source", title="Source"),
        ),
        rows=tuple(
            (
                p.rank,
                visible(p.host) if several else None,
                visible(p.cpus, 80),
                ", ".join(map(str, p.cpu_nodes)) or None,
                visible(p.policy) or None,
                _memory_text(p),
                p.local_ratio,
                p.device_node,
                visible(p.source),
            )
            for p in machine.placements
        ),
        print_rows=32,
    )


def _memory_text(placement: RankPlacement) -> str | None:
    ranked = sorted(placement.memory_nodes.items(), key=lambda item: (-item[1], item[0]))
    shares = [f"node {node}: {units.format_ratio(share, 0)}" for node, share in ranked[:4] if share > 0]
    left = len([share for _, share in ranked[4:] if share > 0])
    return (", ".join(shares) + (f", {left} more" if left else "")) or None


def _traffic_table(machine: MachineAnalysis) -> Table:
    several = len({t.host for t in machine.traffic}) > 1
    return Table(
        id="traffic-table",
        terminal_rows=8,
        title="Traffic and peak of each link",
        columns=(
            Column(key="link", title="Link", unit=Unit.CODE, primary=True),
            Column(key="class", title="Class"),
            Column(key="host", title="Host"),
            Column(key="direction", title="Direction", primary=True),
            Column(key="bytes", title="Bytes", unit=Unit.BYTES),
            Column(key="mean", title="Mean", unit=Unit.RATE, primary=True),
            Column(key="p95", title="95th percentile", unit=Unit.RATE, primary=True),
            Column(key="peak", title="Peak", unit=Unit.RATE, primary=True),
            Column(
                key="share", title="Mean of peak", unit=Unit.RATIO, bar="exposed_comm", primary=True,
                hint="mean rate / peak",
            ),
            Column(key="errors", title="Errors", unit=Unit.COUNT, hint="retransmits, symbol errors and such"),
            Column(key="node", title="NUMA node", unit=Unit.COUNT),
            Column(key="notes", title="Notes"),
        ),
        rows=tuple(_traffic_row(t, several) for t in machine.traffic),
        caption=f"Sums and means over {_counted(machine)}, from the counters of the devices themselves.",
        print_rows=40,
    )  # fmt: skip


def _traffic_row(traffic: LinkTraffic, several: bool) -> tuple[Value, ...]:
    peak = traffic.peak_bytes_per_s
    return (
        visible(traffic.name),
        TITLES[traffic.link_class],
        visible(traffic.host) if several else None,
        visible(traffic.direction),
        traffic.bytes,
        traffic.mean_bytes_per_s,
        traffic.p95_bytes_per_s,
        peak or ("none" if traffic.link_class is LinkClass.LOOPBACK else None),
        traffic.mean_bytes_per_s / peak if peak else None,
        traffic.errors,
        traffic.numa_node,
        _traffic_notes(traffic),
    )


def _traffic_notes(traffic: LinkTraffic) -> str | None:
    source = f"peak: {visible(traffic.peak_source)}" if traffic.peak_source else ""
    quality = QUALITY_WORDS.get(traffic.quality, visible(traffic.quality))
    return "; ".join(filter(None, (quality, source))) or None


def _wire_table(machine: MachineAnalysis) -> Table:
    return Table(
        id="wire-table",
        terminal_rows=4,
        title="Bytes of collectives: formula and wire",
        columns=(
            Column(key="window", title="Over", primary=True),
            Column(key="links", title="Links", unit=Unit.CODE, primary=True),
            Column(
                key="algorithmic", title="By formula", unit=Unit.BYTES, hint="bytes_algorithmic", primary=True
            ),
            Column(key="wire", title="On the wire", unit=Unit.BYTES, hint="bytes_wire", primary=True),
            Column(
                key="ratio",
                title="Wire / formula",
                unit=Unit.FACTOR,
                primary=True,
                hint="1 = exactly the bytes of the formula",
            ),
            Column(key="took", title="Took", unit=Unit.TIME),
            Column(key="covered", title="Readings cover", unit=Unit.TIME),
            Column(key="reason", title="Note"),
        ),
        rows=tuple(_wire_row(wire) for wire in machine.wire),
        row_notes=tuple(
            RowNote(text=visible(wire.reason)) if wire.wire_bytes is None and wire.reason else None
            for wire in machine.wire
        ),
        caption="By formula (bytes_algorithmic): what the algorithm must move, summed over the ranks that "
        "cross the link. On the wire (bytes_wire): what the link's counters saw meanwhile, headers, "
        "retransmits and other traffic included.",
    )


def _wire_row(wire: WireBytes) -> tuple[Value, ...]:
    both = wire.wire_bytes is not None and wire.algorithmic_bytes > 0
    links = ", ".join(visible(link, 40) for link in wire.links[:4])
    left = len(wire.links) - 4
    return (
        f"window {wire.window}" if wire.window >= 0 else "all steps",
        f"{links}, {left} more" if left > 0 else links or TITLES[wire.link_class],
        wire.algorithmic_bytes,
        wire.wire_bytes,
        (wire.wire_bytes or 0) / wire.algorithmic_bytes if both else None,
        wire.dur_ns,
        wire.covered_ns,
        visible(wire.reason) or None,
    )


def _energy_table(machine: MachineAnalysis) -> Table:
    several = len({e.host for e in machine.energy}) > 1
    total = sum(e.joules for e in machine.energy)
    caption = f"{units.format_si(total, 'J')} in total over the training steps."
    if machine.joules_per_sample is not None:
        caption += f" {units.format_si(machine.joules_per_sample, 'J')} per sample."
    return Table(
        id="energy-table",
        terminal_rows=4,
        title="Energy over the training steps",
        columns=(
            Column(key="domain", title="Part", primary=True),
            Column(key="host", title="Host"),
            Column(key="joules", title="Energy", unit=Unit.ENERGY, bar="input_wait", primary=True),
            Column(key="watts", title="Mean power", unit=Unit.POWER, primary=True),
            Column(key="source", title="Source"),
        ),
        rows=tuple(
            (
                visible(e.domain),
                visible(e.host) if several else None,
                e.joules,
                e.mean_watts,
                visible(e.source),
            )
            for e in machine.energy
        ),
        caption=caption,
        print_rows=32,
    )


def stacks_section(analysis: RunAnalysis) -> Section | None:
    frames = analysis.machine.stacks if analysis.machine else ()
    if not frames:
        return None
    table = Table(
        id="stacks-table",
        terminal_rows=6,
        title="Python frames by self time",
        columns=(
            Column(key="frame", title="Function", unit=Unit.CODE, primary=True),
            Column(key="self", title="Self", unit=Unit.RATIO, bar="compute", primary=True),
            Column(key="total", title="Anywhere", unit=Unit.RATIO, primary=True),
            Column(key="file", title="File", unit=Unit.CODE, primary=True),
            Column(key="line", title="Line", unit=Unit.NUMBER),
        ),
        rows=tuple((visible(f.name), f.self_ratio, f.total_ratio, visible(f.file), f.line) for f in frames),
        caption="From sampled stacks; the full profile is in the run directory (open it in speedscope.app).",
        sorted_by=("self", True),
    )
    tree = analysis.machine.stack_tree if analysis.machine else ()
    return Section(id="stacks", title="Python on the host", blocks=(*stack_icicle(tree), table))
