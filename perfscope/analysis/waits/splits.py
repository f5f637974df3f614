"""Where communication and waiting belong: process group, layer, phase (METRICS §2), and rank.

A call that is a gradient bucket belongs to the layers whose gradients it carries, by their size; another one
to the layer and phase that its rank was computing last before it asked for it (device: before it could
begin). Of calls that overlap on one rank each instant is the first one's exposure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.buckets import LayerParams
from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.intervals import Int64
from perfscope.analysis.mainline import LINE_COMPUTE, LINE_EXPOSED
from perfscope.analysis.waits.carried import Shares, carried, shared_out
from perfscope.analysis.waits.line_table import Clocks, LineTable
from perfscope.analysis.waits.results import SplitRow
from perfscope.rundir.schema import PHASES


class GroupSums(Struct, eq=False):
    """One process group so far."""

    sums: Int64  # shape (3, codes): exposed, wait, transfer over all ranks and calls; code 0 = no layer
    ranks: set[int] = set()


class Sums(Struct, eq=False):
    """All windows so far. A code is 1 + layer x phases + phase; 0 = not known."""

    num_codes: int
    groups: dict[str, GroupSums] = {}
    compute: dict[int, Int64] = {}  # rank -> shape (codes,)
    wait: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # rank -> union
    exposed_wait: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    @classmethod
    def of(cls, num_layers: int) -> Sums:
        return cls(num_codes=1 + num_layers * len(PHASES))

    def add(
        self,
        matches: Sequence[JudgedCalls],
        table: LineTable,
        clocks: Clocks,
        layers: Sequence[str] = (),
        parameters: Sequence[LayerParams] = (),
    ) -> None:
        """Takes in one window.

        Args:
            matches: of that window.
            table: its lines.
            clocks: of all hosts.
            layers: names that the lines' codes stand for.
            parameters: the model's, in order of registration, to tell what buckets carry; () = not known.
        """
        self._add_compute(table)
        codes = _codes(matches, table, clocks)
        buckets = [carried(match, table, layers, parameters) for match in matches]
        for index, match in enumerate(matches):
            group = self._group(match)
            group.ranks.update(match.ranks)
            transfer = np.minimum(match.transfer[None, :], match.duration - match.wait)
            for slot, values in ((1, match.wait), (2, transfer)):
                mine = codes[index], values, self.num_codes, buckets[index]
                group.sums[slot] += _by_code(*mine)
        for index, exposed in enumerate(self._add_ranks(matches, table)):
            of_buckets = codes[index], exposed, self.num_codes, buckets[index]
            self._group(matches[index]).sums[0] += _by_code(*of_buckets, by_rank=True)

    def _add_ranks(self, matches: Sequence[JudgedCalls], table: LineTable) -> list[Int64]:
        """Adds the waits of each rank; how much of each call is exposed, shape (ranks, calls) per match."""
        ranks = sorted({rank for match in matches for rank in match.ranks})
        position = {rank: number for number, rank in enumerate(ranks)}
        rows = np.array([table.row_of.get(rank, -1) for rank in ranks], dtype=np.int64)
        of_match = [np.repeat([position[rank] for rank in match.ranks], len(match.seq)) for match in matches]
        of_call = np.concatenate(of_match)
        enter, wait, duration = (
            np.concatenate([getattr(match, name).ravel() for match in matches])
            for name in ("enter", "wait", "duration")
        )
        offset, stride = iv.apart(of_call, enter, enter + duration)
        start = enter + offset[of_call]
        waits = iv.union(start, start + wait)
        of_wait = waits[:, 0] // stride
        mask = table.part == LINE_EXPOSED
        total = table.cumulated(mask)
        parts = iv.disjoint_parts(start, start + duration)
        waits_exposed, exposed = (
            _masked(table, rows[of], mask, total, begin - offset[of], end - offset[of])
            for of, begin, end in ((of_wait, *waits.T), (of_call, *parts))
        )
        for sums, values in ((self.wait, waits[:, 1] - waits[:, 0]), (self.exposed_wait, waits_exposed)):
            by_rank = np.zeros(len(ranks), dtype=np.int64)
            np.add.at(by_rank, of_wait, values)
            for rank, value in zip(ranks, by_rank.tolist(), strict=True):
                sums[rank] += value
        cuts = np.cumsum([match.enter.size for match in matches])[:-1]
        of_matches = np.split(exposed, cuts)
        return [part.reshape(match.enter.shape) for part, match in zip(of_matches, matches, strict=True)]

    def _group(self, match: JudgedCalls) -> GroupSums:
        name = match.key.group
        if name not in self.groups:
            self.groups[name] = GroupSums(np.zeros((3, self.num_codes), dtype=np.int64))
        return self.groups[name]

    def _add_compute(self, table: LineTable) -> None:
        chosen = table.part == LINE_COMPUTE
        code = np.where(table.is_named(), 1 + table.layer.astype(np.int64) * len(PHASES) + table.phase, 0)
        flat = table.rows()[chosen] * self.num_codes + code[chosen]
        spent = np.zeros(len(table.row_of) * self.num_codes, dtype=np.int64)
        np.add.at(spent, flat, (table.end - table.start)[chosen])
        for rank, row in table.row_of.items():
            layer_ns = spent[row * self.num_codes : (row + 1) * self.num_codes]
            self.compute[rank] = self.compute[rank] + layer_ns if rank in self.compute else layer_ns


def _codes(matches: Sequence[JudgedCalls], table: LineTable, clocks: Clocks) -> list[Int64]:
    """Of each call on each rank, shape (ranks, calls) per match."""
    last_named = table.last_named()
    result = []
    for match in matches:
        code = np.zeros(match.enter.shape, dtype=np.int64)
        rows = [row for row, rank in enumerate(match.ranks) if rank in table.row_of]
        if rows:
            ranks = tuple(match.ranks[row] for row in rows)
            asked = np.stack([_asked(match, row, table, clocks) for row in rows])
            code[rows] = 1 + table.layer_before(ranks, asked, last_named)
        result.append(code)
    return result


def _asked(match: JudgedCalls, row: int, table: LineTable, clocks: Clocks) -> Int64:
    """From when on a rank's calls could run, reference clock; their entry where the trace does not say."""
    line = table.lines[table.row_of[match.ranks[row]]]
    launch = match.launch[row]
    has_launch = launch >= 0
    entry: Int64 = match.enter[row]
    if not has_launch.any():
        return entry
    asked = clocks.to_reference(line.host, line.ready(np.maximum(launch, 0)))
    result: Int64 = np.where(has_launch, np.minimum(asked, entry), entry)
    return result


