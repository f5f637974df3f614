"""Batches of data loaders in the timeline: on the clock of the traces, under their rank, a few of many."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from perfscope.analysis.loading.lanes import LoaderSpans, loader_spans
from perfscope.analysis.loading.record import rank_loading
from perfscope.analysis.loading.timeline import FOLD_ROLE, QUEUE_ROLE, WORKER_ROLE, with_loaders
from perfscope.analysis.timeline_extract import LaneExtract, TimelineExtract, extract_timeline
from perfscope.rundir.loader_records import LoaderIterator, Loading, WorkerRows
from tests.support.loaded_run import BOOT, MS, loaded_run
from tests.support.synthetic_run import EPOCH, SyntheticRun


def drawn(run: SyntheticRun) -> TimelineExtract:
    source = run.read()
    loading = [rank_loading(rank, source.loading(rank), 10, None) for rank in source.ranks]
    return with_loaders(extract_timeline(source), source, None, [entry for entry in loading if entry])


def lanes_of(extract: TimelineExtract, rank: int) -> list[LaneExtract]:
    return [lane for lane in extract.windows[0].lanes if lane.rank == rank and lane.loader is not None]


def spans_of(rank: int, run: SyntheticRun) -> LoaderSpans:
    source = run.read()
    [loader] = loader_spans(source.loading(rank), source.rank_records[rank].anchors)
    return loader


def test_waits_and_batches_are_on_the_wall_clock_of_the_traces(tmp_path: Path) -> None:
    loader = spans_of(0, loaded_run(tmp_path))
    assert (loader.ask_ns - EPOCH).tolist() == [10 * MS * batch for batch in range(10)]
    assert (loader.workers[1].start_ns - EPOCH).tolist() == [(20 * at - 5) * MS for at in range(5)]
    assert loader.workers[1].batch.tolist() == [1, 4, 7, 10, 13]
    # Batch 0 is finished at 15 ms, after it had been taken, so that row is of another batch of the number.
    assert loader.made_ns[0] == -1 and loader.made_ns[4] - EPOCH == 35 * MS


def test_drift_of_the_wall_clock_between_readings_is_followed(tmp_path: Path) -> None:
    loading = loaded_run(tmp_path).read().loading(0)
    [loader] = loader_spans(loading, [(BOOT, EPOCH), (BOOT + 100 * MS, EPOCH + 101 * MS)])
    assert loader.ask_ns[5] - EPOCH == 50 * MS + MS // 2
    assert loader_spans(loading, []) == ()


def test_each_rank_has_its_queue_and_workers_under_it(tmp_path: Path) -> None:
    extract = drawn(loaded_run(tmp_path))
    assert [lane.rank for lane in extract.windows[0].lanes] == [0] * 5 + [1] * 5
    queue, *workers = lanes_of(extract, 1)
    assert queue.role == QUEUE_ROLE and [lane.label for lane in workers] == [
        f"loader worker {number}" for number in range(3)
    ]
    names = [extract.strings[name] for name in workers[2].name.tolist()]
    assert names == ["batch 2", "batch 5", "batch 8", "batch 11", "batch 14"]
    assert workers[2].start_ns[0] == -5 * MS and workers[2].dur_ns[0] == 20 * MS
    assert {extract.kinds[kind] for kind in workers[2].kind.tolist()} == {"loading"}
    assert queue.loader is not None and queue.loader.top == 6
    assert queue.loader.curve.tolist()[:4] == [0, 1, 2, 0]
    assert queue.dur_ns.tolist() == [2 * MS] * 10


def test_of_many_workers_the_slow_one_is_drawn_and_the_others_are_counted(tmp_path: Path) -> None:
    lanes = lanes_of(drawn(loaded_run(tmp_path, num_workers=16, slow=11)), 0)
    shown = [lane.loader.worker for lane in lanes if lane.role == WORKER_ROLE and not lane.loader.is_folded]  # type: ignore[union-attr]
    assert len(shown) == 3 and 11 in shown
    [fold] = [lane for lane in lanes if lane.role == FOLD_ROLE]
    assert fold.label == "13 more workers" and len(fold.start_ns) == 0
    assert fold.loader is not None and fold.loader.curve.max() == 13 and fold.loader.curve[-1] == 0
    assert sum(lane.role == WORKER_ROLE for lane in lanes) == 16


def test_a_run_without_loaders_stays_as_it_is(tmp_path: Path) -> None:
    run = loaded_run(tmp_path)
    for rank in (0, 1):
        (tmp_path / f"ranks/{rank}/loading.jsonl").unlink()
    extract = drawn(run)
    assert all(lane.loader is None for lane in extract.windows[0].lanes)


def loading_of(*passes: tuple[int, int]) -> Loading:
    """Passes of one worker each, from (begin, end) in ms."""
    iterators, workers, asks = {}, {}, []
    for number, (begin, end) in enumerate(passes):
        iterators[number] = LoaderIterator(number=number, workers=(number,), prefetch=2, batch_size=4)
        row = [0, begin * MS, 0, (end - begin) * MS, 0, 0, 1]
        workers[number] = WorkerRows(worker=0, pid=number, rows=np.array([row]), used={})
        asks.append([number, begin * MS, (end - begin) * MS, 0, 0, 0])
    return Loading(iterators=iterators, asks=np.array(asks), workers=workers)


def test_passes_in_turn_are_one_loader_and_at_once_are_two() -> None:
    anchors = [(0, EPOCH)]
    [one] = loader_spans(loading_of((0, 10), (10, 20)), anchors)
    assert len(one.workers) == 1 and len(one.workers[0].batch) == 2
    assert [loader.number for loader in loader_spans(loading_of((0, 10), (5, 20)), anchors)] == [0, 1]


def test_batches_that_were_only_summed_are_no_spans() -> None:
    loading = loading_of((0, 10))
    summed = WorkerRows(worker=0, pid=0, rows=np.array([[0, 0, 0, 9 * MS, 0, 0, 9]]), used={})
    [loader] = loader_spans(
        Loading(iterators=loading.iterators, asks=loading.asks, workers={0: summed}), [(0, 1)]
    )
    assert len(loader.workers[0].batch) == 0 and loader.workers[0].num_summed == 9


def test_the_export_for_perfetto_has_a_thread_per_worker_and_a_track_of_ready_batches(tmp_path: Path) -> None:
    from perfscope.api.run import Run

    run = Run(loaded_run(tmp_path / "run").read())
    run.export("perfetto", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    workers = {thread: name for thread, name in threads.items() if name.startswith("loader worker")}
    assert sorted(workers.values()) == sorted([f"loader worker {number}" for number in range(3)] * 2)
    batches = [event for event in events if event.get("cat") == "loading"]
    assert len(batches) == 2 * 3 * 5 and all((event["pid"], event["tid"]) in workers for event in batches)
    assert batches[0]["ts"] == -5000 and batches[0]["dur"] == 20_000
    ready = [event["args"]["value"] for event in events if event["ph"] == "C" and event["pid"] == 1]
    assert ready == [batch % 3 for batch in range(10)]
    [wait] = [event for event in events if event["name"] == "wait for batch 4" and event["pid"] == 0]
    assert wait["args"] == {"batch": 4, "worker": 1, "batches_ready": 1, "finished_ns_before": 5 * MS}
