"""What gradient buckets carry, where `buckets` can tell: they belong to these layers' backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.buckets import Bucket, LayerParams, match_buckets
from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.intervals import Int64, distinct
from perfscope.analysis.spans import BACKWARD, FORWARD
from perfscope.analysis.waits.line_table import LineTable
from perfscope.rundir.schema import PHASES

_WIDTHS = (4, 2, 8)  # bytes of an element; the sizes fit the parameters exactly with the right one only

Shares = tuple[NDArray[np.int64], NDArray[np.float64]]  # codes as in `splits`, and shares that add up to 1


def carried(
    match: JudgedCalls, table: LineTable, layers: Sequence[str], parameters: Sequence[LayerParams]
) -> list[Shares | None] | None:
    """One entry per call of an all-reduce; None where they are no buckets, of any step.

    Args:
        match: the calls.
        table: the window's lines.
        layers: names that codes stand for.
        parameters: the model's layers in order of registration.
    """
    if match.key.collective != "all_reduce" or not parameters or (match.size <= 0).any():
        return None
    code_of = {name: code for code, name in enumerate(layers)}
    orders = _orders(table, code_of, parameters)
    for width in _WIDTHS:
        if not (match.size % width).any():
            buckets = _match(match, orders, width)
            if buckets is not None:
                return [_shares(bucket, code_of) for bucket in buckets]
    return None


def _match(
    match: JudgedCalls, orders: Sequence[Sequence[LayerParams]], width: int
) -> list[Bucket | None] | None:
    result: list[Bucket | None] = [None] * len(match.size)
    for step in distinct(match.step[0]).tolist():
        at = np.flatnonzero(match.step[0] == step)
        at = at[np.argsort(match.enter[0, at], kind="stable")]
        buckets = match_buckets(orders, (match.size[at] // width).tolist())
        if buckets is None:
            return None
        for call, bucket in zip(at.tolist(), buckets, strict=True):
            result[call] = bucket
    return result


def _orders(
    table: LineTable, code_of: Mapping[str, int], parameters: Sequence[LayerParams]
) -> list[list[LayerParams]]:
    """Registration backwards, then execution backwards."""
    forward = np.flatnonzero(table.is_named() & (table.phase == FORWARD))
    codes, first = np.unique(table.layer[forward], return_index=True)
    seen = dict(zip(codes.tolist(), first.tolist(), strict=True))
    last = len(forward)
    executed = sorted(parameters, key=lambda item: seen.get(code_of.get(item[0], -1), last), reverse=True)
    return [list(reversed(parameters)), executed]


def _shares(bucket: Bucket | None, code_of: Mapping[str, int]) -> Shares | None:
    elements_of = {layer: elements for layer, elements in (bucket or {}).items() if layer in code_of}
    if not elements_of or not bucket or len(elements_of) < len(bucket):
        return None
    codes = [1 + code_of[layer] * len(PHASES) + BACKWARD for layer in elements_of]
    elements = np.array(list(elements_of.values()), dtype=np.float64)
    return np.array(codes, dtype=np.int64), elements / elements.sum()


def shared_out(totals: Int64, shares: NDArray[np.float64]) -> Int64:
    """Totals, shape (n,), in whole parts that add up to each. Shape (n, shares)."""
    edges = np.rint(totals[:, None] * np.cumsum(shares)).astype(np.int64)
    edges[:, -1] = totals
    result: Int64 = np.diff(edges, axis=1, prepend=0)
    return result
