"""The account of a run's wall time adds up, and what is in long steps is found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.reports.build import build_report
from perfscope.reports.text import render_text
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.confidence import ConfidenceLevel
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.run_parts import RunPart
from perfscope.vocabulary.self_checks import Check
from tests.support.synthetic_run import SyntheticRun

MS = 1_000_000
S = 1_000 * MS
OFFSET = 1_780_000_000 * S  # of the wall clock against the ranks' monotonic clock
FIRST = MS  # SyntheticRun.steps begins there


def record(run: SyntheticRun, rank: int, durations: Sequence[int], **columns: Sequence[int | None]) -> None:
    """A rank that started 2 s before its first step and ended 1 s after its last."""
    last = FIRST + sum(durations)
    total = {name: sum(value or 0 for value in values) for name, values in columns.items()}
    life = {"started_ns": FIRST - 2 * S, "ended_ns": last + S, "total": total}
    anchors = [[FIRST, FIRST + OFFSET], [last, last + OFFSET]]
    run.rank(rank, anchors=anchors, life=life, world_size=1, samples={"from": "loader"})
    run.steps(rank, durations, samples=[8] * len(durations), **columns)


def analyzed(tmp_path: Path, training_ns: int, ranks: Sequence[dict[str, Sequence[int]]]) -> RunAnalysis:
    """A command that began 3 s before the first step and ended 2 s after the last."""
    start, end = FIRST - 3 * S + OFFSET, FIRST + training_ns + 2 * S + OFFSET
    run = SyntheticRun(
        tmp_path / "run", start_unix_ns=start, end_unix_ns=end, exit={"code": 0}, world_size=len(ranks)
    )
    for number, columns in enumerate(ranks):
        record(run, number, columns.pop("durations"), **columns)
    return analyze_run(RunReader(run.path))


def parts(analysis: RunAnalysis, rank: int | None = None) -> dict[RunPart, int]:
    whole = analysis.whole_run
    assert whole is not None
    entries = whole.parts if rank is None else whole.ranks[rank].parts
    assert sum(entry.ns for entry in entries) == whole.wall_ns
    return {entry.part: entry.ns for entry in entries}


def every(period: int, long: int, usual: int, count: int) -> list[int]:
    return [long if number % period == period - 1 else usual for number in range(count)]


def test_evaluations_are_told_from_the_steps_and_lead_the_report(tmp_path: Path) -> None:
    durations = every(20, 500 * MS, 10 * MS, 200)
    evaluation = every(20, 490 * MS, 0, 200)
    analysis = analyzed(tmp_path, sum(durations), [{"durations": durations, "evaluation_ns": evaluation}])
    assert parts(analysis) == {
        RunPart.LAUNCH: S,
        RunPart.START_UP: 2 * S,
        RunPart.STEPS: 2 * S,
        RunPart.EVALUATION: 4_900 * MS,
        RunPart.SHUTDOWN: 2 * S,
    }
    whole = analysis.whole_run
    assert whole is not None
    (entry,) = whole.long_steps
    assert (entry.part, entry.num_steps, entry.every) == (RunPart.EVALUATION, 10, 20)
    assert entry.ratio == pytest.approx(4.9 / 6.9)
    first = analysis.findings[0]
    assert first.id is FindingKind.EVALUATION and first.of_training
    assert (
        first.confidence is not None and first.confidence.level is ConfidenceLevel.HIGH
    )  # timed in all steps
    assert "71.0 % of the training time" in first.text.title and "every 20 steps" in first.text.title
    text = " ".join(render_text(build_report(analysis, None)).split())
    assert "[saves at most 24.5 ms, 71.0 % of the training's mean step of 34.5 ms]" in text
    (within,) = (check for check in analysis.self_checks if check.check is Check.GAIN_WITHIN_STEP)
    assert within.ok and within.num_checked >= 2
    assert whole.samples_per_s == pytest.approx(8 * 200 / 11.9)
    assert whole.training_samples_per_s == pytest.approx(8 * 200 / 6.9)
    assert analysis.throughput_samples_per_s == pytest.approx(800)


def test_long_steps_that_write_files_are_checkpoints_and_others_cannot_be_told(tmp_path: Path) -> None:
    durations = every(10, 110 * MS, 10 * MS, 100)
    writing = analyzed(
        tmp_path / "a",
        sum(durations),
        [{"durations": durations, "written_bytes": every(10, 50 * 2**20, 4096, 100)}],
    )
    assert parts(writing)[RunPart.CHECKPOINT] == 10 * 100 * MS
    assert writing.findings[0].id is FindingKind.CHECKPOINT
    assert "wrote 500 MiB in these steps: 524 MB/s" in writing.findings[0].text.detail
    unknown = analyzed(
        tmp_path / "b", sum(durations), [{"durations": durations, "written_bytes": [4096] * 100}]
    )
    assert parts(unknown)[RunPart.OTHER] == 10 * 100 * MS
    assert unknown.findings[0].id is FindingKind.LONG_STEPS


def test_steps_of_two_lengths_are_seen_below_three_times_the_median(tmp_path: Path) -> None:
    jitter = [number % 5 * MS // 10 for number in range(120)]
    durations = [length + more for length, more in zip(every(4, 20 * MS, 10 * MS, 120), jitter, strict=True)]
    analysis = analyzed(tmp_path, sum(durations), [{"durations": durations}])
    whole = analysis.whole_run
    assert whole is not None
    (entry,) = whole.long_steps
    assert (entry.part, entry.num_steps, entry.every) == (RunPart.OTHER, 30, 4)


def test_steps_that_compute_more_are_ordinary_steps(tmp_path: Path) -> None:
    """Sequences of several lengths: forward and backward pass are four times as long."""
    durations = every(5, 400 * MS, 100 * MS, 100)
    passes: dict[str, Sequence[int]] = {
        "forward_ns": [length - 60 * MS for length in durations],
        "backward_ns": [60 * MS] * 100,  # also waits for the other rank
    }
    analysis = analyzed(tmp_path, sum(durations), [{"durations": durations, **passes}])
    assert RunPart.OTHER not in parts(analysis)
    assert analysis.findings[0].id is not FindingKind.LONG_STEPS


def test_one_stall_and_scattered_lengths_are_no_second_length(tmp_path: Path) -> None:
    durations = [10 * MS + number * number % 97 * MS // 20 for number in range(120)]
    durations[60] = 25 * MS
    analysis = analyzed(tmp_path, sum(durations), [{"durations": durations}])
    assert analysis.whole_run is not None and analysis.whole_run.long_steps == ()


@pytest.mark.parametrize("later", [0, 1])
def test_what_waits_for_a_rank_that_writes_waits_for_other_ranks(tmp_path: Path, later: int) -> None:
    durations = every(10, 110 * MS, 10 * MS, 90) + [10 * MS] * 10
    waiting = [10 * MS] * later + durations[: 100 - later]  # in the collectives of the next step
    ranks: list[dict[str, Sequence[int]]] = [
        {"durations": durations, "checkpoint_ns": every(10, 100 * MS, 0, 90) + [0] * 10},
        {"durations": waiting},
    ]
    analysis = analyzed(tmp_path, sum(durations), ranks)
    assert parts(analysis, 0)[RunPart.CHECKPOINT] == 900 * MS
    assert parts(analysis, 1)[RunPart.OTHER_RANKS] == 900 * MS
    assert parts(analysis)[RunPart.STEPS] == 1_000 * MS
    assert [finding.id for finding in analysis.findings if finding.of_training] == [FindingKind.CHECKPOINT]


def test_forward_passes_without_gradients_in_every_step_are_part_of_it(tmp_path: Path) -> None:
    durations = [10 * MS] * 40
    analysis = analyzed(
        tmp_path, sum(durations), [{"durations": durations, "evaluation_ns": [3 * MS + n for n in range(40)]}]
    )
    assert parts(analysis).get(RunPart.EVALUATION, 0) < 1000
    assert not any(finding.of_training for finding in analysis.findings)


def test_a_rank_that_was_killed_has_time_that_cannot_be_told(tmp_path: Path) -> None:
    durations = [10 * MS] * 40
    run = SyntheticRun(
        tmp_path / "run", start_unix_ns=OFFSET, end_unix_ns=OFFSET + 2 * S, exit={"signal": 9}, world_size=1
    )
    run.rank(0, anchors=[[FIRST, FIRST + OFFSET]], finished=False, world_size=1)
    run.steps(0, durations)
    found = parts(analyze_run(RunReader(run.path)))
    assert found[RunPart.OTHER] == 2 * S - FIRST - 400 * MS


def test_a_run_without_an_end_has_no_account(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run", start_unix_ns=OFFSET, status="running")
    record(run, 0, [10 * MS] * 10)
    analysis = analyze_run(RunReader(run.path))
    assert analysis.whole_run is None
    assert (Figure.WHOLE_RUN, Cause.NOT_CLOSED) in {(gap.figure, gap.cause) for gap in analysis.missing}


def test_waits_for_input_in_most_steps_are_the_ordinary_steps_and_rare_ones_are_stalls(
    tmp_path: Path,
) -> None:
    """80 ms in 9 of 10 steps; then in every tenth step."""
    for name, waits, expected in (
        ("most", [80 * MS if step % 10 else 0 for step in range(100)], False),
        ("rare", [0 if step % 10 else 80 * MS for step in range(100)], True),
    ):
        durations = [20 * MS + wait for wait in waits]
        analysis = analyzed(tmp_path / name, sum(durations), [{"durations": durations, "input_ns": waits}])
        stalls = [finding for finding in analysis.findings if finding.id is FindingKind.INPUT_STALLS]
        assert bool(stalls) is expected
