"""Traces that are broken, odd or formatted unlike torch's: what can be read is, and is counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.support.ingest_traces import (
    DLRM,
    GLOO,
    MAIN,
    Ingested,
    document,
    ingest,
    kernel,
    launch,
    note,
    span,
    text_of,
)

RANK0 = text_of(DLRM / "rank0.json.gz")
GOOD = [
    note("ProfilerStep#3", 0, 100),
    span("aten::mm", 10, 5),
    span("aten::add", 20, 5),
    span("aten::mul", 30, 5),
]


def times(found: Ingested) -> list[tuple[str, int, int]]:
    return sorted((row["name"], row["start_ns"], row["dur_ns"]) for row in found.rows)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    return ingest(tmp_path_factory.mktemp("whole"), RANK0)


@pytest.mark.parametrize("share", [0.15, 0.5, 0.9, 0.999])
def test_truncated_json_keeps_every_event_before_the_cut(
    tmp_path: Path, whole: Ingested, share: float
) -> None:
    cut = RANK0[: int(len(RANK0) * share)]
    found = ingest(tmp_path, cut)
    assert found.summary.salvaged
    assert found.summary.events_dropped <= 1
    # Every complete event is there: as many as the text holds, give or take the one that was cut.
    assert abs(found.summary.events_read - cut.count(b'"ph":')) <= 1
    assert found.summary.events_read < whole.summary.events_read
    assert found.summary.host == whole.summary.host
    assert found.summary.world_size == 8


@pytest.mark.parametrize("share", [0.3, 0.95])
def test_truncated_gzip_gives_what_could_be_inflated(tmp_path: Path, whole: Ingested, share: float) -> None:
    packed = (DLRM / "rank0.json.gz").read_bytes()
    found = ingest(tmp_path, packed[: int(len(packed) * share)])
    assert found.summary.salvaged
    assert "gzip data ends early" in found.summary.notes
    assert 0 < found.summary.events_kept < whole.summary.events_kept
    assert set(times(found)) <= set(times(whole))


def test_corrupt_gzip_gives_what_comes_before_the_damage(tmp_path: Path) -> None:
    packed = bytearray((DLRM / "rank0.json.gz").read_bytes())
    packed[len(packed) // 2 : len(packed) // 2 + 40] = b"\xff" * 40
    found = ingest(tmp_path, bytes(packed))
    assert found.summary.salvaged
    assert found.summary.events_kept > 0


def test_concatenated_gzip_members_are_one_trace(tmp_path: Path, whole: Ingested) -> None:
    middle = len(RANK0) // 2
    found = ingest(tmp_path, gzip.compress(RANK0[:middle]) + gzip.compress(RANK0[middle:]))
    assert not found.summary.salvaged
    assert times(found) == times(whole)


def test_missing_closing_bracket_loses_nothing(tmp_path: Path) -> None:
    open_end = document(GOOD).rstrip().removesuffix(b"}").rstrip().removesuffix(b"]")
    found = ingest(tmp_path, open_end)
    assert times(found) == times(ingest(tmp_path / "good", document(GOOD)))
    assert found.summary.salvaged
    assert "the file ends before its array of events does" in found.summary.notes


def test_missing_last_brace_is_no_loss(tmp_path: Path) -> None:
    found = ingest(tmp_path, document(GOOD).rstrip().removesuffix(b"}"))
    assert found.summary.events_kept == 4


@pytest.mark.parametrize(
    "form",
    [
        lambda events: json.dumps(events).encode(),
        lambda events: json.dumps(events, indent=2).encode(),
        lambda events: json.dumps({"traceEvents": events}, separators=(",", ":")).encode(),
        lambda events: json.dumps({"traceEvents": events}, indent=4).replace("\n", "\r\n").encode(),
        lambda events: b"\xef\xbb\xbf" + json.dumps({"traceEvents": events}).encode(),
        lambda events: b"[" + b",".join(json.dumps(e).encode() for e in events) + b",",  # as Chrome writes
        lambda events: b" \n[\n" + b"\n,\n".join(json.dumps(e).encode() for e in events) + b"\n]\n",
        lambda events: json.dumps({"traceEvents": events, "distributedInfo": {"rank": 5}}).encode(),
    ],
    ids=["list", "list pretty", "compact", "CRLF", "BOM", "open list", "comma first", "metadata behind"],
)
def test_formatting_does_not_matter(tmp_path: Path, form: object) -> None:
    assert callable(form)
    found = ingest(tmp_path, form(GOOD))
    assert times(found) == times(ingest(tmp_path / "good", document(GOOD)))
    assert found.summary.events_dropped == 0


def test_metadata_is_found_before_and_behind_the_events(tmp_path: Path) -> None:
    info = {"backend": "nccl", "rank": 3, "world_size": 16}
    before = document(GOOD, distributedInfo=info, host_name="n1", baseTimeNanoseconds=10**18)
    behind = json.dumps(
        {"traceEvents": GOOD, "distributedInfo": info, "host_name": "n1", "baseTimeNanoseconds": 10**18}
    ).encode()
    for number, trace in enumerate((before, behind)):
        found = ingest(tmp_path / str(number), trace)
        assert (found.summary.world_size, found.summary.backend, found.summary.host) == (16, "nccl", "n1")
        assert found.one("aten::mm")["start_ns"] == 10**18 + 10_000


def test_base_time_is_found_in_damaged_metadata(tmp_path: Path) -> None:
    trace = document(GOOD)[:-2] + b', "baseTimeNanoseconds": 1767189312000000000, "broken": }'
    assert ingest(tmp_path, trace).one("aten::mm")["start_ns"] == 1767189312000010000


ODD = b'{"ph": "X", "cat": "", "pid": 100, "tid": 100, "name": "odd%b", "ts": %b, "dur": %b, "args": {%b}}'


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(ODD % (b"\x01\n", b"40", b"5", b""), id="control characters"),
        pytest.param(ODD % (b"", b"40", b"5", b'"a": NaN, "b": -Infinity'), id="NaN"),
        pytest.param(ODD % (b"\xff\xfe", b"40", b"5", b""), id="invalid UTF-8"),
        pytest.param(ODD % (rb"\ud800", b"40", b"5", b""), id="lone surrogate"),
        pytest.param(
            ODD % (b"", b'"40"', b'"5"', b'"correlation": "x", "stream": 1.5'), id="unexpected types"
        ),
        pytest.param(ODD % (rb" },{ \"ph\" },  {", b"40", b"5", b""), id="cut inside a string"),
    ],
)
def test_an_odd_event_is_kept_and_harms_no_other(tmp_path: Path, event: bytes) -> None:
    lines = [json.dumps(e).encode() for e in GOOD]
    trace = b'{"traceEvents": [\n' + b",\n".join([*lines[:2], event, *lines[2:]]) + b"\n]}"
    found = ingest(tmp_path, trace)
    assert found.summary.events_kept == 5
    assert [(r["start_ns"], r["dur_ns"]) for r in found.rows if r["name"].startswith("odd")] == [
        (40_000, 5_000)
    ]


@pytest.mark.parametrize(
    "change",
    [{"dur": -1}, {"ts": None}, {"dur": None}, {"ts": "soon"}, {"ts": 1e300}, {"ts": -5}],
    ids=["negative dur", "no ts", "no dur", "ts no number", "ts beyond int64", "negative ts"],
)
def test_an_event_without_a_usable_time_is_dropped_and_counted(
    tmp_path: Path, change: dict[str, object]
) -> None:
    bad = {key: value for key, value in (span("bad", 40, 5) | change).items() if value is not None}
    found = ingest(tmp_path, document([*GOOD, bad]))
    assert found.summary.events_dropped == 1
    assert found.summary.salvaged
    assert len(found.rows) == 4


def test_an_event_that_is_no_object_is_dropped(tmp_path: Path) -> None:
    trace = json.dumps({"traceEvents": [*GOOD[:2], 17, "text", None, *GOOD[2:]]}).encode()
    found = ingest(tmp_path, trace)
    assert (found.summary.events_kept, found.summary.events_dropped) == (4, 3)


def test_garbage_between_events_costs_only_itself(tmp_path: Path) -> None:
    lines = [json.dumps(e).encode() for e in GOOD]
    trace = b'{"traceEvents": [' + lines[0] + b", {{{ \x00 ]] oops , " + b", ".join(lines[1:]) + b"]}"
    found = ingest(tmp_path, trace)
    assert {row["name"] for row in found.rows} >= {"aten::add", "aten::mul"}
    assert found.summary.salvaged
    assert found.summary.events_dropped >= 1


def test_two_arrays_of_events_are_both_read(tmp_path: Path) -> None:
    first, second = json.dumps(GOOD[:2]), json.dumps(GOOD[2:])
    found = ingest(tmp_path, f'{{"traceEvents": {first}, "x": 1, "traceEvents": {second}}}'.encode())
    assert found.summary.events_kept == 4
    assert "more than one traceEvents array; all were read" in found.summary.notes


@pytest.mark.parametrize("size", [300_000, 3_000_000])
def test_an_event_larger_than_a_chunk_is_read_whole(tmp_path: Path, size: int) -> None:
    huge = span("aten::huge", 40, 5, Call_stack="x },{ y" * (size // 7))
    found = ingest(tmp_path, document([*GOOD[:2], huge, *GOOD[2:]]))
    assert found.summary.events_kept == 5
    assert not found.summary.salvaged


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"hello, this is no trace", "not JSON"),
        (b'{"a": 1, "b": [1, 2]}', "no trace"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (gzip.compress(b"nothing here", mtime=0), "not JSON"),
    ],
    ids=["empty", "text", "other JSON", "empty gzip", "text in gzip"],
)
def test_a_file_of_no_use_gives_an_empty_timeline_that_says_why(
    tmp_path: Path, data: bytes, words: str
) -> None:
    found = ingest(tmp_path, data)
    assert found.rows == []
    assert any(words in text for text in found.summary.notes)


def test_a_trace_without_events_has_no_steps(tmp_path: Path) -> None:
    found = ingest(tmp_path, document([]))
    assert (found.summary.events_read, found.summary.steps) == (0, ())


def test_a_trace_without_step_marks_is_one_step(tmp_path: Path) -> None:
    found = ingest(tmp_path, document(GOOD[1:]))
    assert found.summary.step_source == "whole file"
    assert [step for step, _, _ in found.summary.steps] == [0]
    assert {row["step"] for row in found.rows} == {0}


def test_begin_and_end_events_become_spans(tmp_path: Path) -> None:
    def edge(ph: str, at: float, name: str = "") -> dict[str, object]:
        return {"ph": ph, "name": name, "cat": "", "pid": 1, "tid": 1, "ts": at}

    events = [edge("B", 1, "outer"), edge("B", 2.5, "inner"), edge("E", 4), edge("E", 9), edge("E", 10)]
    found = ingest(tmp_path, document([*events, edge("B", 11, "open")]))
    assert times(found) == [("inner", 2_500, 1_500), ("outer", 1_000, 8_000)]
    assert found.one("inner")["depth"] == 1
    # Six objects: two rows, their two ends, and the two that fit nothing.
    counts = found.summary
    assert (counts.events_read, counts.events_kept, counts.events_skipped, counts.events_dropped) == (
        6,
        2,
        2,
        2,
    )


def test_threads_named_by_text_are_kept_apart(tmp_path: Path) -> None:
    events = [span("a", 0, 10), span("b", 5, 10) | {"tid": "worker"}, span("c", 5, 10) | {"tid": "other"}]
    found = ingest(tmp_path, document(events))
    assert {row["depth"] for row in found.rows} == {0}
    assert {"worker", "other"} <= {lane.label for lane in found.summary.lanes}


def test_a_gpu_rank_whose_launches_are_lost_says_so(tmp_path: Path) -> None:
    found = ingest(tmp_path, document([kernel("gemm", 10, 5, 77)]))
    assert found.one("gemm")["launch_ns"] is None
    assert found.summary.events_cut == 0
    assert any("no launches in the file" in text for text in found.summary.notes)


def test_a_nameless_kernel_is_unclassified(tmp_path: Path) -> None:
    events = [launch(1, 5), kernel("", 10, 5, 5), kernel("x", 20, 5, 6, cat="npu_op")]
    found = ingest(tmp_path, document(events))
    assert dict(found.summary.unclassified) == {"": 1, "x": 1}
    assert {row["kind"] for row in found.rows if row["device"] >= 0} == {"compute"}


def test_integer_microseconds_and_nanosecond_decimals_give_the_same_table(tmp_path: Path) -> None:
    text = text_of(GLOO / "rank0.json.gz")
    assert ingest(tmp_path / "a", text).rows == ingest(tmp_path / "b", text.replace(b"\n", b"\r\n")).rows
    assert MAIN  # the fixture's threads have other numbers


DEPTH = 150_000  # brackets: more than any decoder's stack, and more text than the reader takes at once


@pytest.mark.parametrize(
    "deep",
    [
        b"[" * DEPTH + b"]" * DEPTH,
        b'{"ph": "X", "name": "a", "args": ' + b'{"a":' * DEPTH + b"1" + b"}" * (DEPTH + 1),
        b'{"ph": "X", "name": "a", "args": {"Input Dims": ' + b"[" * DEPTH + b"]" * DEPTH + b"}}",
    ],
    ids=["list", "object", "shapes"],
)
def test_an_element_nested_too_deep_costs_only_itself(tmp_path: Path, deep: bytes) -> None:
    first, *others = (json.dumps(event).encode() for event in GOOD)
    found = ingest(tmp_path, b'{"traceEvents": [' + b", ".join([first, deep, *others]) + b"]}")
    assert sorted(row["name"] for row in found.rows) == sorted(event["name"] for event in GOOD)
    assert (found.summary.events_dropped, found.summary.events_read) == (1, len(GOOD) + 1)
    assert "JSON nested too deep; what could be read was kept" in found.summary.notes


@pytest.mark.parametrize("depth", [300, 900, 950, 990, 1_100])
def test_nesting_near_the_decoders_limit_is_read_or_left_out(tmp_path: Path, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    fields = ("Input Dims", "Input type", "Concrete Inputs", "dtype")
    args = b"{" + b", ".join(b'"%b": %b' % (field.encode(), deep) for field in fields) + b"}"
    shape = b'{"ph":"X","cat":"cpu_op","name":"%b","ts":50,"dur":2,"pid":1,"tid":1,"args":%b}'
    events = [json.dumps(event).encode() for event in GOOD]
    events += [shape % (name, args) for name in (b"aten::mm", b"c10d::allreduce_")]
    head = b'{"distributedInfo": {"rank": %b}, "traceEvents": [' % deep
    found = ingest(tmp_path, head + b", ".join(events) + b"]}")
    assert {event["name"] for event in GOOD} <= {row["name"] for row in found.rows}
    assert found.summary.events_read == len(events)


def test_metadata_nested_too_deep_costs_only_the_metadata(tmp_path: Path) -> None:
    deep = b'{"a":' * DEPTH + b"1" + b"}" * DEPTH
    found = ingest(
        tmp_path, b'{"traceEvents": ' + json.dumps(GOOD).encode() + b', "deviceProperties": ' + deep + b"}"
    )
    assert len(found.rows) == len(GOOD)
