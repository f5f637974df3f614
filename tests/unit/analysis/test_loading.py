"""Data loaders: why batches come late, and what the replay of a loader predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.findings.loading import input_wait
from perfscope.analysis.loading.record import rank_loading
from perfscope.analysis.loading.results import RankLoading
from perfscope.analysis.loading.store import with_node_cache
from perfscope.analysis.loading.what_ifs import mean_input, with_loading
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.thread_states import ThreadStates
from perfscope.analysis.machine.topology import Topology
from perfscope.analysis.steps import RankSteps, rank_steps
from perfscope.analysis.whatif.analyze import NOTHING
from perfscope.analysis.whole_run.results import LongSteps, WholeRun
from perfscope.messages.findings.facts import PartOfStep
from perfscope.rundir.host_records import CeilingsRecord
from perfscope.rundir.loader_records import LoaderIterator, Loading, WorkerRows, read_loading, read_worker
from perfscope.rundir.samples import HostSamples, SampleSeries
from perfscope.rundir.schema import STEPS
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.host_activity import HostActivity
from perfscope.vocabulary.loading import InputCause, LoaderChange
from perfscope.vocabulary.memory import HOST_AVAILABLE, JOB_LIMIT, JOB_USED
from perfscope.vocabulary.run_parts import RunPart
from tests.support.study_entries import parts, rank_result

MS = 1_000_000
NUM = 80
STORES = (LoaderChange.DOUBLE_STORE, LoaderChange.FASTER_STORE)


def loader(
    lengths_ms: Sequence[float],
    between_ms: float = 4,
    cpu: float = 1.0,
    used: Mapping[str, int | None] | None = None,
    prefetch: int = 2,
    num_batches: int | None = None,
) -> Loading:
    """A loader whose worker number i takes `lengths_ms[i]` for a batch, of which `cpu` is computing."""
    num_workers = len(lengths_ms)
    free = [0.0] * num_workers
    taken: list[float] = []
    asks: list[list[int]] = []
    rows: list[list[list[int]]] = [[] for _ in lengths_ms]
    asked = 0.0
    for batch in range(NUM):
        worker = batch % num_workers
        assigned = taken[batch - num_workers * prefetch] if batch >= num_workers * prefetch else 0.0
        begin = max(free[worker], assigned)
        length = lengths_ms[worker] * MS
        rows[worker].append(
            [batch, round(begin), round(begin - free[worker]), round(length), round(length * cpu), 0, 1]
        )
        free[worker] = begin + length
        taken.append(max(asked, free[worker]))
        asks.append([0, round(asked), round(taken[-1] - asked), batch, worker, int(taken[-1] == asked)])
        asked = taken[-1] + between_ms * MS
    workers = {
        100 + number: WorkerRows(worker=number, pid=100 + number, rows=np.array(of_worker), used=used or {})
        for number, of_worker in enumerate(rows)
    }
    iterator = LoaderIterator(
        number=0, workers=tuple(workers), prefetch=prefetch, batch_size=8, num_batches=num_batches
    )
    return Loading(iterators={0: iterator}, asks=np.array(asks), workers=workers)


def read(loading: Loading, num_cpus: int | None = 64) -> RankLoading:
    result = rank_loading(0, loading, NUM, num_cpus)
    assert result is not None
    return result


def test_the_replay_gives_the_time_between_batches_and_what_more_workers_make_of_it() -> None:
    result = read(loader([100, 100]))
    assert result.replayed_ns == pytest.approx(50 * MS, rel=0.04) == pytest.approx(result.period_ns, rel=0.04)
    more = result.prediction(LoaderChange.MORE_WORKERS)
    assert more is not None and more.factor == 4 and more.period_ns == pytest.approx(25 * MS, rel=0.06)
    assert result.cause is InputCause.DECODE


def test_workers_that_share_too_few_cpus_bring_nothing() -> None:
    more = read(loader([100, 100]), num_cpus=3).prediction(LoaderChange.MORE_WORKERS)
    enough = read(loader([100, 100]), num_cpus=5).prediction(LoaderChange.MORE_WORKERS)
    assert more is not None and enough is not None
    assert more.saved_ns < 0.7 * enough.saved_ns


def test_one_slow_worker_is_named_and_costs_what_it_makes_the_others_wait() -> None:
    result = read(loader([4, 60, 4, 4]))
    assert (result.cause, result.slow_worker) == (InputCause.SLOW_WORKER, 1)
    equal = result.prediction(LoaderChange.EQUAL_WORKERS)
    assert equal is not None and equal.period_ns == pytest.approx(4 * MS, rel=0.2)


def test_bytes_from_storage_tell_a_slow_store_from_other_waiting() -> None:
    stored = {"rchar": NUM << 20, "read_bytes": NUM << 20}
    result = read(loader([40, 40], cpu=0.1, used=stored))
    assert result.cause is InputCause.STORE and result.cached_ratio == 0
    cached = result.prediction(LoaderChange.CACHED)
    double = result.prediction(LoaderChange.DOUBLE_STORE)
    assert cached is not None and cached.period_ns == pytest.approx(4 * MS, rel=0.1)
    assert double is not None and double.period_ns == pytest.approx(11 * MS, rel=0.1)
    none = read(loader([40, 40], cpu=0.1, used={"rchar": NUM << 20, "read_bytes": 0}))
    assert none.cause is InputCause.WAIT and none.prediction(LoaderChange.CACHED) is None
    assert none.cached_ratio == 1


def test_batches_that_are_ready_in_time_have_no_cause() -> None:
    result = read(loader([2, 2]))
    assert result.cause is None and result.wait_ns < 0.01 * result.period_ns


def test_a_run_whose_workers_left_nothing_has_waits_and_no_cause() -> None:
    whole = loader([40, 40])
    result = read(Loading(iterators=whole.iterators, asks=whole.asks, workers={}))
    assert (result.cause, result.replayed_ns, result.workers) == (None, None, ())
    assert result.wait_ns > 10 * MS


def test_torn_and_foreign_lines_are_counted_and_the_others_read() -> None:
    good = b'{"worker": 1, "pid": 7, "io": [1, 10, 0, 5, 0, null]}\n'
    rows = b'{"rows": [[0, 5, 1, 9, 4, 0, 1]], "io": [9, 30, 4096, 6, 0, null]}\n'
    worker, num_bad = read_worker(good + rows + b'{"rows": [[1, -3]]}\n{"rows": [[1')
    assert num_bad == 2 and worker is not None and worker.rows.tolist() == [[0, 5, 1, 9, 4, 0, 1]]
    assert worker.used["rchar"] == 20 and worker.used["block_ns"] is None
    assert read_worker(rows) == (None, 0)
    loading = read_loading(
        b'{"iterator": 0, "workers": [7]}\n{"asks": [[0, 1, 2, 0, 0, null], [3, 1, 2, 0, 0, 1]]}', {}
    )
    assert loading.asks.tolist() == [[0, 1, 2, 0, 0, -1]] and loading.num_bad == 1


def waiting_steps(durations: Sequence[int], least: int) -> RankSteps:
    """Of these lengths in ms, of which what exceeds `least` is waiting for input."""
    num = len(durations)
    columns = {
        "rank": [0] * num,
        "step": list(range(num)),
        "start_ns": np.cumsum([0, *durations[:-1]]) * MS,
        "dur_ns": [value * MS for value in durations],
        "window": [-1] * num,
        "input_ns": [(value - least) * MS for value in durations],
    }
    arrays = [pa.array(columns.get(field.name, [None] * num), field.type) for field in STEPS]
    return rank_steps(pa.table(arrays, schema=STEPS))


@pytest.mark.parametrize(("traced_ms", "is_hidden"), [(10, True), (30, False)])
def test_a_wait_that_longer_traced_steps_hide_is_that_of_the_untraced_ones(
    traced_ms: int, is_hidden: bool
) -> None:
    traced = rank_result(0, "vm", parts(80, input_wait=traced_ms / 80))
    steps = {0: waiting_steps([52] * 40, 18), 1: waiting_steps([52] * 40, 50)}
    workers = [read(loader([50, 50]))]  # they set the pace
    mean = mean_input(steps, [traced], None, workers)
    assert mean is not None and mean.rank == 0 and mean.wait_ns == pytest.approx(34 * MS)
    assert mean.hidden_when_traced is is_hidden and mean.is_uneven is is_hidden
    in_time = mean_input(steps, [traced], None, [read(loader([2, 2]))])
    assert in_time is not None and not in_time.hidden_when_traced


def test_of_steps_that_take_turns_in_waiting_the_mean_counts() -> None:
    mean = mean_input({0: waiting_steps([34, 321] * 20, 34)}, [], None, [])
    assert mean is not None and mean.is_uneven
    assert mean.step_ns - mean.removable_ns == pytest.approx(34 * MS, rel=0.01)


@pytest.mark.parametrize(("length", "is_pace"), [([40, 40], True), ([2, 2], False), ([2, 80], True)])
def test_waits_in_few_steps_count_in_the_mean_where_workers_set_the_pace(
    length: Sequence[int], is_pace: bool
) -> None:
    steps = {0: waiting_steps([5, 5, 5, 77] * 10, 5)}
    stalls = LongSteps(
        part=RunPart.INPUT, num_steps=10, every=4, ns=720 * MS, ratio=0.78, longest_ns=72 * MS, longest_step=3
    )
    account = WholeRun(
        wall_ns=920 * MS, parts=(), ranks=(), num_steps=40, training_ns=920 * MS, usual_step_ns=5 * MS,
        samples_per_s=None, training_samples_per_s=None, long_steps=(stalls,),
    )  # fmt: skip
    mean = mean_input(steps, [], account, [read(loader(length))])
    assert mean is not None and mean.is_uneven is is_pace
    # A loader whose batches are ready in time has long waits for another reason: the finding of these steps.
    assert mean.in_few is not is_pace


def stored_loader(asleep_ms: float = 36, pass_batches: int | None = None) -> RankLoading:
    """Two workers that compute 4 ms for each batch of 8 samples of 128 KiB, and wait for storage."""
    length = 4 + asleep_ms
    stored = {"rchar": NUM << 19, "read_bytes": NUM << 19}  # of each worker
    loading = loader([length, length], cpu=4 / length, used=stored, num_batches=pass_batches)
    return read(loading)


@pytest.mark.parametrize("factor", [2, 3, 4, 8, 20])
def test_a_store_some_times_as_fast_gives_what_a_loader_on_it_takes(factor: float) -> None:
    slow, fast = stored_loader(), stored_loader(asleep_ms=36 / factor)
    predicted = slow.period_with(1 / factor)
    assert predicted is not None and 0.95 < predicted / fast.period_ns < 1.05
    of_factor = [entry for entry in slow.predictions if entry.change in STORES and entry.factor == factor]
    assert [entry.period_ns for entry in of_factor] == ([round(predicted)] if factor in (2, 4, 8) else [])


def host(free_bytes: int | None, limit: int | None = None) -> Host:
    """A host with memory that was free at three readings, and a control group that used 1 MiB of `limit`."""
    readings = {} if free_bytes is None else {HOST_AVAILABLE: [2 * free_bytes, free_bytes, 2 * free_bytes]}
    if limit is not None:
        readings |= {JOB_USED: [1 << 20] * 3, JOB_LIMIT: [limit] * 3}
    at = np.arange(3) * 1_000 * MS
    series = [
        SampleSeries(
            collector="memory", metric=metric, labels={"group": "job"} if "job" in metric else {},
            unit="bytes", kind="gauge", source="", limit=None, scale=1.0, t_begin_ns=at, t_end_ns=at,
            values=np.array(values), quality=np.zeros(3, np.uint8), segment=np.zeros(3, np.int32),
        )
        for metric, values in readings.items()
    ]  # fmt: skip
    samples = HostSamples(
        host="a", series=tuple(series), facts=(), anchors=(), intervals=(), ends=(), num_dropped=0
    )
    return Host(
        name="a", samples=samples, topology=Topology.of(None), ceilings=CeilingsRecord(), ranks=(),
        steps_ns=None,
    )  # fmt: skip


DATA = 100 * 8 << 17  # bytes of a pass of 100 batches


@pytest.mark.parametrize(
    ("free", "limit", "held"),
    [(2 * DATA, None, 1.0), (DATA // 2, None, 0.5), (2 * DATA, DATA // 4 + (1 << 20), 0.25)],
)
def test_a_cache_in_each_node_spares_the_store_what_fits_into_its_free_memory(
    free: int, limit: int | None, held: float
) -> None:
    (loading,), missing = with_node_cache([stored_loader(pass_batches=100)], [host(free, limit)], {0: "a"})
    cached = loading.prediction(LoaderChange.NODE_CACHE)
    assert cached is not None and cached.factor == pytest.approx(held) and not missing
    with_it = stored_loader(asleep_ms=36 * (1 - held))
    assert 0.9 < cached.period_ns / with_it.period_ns < 1.1


def test_every_node_needs_the_data_of_all_ranks() -> None:
    ranks = [replace(stored_loader(pass_batches=100), rank=rank) for rank in (0, 1)]
    loading, _ = with_node_cache(ranks, [host(DATA)], {0: "a", 1: "a"})
    cached = loading[1].prediction(LoaderChange.NODE_CACHE)
    assert cached is not None and cached.factor == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("pass_batches", "free", "cause"),
    [(None, DATA, Cause.PASS_NOT_KNOWN), (100, None, Cause.FREE_MEMORY_NOT_READ)],
)
def test_a_cache_of_which_too_little_is_known_is_missing(
    pass_batches: int | None, free: int | None, cause: Cause
) -> None:
    (loading,), missing = with_node_cache([stored_loader(pass_batches=pass_batches)], [host(free)], {0: "a"})
    assert loading.prediction(LoaderChange.NODE_CACHE) is None
    (entry,) = missing
    assert (entry.figure, entry.cause, entry.ranks) == (Figure.NODE_CACHE, cause, (0,))


def test_a_pass_that_another_followed_says_how_long_passes_are() -> None:
    once = loader([20, 20])
    again = once.asks.copy()
    again[:, 1] += int(again[-1, 1] + again[-1, 2]) + MS
    twice = Loading(iterators=once.iterators, asks=np.concatenate([once.asks, again]), workers=once.workers)
    assert read(once).pass_samples is None and read(twice).pass_samples == 8 * NUM


def test_a_training_thread_that_reads_files_itself_has_what_ifs_of_the_store() -> None:
    mean = mean_input({0: waiting_steps([10] * 40, 4)}, [], None, [])
    assert mean is not None and mean.wait_ns == 6 * MS
    seen = ThreadStates(num_readings=40, ratios={HostActivity.FILES: 0.5, HostActivity.SLEEP: 0.1})
    what_ifs, missing = with_loading(NOTHING, [], mean, {0: seen})
    gains = {entry.id: entry.gain_ns for entry in what_ifs.what_ifs}
    assert gains["store_twice_as_fast"] == 2.5 * MS and gains["store_cached"] == 5 * MS and not missing
    synced, _ = with_loading(NOTHING, [], mean, {0: seen}, {0: 3 * MS})
    assert max(entry.gain_ns for entry in synced.what_ifs) == 2 * MS
    awake = ThreadStates(num_readings=40, ratios={HostActivity.FILES: 0.05})
    assert with_loading(NOTHING, [], mean, {0: awake}) == (NOTHING, ())
    _, unread = with_loading(NOTHING, [], mean, {})
    assert [entry.cause for entry in unread] == [Cause.STATE_HARDLY_READ]
    _, unsampled = with_loading(NOTHING, [], mean, is_sampled=False)
    assert [entry.cause for entry in unsampled] == [Cause.SAMPLING_OFF]


def test_the_loader_of_an_input_finding_is_that_of_the_rank_it_names() -> None:
    ranks = [replace(read(loader([length] * 2)), rank=rank) for rank, length in enumerate((30, 50))]
    mean = mean_input({0: waiting_steps([34, 321] * 20, 34), 1: waiting_steps([300] * 40, 290)}, [], None, [])
    assert mean is not None and mean.rank == 0 and mean.is_uneven and ranks[1].wait_ns > ranks[0].wait_ns
    evidence = SimpleNamespace(
        mean_input=mean,
        loading=ranks,
        metas={},
        framework="torch",
        step=100.0 * MS,
        mean=lambda part: 10.0 * MS,
        gain=lambda what_if, cost: (10 * MS, 0.1),
        traced=[(SimpleNamespace(rank=1), SimpleNamespace(input_wait=10 * MS))],
        of_step=lambda part_ns: PartOfStep(part_ns=part_ns, step_ns=100.0 * MS, has_step_marks=True),
    )
    finding = input_wait(cast("Evidence", evidence))
    assert finding.rank == 0 and "take 30.0 ms for a batch" in finding.text.detail
