"""Ranks that do the same work, and which of them take longer for it.

Ranks are peers if they run the same layers (all ranks of data parallelism; the replicas of one stage of a
pipeline). A rank's own time is what its line takes but for waiting: computation, optimizer, copies and idle
time (Python, sleeping, a core shared with another process). Waiting for input is another cause and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import one_of
from perfscope.analysis.mainline import (
    LINE_COMPUTE,
    LINE_COPY,
    LINE_IDLE,
    LINE_OPTIMIZER,
    LINE_PARTS,
    NO_LAYER,
)
from perfscope.analysis.replay.program import Change, Float, Program, distinct, sums_of
from perfscope.analysis.replay.replays import Replays
from perfscope.rundir.schema import PHASES

OWN_PARTS = (LINE_COMPUTE, LINE_OPTIMIZER, LINE_COPY, LINE_IDLE)
SLOWER = 0.05  # of the peers' own time by which a straggler takes longer
FEW_STEPS = 0.2  # divided by the number of traced steps: with two, a straggler must be 15 % slower
NEARLY_EACH = 0.75  # of the traced steps in which it must be so
_FEW = 0.5  # of the layers of two ranks that must be the same for them to be peers

_Kind: TypeAlias = tuple[int, int, int]  # part, layer, phase


class Slow(Struct, frozen=True, kw_only=True):
    """A rank that takes longer for its own work than its peers.

    `where` is (part, layer, phase) of the largest part of the excess; layer and phase None: not a layer's.
    """

    rank: int
    excess_ns: float  # per step
    peers_ns: float  # the peers' own time per step
    part: str
    layer: str | None
    phase: str | None
    part_excess_ns: float
    has_layers: bool = True  # the traces name layers at all


class RankWork(Struct, frozen=True, kw_only=True, eq=False):
    """Own time by rank and kind of work, summed over windows; `total` has shape (ranks, kinds)."""

    ranks: tuple[int, ...]
    kinds: tuple[_Kind, ...]  # (part, layer, phase)
    total: Float
    num_steps: int
    by_step: Float  # own time, shape (ranks, steps)

    @classmethod
    def of(cls, replays: Replays) -> RankWork:
        """Adds up all windows."""
        of_windows = [_of_kinds(window.program) for window in replays.windows]
        ranks = tuple(sorted({rank for window in replays.windows for rank in window.program.ranks}))
        kinds_seen = tuple(sorted({kind for kinds, _ in of_windows for kind in kinds}))
        column_of = {kind: number for number, kind in enumerate(kinds_seen)}
        matrix = np.zeros((len(ranks), len(kinds_seen)))
        for window, (kinds, total) in zip(replays.windows, of_windows, strict=True):
            columns = np.array([column_of[kind] for kind in kinds], dtype=np.int64)
            matrix[np.ix_(np.searchsorted(ranks, window.program.ranks), columns)] += total
        return cls(
            ranks=ranks,
            kinds=kinds_seen,
            total=matrix,
            num_steps=replays.num_steps,
            by_step=_by_step(replays, ranks),
        )

    def groups(self) -> list[list[int]]:
        """Rows of ranks that are peers of each other."""
        codes = sorted({kind[1] for kind in self.kinds if kind[1] >= 0})
        runs = np.zeros((len(self.total), len(codes)), dtype=bool)
        for column, kind in enumerate(self.kinds):
            if kind[1] >= 0:
                runs[:, codes.index(kind[1])] |= self.total[:, column] > 0
        groups: list[list[int]] = []
        group_of: dict[bytes, list[int]] = {}  # by layers
        for row, mine in enumerate(runs):
            key = mine.tobytes()
            if key not in group_of:
                likes = (group for group in groups if _alike(runs[group[0]], mine))
                group_of[key] = next(likes, [])
                if not group_of[key]:
                    groups.append(group_of[key])
            group_of[key].append(row)
        return groups

    def target(self, rows: Sequence[int], slow: Sequence[int]) -> Float | None:
        """What the peers that are not slow take for each kind of work, their median. Shape (kinds,).

        None where all are slow.

        Args:
            rows: the peers.
            slow: rows that are not to be copied.
        """
        peers = [peer for peer in rows if peer not in slow]
        if not peers:
            return None
        result: Float = np.median(self.total[peers], axis=0)
        return result

    def slow(self, layers: Sequence[str], *, nearly_each: bool = True) -> list[Slow]:
        """Ranks clearly slower than their peers, the worst first.

        Of two peers the slower one; of more, those above the median of all by SLOWER. Over all steps
        together, by more where there are few, and in nearly each: a rank that was slow once had bad luck.

        Args:
            layers: names that layer codes stand for.
            nearly_each: False: also ranks that were slow in some steps only.
        """
        least = NEARLY_EACH if nearly_each else 0.0
        slow_ranks = []
        for rows in self.groups():
            totals = self.total[rows].sum(axis=1)
            middle = (len(rows) - 1) // 2
            usual = float(np.sort(totals)[middle])
            steps = self.by_step[rows]
            often = (steps > (1 + SLOWER) * np.sort(steps, axis=0)[middle]).mean(axis=1)
            slower = SLOWER + FEW_STEPS / max(self.num_steps, 1)
            for index, row in enumerate(rows):
                if len(rows) > 1 and totals[index] > (1 + slower) * usual and often[index] >= least:
                    peers = [peer for peer in rows if peer != row]
                    slow_ranks.append(self._explained(row, np.median(self.total[peers], axis=0), layers))
        return sorted(slow_ranks, key=lambda slow_rank: -slow_rank.excess_ns)

    def _explained(self, row: int, target: Float, layers: Sequence[str]) -> Slow:
        excess = (self.total[row] - target) / self.num_steps
        part, layer, phase = self.kinds[int(excess.argmax())]
        return Slow(
            rank=self.ranks[row],
            excess_ns=float(excess.sum()),
            peers_ns=float(target.sum()) / self.num_steps,
            part=LINE_PARTS[part],
            layer=layers[layer] if layer >= 0 else None,
            phase=PHASES[phase] if phase >= 0 else None,
            part_excess_ns=float(excess.max()),
            has_layers=bool(layers),
        )


def _by_step(replays: Replays, ranks: Sequence[int]) -> Float:
    """Each rank's own time in each traced step, ns. Shape (ranks, steps)."""
    columns = []
    for window in replays.windows:
        program = window.program
        is_work = one_of(program.cells.part, OWN_PARTS)
        shape = (len(program.ranks), len(program.steps))
        sums = np.zeros((len(ranks), shape[1]))
        of_program = sums_of(program.cells.rank, program.step_rows, program.cells.local, shape, is_work)
        sums[np.searchsorted(ranks, program.ranks)] = of_program
        columns.append(sums)
    return np.concatenate(columns, axis=1)


