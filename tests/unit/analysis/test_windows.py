"""Windows that are analyzed together give what each gives by itself."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis import windows as windows_module
from perfscope.analysis.reading import read_run
from perfscope.analysis.run import analyze_run
from perfscope.analysis.windows import Window, Windows, members_of
from perfscope.reports.document import build_document, render_json
from perfscope.rundir import layout
from perfscope.rundir.reader import RunReader
from tests.support.synthetic_run import AUTOGRAD, EPOCH, MAIN, SyntheticRun, comm, span

STEP = 10_000
LAYERS = ("conv", "fc", "head", "norm")


def made(path: Path, seed: int, num_ranks: int) -> RunReader:
    """Ranks of two windows that differ in layers, threads, groups, kinds of work and the order of words."""
    rng, run = random.Random(seed), SyntheticRun(path, world_size=num_ranks)
    for rank in range(num_ranks):
        run.rank(rank, world_size=num_ranks)
        run.steps(rank, [STEP] * 6, window=[-1, 0, 0, 1, -1, -1])
        layers = rng.sample(LAYERS, 3)
        for window, steps in enumerate(([1, 2], [3])):
            begin = rank * 37 * STEP
            marks = [(step, begin + step * STEP, begin + (step + 1) * STEP) for step in steps]
            spans = [row for _, start, _ in marks for row in _step(rng, rank, start, layers)]
            run.window(rank, sorted(spans, key=lambda row: row["start_ns"]), marks, window=window)
    return run.read()


def _step(rng: random.Random, rank: int, start: int, layers: list[str]) -> list[dict[str, Any]]:
    rows = []
    for number, layer in enumerate(layers):
        at = start + number * 900 + rng.randrange(200)
        rows.append(span(at, 700, "annotation", name=layer, layer=layer, phase="forward"))
        rows.append(span(at + 10, 600, "compute", name=f"aten::{layer}", layer=layer, phase="forward"))
        rows.append(span(at + 20, 300, "compute", name="aten::inner", layer=layer, phase="forward", flops=at))
        back = start + 5000 + number * 900 + rng.randrange(200)
        backward = {"lane": AUTOGRAD, "layer": layer, "phase": "backward", "name": "aten::grad"}
        rows.append(span(back, rng.randrange(100, 900), "compute", **backward))
        rows.append(comm(back + 300, rng.randrange(100, 2500), number, launch_ns=EPOCH + back))
    if rank % 2:
        rows.append(span(start + 4000, 30, "annotation", name=f"{layout.MARK_STAGE}0F0"))
        rows.append(comm(start + 3500, 900, 90, lane=MAIN, collective="recv", peer=rank - 1))
        rows.append(span(start + 4100, 300, "wait", lane=MAIN))
    if rank % 3 == 0:
        rows.append(comm(start + 8000, 400, 91, collective="all_to_all", layer=layers[0], in_rows=rank))
        rows.append(span(start + 8600, 500, "input", lane=MAIN, phase="other"))
        rows.append(span(start + 9200, 300, "compute", lane=MAIN, phase="optimizer", name="aten::add_"))
    return rows


@pytest.mark.parametrize("seed", range(2))
def test_windows_together_are_what_each_is_alone(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made(tmp_path, seed, 5)
    sizes: list[int] = []
    join = windows_module._joined

    def noted(group: Sequence[Window]) -> Sequence[Windows]:
        sizes.append(len(group))
        return join(group)

    monkeypatch.setattr(windows_module, "_joined", noted)
    together, labels = render_json(build_document(analyze_run(source))), read_run(source, None, None).ranks
    assert max(sizes) == 10
    monkeypatch.setattr(windows_module, "MOST_ROWS", 1)
    sizes.clear()
    assert render_json(build_document(analyze_run(source))) == together
    assert max(sizes) == 0
    assert read_run(source, None, None).ranks.traces.calls == labels.traces.calls
    assert len(labels.traces.calls) == 10


def test_ranks_that_list_the_same_large_group_share_it() -> None:
    ranks = members_of(tuple(range(1000)))
    assert ranks is members_of(tuple(range(1000)))
    assert {tuple(range(1000)): "group"}[ranks] == "group"
    assert pickle.loads(pickle.dumps(ranks)) == ranks
