"""What is absent from a run is named in `missing`, with the reason its files give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyse_run
from perfscope.ingest.files import window_files
from perfscope.reports.build import build_report
from perfscope.reports.html import render_html
from perfscope.reports.text import render_text
from tests.unit.synthetic_run import SyntheticRun, span

NO_WINDOW = "step breakdown, timeline, layers and collectives"


def missing(run: SyntheticRun) -> dict[str, str]:
    analysis: RunAnalysis = analyse_run(run.read())
    return {figure.what: figure.reason for figure in analysis.missing}


@pytest.fixture
def run(tmp_path: Path) -> SyntheticRun:
    """Two ranks, a window each."""
    made = SyntheticRun(tmp_path / "run", name="demo", world_size=2, expected_ranks=2, attached_ranks=2)
    for rank in range(2):
        made.rank(rank, world_size=2, root={"name": "Net"})
        made.steps(rank, [100] * 20)
        made.window(rank, [span(0, 50, "compute")], [(1, 0, 100)])
    return made


def test_a_whole_run_misses_no_part(run: SyntheticRun) -> None:
    assert not any(what.startswith(("rank", "window", "attempt", "the end")) for what in missing(run))


def test_a_rank_without_rank_json_is_named_and_not_counted_as_attached(run: SyntheticRun) -> None:
    (run.path / "ranks/0/rank.json").unlink()
    assert missing(run)["rank 0"] == "no readable rank.json: left out"
    analysis = analyse_run(run.read())
    report = build_report(analysis, None)
    [ranks] = [figure for figure in report.figures if figure.id == "ranks"]
    assert ranks.note == "the record of 1 can be read"
    [finding] = [finding for finding in analysis.findings if finding.id == "ranks_missing"]
    assert finding.title == "1 of 2 ranks can be shown."
    assert "- rank 0: no readable rank.json" in render_text(report)
    assert "no readable rank.json: left out" in render_html(report)


def test_a_rank_of_a_newer_schema_is_named(run: SyntheticRun) -> None:
    run.rank(1, schema_version=99)
    assert "newer perfscope (schema 99" in missing(run)["rank 1"]


def test_a_listed_window_without_its_trace_is_named(run: SyntheticRun) -> None:
    run.write("ranks/1/windows.jsonl", '{"window": 0}\n{"window": 1}\n')
    found = missing(run)
    assert "its trace is not there" in found["window 1 of rank 1"]
    assert "window 0 of rank 1" not in found  # its file is gone, its timeline is not


def test_a_window_of_no_use_is_named_with_what_ingest_says(run: SyntheticRun) -> None:
    run.window(0, [], [], window=1, notes=["the file is empty"])
    assert missing(run)["window 1 of rank 0"] == (
        "its trace holds no event that can be used: the file is empty"
    )


def test_a_rank_whose_steps_file_is_gone_is_named(run: SyntheticRun) -> None:
    (run.path / "ranks/1/steps.jsonl").unlink()
    assert "traced windows alone" in missing(run)["ranks/1/steps.jsonl"]


def test_the_attempt_of_a_restarted_rank_that_is_not_shown_is_named(run: SyntheticRun) -> None:
    first = json.loads((run.path / "ranks/0/rank.json").read_text())
    lines = (run.path / "ranks/0/steps.jsonl").read_text().splitlines()
    run.write("ranks/0.1/rank.json", first | {"host": "node1"})
    run.write("ranks/0.1/steps.jsonl", "\n".join(lines) + "\n")
    run.write("ranks/0/steps.jsonl", "\n".join(lines[:7]) + "\n")
    run.write("ranks/0/windows/0.json", "{}")
    again = run.write("ranks/0.1/windows/0.json", "{}")
    assert missing(run)["attempt ranks/0"] == "6 steps, not shown; ranks/0.1 is"
    analysis = analyse_run(run.read())
    assert [(rank.rank, rank.host, rank.num_steps) for rank in analysis.ranks] == [
        (0, "node1", 20),
        (1, "node0", 20),
    ]
    assert [file.source for file in window_files(run.path) if file.rank == 0] == [again]


def test_a_run_that_was_not_closed_says_so_first(run: SyntheticRun) -> None:
    manifest = json.loads((run.path / "run.json").read_text())
    run.write("run.json", manifest | {"status": "running"})
    analysis = analyse_run(run.read())
    assert analysis.missing[0].what == "the end of the run and its exit code"
    report = build_report(analysis, None)
    assert report.figures[0].value == "not finished"  # text, HTML and PDF all draw these
    head = render_text(report).partition("What to do")[0]
    assert "not finished" in head and "still running, or perfscope was killed" in head
    assert "not finished" in render_html(report)
    closed = build_report(analyse_run(SyntheticRun(run.path, name="demo").read()), None)
    assert "state" not in {figure.id for figure in closed.figures}


def untraced(path: Path, num_steps: int, **manifest: object) -> SyntheticRun:
    run = SyntheticRun(path, **manifest)
    run.rank(0, world_size=1, root={"name": "Net"})
    run.steps(0, [100] * num_steps)
    return run


def test_no_window_because_tracing_was_off(tmp_path: Path) -> None:
    run = untraced(tmp_path, 50, options={"trace": False})
    assert missing(run)[NO_WINDOW] == "tracing was switched off (`--no-trace`)"


def test_no_window_because_the_run_was_short(tmp_path: Path) -> None:
    reason = missing(untraced(tmp_path, 4))[NO_WINDOW]
    assert "the run ended before the first one (4 steps were recorded" in reason


def test_no_window_because_the_probe_met_an_error(tmp_path: Path) -> None:
    run = untraced(tmp_path, 50)
    entry = {"where": "root forward", "error": "RuntimeError: no\nsizes", "count": 1, "disabled": False}
    run.write("ranks/0/errors.jsonl", "".join(json.dumps(entry | {"disabled": off}) + "\n" for off in (0, 1)))
    reason = missing(run)[NO_WINDOW]
    assert "rank 0 met an error in 'root forward': RuntimeError: no sizes, and switched" in reason
    assert "run ended" not in reason


def test_no_window_because_no_forward_was_seen(tmp_path: Path) -> None:
    run = untraced(tmp_path, 50)
    run.rank(0, world_size=1)
    assert "forward was never seen in the thread that trains" in missing(run)[NO_WINDOW]


def test_no_window_for_what_the_probe_noted(tmp_path: Path) -> None:
    run = untraced(tmp_path, 50)
    note = "a window was put off: the training itself was using the profiler"
    run.rank(0, root={"name": "Net"}, notes=[note])
    assert missing(run)[NO_WINDOW] == f"no window was traced: {note}"


def test_no_window_because_all_traces_are_gone(tmp_path: Path) -> None:
    run = untraced(tmp_path, 50)
    run.write("ranks/0/windows.jsonl", '{"window": 0}\n')
    assert "not there any more" in missing(run)[NO_WINDOW]
    run.write("ranks/0/windows/0.json", "{}")
    assert "have not been read in" in missing(run)[NO_WINDOW]
