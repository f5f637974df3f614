"""Adds the sums over kernels of later ranks to those of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from perfscope.analysis.kernels.places import merge_places
from perfscope.analysis.kernels.record import CopySums, GraphSums, KernelRecord, LayerSums, SideSums, Sums

_Key = TypeVar("_Key")


def merge_kernels(record: KernelRecord, later: KernelRecord) -> None:
    """Takes in what was recorded of later ranks."""
    _merge_sides(record.device, later.device)
    _merge_sides(record.host, later.host)


def _merge_sides(side: SideSums, later: SideSums) -> None:
    side.busy_ns += later.busy_ns
    side.absent += later.absent
    side.absent_ns += later.absent_ns
    side.by_rank.update(later.by_rank)
    for name, sums in later.names.items():
        _merge_names(side.names.setdefault(name, Sums()), sums)
    for operator, counts in later.operators.items():
        totals = side.operators.setdefault(operator, [0, 0])
        totals[:] = [mine + theirs for mine, theirs in zip(totals, counts, strict=True)]
    for layer, of_layer in later.layers.items():
        _add_fields(side.layers.setdefault(layer, LayerSums()), of_layer)
    merge_places(side.places, later.places)
    for kind, copies in later.copies.items():
        _add_fields(side.copies.setdefault(kind, CopySums()), copies)
    for key, graph in later.graphs.items():
        known_graph = side.graphs.setdefault(key, GraphSums(graph.call, graph.kernels, graph.first_ns))
        known_graph.replays += graph.replays
        known_graph.ns += graph.ns
        _add_counts(known_graph.locations, graph.locations)


def _merge_names(sums: Sums, later: Sums) -> None:
    sums.calls += later.calls
    sums.ns += later.ns
    sums.occupied += later.occupied
    sums.occupied_ns += later.occupied_ns
    sums.registers = max(sums.registers, later.registers)
    _add_counts(sums.shapes, later.shapes)
    _add_counts(sums.operators, later.operators)


def _add_fields(sums: LayerSums | CopySums, later: LayerSums | CopySums) -> None:
    for name in sums.__struct_fields__:
        setattr(sums, name, getattr(sums, name) + getattr(later, name))


def _add_counts(counts: dict[_Key, int], later: Mapping[_Key, int]) -> None:
    for key, number in later.items():
        counts[key] = counts.get(key, 0) + number