def _by_code(
    code: Int64,
    values: Int64,
    num_codes: int,
    buckets: Sequence[Shares | None] | None,
    *,
    by_rank: bool = False,
) -> Int64:
    """Values (ranks, calls) summed by code; those of a call that is a bucket by what it carries.

    `by_rank`: in whole ns of each rank, not of all together.
    """
    result = np.zeros(num_codes, dtype=np.int64)
    has_bucket = np.array([bucket is not None for bucket in buckets or [None] * values.shape[1]], dtype=bool)
    np.add.at(result, code[:, ~has_bucket].ravel(), values[:, ~has_bucket].ravel())
    totals = values if by_rank else values.sum(axis=0, keepdims=True)
    for call in np.flatnonzero(has_bucket).tolist():
        bucket = buckets[call] if buckets is not None else None
        if bucket is not None:
            np.add.at(result, bucket[0], shared_out(totals[:, call], bucket[1]).sum(axis=0))
    return result


def _masked(
    table: LineTable, row: Int64, mask: NDArray[np.bool_], total: Int64, start: Int64, end: Int64
) -> Int64:
    """How much of each span [start, end) of a row is in masked segments; 0 of row -1."""
    result = np.zeros(len(row), dtype=np.int64)
    has_line = row >= 0
    both = np.stack((start, end))[:, has_line]
    if both.size:
        until = table.until(total, mask, table.cells(row[has_line], both), both)
        result[has_line] = np.maximum(until[1] - until[0], 0)
    return result


def split_rows(sums: Sums, layers: Sequence[str], steps_of: Mapping[int, int]) -> tuple[SplitRow, ...]:
    """Rows per step and mean member rank, groups with most communication first.

    Args:
        sums: of all windows.
        layers: names that codes stand for.
        steps_of: rank -> its traced steps.
    """
    result: list[SplitRow] = []
    tied = np.zeros(sums.num_codes, dtype=bool)
    order = sorted(sums.groups, key=lambda name: (-int(sums.groups[name].sums[1:].sum()), name))
    for name in order:
        group = sums.groups[name]
        used = np.flatnonzero(group.sums.any(axis=0))
        tied[used[used > 0]] = True
        result.extend(_rows(name, group.sums, group.ranks, used, sums, layers, steps_of))
    alone = np.flatnonzero(~tied)
    none = np.zeros((3, sums.num_codes), dtype=np.int64)
    result.extend(_rows(None, none, set(sums.compute), alone, sums, layers, steps_of))
    return tuple(result)


def _rows(
    name: str | None,
    communication: Int64,
    ranks: set[int],
    codes: NDArray[np.int64],
    sums: Sums,
    layers: Sequence[str],
    steps_of: Mapping[int, int],
) -> list[SplitRow]:
    num_steps = max((steps_of.get(rank, 0) for rank in ranks), default=0)
    if not num_steps:
        return []
    compute = sum((sums.compute[rank] for rank in ranks if rank in sums.compute), np.zeros(sums.num_codes))
    rows = []
    for code in codes.tolist():
        is_tied = code > 0 or name is None
        values = [int(compute[code]) if is_tied else 0, *communication[:, code].tolist()]
        means = [round(value / len(ranks) / num_steps) for value in values]
        if not any(means):
            continue
        layer, phase = divmod(code - 1, len(PHASES))
        rows.append(
            SplitRow(
                group=name,
                layer=layers[layer] if code else None,
                phase=PHASES[phase] if code else None,
                num_ranks=len(ranks),
                compute_ns=means[0] if is_tied else None,
                exposed_comm_ns=means[1],
                wait_ns=means[2],
                transfer_ns=means[3],
            )
        )
    return sorted(rows, key=lambda row: (-(row.exposed_comm_ns + row.wait_ns), -(row.compute_ns or 0)))
