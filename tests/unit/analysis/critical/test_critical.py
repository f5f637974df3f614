"""Critical paths whose truth is known: one rank, a late rank, overlap, a pipeline, streams, a slow host."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analysis.breakdown import activity, analyzed_steps
from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.collectives import analyze_collectives
from perfscope.analysis.comm_record import CommRecord
from perfscope.analysis.critical import results
from perfscope.analysis.critical.path import analyze_critical
from perfscope.analysis.critical.results import CriticalPath
from perfscope.analysis.mainline import LineRecord
from perfscope.analysis.missing import Missing
from perfscope.analysis.spans import StepSpan, WindowFacts, spans_of
from perfscope.analysis.windows import Window, one_window
from perfscope.messages import critical_path as texts
from perfscope.messages.missing import cause_text, figure_text
from perfscope.rundir.schema import TIMELINE
from tests.support.synthetic_run import BACKEND, EPOCH, MAIN, comm, span

MS = 1_000_000
GPU = {"device": 0}
Rows = list[dict[str, Any]]
Told = list[tuple[int, str, float, float]]  # rank, kind, begin and end in ms


def work(start: float, end: float, layer: str = "fc", **columns: Any) -> dict[str, Any]:
    return span(
        round(start * MS),
        round((end - start) * MS),
        "compute",
        **{"layer": layer, "phase": "forward", **columns},
    )


def call(start: float, end: float, seq: int, **columns: Any) -> dict[str, Any]:
    return comm(round(start * MS), round((end - start) * MS), seq, **columns)


def asked(at: float) -> dict[str, Any]:
    """The operator that queues a call."""
    return span(round(at * MS), 1000, "host", name="c10d::allreduce_")


def kernel(launch: float, start: float, end: float, stream: int = 7, **columns: Any) -> dict[str, Any]:
    told = {"lane": stream, "launch_ns": EPOCH + round(launch * MS), "name": f"kernel{stream}", **GPU}
    return work(start, end, **{**told, **columns})


def host(start: float, end: float, name: str = "aten::mm") -> dict[str, Any]:
    return span(round(start * MS), round((end - start) * MS), "host", name=name)


class Traces:
    """Timelines in memory: what a walk asks its source for."""

    def __init__(self) -> None:
        self.tables: dict[int, pa.Table] = {}
        self.reads: list[int] = []

    def timeline_columns(self, rank: int, window: int, columns: Sequence[str]) -> pa.Table:
        self.reads.append(rank)
        return self.tables[rank].select(columns)


def walk(
    ranks: dict[int, Rows],
    ends: float | dict[int, float],
    *,
    hosts: dict[int, str] | None = None,
    world_size: int | None = None,
    begins: dict[int, float] | None = None,
    traces: Traces | None = None,
) -> tuple[tuple[CriticalPath, ...], tuple[Missing, ...]]:
    """Paths of one window with one step, which begins at 0 unless `begins` says otherwise."""
    names = {rank: (hosts or {}).get(rank, "node0") for rank in ranks}
    lines, record, source = LineRecord(), CommRecord(), traces or Traces()
    for rank, rows in ranks.items():
        begin = EPOCH + round((begins or {}).get(rank, 0) * MS)
        end = EPOCH + round((ends[rank] if isinstance(ends, dict) else ends) * MS)
        facts = WindowFacts(
            rank=rank,
            window=0,
            host=names[rank],
            steps=(StepSpan(step=0, start_ns=begin, end_ns=end),),
            whole_file=False,
            has_device=any(row.get("device", -1) >= 0 for row in rows),
            roles={(-1, MAIN): ("main", ""), (-1, BACKEND): ("backend", "")},
            groups={},
        )
        defaults = {"device": -1, "lane": MAIN, "depth": 0, "rank": rank, "window": 0, "step": 0}
        table = pa.Table.from_pylist([{**defaults, **row} for row in rows], schema=TIMELINE)
        source.tables[rank] = table
        spans = spans_of(table)
        steps = analyzed_steps(spans, facts)
        windows = one_window(Window(facts, table))
        record.add(windows)
        lines.add(windows, spans, activity(spans, facts), [steps])
    found = analyze_collectives(record, names, world_size or len(ranks))
    paths, missing = analyze_critical(lines, found.matches, found.clocks, source)  # type: ignore[arg-type]
    for one in paths:
        assert_tiles(one)
    return paths, missing


def assert_tiles(path: CriticalPath) -> None:
    assert path.segments[0].start_ns == path.begin_ns
    assert path.segments[-1].end_ns == path.end_ns
    assert all(segment.dur_ns > 0 for segment in path.segments)
    assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(path.segments))
    assert sum(segment.dur_ns for segment in path.segments) == path.total_ns
    assert sum(share.ns for share in results.shares_by_kind([path])) == path.total_ns
    assert sum(entry.ns for entry in results.entries([path])) == path.total_ns


def told(path: CriticalPath) -> Told:
    return [
        (one.rank, one.kind, (one.start_ns - EPOCH) / MS, (one.end_ns - EPOCH) / MS) for one in path.segments
    ]


def reasons(path: CriticalPath) -> list[str]:
    return [segment.reason for segment in path.segments]


def test_one_rank_alone_is_its_own_path() -> None:
    [path], missing = walk({0: [work(0, 4), work(5, 9, "head")]}, 10)
    assert told(path) == [(0, "compute", 0, 4), (0, "idle", 4, 5), (0, "compute", 5, 9), (0, "idle", 9, 10)]
    assert [segment.layer for segment in path.segments] == ["fc", None, "head", None]
    assert (path.total_ns, path.num_hops, path.off_path, path.complete) == (10 * MS, 0, (), True)
    assert missing == ()


def test_the_path_goes_to_the_rank_that_entered_last() -> None:
    # Rank 1 computes 8 ms where the others compute 3; the transfer takes 1 ms, then all compute 1 ms.
    ranks = {
        rank: [work(0, busy, "slow"), asked(busy), call(busy, 9, 0), work(9, 10, "head")]
        for rank, busy in {0: 3, 1: 8, 2: 3}.items()
    }
    [path], missing = walk(ranks, {0: 10, 1: 10, 2: 10.5})
    assert told(path) == [
        (1, "compute", 0, 8),
        (2, "transfer", 8, 9),
        (2, "compute", 9, 10),
        (2, "idle", 10, 10.5),
    ]
    assert reasons(path) == [
        "waited for rank 1",
        texts.TRANSFER,
        texts.PROGRAM_ORDER,
        texts.END_OF_STEP,
    ]
    assert path.segments[1].late_rank == 1
    assert path.segments[1].collective == "all_reduce"
    assert (path.off_path, path.num_hops) == ((0,), 1)
    assert missing == ()


def test_a_transfer_that_compute_hides_is_not_on_the_path() -> None:
    ranks = {rank: [work(0, 9), asked(2), call(2, 6, 0)] for rank in (0, 1)}
    [path], _ = walk(ranks, 9)
    assert [(kind, start, end) for _, kind, start, end in told(path)] == [("compute", 0, 9)]


def test_where_communication_is_longer_the_path_leaves_compute_when_it_was_asked_for() -> None:
    # Asked for at 2, the call lasts until 9: what was computed from 2 to 5 beside it does not matter.
    ranks = {rank: [work(0, 2, "a"), asked(2), work(2, 5, "b"), call(2, 9, 0)] for rank in (0, 1)}
    [path], _ = walk(ranks, 9)
    assert [kind for _, kind, _, _ in told(path)] == ["compute", "transfer"]
    assert path.segments[0].layer == "a"
    assert path.segments[1].dur_ns == 7 * MS


def test_a_call_queued_behind_another_leads_to_that_one() -> None:
    # One backend thread: both asked for at 1 and 2, the second begins when the first is done.
    at = [EPOCH + MS, EPOCH + 2 * MS]
    rows = [work(0, 2), call(1, 5, 0, launch_ns=at[0]), call(5, 9, 1, launch_ns=at[1])]
    [path], _ = walk({0: rows, 1: rows}, 9)
    assert told(path) == [(0, "compute", 0, 1), (0, "transfer", 1, 5), (0, "transfer", 5, 9)]
    assert reasons(path)[1] == texts.QUEUED


def test_a_pipeline_leads_from_the_receiver_to_the_sender() -> None:
    # Stage 0 computes and sends; stage 1 waits from 1 on, computes, and is the last to end.
    send = {"collective": "send", "peer": 1, "group_size": 2}
    receive = {"collective": "recv", "peer": 0, "group_size": 2}
    ranks = {
        0: [work(0, 6, "first"), asked(6), call(6, 7, 0, **send), work(7, 8, "more")],
        1: [work(0, 1, "wait"), asked(1), call(1, 7, 0, **receive), work(7, 12, "second")],
    }
    [path], missing = walk(ranks, {0: 8, 1: 12})
    assert told(path) == [(0, "compute", 0, 6), (1, "transfer", 6, 7), (1, "compute", 7, 12)]
    assert [segment.layer for segment in path.segments] == ["first", None, "second"]
    assert missing == ()


def test_without_the_other_ranks_the_path_stays_and_says_so() -> None:
    rows = [work(0, 3), asked(3), call(3, 8, 0), work(8, 9)]
    [path], missing = walk({0: rows}, 9, world_size=4)
    assert told(path) == [(0, "compute", 0, 3), (0, "comm", 3, 8), (0, "compute", 8, 9)]
    [gap] = missing
    assert "rank 0 are matched with no other rank's" in cause_text(gap)


def test_clocks_of_two_hosts_are_put_on_one() -> None:
    # Host b shows 5 s more than host a. Rank 1 is there, and late by 6 ms in each of 20 calls.
    shift = 5000.0
    fast, slow = [], []
    for k in range(20):
        at = 10 * k
        fast += [work(at, at + 2), asked(at + 2), call(at + 2, at + 9, k)]
        slow += [work(at, at + 8), asked(at + 8), call(at + 8, at + 9, k)]
    moved = [{**row, "start_ns": row["start_ns"] + round(shift * MS)} for row in slow]
    [path], _ = walk({0: fast, 1: moved}, {0: 200, 1: shift + 200}, hosts={0: "a", 1: "b"}, begins={1: shift})
    shares = {share.key: share.ratio for share in results.shares_by_rank([path])}
    assert path.total_ns == pytest.approx(200 * MS, rel=0.02)
    assert shares["1"] > 0.75
    assert path.num_uncertain == 0


def test_streams_order_the_path_and_an_event_joins_them() -> None:
    # Stream 8 copies until 5, stream 7 is done with its own kernel at 2, and goes on at 5.01: it waited.
    rows = [
        host(0, 0.05),
        kernel(0.01, 0.02, 2, 7, layer=None, name="first"),
        kernel(0.02, 0.05, 5, 8, layer=None, name="beside"),
        kernel(0.03, 5.01, 9, 7, layer=None, name="joined"),
        kernel(0.04, 9.001, 10, 7, layer=None, name="last"),
    ]
    [path], _ = walk({0: rows}, 10)
    told_names = [(one.name, one.kind, one.reason) for one in path.segments if one.dur_ns > 50_000]
    assert told_names == [
        ("beside", "compute", texts.EVENT_WAIT),
        ("joined", "compute", texts.STREAM_ORDER),
        ("last", "compute", texts.END_OF_STEP),
    ]
    assert {one.lane for one in path.segments if one.kind == "compute"} == {7, 8}


def test_a_device_that_waits_for_launches_puts_the_host_on_the_path() -> None:
    # Kernels of 0.1 ms, one launched each ms: the host decides.
    rows = [host(k + 0.2, k + 0.9, f"aten::op{k}") for k in range(10)]
    rows += [kernel(k + 0.8, k + 0.82, k + 0.92, layer=None) for k in range(10)]
    [path], missing = walk({0: rows}, 10)
    shares = {share.key: share.ratio for share in results.shares_by_kind([path])}
    assert shares["host"] > 0.95
    assert missing == ()
    assert any(entry.what == "aten::op3" and entry.kind == "host" for entry in results.entries([path]))


def test_a_step_that_ends_between_two_queued_kernels_is_the_devices() -> None:
    # The host runs ahead: its step ends in the gap of 10 µs between two kernels that it launched long before.
    rows = [host(0, 0.1), kernel(0.05, 0.06, 5, layer=None), kernel(0.06, 5.01, 10, layer=None)]
    [path], _ = walk({0: rows}, 5.005)
    shares = {share.key: share.ratio for share in results.shares_by_kind([path])}
    assert shares["compute"] > 0.98


def test_a_host_that_waited_for_its_device_hands_the_path_back() -> None:
    # The host launches a kernel of 8 ms, shows nothing until it is done, then launches one of 1 ms.
    rows = [
        host(0, 0.1, "aten::mm"),
        kernel(0.05, 0.1, 8.1, layer=None, name="long"),
        host(0.1, 8.12, "aten::item"),
        host(8.12, 8.3, "aten::mm"),
        kernel(8.28, 8.3, 9.3, layer=None, name="short"),
    ]
    [path], _ = walk({0: rows}, 9.3)
    long = [one for one in path.segments if one.dur_ns >= MS]
    assert [(one.name, one.reason) for one in long] == [
        ("long", texts.DEVICE_DONE),
        ("short", texts.END_OF_STEP),
    ]


def test_what_the_device_does_while_a_call_blocks_the_host_is_the_devices() -> None:
    # Each ms: a kernel of 0.3 ms, and a call that frees memory: it waits for the kernel and then goes on.
    rows: Rows = []
    for k in range(10):
        rows += [host(k, k + 0.99, f"aten::op{k}"), kernel(k + 0.05, k + 0.1, k + 0.4, layer=None)]
        freeing = {"name": "hipFree", "lane": MAIN}
        rows.append(span(round((k + 0.06) * MS), round(0.9 * MS), "runtime", **freeing))
    [path], _ = walk({0: rows}, 10)
    shares = {share.key: share.ratio for share in results.shares_by_kind([path])}
    assert shares["compute"] == pytest.approx(0.3, abs=0.01)
    assert shares["host"] + shares["launch"] == pytest.approx(0.7, abs=0.01)


def test_a_call_that_does_not_wait_is_the_hosts() -> None:
    # The host runs ahead; its calls end while kernels run that it has queued long before.
    rows = [host(0, 5, "aten::cat"), kernel(0.01, 0.02, 3, layer=None), kernel(0.02, 3, 9, layer=None)]
    rows.append(span(round(2.5 * MS), MS, "runtime", name="cudaMalloc", lane=MAIN))
    [path], _ = walk({0: rows}, 9)
    shares = {share.key: share.ratio for share in results.shares_by_kind([path])}
    assert shares["compute"] > 0.99


def test_a_collective_on_devices_leads_to_the_late_ranks_stream() -> None:
    def rank(busy: float, device: int) -> Rows:
        on = {"device": device}
        nccl = {"lane": 20, "launch_ns": EPOCH + 30_000, "name": "ncclDevKernel", "group_size": 2, **on}
        return [
            host(0, 0.05),
            kernel(0.01, 0.02, busy, **on, layer="slow"),
            call(busy + 0.01, 9, 0, **nccl),
            kernel(0.04, 9.01, 10, **on, layer="head"),
        ]

    [path], missing = walk({0: rank(2, 0), 1: rank(7, 1)}, {0: 10.01, 1: 10})
    main = [(one.rank, one.kind, one.layer) for one in path.segments if one.dur_ns > 50_000]
    assert main == [(1, "compute", "slow"), (0, "transfer", None), (0, "compute", "head")]
    assert missing == ()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_segments_tile_the_step_whatever_the_traces_say(
    data: st.DataObject,
) -> None:
    """Any spans, also such that contradict each other: no gap, no overlap, and an end."""
    ranks: dict[int, Rows] = {}
    ends = {}
    num_calls = data.draw(st.integers(0, 4))
    times = st.integers(0, 60)
    stretch = st.tuples(times, times).map(lambda pair: (min(pair), max(pair)))
    for rank in range(data.draw(st.integers(1, 3))):
        rows: Rows = [work(*data.draw(stretch), f"l{k}") for k in range(4)]
        on_device = data.draw(st.booleans())
        for stream in data.draw(st.lists(st.sampled_from([7, 8]), max_size=6)) if on_device else []:
            rows.append(kernel(data.draw(times), *data.draw(stretch), stream))
            rows.append(host(*data.draw(stretch)))
        for seq in range(num_calls):
            start, end = data.draw(stretch)
            where = {"device": 0, "lane": 20, "launch_ns": EPOCH + start * MS - 1} if on_device else {}
            rows += [asked(max(start - 1, 0)), call(start, end, seq, **where)]
        ranks[rank] = rows
        ends[rank] = data.draw(st.integers(1, 64))
    paths, _ = walk(ranks, {rank: float(end) for rank, end in ends.items()})
    for path in paths:
        assert path.end_ns == EPOCH + max(ends.values()) * MS
        assert EPOCH <= path.begin_ns < path.end_ns


def test_many_ranks_and_calls_do_not_grow_beyond_their_number() -> None:
    """A path through n calls has O(n) segments: each call is taken once."""
    rows = [
        row
        for k in range(200)
        for row in (work(2 * k, 2 * k + 1), asked(2 * k + 1), call(2 * k + 1, 2 * k + 2, k))
    ]
    [path], _ = walk({rank: rows for rank in range(4)}, 400)
    assert len(path.segments) == 400
    assert {share.key: share.ratio for share in results.shares_by_kind([path])} == {
        "compute": 0.5,
        "transfer": 0.5,
    }


def test_a_host_whose_clock_cannot_be_compared_is_left_out_by_name() -> None:
    paths, missing = walk({0: [work(0, 3)], 1: [work(0, 9)]}, 10, hosts={0: "a", 1: "b"})
    assert [path.ranks for path in paths] == [(0,)]
    assert any("rank 1" in figure_text(gap) and "clocks" in cause_text(gap) for gap in missing)


def test_no_steps_no_path() -> None:
    assert analyze_critical(LineRecord(), (), ClockFit(reference="")) == ((), ())


def test_kernel_names_lose_what_they_were_compiled_for() -> None:
    long = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 4>(float*, int)"
    assert results.short_name(long) == "at::native::CatArrayBatchedCopy"
    assert results.short_name("Memcpy HtoD (Pinned -> Device)") == "Memcpy HtoD"
