"""Records of NCCL Inspector: calls by communicator, bandwidths, arrivals, and files that are none.

The records follow the plugin's documented output (format v4.0); EXAMPLES have its documented numbers.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analysis.run import analyze_run
from perfscope.errors import TraceError
from perfscope.ingest.importing import import_traces
from perfscope.rundir.inspector_records import CommunicatorCalls
from perfscope.rundir.reader import RunReader
from perfscope.rundir.writer import write_json

WORLD = "0x7f8c496ae9f661"
WRITTEN_US = 1_748_030_377_748_202


def record(
    rank: int,
    seq: int,
    micros: float,
    *,
    collective: str = "AllReduce",
    size: int = 1 << 20,
    ranks: int = 2,
    comm: str = WORLD,
    **more: Any,
) -> dict[str, Any]:
    key = "p2p" if collective in {"Send", "Recv"} else "coll"
    perf = {
        key: collective,
        f"{key}_sn": seq,
        f"{key}_msg_size_bytes": size,
        f"{key}_exec_time_us": micros,
        f"{key}_timing_source": "kernel_gpu",
        **more,
    }
    metadata = {"dump_timestamp_us": WRITTEN_US + 1000 * seq, "hostname": "node1", "pid": 7}
    header = {"id": comm, "rank": rank, "n_ranks": ranks, "nnodes": 1}
    return {"header": header, "metadata": metadata, f"{key}_perf": perf}


def calls_of(folder: Path, *files: list[dict[str, Any]], packed: bool = False) -> list[CommunicatorCalls]:
    for number, records in enumerate(files):
        data = "".join(json.dumps(one) + "\n" for one in records).encode()
        path = folder / f"node1-pid{number + 100}.log{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
    import_traces([folder], folder / "run")
    return list(analyze_run(RunReader(folder / "run")).communicators)


EXAMPLES = [
    record(2, 1407, 61974, size=17179869184, ranks=8, coll_algobw_gbs=277.210914, coll_busbw_gbs=485.119099),
    record(
        2,
        1231,
        41057,
        collective="ReduceScatter",
        size=2147483648,
        ranks=8,
        coll_algobw_gbs=418.439467,
        coll_busbw_gbs=366.134533,
    ),
]


def test_bandwidths_are_those_that_the_documentation_states_for_its_examples(tmp_path: Path) -> None:
    reduce, scatter = calls_of(tmp_path, EXAMPLES)
    assert reduce.algbw_bytes_per_s == pytest.approx(277.210914e9, rel=1e-6)
    assert reduce.busbw_bytes_per_s == pytest.approx(485.119099e9, rel=1e-6)
    assert scatter.algbw_bytes_per_s == pytest.approx(418.439467e9, rel=1e-6)
    assert scatter.busbw_bytes_per_s == pytest.approx(366.134533e9, rel=1e-6)
    assert [(one.num_compared, one.num_deviating) for one in (reduce, scatter)] == [(1, 0), (1, 0)]
    assert (reduce.num_matched, reduce.wait_ns, reduce.num_recorded) == (0, None, 1)


def test_bandwidths_in_the_file_that_do_not_follow_from_its_bytes_are_reported_with_the_factor(
    tmp_path: Path,
) -> None:
    one = record(0, 1, 100, collective="AllGather", size=1000, ranks=4, coll_algobw_gbs=0.01)
    (result,) = calls_of(tmp_path, [one])
    assert result.num_deviating == 1
    assert result.worst_ratio == pytest.approx(1 / 4)
    command = [sys.executable, "-m", "perfscope", "report", str(tmp_path / "run"), "--full", "--no-pager"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "factor 0.25, as if its message size were the part of one rank" in " ".join(text.split())


@pytest.mark.parametrize("packed", [False, True])
def test_ranks_are_matched_by_communicator_and_number_and_the_shortest_call_is_the_transfer(
    tmp_path: Path, packed: bool
) -> None:
    first = [record(0, 1, 100), record(0, 2, 150), record(0, 3, 80), record(0, 1, 10, comm="0x1", ranks=1)]
    second = [record(1, 2, 50), record(1, 1, 140)]
    world = next(one for one in calls_of(tmp_path, first, second, packed=packed) if one.group == WORLD)
    assert (world.num_calls, world.num_matched, world.bytes) == (3, 2, 3 << 20)
    assert world.transfer_busbw_bytes_per_s == pytest.approx(2 * (1 << 20) / 150e-6)
    assert world.wait_ns == (40 + 100) * 1000 // 2
    assert world.last_counts == ((0, 1), (1, 1))


def test_durations_that_are_not_of_kernels_give_no_arrivals(tmp_path: Path) -> None:
    files = [[record(rank, 1, 100, coll_timing_source="collective_cpu")] for rank in (0, 1)]
    (result,) = calls_of(tmp_path, *files)
    assert (result.num_matched, result.wait_ns, result.last_counts) == (1, None, ())


def test_a_process_of_several_ranks_becomes_several_ranks(tmp_path: Path) -> None:
    (result,) = calls_of(
        tmp_path, [record(rank, seq, 100 + rank, ranks=4) for seq in (1, 2) for rank in range(4)]
    )
    assert (result.num_recorded, result.num_calls) == (4, 2)


def test_verbose_records_have_their_own_times_and_others_end_when_they_were_written(tmp_path: Path) -> None:
    channels = {"kernel_events": [{"kernel_start_ts": 5_000, "kernel_stop_ts": 5_100}]}
    calls_of(tmp_path, [record(0, 1, 100, event_trace_ts=channels), record(0, 2, 100)])
    table = RunReader(tmp_path / "run").timeline(0, 0, ["start_ns", "dur_ns", "kind"])
    assert table.column("start_ns").to_pylist() == [5_000_000, (WRITTEN_US + 2000 - 100) * 1000]
    assert set(table.column("kind").to_pylist()) == {"annotation"}


@pytest.mark.parametrize(
    "line",
    [
        b'{"header": {"id": "a", "rank": 3, "n_ranks": 2}, "coll_perf": {}}',
        b'{"header": {"id": 4, "rank": 0, "n_ranks": 2}, "coll_perf": {"coll": "x"}}',
        b'{"header": {"id": "a", "rank": 1e999, "n_ranks": 2}, "coll_perf": {"coll": "x"}}',
        b'{"header": ' + b"[" * 100_000,
        b'"header" "coll_perf" \xff\xfe\x00',
    ],
)
def test_a_file_without_a_usable_record_is_one_line_and_leaves_no_run(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "node-pid1.log"
    path.write_bytes(b'{"header": 1, "coll_perf": 2}\n' + line)
    with pytest.raises(TraceError) as caught:
        import_traces([path], tmp_path / "run")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 3000), at=st.integers(0, 1200), byte=st.integers(0, 255))
def test_a_damaged_file_is_imported_or_refused_without_another_error(
    tmp_path_factory: pytest.TempPathFactory, cut: int, at: int, byte: int
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    data = bytearray("".join(json.dumps(record(0, seq, 9.5)) + "\n" for seq in range(5)).encode()[:cut])
    if at < len(data):
        data[at] = byte
    (folder / "a-pid1.log").write_bytes(bytes(data))
    try:
        import_traces([folder / "a-pid1.log"], folder / "run")
    except TraceError as error:
        assert len(str(error).splitlines()) == 1
        assert not (folder / "run").exists()
    else:
        analyze_run(RunReader(folder / "run"))


def test_memory_stays_below_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a-pid1.log"
    with path.open("w") as file:
        for seq in range(40_000):
            file.write(json.dumps(record(0, seq, 10)) + "\n")
    import_traces([path], tmp_path / "warm")  # imports of modules do not count
    tracemalloc.start()
    import_traces([path], tmp_path / "run")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size


def recorded(folder: Path, *, ranks: int, start_us: int = WRITTEN_US) -> Path:
    """A run that perfscope recorded, of ten seconds, without traces."""
    run = folder / "recorded"
    start = start_us * 1000
    manifest = {"schema_version": 1, "start_unix_ns": start, "end_unix_ns": start + 10**10, "origin": "run"}
    run.mkdir()
    write_json(run / "run.json", manifest)
    for rank in range(ranks):
        (run / "ranks" / str(rank)).mkdir(parents=True)
        write_json(run / "ranks" / str(rank) / "rank.json", {"schema_version": 1, "rank": rank, "host": "n"})
    return run


def files_of_two_ranks(folder: Path) -> Path:
    logs = folder / "logs"
    logs.mkdir()
    for rank in range(2):
        lines = [record(rank, seq, 100 + 50 * rank) for seq in range(1, 6)]
        (logs / f"node1-pid{rank + 7}.log").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return logs


def into(run: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perfscope", "import", "--into", str(run), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_files_are_added_to_a_recorded_run(tmp_path: Path) -> None:
    run, logs = recorded(tmp_path, ranks=2), files_of_two_ranks(tmp_path)
    done = into(run, logs)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "5 calls of 2 ranks on 1 communicator"
    import_traces([logs], tmp_path / "alone")
    alone = analyze_run(RunReader(tmp_path / "alone"))
    (entry,) = analyze_run(RunReader(run)).communicators
    assert (entry,) == alone.communicators
    assert (entry.num_calls, entry.num_matched, entry.last_counts) == (5, 5, ((0, 5),))


@pytest.mark.parametrize(
    ("ranks", "seconds", "words"),
    [(1, 0, "the run has ranks 0"), (2, 9000, "of another time"), (2, -9000, "of another time")],
)
def test_files_of_another_run_are_refused_in_one_line(
    ranks: int, seconds: int, words: str, tmp_path: Path
) -> None:
    run = recorded(tmp_path, ranks=ranks, start_us=WRITTEN_US + seconds * 10**6)
    done = into(run, files_of_two_ranks(tmp_path))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("perfscope: the files are not of this run: ") and words in line
    assert not (run / "inspector.json").exists()
