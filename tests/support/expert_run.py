"""Run directories of layers of experts whose every time is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perfscope.rundir import layout
from tests.support.synthetic_run import BACKEND, EPOCH, SyntheticRun, span

US = 1_000
ROW_BYTES = 4 * 256
DENSE_NS, TRANSFER_NS, FIXED_NS, TOKEN_NS = 800 * US, 100 * US, 50 * US, 10 * US
Loads = Sequence[Sequence[Sequence[int]]]  # tokens by step, layer, rank


class _Rank:
    """One rank's rows, and how far it is."""

    def __init__(self, rank: int, *, has_marks: bool) -> None:
        self.rank, self.at, self.rows = rank, 1_000, list[dict[str, Any]]()
        self._has_marks = has_marks
        self._seq = 0

    def compute(self, duration: int, layer: str, phase: str) -> None:
        self.rows.append(span(self.at, duration, "compute", layer=layer, phase=phase, name="aten::mm"))
        self.at += duration

    def exchange(self, end: int, rows: int, layer: str, phase: str) -> None:
        if self._has_marks:
            name = f"{layout.MARK_ROWS}{rows}"
            self.rows.append(span(self.at, 0, "annotation", layer=layer, phase=phase, name=name))
        columns = {
            "collective": "all_to_all",
            "group": "0",
            "group_size": None,
            "layer": layer,
            "phase": phase,
        }
        size = {"in_bytes": rows * ROW_BYTES, "out_bytes": rows * ROW_BYTES, "dtype": "float32"}
        self.rows.append(
            span(
                self.at,
                end - self.at,
                "comm",
                lane=BACKEND,
                seq=self._seq,
                name="gloo:all_to_all",
                launch_ns=EPOCH + self.at,
                **columns,
                **size,
            )
        )
        self.at, self._seq = end, self._seq + 1


def expert_run(
    path: Path,
    loads: Loads,
    *,
    noise: Callable[[], float] = lambda: 0.0,
    has_marks: bool = True,
    slow: dict[int, float] | None = None,
    description: str = "",
) -> tuple[SyntheticRun, float]:
    """A run with one window, and its mean step in ns.

    Args:
        path: of the run directory.
        loads: tokens that each rank's experts are given.
        noise: share by which a computation takes longer; drawn for each.
        has_marks: the probe wrote how many rows calls send.
        slow: rank -> factor of the time for its experts.
        description: of the process group.
    """
    num = len(loads[0][0])
    ranks = [_Rank(rank, has_marks=has_marks) for rank in range(num)]
    marks = []
    for number, step in enumerate(loads):
        begin = max(rank.at for rank in ranks)
        for rank in ranks:
            rank.at = begin
        for phase, order in (("forward", range(len(step))), ("backward", reversed(range(len(step))))):
            for layer in order:
                _layer(ranks, step[layer], f"moe{layer}", phase, noise, slow or {})
        for rank in ranks:
            rank.rows.append(span(rank.at, 50 * US, "optimizer", phase="optimizer"))
            rank.at += 50 * US
        marks.append((number, begin, max(rank.at for rank in ranks)))
    group = {"name": "0", "ranks": list(range(num)), **({"desc": description} if description else {})}
    run = SyntheticRun(path, world_size=num, num_ranks=num)
    for rank in ranks:
        run.rank(rank.rank, world_size=num, groups=[group])
        run.window(rank.rank, rank.rows, marks, groups=[{"pg_name": "0", "ranks": list(range(num))}])
    return run, (marks[-1][2] - marks[0][1]) / len(marks)


def _layer(
    ranks: Sequence[_Rank],
    loads: Sequence[int],
    layer: str,
    phase: str,
    noise: Callable[[], float],
    slow: dict[int, float],
) -> None:
    factor = 1 if phase == "forward" else 2
    sent = _even(sum(loads), len(ranks))
    for rank in ranks:
        rank.compute(round(factor * DENSE_NS * (1 + noise())), "dense", phase)
    _together(ranks, sent, layer, phase)
    for rank, load in zip(ranks, loads, strict=True):
        time = factor * (FIXED_NS + TOKEN_NS * load) * slow.get(rank.rank, 1.0)
        rank.compute(round(time * (1 + noise())), f"{layer}.expert", phase)
    _together(ranks, loads, layer, phase)


def _even(total: int, num: int) -> list[int]:
    return [total // num + (rank < total % num) for rank in range(num)]


def _together(ranks: Sequence[_Rank], rows: Sequence[int], layer: str, phase: str) -> None:
    end = max(rank.at for rank in ranks) + TRANSFER_NS
    for rank, count in zip(ranks, rows, strict=True):
        rank.exchange(end, count, layer, phase)
