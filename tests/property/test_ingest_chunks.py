"""Wherever the file is cut into chunks, runs and slices, the same table comes out."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.ingest import collect, spill
from perfscope.ingest.formats import kineto_reader as reader
from tests.support.ingest_traces import (
    DLRM,
    GLOO,
    Ingested,
    Json,
    ingest,
    kernel,
    launch,
    note,
    span,
    text_of,
)

Row = tuple[Any, ...]


def rows_of(found: Ingested) -> list[Row]:
    return sorted((tuple(row.items()) for row in found.rows), key=repr)


def ingest_with(data: bytes, *, chunk: int, flush: int, block: int, memory: int) -> Ingested:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(reader.EventReader.__init__, "__kwdefaults__", {"chunk_bytes": chunk})
        patch.setattr(collect.EventCollector.__init__, "__kwdefaults__", {"flush_rows": flush})
        patch.setattr(spill.Spill.__init__, "__kwdefaults__", {"memory_bytes": memory})
        patch.setattr(spill.Spill.slices, "__kwdefaults__", {"block_rows": block})
        patch.setattr(spill, "_MIN_BLOCK_ROWS", 2)
        return ingest(Path(folder), data)


sizes = st.fixed_dictionaries(
    {
        "chunk": st.integers(16, 4000),
        "flush": st.integers(1, 60),
        "block": st.integers(1, 60),
        "memory": st.sampled_from([0, 1000, 1 << 20]),
    }
)


def small_trace(seed: int) -> bytes:
    """Two steps with layers, backward, launches, kernels and hostile strings, in a random order of events."""
    dice = random.Random(seed)
    events: list[Json] = []
    for step in range(2):
        at = 1000 * step
        events.append(note(f"ProfilerStep#{step}", at, 900))
        for layer in range(3):
            start = at + 100 * layer + 10
            events.append(note(f"perfscope.layer:l.{layer}", start, 90))
            sequence = 10 * step + layer
            events.append(span("aten::mm", start + 5, 40, Sequence_number=sequence, Fwd_thread_id=0))
            events.append(span("aten::as_strided", start + 10, 20, Sequence_number=sequence))
            events.append(launch(start + 12, 100 * step + layer + 1))
            events.append(kernel('gemm },{ "ph"', start + 60, 30, 100 * step + layer + 1))
            events.append(
                span(
                    "MmBackward0",
                    at + 700 - 100 * layer,
                    80,
                    tid=101,
                    Sequence_number=sequence,
                    Fwd_thread_id=1,
                )
            )
            events.append(span("aten::mm", at + 710 - 100 * layer, 40, tid=101))
        events.append({"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 0, "ts": at, "id": step})
    dice.shuffle(events)
    indent = dice.choice([None, 0, 2])
    return json.dumps({"x": [{"a": 1}, {"b": 2}], "traceEvents": events, "y": "z"}, indent=indent).encode()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sizes=sizes, seed=st.integers(0, 5))
def test_chunk_run_and_slice_sizes_change_nothing(sizes: dict[str, int], seed: int) -> None:
    data = small_trace(seed)
    plain = ingest_with(data, chunk=1 << 18, flush=1 << 14, block=1 << 14, memory=1 << 20)
    found = ingest_with(data, **sizes)
    assert rows_of(found) == rows_of(plain)
    assert found.summary.events_read == plain.summary.events_read == 46
    assert (found.summary.events_dropped, found.summary.salvaged) == (0, False)
    layers = {(row["start_ns"], row["layer"]) for row in found.rows if row["phase"] == "backward"}
    assert {layer for _, layer in layers} == {"l.0", "l.1", "l.2"}


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    chunk=st.integers(3_000, 200_000),
    flush=st.integers(100, 900),
    block=st.integers(64, 900),
    path=st.sampled_from([GLOO / "rank0.json.gz", DLRM / "rank1.json.gz"]),
)
def test_real_traces_do_not_depend_on_chunks(chunk: int, flush: int, block: int, path: Path) -> None:
    data = text_of(path)
    plain = ingest_with(data, chunk=1 << 18, flush=1 << 14, block=1 << 14, memory=1 << 20)
    found = ingest_with(data, chunk=chunk, flush=flush, block=block, memory=0)
    assert rows_of(found) == rows_of(plain)
    assert found.summary.events_read == plain.summary.events_read
    assert found.summary.events_dropped == plain.summary.events_dropped


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(0, 6000), chunk=st.integers(16, 3000))
def test_a_truncated_file_never_raises_and_always_adds_up(cut: int, chunk: int) -> None:
    data = small_trace(1)
    found = ingest_with(data[: min(cut, len(data))], chunk=chunk, flush=50, block=50, memory=0)
    assert found.summary.events_dropped <= 1  # `ingest` itself checks that the counts add up
