"""Recorded traces as other versions and jobs would have written them: conclusions are right or missing."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.analysis.timeline_extract import extract_timeline
from perfscope.ingest.importing import import_traces
from perfscope.messages.missing import cause_text
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.findings import FindingKind

TRACES = Path(__file__).parents[2] / "data" / "traces"
DLRM = [TRACES / "dlrm_v100_8ranks" / f"rank{rank}.json.gz" for rank in range(8)]

Trace = dict[str, Any]


def changed(source: Path, target: Path, change: Callable[[Trace], object]) -> Path:
    trace = json.loads(gzip.decompress(source.read_bytes()))
    change(trace)
    target.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return target


def analysis_of(folder: Path, *traces: Path) -> RunAnalysis:
    import_traces(list(traces), folder / "run")
    return analyze_run(RunReader(folder / "run"))


def without(trace: Trace, category: str) -> None:
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("cat") != category]


def test_without_launches_the_queue_is_not_known_and_nothing_is_launch_bound(tmp_path: Path) -> None:
    trace = changed(DLRM[0], tmp_path / "rank-0.json.gz", lambda trace: without(trace, "cuda_runtime"))
    analysis = analysis_of(tmp_path, trace)
    kinds = {finding.id for finding in analysis.findings}
    assert FindingKind.IDLE_BOUND in kinds and FindingKind.LAUNCH_BOUND not in kinds
    idle = analysis.ranks[0].device_idle
    assert idle and {(entry.queue_empty_ns, entry.after_ns) for entry in idle} == {(None, None)}


def test_a_lone_trace_that_does_not_state_the_world_has_no_group_size(tmp_path: Path) -> None:
    trace = changed(DLRM[3], tmp_path / "trace.json.gz", lambda trace: trace.pop("distributedInfo"))
    analysis = analysis_of(tmp_path, trace)
    assert {row.collective for row in analysis.collectives} == {"all_reduce", "all_to_all"}
    for row in analysis.collectives:
        assert (row.group_size, row.transfer_ns, row.wait_ns) == (None, None, None)
        assert row.bytes and row.busbw_bytes_per_s is None
    reasons = [cause_text(entry) for entry in analysis.missing]
    assert sum("how many ranks the job has" in reason for reason in reasons) == 2


def test_several_traces_that_do_not_state_the_world_are_the_job(tmp_path: Path) -> None:
    traces = [
        changed(path, tmp_path / path.name, lambda trace: trace.pop("distributedInfo")) for path in DLRM[:2]
    ]
    rows = analysis_of(tmp_path, *traces).collectives
    assert {row.group_size for row in rows} == {2}
    assert all(row.transfer_ns for row in rows)


@pytest.mark.parametrize("deep", [False, True])
def test_folders_per_host_stand_for_the_traces_in_them(tmp_path: Path, deep: bool) -> None:
    from perfscope.ingest.importing import traces_in

    top = tmp_path / "traces"
    for rank in (0, 2, 10):
        folder = top / f"host{rank % 3}" / ("logs" if deep else "")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank{rank}.json").touch()
    run = top / "old-run"
    run.mkdir()
    (run / "run.json").touch()
    assert [path.name for path in traces_in(top)] == ["rank0.json", "rank10.json", "rank2.json"]


def skewed(folder: Path, skew_us: Callable[[int], int]) -> list[Path]:
    def later(rank: int) -> Callable[[Trace], object]:
        def change(trace: Trace) -> None:
            for event in trace["traceEvents"]:
                if "ts" in event and event.get("ph") != "M":
                    event["ts"] += skew_us(rank)

        return change

    return [changed(path, folder / path.name, later(rank)) for rank, path in enumerate(DLRM)]


def test_clocks_of_unnamed_hosts_that_differ_do_not_make_a_rank_late(tmp_path: Path) -> None:
    """Rank 7 is last 5 of 8 times; by clocks that are off, rank 2 would be."""
    offsets = {rank: rank * 37 % 11 * 400 for rank in range(8)}
    traces = skewed(tmp_path, offsets.__getitem__)
    with ThreadPoolExecutor(2) as executor:
        import_traces(traces, tmp_path / "run")
        analysis = analyze_run(RunReader(tmp_path / "run"), executor=executor)
    found = analysis.clocks.of_ranks
    assert found is not None and (found.unlinked, found.later_ns) == ((), 0)
    assert 0 < (analysis.clock_residual_ns or 0) < 200_000  # eight calls say no more
    for clock in found.ranks:
        assert abs(clock.offset_ns - 1000 * offsets[clock.rank]) < 10_000
    late = Counter[int]()
    for row in analysis.collectives:
        late.update(dict(row.late_counts))
    assert late == {7: 5, 5: 2, 4: 1}
    assert analysis.findings[0].rank == 7
    assert any("ahead of that of rank 0" in remark for remark in analysis.remarks)
    # What is drawn is on one clock, too: collectives end together.
    (window,) = extract_timeline(RunReader(tmp_path / "run"), clocks=analysis.clocks).windows
    (recorded,) = extract_timeline(RunReader(tmp_path / "run")).windows
    assert window.dur_ns < recorded.dur_ns - 2_000_000


def test_clocks_that_agree_are_left_as_they_are(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, *DLRM)
    assert analysis.clocks.of_ranks is None and not analysis.remarks


def test_groups_have_the_same_axes_whether_the_traces_state_the_world_or_not(tmp_path: Path) -> None:
    traces = [
        changed(path, tmp_path / path.name, lambda trace: trace.pop("distributedInfo")) for path in DLRM[:2]
    ]
    silent = analysis_of(tmp_path / "silent", *traces)
    stated = [
        changed(path, tmp_path / path.name, lambda trace: trace["distributedInfo"].update(world_size=2))
        for path in DLRM[:2]
    ]
    telling = analysis_of(tmp_path / "telling", *stated)
    axes = [{(group.axis, *group.collectives) for group in run.process_groups} for run in (silent, telling)]
    assert axes[0] == axes[1] and ("world", "all_to_all") in axes[0]
