"""Sums over kernels, copies and operators, window by window; `tables` makes the report's tables of them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.intervals import Int64, distinct
from perfscope.analysis.kernels.own_time import own_time
from perfscope.analysis.kernels.places import Coded, Place, PlaceSums, add_places, text_of
from perfscope.analysis.kernels.types import kind_of_copy, type_of_kernel, type_of_operator
from perfscope.analysis.spans import (
    BACKWARD,
    COMM,
    COMPUTE,
    COPY,
    FORWARD,
    HOST,
    OPTIMIZER_PHASE,
    Mask,
    Spans,
    whole_numbers,
    words,
)
from perfscope.analysis.windows import Windows, in_order
from perfscope.vocabulary.kernels import GRAPH_LAUNCH, CopyKind, KernelType

KERNEL_COLUMNS = (
    *("name", "layer", "operator", "launch_ns", "launch_call", "grid", "block", "registers", "occupancy"),
    "bytes_read",
)
_GRAPH = re.compile(GRAPH_LAUNCH)
_TYPES = tuple(KernelType)
NO_OPERATOR, NO_LAUNCH = "", "\0"  # of kernels that no operator launched, or whose launch is not in the file


class Sums(Struct):
    """Of one kernel name and type.

    Attributes:
        occupied: occupancy in percent times ns; `occupied_ns`: of the calls that have it.
        shapes: (grid, block) -> ns.
        operators: that launched it -> ns.
    """

    calls: int = 0
    ns: int = 0
    occupied: int = 0
    occupied_ns: int = 0
    registers: int = -1
    shapes: dict[tuple[str, str], int] = {}
    operators: dict[str, int] = {}


class LayerSums(Struct):
    calls: int = 0
    ns: int = 0
    forward: int = 0
    backward: int = 0


class CopySums(Struct):
    calls: int = 0
    ns: int = 0
    bytes: int = 0
    sized_ns: int = 0
    unsized: int = 0


class GraphSums(Struct):
    call: str
    kernels: int
    first_ns: int
    replays: int = 0
    ns: int = 0
    locations: dict[str, int] = {}


class SideSums(Struct):
    """Of all devices, or of all hosts."""

    busy_ns: int = 0
    names: dict[tuple[str, KernelType], Sums] = {}
    operators: dict[tuple[str, KernelType], list[int]] = {}  # what launched, type -> calls, ns
    layers: dict[str, LayerSums] = {}  # "" = of none
    places: dict[Place, PlaceSums] = {}
    copies: dict[CopyKind, CopySums] = {}
    graphs: dict[tuple[str, int, int], GraphSums] = {}  # call, kernels, checksum of their names
    absent: int = 0  # launches that are not in the trace
    absent_ns: int = 0
    by_rank: dict[int, dict[KernelType, int]] = {}  # rank -> type -> ns


class KernelRecord(Struct):
    """Of every rank so far."""

    device: SideSums = field(default_factory=SideSums)
    host: SideSums = field(default_factory=SideSums)

    @property
    def side(self) -> SideSums:
        """The devices' where any was traced."""
        return self.device if self.device.names else self.host

    def add(self, windows: Windows, spans: Spans, selected: Mask, *, lacks_device: bool = False) -> None:
        """Takes in windows.

        Args:
            windows: KERNEL_COLUMNS.
            spans: the same rows.
            selected: shape (n,), device events, as for `breakdown.device_breakdown`; none: the host's
                operators count.
            lacks_device: the operators only launch work, although the trace has none of the device's.
        """
        table = windows.table
        if selected.any():
            rows = np.flatnonzero(selected)
            _add(self.device, windows, spans, rows, (spans.end - spans.start)[rows], on_device=True)
            self.device.busy_ns += iv.length(spans.union(selected))
            _add_copies(self.device, table, spans, rows)
            _add_launches(self.device, table, spans, rows)
            return
        computes = (spans.device < 0) & iv.one_of(spans.kind, (COMPUTE, HOST) if lacks_device else (COMPUTE,))
        computes &= iv.one_of(spans.lane, windows.lanes_with("main", "autograd", "executor"))
        rows = np.flatnonzero(computes | ((spans.device < 0) & (spans.kind == COMM)))
        if len(rows):
            rows, ns = own_time(spans, rows)
            _add(self.host, windows, spans, rows, ns, on_device=False)