def _alike(layers: NDArray[np.bool_], other_layers: NDArray[np.bool_]) -> bool:
    """Whether ranks that run these layers are peers."""
    return bool(
        (layers == other_layers).all() or (layers & other_layers).sum() > _FEW * (layers | other_layers).sum()
    )


def _of_kinds(program: Program) -> tuple[list[_Kind], Float]:
    """Kinds of own work that a window has, and each rank's time of them. Shape (ranks, kinds)."""
    kinds, kind_of = _kinds(program)
    is_work = one_of(program.cells.part, OWN_PARTS)
    shape = (len(program.ranks), len(kinds))
    total = sums_of(program.cells.rank, kind_of, program.cells.local, shape, is_work)
    used = np.flatnonzero(total.any(axis=0)).tolist()
    return [kinds[number] for number in used], total[:, used]


def _kinds(program: Program) -> tuple[list[_Kind], NDArray[np.signedinteger[Any]]]:
    """(part, layer, phase) of the cells: the different ones, and which of them each cell has."""
    cells = program.cells
    kinds, kind_of = distinct(cells.part, cells.layer, cells.phase)
    return [(part, layer, phase) for part, layer, phase in kinds.T.tolist()], kind_of


def as_fast_as_peers(program: Program, work: RankWork, slow: Sequence[int]) -> Change | None:
    """The slow ranks take for each kind of work what their peers take.

    Work that only a slow rank does (idle time among it) becomes what the peers have of it: nothing.
    """
    groups = {row: rows for rows in work.groups() for row in rows}
    kinds, kind_of = _kinds(program)
    column = {kind: number for number, kind in enumerate(work.kinds)}
    factor = np.ones((len(program.ranks), len(kinds)))
    slow_rows = [work.ranks.index(rank) for rank in slow if rank in work.ranks]
    for row, rank in enumerate(program.ranks):
        if rank not in slow:
            continue
        index = work.ranks.index(rank)
        target = work.target(groups[index], slow_rows)
        if target is None:
            continue
        for number, kind in enumerate(kinds):
            at = column.get(kind)
            if at is not None and work.total[index, at] > 0:
                factor[row, number] = target[at] / work.total[index, at]
    if (factor == 1).all():
        return None
    cells = program.cells
    mine: NDArray[np.bool_] = one_of(cells.part, OWN_PARTS)
    return Change(local=np.where(mine, cells.local * factor[cells.rank, kind_of], cells.local))


def splits_differently(work: RankWork) -> bool:
    """Whether ranks run different layers: a model split over ranks."""
    return len(work.groups()) > 1 and any(kind[1] != NO_LAYER for kind in work.kinds)
