"""What the late rank did more of than the others before it entered a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.intervals import Int64
from perfscope.analysis.mainline import LINE_COMPUTE, LINE_PARTS
from perfscope.analysis.waits.common_start import CommonStart
from perfscope.analysis.waits.line_table import LineTable, Places
from perfscope.rundir.schema import PHASES

# Beside the parts of a line: time outside the traced steps, and a later start of the comparison itself.
UNTRACED, SKEW = len(LINE_PARTS), len(LINE_PARTS) + 1
NUM_CLASSES = len(LINE_PARTS) + 2
_MOST_OTHERS = 8  # ranks that the late one's layers are compared with: those in the middle
_CHUNK = 256  # calls whose layers are looked at together, to bound memory
_KINDS = len(PHASES) + 1  # phases and none
_ALIKE = 0.8  # share of the computation that must be slower ...
_ALIKE_PART = 0.5  # ... by at least so much of what all of it is


class Excess(Struct, frozen=True, kw_only=True, eq=False):
    """Per call of one match, against the lower median of the other members."""

    lateness: Int64  # shape (calls,), ns behind the others' entries
    by_class: Int64  # shape (NUM_CLASSES, calls), ns
    late: Int64  # shape (NUM_CLASSES, calls): the late rank's own time
    usual: Int64  # shape (NUM_CLASSES, calls): the others'
    begin: Int64  # shape (calls,): when the late rank's comparison begins, reference clock
    source: Places  # as CommonStart.source


class LayerExcess(Struct, frozen=True, kw_only=True):
    """Of one call whose late rank computed longer."""

    layer: int  # -1 = operators outside every layer
    phase: int  # -1 = none
    excess_ns: int  # of that layer and phase
    ratio: float  # all computation, late over usual; inf where the others computed nothing
    alike: bool  # slower throughout, by about the same factor
    spread: bool  # no layer has as much as a third of the excess
    is_own_layer: bool  # most of the excess is in layers that most of the others do not have


class Computing(Struct, frozen=True, kw_only=True, eq=False):
    """The computation in a table of lines."""

    mask: NDArray[np.bool_]  # shape (segments,)
    total: Int64  # shape (segments + 1,): time of it before each segment
    has: NDArray[np.bool_]  # shape (rows, layers + 1): which rank has which layer; the last: none

    @classmethod
    def of(cls, table: LineTable, layers: Sequence[str]) -> Computing:
        mask = table.part == LINE_COMPUTE
        has = table.runs(len(layers) + 1)
        # Who computes in `body.2.conv` has `body.2`, though it may run no operator of its own in there.
        code = {name: index for index, name in enumerate(layers)}
        for index, name in enumerate(layers):
            parts = name.split(".")
            for depth in range(len(parts)):
                outer = code.get(".".join(parts[:depth]))
                if outer is not None:
                    has[:, outer] |= has[:, index]
        return cls(mask=mask, total=table.cumulated(mask), has=has)


def others_median(values: Int64, late_row: Places) -> Int64:
    """Lower median of all rows but the late one.

    Args:
        values: shape (ranks, calls), at least two ranks.
        late_row: shape (calls,).
    """
    of_others = np.array(values.T, order="C", copy=True)  # the late one's is overwritten
    of_others[np.arange(len(of_others)), late_row] = np.iinfo(np.int64).max
    middle = (values.shape[0] - 2) // 2
    result: Int64 = np.partition(of_others, middle, axis=1)[:, middle] if len(of_others) else of_others[:, 0]
    return result


def excesses(
    matches: Sequence[JudgedCalls], starts: Mapping[int, CommonStart], table: LineTable
) -> dict[int, Excess]:
    """For each match of which `starts` knows where to begin."""
    positions = {
        index: (table.places(matches[index].ranks, start.at), table.places(matches[index].ranks, match.enter))
        for index, start in starts.items()
        for match in (matches[index],)
    }
    classes = {index: np.zeros((3, NUM_CLASSES, matches[index].enter.shape[1]), np.int64) for index in starts}
    remaining = {index: matches[index].enter - start.at for index, start in starts.items()}
    for part in range(len(LINE_PARTS)):
        mask = table.part == part
        total = table.cumulated(mask)
        for index, start in starts.items():
            begin, end = positions[index]
            spent = table.until(total, mask, end, matches[index].enter)
            spent -= table.until(total, mask, begin, start.at)
            remaining[index] = remaining[index] - spent
            _enter(classes[index], part, spent, matches[index].late_row)
    for index, start in starts.items():
        _enter(classes[index], UNTRACED, remaining[index], matches[index].late_row)
        _enter(classes[index], SKEW, start.at, matches[index].late_row)
    result = {}
    for index, start in starts.items():
        match, (difference, late, usual) = matches[index], classes[index]
        at = np.arange(match.enter.shape[1])
        result[index] = Excess(
            lateness=match.last_entry - others_median(match.enter, match.late_row),
            by_class=difference,
            late=late,
            usual=usual,
            begin=start.at[match.late_row, at],
            source=start.source,
        )
    return result


def _enter(into: Int64, where: int, values: Int64, late_row: Places) -> None:
    late, usual = values[late_row, np.arange(values.shape[1])], others_median(values, late_row)
    into[0, where], into[1, where], into[2, where] = late - usual, late, usual


def layer_excesses(
    match: JudgedCalls, start: CommonStart, calls: Places, table: LineTable, computing: Computing
) -> dict[int, LayerExcess]:
    """Which layer took the late rank longer, for some calls of a match.

    Args:
        match: the match.
        start: where the comparison begins.
        calls: indices of calls whose late rank computed longer than the others.
        table: the window's lines.
        computing: of the same table.
    """
    result: dict[int, LayerExcess] = {}
    has = computing.has
    rows = np.array([table.row_of[rank] for rank in match.ranks], dtype=np.int64)
    num_have = has[rows].sum(axis=0)
    for first in range(0, len(calls), _CHUNK):
        chosen = calls[first : first + _CHUNK]
        spent, codes = _per_layer(match, start, chosen, table, computing)
        late, of_others = spent[:, 0], spent[:, 1:]
        usual = np.sort(of_others, axis=1)[:, (of_others.shape[1] - 1) // 2]
        difference = late - usual
        layers = codes // _KINDS - 1
        for column, call in enumerate(chosen.tolist()):
            row = rows[match.late_row[call]]
            have = np.where(layers >= 0, num_have[layers] - has[row, layers], len(rows) - 1)
            is_rare = 2 * have < len(rows) - 1
            result[call] = _judge(codes, late[column], usual[column], difference[column], is_rare)
    return result


def _judge(
    codes: Places, late: Int64, usual: Int64, difference: Int64, is_rare: NDArray[np.bool_]
) -> LayerExcess:
    total, before = int(difference.sum()), int(usual.sum())
    is_own = total > 0 and 2 * int(difference[is_rare].sum()) >= total
    candidates = np.flatnonzero(is_rare) if is_own else np.arange(len(codes))
    top = int(candidates[np.argmax(difference[candidates])])
    slower = difference >= usual * (_ALIKE_PART * total / before) if before else np.zeros(len(codes), bool)
    return LayerExcess(
        layer=int(codes[top] // _KINDS) - 1,
        phase=int(codes[top] % _KINDS) - 1,
        excess_ns=int(difference[top]),
        ratio=int(late.sum()) / before if before else float("inf"),
        alike=bool(
            before
            and not is_own
            and (usual > 0).sum() >= 2
            and usual[slower].sum() >= _ALIKE * before
            and 2 * difference[top] <= total
        ),
        spread=not is_own and 3 * int(difference[top]) < total,
        is_own_layer=is_own,
    )


def _per_layer(
    match: JudgedCalls, start: CommonStart, calls: Places, table: LineTable, computing: Computing
) -> tuple[Int64, Places]:
    """Computation before each call, by layer and phase, of the late rank and of those in the middle.

    Returns:
        Shape (calls, 1 + others, codes) in ns, the late rank first; and the codes:
        (layer + 1) x kinds + phase + 1.
    """
    at, enter = start.at[:, calls], match.enter[:, calls]
    begin, end = table.places(match.ranks, at), table.places(match.ranks, enter)
    mask, total = computing.mask, computing.total
    compute = table.until(total, mask, end, enter) - table.until(total, mask, begin, at)
    late_row, column = match.late_row[calls], np.arange(len(calls))
    compute[late_row, column] = np.iinfo(np.int64).max  # sorts last
    order = np.argsort(compute, axis=0, kind="stable")[:-1]
    low = max(0, (len(order) - 1) // 2 - (_MOST_OTHERS - 1) // 2)
    picked = np.concatenate((late_row[None, :], order[low : low + _MOST_OTHERS])).T  # (calls, 1 + others)
    flat = (picked.ravel(), np.repeat(column, picked.shape[1]))
    first, last, since, until = begin[flat], end[flat], at[flat], enter[flat]
    counts = last - first + 1
    owner = np.repeat(np.arange(len(first)), counts)
    segment = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + first[owner]
    keep = mask[segment]
    owner, segment = owner[keep], segment[keep]
    piece = np.minimum(table.end[segment], until[owner]) - np.maximum(table.start[segment], since[owner])
    code = (table.layer[segment].astype(np.int64) + 1) * _KINDS + table.phase[segment] + 1
    codes, layer_of = np.unique(code, return_inverse=True)
    if not len(codes):
        codes = np.zeros(1, dtype=np.int64)
    spent = np.zeros((len(first), len(codes)), dtype=np.int64)
    np.add.at(spent, (owner, layer_of.ravel()), np.maximum(piece, 0))
    return spent.reshape(*picked.shape, len(codes)), codes