def _add(
    side: SideSums,
    windows: Windows,
    spans: Spans,
    rows: NDArray[np.int64],
    ns: Int64,
    *,
    on_device: bool,
) -> None:
    table, window = windows.table, windows.window_of_row[rows]
    name, names = words(table, "name")
    operator, operators = words(table, "operator")
    types = _types(spans, rows, (name[rows], names), (operator[rows], operators), on_device=on_device)
    of_types = iv.exact_sums(window * len(_TYPES) + types, ns, len(_TYPES) * len(windows.parts))
    for index, facts in enumerate(windows.facts):
        of_rank = side.by_rank.setdefault(facts.rank, {})
        for kind, total in zip(_TYPES, of_types[index * len(_TYPES) :], strict=False):
            of_rank[kind] = of_rank.get(kind, 0) + total
    keys, group = iv.numbered(name[rows].astype(np.int64) * len(_TYPES) + types)
    calls, totals = np.bincount(group, minlength=len(keys)).tolist(), iv.exact_sums(group, ns, len(keys))
    sums = [Sums() for _ in keys]
    for index in in_order(group, window, len(keys)):
        name_code, kind_code = divmod(int(keys[index]), len(_TYPES))
        sums[index] = side.names.setdefault((text_of(names, name_code), _TYPES[kind_code]), sums[index])
        sums[index].calls += calls[index]
        sums[index].ns += totals[index]
    if on_device:
        _add_configurations(sums, table, rows, group, ns)
        of_call, launchers = _launchers(table, rows, operator[rows], operators)
        for (index, code), total in _pairs(group, of_call, ns):
            _count(sums[index].operators, launchers[code], total)
        for key, count, total in _grouped(of_call * len(_TYPES) + types, ns):
            entry = side.operators.setdefault(
                (launchers[key // len(_TYPES)], _TYPES[key % len(_TYPES)]), [0, 0]
            )
            entry[0] += count
            entry[1] += total
    _add_layers(side, table, spans, rows, ns, window)
    layer, layers = words(table, "layer")
    launched = Coded(operator[rows] if on_device else np.full(len(rows), -1), operators)
    in_layer, named = Coded(layer[rows], layers), Coded(name[rows], names)
    add_places(side.places, in_layer, launched, named, spans.phase[rows], types, ns, window)


def _types(
    spans: Spans,
    rows: NDArray[np.int64],
    name: tuple[NDArray[np.int32], Sequence[str]],
    operator: tuple[NDArray[np.int32], Sequence[str]],
    *,
    on_device: bool,
) -> NDArray[np.int64]:
    """Place of each row's type in `KernelType`, shape (len(rows),)."""
    num = len(operator[1]) + 1
    pairs, of_pair = iv.numbered(name[0].astype(np.int64) * num + operator[0])
    codes = []
    for pair in pairs.tolist():
        text, launched_by = text_of(name[1], (pair + 1) // num), text_of(operator[1], (pair + 1) % num - 1)
        kind = type_of_kernel(text, launched_by) if on_device else type_of_operator(text)
        codes.append(_TYPES.index(kind))
    result: NDArray[np.int64] = np.array(codes, dtype=np.int64)[of_pair]
    kind_of = spans.kind[rows]
    result[spans.phase[rows] == OPTIMIZER_PHASE] = _TYPES.index(KernelType.OPTIMIZER)
    result[kind_of == COPY] = _TYPES.index(KernelType.COPY)
    result[kind_of == COMM] = _TYPES.index(KernelType.COMMUNICATION)
    return result


def _launchers(
    table: pa.Table, rows: NDArray[np.int64], operator: NDArray[np.int32], operators: Sequence[str]
) -> tuple[NDArray[np.int64], list[str]]:
    """What launched each row: codes, and texts by code.

    That is the operator, else the call that replays a graph, else `NO_OPERATOR`; `NO_LAUNCH` where the launch
    is not in the file.
    """
    call, calls = words(table, "launch_call")
    texts = [*operators, *(text if _GRAPH.search(text) else NO_OPERATOR for text in calls), NO_LAUNCH]
    of_call = np.where(call[rows] >= 0, len(operators) + call[rows], len(texts) - 1)
    return np.where(operator >= 0, operator, of_call).astype(np.int64), texts


def _add_configurations(
    sums: Sequence[Sums], table: pa.Table, rows: NDArray[np.int64], group: NDArray[np.int64], ns: Int64
) -> None:
    occupancy = whole_numbers(table, "occupancy")[rows]
    has_occupancy = occupancy >= 0
    if has_occupancy.any():
        weighted = iv.exact_sums(
            group[has_occupancy], occupancy[has_occupancy] * ns[has_occupancy], len(sums)
        )
        for of_name, product, total in zip(
            sums, weighted, iv.exact_sums(group[has_occupancy], ns[has_occupancy], len(sums)), strict=True
        ):
            of_name.occupied += product
            of_name.occupied_ns += total
    registers = whole_numbers(table, "registers")[rows]
    most = np.full(len(sums), -1, dtype=np.int64)
    np.maximum.at(most, group, registers)
    for of_name, number in zip(sums, most.tolist(), strict=True):
        of_name.registers = max(of_name.registers, number)
    grid, grids = words(table, "grid")
    block, blocks = words(table, "block")
    shape = grid[rows].astype(np.int64) * (len(blocks) + 1) + block[rows]
    has_grid = grid[rows] >= 0
    for (index, code), total in _pairs(group[has_grid], shape[has_grid], ns[has_grid]):
        at, of_block = (code + 1) // (len(blocks) + 1), (code + 1) % (len(blocks) + 1) - 1
        shapes = sums[index].shapes
        key = (text_of(grids, at), text_of(blocks, of_block))
        shapes[key] = shapes.get(key, 0) + total


def _add_layers(
    side: SideSums,
    table: pa.Table,
    spans: Spans,
    rows: NDArray[np.int64],
    ns: Int64,
    window: NDArray[np.int64],
) -> None:
    layer, layers = words(table, "layer")
    code, phase = layer[rows] + 1, spans.phase[rows]
    calls = np.bincount(code, minlength=len(layers) + 1)
    totals = [
        iv.exact_sums(code, np.where(chosen, ns, 0), len(layers) + 1)
        for chosen in (np.ones(len(rows), dtype=bool), phase == FORWARD, phase == BACKWARD)
    ]
    for index in in_order(code, window, len(calls)):
        sums = side.layers.setdefault(layers[index - 1] if index else "", LayerSums())
        sums.calls += int(calls[index])
        sums.ns += totals[0][index]
        sums.forward += totals[1][index]
        sums.backward += totals[2][index]


def _add_copies(side: SideSums, table: pa.Table, spans: Spans, rows: NDArray[np.int64]) -> None:
    rows = rows[spans.kind[rows] == COPY]
    name, names = words(table, "name")
    size, ns = whole_numbers(table, "bytes_read")[rows], (spans.end - spans.start)[rows]
    for code in distinct(name[rows]).tolist():
        of_name = name[rows] == code
        sized = of_name & (size >= 0)
        sums = side.copies.setdefault(kind_of_copy(text_of(names, code)), CopySums())
        sums.calls += int(of_name.sum())
        sums.ns += int(ns[of_name].sum())
        sums.bytes += int(size[sized].sum())
        sums.sized_ns += int(ns[sized].sum())
        sums.unsized += int((of_name & (size < 0)).sum())


def _add_launches(side: SideSums, table: pa.Table, spans: Spans, rows: NDArray[np.int64]) -> None:
    """Launches that are not in the file, and replays of graphs."""
    launch = whole_numbers(table, "launch_ns")[rows]
    ns = (spans.end - spans.start)[rows]
    side.absent += int((launch < 0).sum())
    side.absent_ns += int(ns[launch < 0].sum())
    call, calls = words(table, "launch_call")
    is_graph = np.array([*(bool(_GRAPH.search(text)) for text in calls), False])[call[rows]]
    if not is_graph.any():
        return
    rows, ns, launch = rows[is_graph], ns[is_graph], launch[is_graph]
    name, names = words(table, "name")
    checks = np.array([zlib.crc32(text.encode()) for text in names] or [0], dtype=np.int64)
    columns = {what: words(table, what) for what in ("operator", "layer")}
    starts, replay, kernels = np.unique(launch, return_inverse=True, return_counts=True)
    replay = replay.ravel()
    check = iv.exact_sums(replay, checks[name[rows]], len(starts))
    first = np.zeros(len(starts), dtype=np.int64)
    first[replay[::-1]] = rows[::-1]
    for number, total in enumerate(iv.exact_sums(replay, ns, len(starts))):
        row = int(first[number])
        key = (text_of(calls, int(call[row])), int(kernels[number]), check[number])
        graph = side.graphs.setdefault(key, GraphSums(key[0], key[1], int(starts[number])))
        graph.replays += 1
        graph.ns += total
        location = next(
            (text_of(texts, int(codes[row])) for codes, texts in columns.values() if codes[row] >= 0), ""
        )
        _count(graph.locations, location, total)


def _grouped(keys: NDArray[np.int64], ns: Int64) -> list[tuple[int, int, int]]:
    """(key, calls, ns) of each key."""
    unique, group = iv.numbered(keys)
    calls = np.bincount(group, minlength=len(unique)).tolist()
    return list(zip(unique.tolist(), calls, iv.exact_sums(group, ns, len(unique)), strict=True))


def _pairs(
    group: NDArray[np.int64], code: NDArray[np.integer], ns: Int64
) -> list[tuple[tuple[int, int], int]]:
    """((group, code), ns) of each pair; code may be -1."""
    if not len(group):
        return []
    num = int(code.max()) + 2
    return [
        ((key // num, key % num - 1), total)
        for key, _, total in _grouped(group * num + code.astype(np.int64) + 1, ns)
    ]


def _count(totals: dict[str, int], key: str, ns: int) -> None:
    totals[key] = totals.get(key, 0) + ns
