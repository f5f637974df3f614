"""The report's tables of kernels, made of the sums over all windows; each adds up to the total exactly."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perfscope.analysis.kernels.places import places_of
from perfscope.analysis.kernels.record import NO_LAUNCH, NO_OPERATOR, KernelRecord, LayerSums, SideSums, Sums
from perfscope.analysis.kernels.results import (
    CopyTime,
    GraphTime,
    Kernels,
    KernelTime,
    LayerClassTime,
    OperatorTime,
    TypeTime,
)
from perfscope.analysis.kernels.types import uses_matrix_units
from perfscope.vocabulary.kernels import MATRIX, KernelType

MOST_NAMES = 200  # kernels and operators; the others stand together without a name
_NUMBERED = re.compile(r"^([A-Za-z_]\w*?)(?:_\d+)?$")


def kernels_of(record: KernelRecord, types: Mapping[str, str]) -> Kernels | None:
    """All tables; None where nothing was traced.

    Args:
        record: of all ranks and windows.
        types: layer -> class of the module, where the run says so.
    """
    side = record.side
    total = sum(sums.ns for sums in side.names.values())
    if not total:
        return None
    of_device = side is record.device
    names = _by_name(side, total)
    computing = [sums for (_, kind), sums in side.names.items() if kind is not KernelType.COMMUNICATION]
    occupied = sum(sums.occupied_ns for sums in computing)
    return Kernels(
        of_device=of_device,
        calls=sum(sums.calls for sums in side.names.values()),
        total_ns=total,
        busy_ns=side.busy_ns if of_device else None,
        concurrent_ns=total - side.busy_ns if of_device else None,
        by_type=_by_type(side, total),
        by_name=names,
        by_operator=_by_operator(side, total) if of_device else (),
        by_place=places_of(side.places),
        by_layer_class=_by_layer_class(side, total, types),
        copies=_copies(side, total),
        graphs=_graphs(side, total),
        num_names=len({name for name, _ in side.names}),
        launches_absent=side.absent,
        launches_absent_ns=side.absent_ns,
        graph_ns=sum(graph.ns for graph in side.graphs.values()),
        occupancy=sum(sums.occupied for sums in computing) / occupied if occupied else None,
    )


def _by_type(side: SideSums, total: int) -> tuple[TypeTime, ...]:
    groups: dict[KernelType, list[tuple[str, Sums]]] = defaultdict(list)
    for (name, kind), sums in side.names.items():
        groups[kind].append((name, sums))
    rows = []
    for kind, members in groups.items():
        calls, ns = sum(sums.calls for _, sums in members), sum(sums.ns for _, sums in members)
        uses = [uses_matrix_units(name, kind) for name, _ in members]
        of_use = {
            use: sum(sums.ns for (_, sums), used in zip(members, uses, strict=True) if used is use)
            for use in (True, None)
        }
        computes = kind in MATRIX
        rows.append(
            TypeTime(
                type=kind,
                calls=calls,
                total_ns=ns,
                mean_ns=ns / calls,
                share=ns / total,
                matrix_ns=of_use[True] if any(used is not None for used in uses) else None,
                matrix_unknown_ns=of_use[None] if computes else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.type)))


def _by_name(side: SideSums, total: int) -> tuple[KernelTime, ...]:
    ordered = sorted(side.names.items(), key=lambda item: (-item[1].ns, item[0]))
    rows = [
        KernelTime(
            name=name,
            type=kind,
            calls=sums.calls,
            total_ns=sums.ns,
            mean_ns=sums.ns / sums.calls,
            share=sums.ns / total,
            operator=_launcher(sums.operators),
            occupancy=sums.occupied / sums.occupied_ns if sums.occupied_ns else None,
            registers=sums.registers if sums.registers >= 0 else None,
            grid=grid,
            block=block,
            matrix_units=uses_matrix_units(name, kind),
        )
        for (name, kind), sums in ordered[:MOST_NAMES]
        for grid, block in [_shape(sums)]
    ]
    if remaining := ordered[MOST_NAMES:]:
        calls, ns = sum(sums.calls for _, sums in remaining), sum(sums.ns for _, sums in remaining)
        rows.append(
            KernelTime(name=None, type=None, calls=calls, total_ns=ns, mean_ns=ns / calls, share=ns / total)
        )
    return tuple(rows)


def _launcher(operators: Mapping[str, int]) -> str | None:
    name = _longest(operators)
    return None if name == NO_LAUNCH else name


def _shape(sums: Sums) -> tuple[str | None, str | None]:
    if not sums.shapes:
        return None, None
    grid, block = max(sums.shapes, key=lambda shape: (sums.shapes[shape], shape))
    return grid, block or None


def _by_operator(side: SideSums, total: int) -> tuple[OperatorTime, ...]:
    groups: dict[str, list[tuple[KernelType, int, int]]] = defaultdict(list)
    for (operator, kind), (calls, ns) in side.operators.items():
        groups[operator].append((kind, calls, ns))
    ordered = sorted(groups.items(), key=lambda item: (-sum(ns for *_, ns in item[1]), item[0]))
    named = [item for item in ordered if item[0] not in (NO_OPERATOR, NO_LAUNCH)]
    unlisted = [
        *groups.get(NO_OPERATOR, ()),
        *(entry for _, entries in named[MOST_NAMES:] for entry in entries),
    ]
    rows = [_operator(name, entries, total) for name, entries in named[:MOST_NAMES]]
    rows += [_operator(None, entries, total) for entries in (unlisted,) if entries]
    if absent := groups.get(NO_LAUNCH):
        rows.append(replace(_operator(None, absent, total), launch_absent=True))
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.operator or "")))


def _operator(name: str | None, entries: Sequence[tuple[KernelType, int, int]], total: int) -> OperatorTime:
    calls, ns = sum(calls for _, calls, _ in entries), sum(ns for *_, ns in entries)
    return OperatorTime(
        operator=name,
        type=max(entries, key=lambda entry: entry[2])[0] if name is not None else None,
        calls=calls,
        total_ns=ns,
        mean_ns=ns / calls,
        share=ns / total,
    )


def class_of_layer(layer: str, types: Mapping[str, str]) -> str | None:
    """``RMSNorm`` of a layer; None where neither the run nor its name says so.

    Frames of modules in Python stacks are called by class and number, ``RMSNorm_12``.
    """
    if layer in types:
        return types[layer]
    match = _NUMBERED.match(layer.rpartition(".")[2])
    return match[1] if match and match[1][:1].isupper() else None


def _by_layer_class(side: SideSums, total: int, types: Mapping[str, str]) -> tuple[LayerClassTime, ...]:
    if not any(class_of_layer(layer, types) for layer in side.layers if layer):
        return ()
    groups: dict[str | None, list[tuple[str, LayerSums]]] = defaultdict(list)
    for layer, sums in side.layers.items():
        groups[class_of_layer(layer, types) if layer else None].append((layer, sums))
    rows = []
    for name, members in groups.items():
        calls, ns = sum(sums.calls for _, sums in members), sum(sums.ns for _, sums in members)
        rows.append(
            LayerClassTime(
                layer_class=name,
                layers=sum(bool(layer) for layer, _ in members),
                calls=calls,
                total_ns=ns,
                mean_ns=ns / calls,
                share=ns / total,
                forward_ns=sum(sums.forward for _, sums in members),
                backward_ns=sum(sums.backward for _, sums in members),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.layer_class or "")))


def _copies(side: SideSums, total: int) -> tuple[CopyTime, ...]:
    rows = [
        CopyTime(
            kind=kind,
            calls=sums.calls,
            total_ns=sums.ns,
            mean_ns=sums.ns / sums.calls,
            share=sums.ns / total,
            bytes=sums.bytes if sums.unsized < sums.calls else None,
            bytes_per_s=sums.bytes * 1e9 / sums.sized_ns if sums.sized_ns else None,
            num_unsized=sums.unsized,
        )
        for kind, sums in side.copies.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.kind)))


def _graphs(side: SideSums, total: int) -> tuple[GraphTime, ...]:
    by_time = sorted(side.graphs.values(), key=lambda graph: (-graph.ns, graph.first_ns))
    return tuple(
        GraphTime(
            name=f"graph {number}",
            call=graph.call,
            place=_longest(graph.locations),
            replays=graph.replays,
            kernels=graph.kernels,
            total_ns=graph.ns,
            mean_ns=graph.ns / graph.replays,
            share=graph.ns / total,
        )
        for number, graph in enumerate(by_time, start=1)
    )


def _longest(totals: Mapping[str, int]) -> str | None:
    return max(totals, key=lambda key: (totals[key], key)) or None if totals else None
