"""Ranks read in tasks give what one pass over them gives, in any division and any order of completion."""

from __future__ import annotations

import gc
import pickle
import random
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from perfscope.analysis import ranks as ranks_module
from perfscope.analysis.comm_record import CommRecord
from perfscope.analysis.rank_part import RankTask
from perfscope.analysis.run import analyze_run
from perfscope.analysis.spans import WindowFacts
from perfscope.analysis.windows import Window, one_window
from perfscope.ingest.importing import import_traces
from perfscope.messages.missing import cause_text, figure_text
from perfscope.reports.document import build_document, render_json
from perfscope.rundir.reader import RunReader
from perfscope.rundir.schema import TIMELINE
from perfscope.vocabulary.causes import Cause
from tests.support.synthetic_run import SyntheticRun

TRACES = Path(__file__).parents[2] / "data" / "traces"


class ShuffledExecutor(Executor):
    """Does calls in a random order, each as another process would: by pickling it and its result."""

    def __init__(self, seed: int, failing: int | None = None) -> None:
        self.random, self.failing, self.num_calls = random.Random(seed), failing, 0
        self.waiting: list[tuple[Future[Any], bytes]] = []
        self.timer: threading.Timer | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, pickle.dumps((fn, args))))
        if self.timer is not None:
            self.timer.cancel()
        self.timer = threading.Timer(0.05, self.work)
        self.timer.start()
        return future

    def work(self) -> None:
        calls, self.waiting = self.waiting, []
        self.random.shuffle(calls)
        for future, call in calls:
            fn, (task,) = pickle.loads(call)
            is_reading = isinstance(task, RankTask)
            self.num_calls += is_reading
            if is_reading and self.failing in task.source.ranks:
                future.set_exception(MemoryError("no room"))
            else:
                future.set_result(pickle.loads(pickle.dumps(fn(task))))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("cpu_gloo_2ranks", "dlrm_v100_8ranks"):
        import_traces([TRACES / name], folder / name)
    return {path.name: path for path in folder.iterdir()}


def document(path: Path, executor: Executor | None = None) -> str:
    return render_json(build_document(analyze_run(RunReader(path), executor=executor)))


@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["cpu_gloo_2ranks", "dlrm_v100_8ranks"])
def test_any_division_in_any_order_gives_the_same_report(
    name: str, most: int, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_module, "MOST_RANKS_OF_TASK", most)
    monkeypatch.setattr(ranks_module, "NUM_TASKS", 1)
    executor = ShuffledExecutor(most)
    assert document(runs[name], executor) == document(runs[name])
    assert executor.num_calls == -(-len(RunReader(runs[name]).ranks) // most)


def test_ranks_whose_task_keeps_failing_are_missing_and_the_others_are_reported(
    runs: dict[str, Path],
) -> None:
    analysis = analyze_run(RunReader(runs["dlrm_v100_8ranks"]), executor=ShuffledExecutor(0, failing=3))
    (entry,) = [entry for entry in analysis.missing if entry.cause is Cause.TASK_FAILED]
    assert entry.ranks == (3,)
    assert figure_text(entry) == "steps and windows of rank 3"
    assert cause_text(entry) == "the task that reads it failed three times: MemoryError: no room"
    with_steps = [rank.rank for rank in analysis.ranks if rank.breakdown_ns is not None]
    assert with_steps == [0, 1, 2, 4, 5, 6, 7]
    assert not any(3 in entry.ranks for entry in analysis.missing if entry.cause is not Cause.TASK_FAILED)


def test_the_cycle_collector_is_on_again_after_an_analysis(tmp_path: Path) -> None:
    seen: list[bool] = []
    run = SyntheticRun(tmp_path)
    run.rank(0)
    run.steps(0, [30, 20, 20, 20])
    analyze_run(RunReader(run.path), progress=lambda done, total: seen.append(gc.isenabled()))
    assert seen == [False]
    assert gc.isenabled()


def test_notes_of_the_ranks_are_those_of_one_pass(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    for rank in range(3):
        run.rank(rank)
        run.steps(rank, [30, 20, 20, 20])
    torn = run.path / "ranks" / "1" / "steps.jsonl"
    torn.write_bytes(torn.read_bytes()[:-20])
    serial, parts = RunReader(run.path), RunReader(run.path)
    analyze_run(serial)
    analyze_run(parts, executor=ShuffledExecutor(1))
    assert any("steps.jsonl" in note.path for note in serial.notes)
    assert parts.notes == serial.notes


def test_a_group_that_the_trace_does_not_name_is_merged_alike_in_any_order() -> None:
    def record(rank: int, size: int | None) -> CommRecord:
        values = {
            "start_ns": [1], "dur_ns": [5], "rank": [rank], "window": [0], "step": [0], "device": [-1],
            "lane": [1], "depth": [0], "kind": ["comm"], "phase": ["other"], "name": ["c"],
            "collective": ["all_gather"], "group": ["unknown"], "group_size": [size], "in_bytes": [8],
            "seq": [0],
        }  # fmt: skip
        table = pa.table(
            {field.name: pa.array(values.get(field.name, [None]), field.type) for field in TIMELINE}, TIMELINE
        )
        made = CommRecord()
        facts = WindowFacts(
            rank=rank, window=0, host="", steps=(), whole_file=False, has_device=False, roles={}, groups={}
        )
        made.add(one_window(Window(facts, table)))
        return made

    for sizes, expected in (((4, 4, 4), 4), ((4, 8, 4), 0), ((None, 4, 4), 0)):
        left, right = record(0, sizes[0]), record(1, sizes[1])
        left.merge(record(1, sizes[1]))
        left.merge(record(2, sizes[2]))
        right.merge(record(2, sizes[2]))
        first = record(0, sizes[0])
        first.merge(right)
        for merged in (left, first):
            ((_, calls),) = merged.groups.items()
            assert (calls.size, calls.ranks) == (expected, {0, 1, 2})
            payloads = np.concatenate([of_rank.size for of_rank in calls.windows[0]])
            assert payloads.tolist() == [8 * max(size or 0, 1) for size in sizes]
