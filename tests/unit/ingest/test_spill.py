"""Sorted runs merged by time, from memory or from disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfscope.ingest.spill import DEVICE, HOST, KINDS, LAUNCH, Rows, Spill


def rows(kind: int, starts: list[int]) -> Rows:
    made = np.zeros(len(starts), KINDS[kind])
    made["start"] = starts
    if kind != 1:
        made["dur"] = 1
    return made


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_slices_hold_each_row_once_in_order_and_within_their_bound(tmp_path: Path, memory: int) -> None:
    dice = np.random.default_rng(0)
    given: list[list[int]] = [[], [], []]
    with Spill(tmp_path, memory_bytes=memory) as spill:
        for _ in range(12):
            kind = int(dice.integers(3))
            starts = dice.integers(0, 3000, 700).tolist()
            given[kind] += starts
            spill.add(kind, rows(kind, starts))
        assert list(tmp_path.iterdir()) == []  # the file has no name
        seen: list[list[int]] = [[], [], []]
        last = -1
        for until, parts in spill.slices(block_rows=600):
            assert sum(map(len, parts)) <= 12 * 700
            for kind, part in enumerate(parts):
                starts = part["start"].tolist()
                assert starts == sorted(starts)
                assert not starts or (last < starts[0] and starts[-1] <= until)
                seen[kind] += starts
            last = until
    assert seen == [sorted(starts) for starts in given]
    assert [part.dtype for part in parts] == [HOST, LAUNCH, DEVICE]


def test_a_span_comes_before_the_ones_it_encloses_from_the_same_start(tmp_path: Path) -> None:
    inner, outer = rows(0, [5]), rows(0, [5])
    inner["dur"], outer["dur"] = 3, 9
    with Spill(tmp_path, memory_bytes=0) as spill:
        spill.add(0, inner)
        spill.add(0, outer)
        ((_, (host, _, _)),) = spill.slices()
    assert host["dur"].tolist() == [9, 3]


def test_more_rows_at_one_time_than_a_block_holds_stay_in_one_slice(tmp_path: Path) -> None:
    with Spill(tmp_path, memory_bytes=0) as spill:
        spill.add(0, rows(0, [7] * 2000 + [8]))
        spill.add(2, rows(2, [7] * 10))
        slices = [(len(parts[0]), len(parts[2])) for _, parts in spill.slices(block_rows=256)]
    assert slices[0] == (2000, 10) or slices == [(2001, 10)]
    assert sum(host for host, _ in slices) == 2001


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    with Spill(tmp_path) as spill:
        spill.add(0, rows(0, []))
        assert list(spill.slices()) == []
