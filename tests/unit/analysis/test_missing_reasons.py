"""What is absent from a run is named in `missing`, with the reason its files give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.affected import affected_by
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.analysis.study.gather import gather
from perfscope.analysis.study.results import RunEntry
from perfscope.gate.measure import measure_run
from perfscope.ingest.files import window_files
from perfscope.messages.missing import cause_text, figure_text
from perfscope.reports.build import build_report
from perfscope.reports.document import build_document
from perfscope.reports.html import render_html
from perfscope.reports.model import FactList, Note
from perfscope.reports.sections.run import run_section
from perfscope.reports.text import render_text
from perfscope.vocabulary.figures import Figure
from tests.support.synthetic_run import SyntheticRun, span
from tests.unit.reports.test_synthetic import synthetic_analysis

NO_WINDOW = "step breakdown, timeline, layers and collectives"


def facts_of_run(analysis: RunAnalysis) -> dict[str, str]:
    return next(dict(block.pairs) for block in run_section(analysis).blocks if isinstance(block, FactList))


def missing(run: SyntheticRun) -> dict[str, str]:
    analysis: RunAnalysis = analyze_run(run.read())
    return {figure_text(figure): cause_text(figure) for figure in analysis.missing}


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
    assert missing(run)["rank 0"] == "no readable rank.json: left out (affects every figure of the training)"
    analysis = analyze_run(run.read())
    report = build_report(analysis, None)
    [ranks] = [figure for figure in report.figures if figure.id == "ranks"]
    assert ranks.note == "1 record is readable"
    [finding] = [finding for finding in analysis.findings if finding.id == "ranks_missing"]
    assert finding.text.title == "1 of 2 ranks can be shown."
    assert "- rank 0: no readable rank.json" in render_text(report)
    assert "no readable rank.json: left out (affects every figure of the training)" in render_html(report)


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
    assert missing(run)["window 1 of rank 0"] == ("its trace has no usable event: the file is empty")


def test_a_rank_whose_steps_file_is_gone_is_named(run: SyntheticRun) -> None:
    (run.path / "ranks/1/steps.jsonl").unlink()
    assert "traced windows alone" in missing(run)["ranks/1/steps.jsonl"]


def test_a_window_that_was_read_in_part_is_named_with_what_it_affects(run: SyntheticRun) -> None:
    damage: Any = {"salvaged": True, "events_dropped": 2, "notes": ["damaged JSON"]}
    run.window(1, [span(0, 50, "compute")], [(1, 0, 100)], **damage)
    [entry] = [one for one in analyze_run(run.read()).missing if one.figure is Figure.WINDOW_PART]
    assert figure_text(entry) == "part of window 0 of rank 1"
    assert cause_text(entry) == (
        "2 events of its trace cannot be read: damaged JSON (affects step breakdown, layers and collectives)"
    )
    assert {"ranks.1", "layers", "communication", "pipeline", "experts", "what_ifs"} <= set(entry.affects)


def test_the_attempt_of_a_restarted_rank_that_is_not_shown_is_named(run: SyntheticRun) -> None:
    first = json.loads((run.path / "ranks/0/rank.json").read_text())
    lines = (run.path / "ranks/0/steps.jsonl").read_text().splitlines()
    run.write("ranks/0.1/rank.json", first | {"host": "node1"})
    run.write("ranks/0.1/steps.jsonl", "\n".join(lines) + "\n")
    run.write("ranks/0/steps.jsonl", "\n".join(lines[:7]) + "\n")
    run.write("ranks/0/windows/0.json", "{}")
    again = run.write("ranks/0.1/windows/0.json", "{}")
    assert missing(run)["attempt ranks/0"] == "6 steps, not shown; ranks/0.1 is"
    analysis = analyze_run(run.read())
    assert [(rank.rank, rank.host, rank.num_steps) for rank in analysis.ranks] == [
        (0, "node1", 20),
        (1, "node0", 20),
    ]
    assert [file.source for file in window_files(run.path) if file.rank == 0] == [again]


def test_a_run_that_was_not_closed_says_so_first(run: SyntheticRun) -> None:
    manifest = json.loads((run.path / "run.json").read_text())
    run.write("run.json", manifest | {"status": "running"})
    analysis = analyze_run(run.read())
    assert figure_text(analysis.missing[0]) == "the end of the run and its exit code"
    report = build_report(analysis, None)
    assert report.figures[0].value == "not finished"  # text, HTML and PDF all draw these
    head = render_text(report).partition("Recommendations")[0]
    assert "not finished" in head and "still running, or perfscope was killed" in head
    assert "not finished" in render_html(report)
    closed = build_report(analyze_run(SyntheticRun(run.path, name="demo").read()), None)
    assert "state" not in {figure.id for figure in closed.figures}


STEP = {"job_id": 12, "step_id": 0}
BY_TASK = "task 3 on node2 ended with exit code 3; 3 more failed after it"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"incomplete": "a node of the job failed after 1:20", "exit": None}, "a node of the job failed"),
        ({"attach_notes": [BY_TASK], "slurm": STEP, "exit": {"code": 143, "signal": 15}}, BY_TASK),
        (
            {"attach_notes": ["no record of rank 3"], "slurm": {"job_id": 12, "step_id": None}},
            "signal 15 ended it inside its Slurm job",
        ),
    ],
)
def test_why_a_run_was_cut_short_is_said_wherever_it_is_looked_at(
    run: SyntheticRun, changes: dict[str, object], reason: str
) -> None:
    manifest = json.loads((run.path / "run.json").read_text())
    cut = {"status": "incomplete", "exit": {"code": 143, "signal": 15}, **changes}
    run.write("run.json", manifest | cut)
    analysis = analyze_run(run.read())
    assert figure_text(analysis.missing[0]) == "the rest of the run" and reason in cause_text(
        analysis.missing[0]
    )
    figure = build_report(analysis, None).figures[0]
    assert (figure.id, figure.value) == ("state", "incomplete") and reason in figure.note
    (entry,) = gather([RunEntry(name="demo", analysis=analysis, bench_records={}, metas={})])
    assert not entry.running and reason in entry.incomplete[0]
    assert reason in measure_run(run.path, "demo").problem
    assert reason in facts_of_run(analysis)["State"]


def test_the_job_and_the_neighbours_of_its_nodes_are_told(run: SyntheticRun) -> None:
    manifest = json.loads((run.path / "run.json").read_text())
    looks = [
        {"when": when, "node": node, "busy_cpus": busy, "others": others}
        for when, node, busy, others in (
            ("before", "node1", 0.02, ""),
            ("before", "node2", 3.5, "alice 2"),
            ("after", "node1", 0.04, ""),
        )
    ]
    account = {"state": "COMPLETED", "elapsed_s": 80, "queued_s": 7, "max_rss_bytes": 1 << 30}
    job = {"job_id": 12, "job_name": "my job", "partition": "gpu", "node_list": "node[1-2]", "num_tasks": 4}
    run.write("run.json", manifest | {"slurm": {**job, "job": account, "neighbours": looks}})
    analysis = analyze_run(run.read())
    rows = facts_of_run(analysis)
    assert rows["Slurm job"] == "12 “my job”, partition gpu, on node[1-2], 4 tasks"
    assert rows["Slurm's account of it"].startswith("completed after 80 s, queued for 7 s, 1.00 GiB")
    assert rows["Busy CPUs before it"] == "3.50 at most, on 2 nodes"
    (note,) = [block for block in run_section(analysis).blocks if isinstance(block, Note)]
    assert "node2 before it, 3.50 CPUs busy, processes of alice 2." in note.text and "node1" not in note.text


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
    run.write(
        "ranks/0/errors.jsonl", "".join(json.dumps(entry | {"disabled": off}) + "\n" for off in (False, True))
    )
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


def test_every_figure_of_a_report_is_affected_by_its_ranks() -> None:
    about = {"schema_version", "perfscope_version", "run", "missing", "hangs"}  # hangs are a host's
    document = build_document(synthetic_analysis())
    assert set(document) - about <= set(affected_by("ranks/0/rank.json").paths)
    assert set(affected_by("run.json").paths) <= set(document)
