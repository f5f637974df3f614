"""A training thread that sleeps outside communication and input: what it sleeps in is named, if seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analysis.results import Finding
from perfscope.analysis.run import analyze_run
from perfscope.vocabulary.host_activity import ASLEEP, HostActivity
from tests.support.synthetic_run import comm, span
from tests.support.synthetic_samples import BOOT, SECOND, SampledRun, SampleFile, ticks, two_nodes

MS = 1_000_000
TRACED = (20, 21, 22, 23, 24, 25)
STEP = SECOND // 2
TIMES = ticks(0, 40)


def first_finding(
    path: Path,
    states: list[HostActivity | None],
    *,
    ran_ms: int,
    ran_traced_ms: int | None = None,
    other_ms: int = 0,
    major_faults: int = 0,
    busy_ms: int = 200,
    framework: str = "torch",
) -> Finding:
    """Of a rank with `busy_ms` of computation in steps of 500 ms, in which its thread ran for `ran_ms`.

    Args:
        path: of the run.
        states: what its main thread is seen in, over and over.
        ran_traced_ms: in the traced steps, where that differs.
        other_ms: CPU time of the process's other threads per step.
        major_faults: per step.
        busy_ms: of computation per traced step.
        framework: that trains.
    """
    file = SampleFile()
    codes = [0 if state is None else 1 + ASLEEP.index(state) for state in states]
    if codes:
        values = [codes[at % len(codes)] for at in range(len(TIMES))]
        file.add("rank_main_thread_state", TIMES, values, kind="gauge", unit="code", pid="100")
    num, traced_ms = 40, ran_ms if ran_traced_ms is None else ran_traced_ms
    rank = {"pid": 100, "num_threads": 1, "affinity": [0], "framework": {"name": framework}}
    run = SampledRun(path, file, topology=two_nodes(), ranks=[rank])
    used = {
        "user_ns": (ran_ms + other_ms) * MS,
        "system_ns": 0,
        "thread_user_ns": ran_ms * MS,
        "thread_system_ns": 0,
        "runqueue_ns": 0,
        "minor_faults": major_faults,
        "major_faults": major_faults,
    }
    run.run.steps(
        0,
        [STEP] * num,
        start_ns=[BOOT + 10 * SECOND + k * STEP for k in range(num)],
        window=[0 if k in TRACED else -1 for k in range(num)],
        **{name: [value] * num for name, value in used.items() if name != "thread_user_ns"},
        thread_user_ns=[(traced_ms if k in TRACED else ran_ms) * MS for k in range(num)],
    )
    begins = [(k, 10 * SECOND + k * STEP) for k in TRACED]
    spans = [span(begin, busy_ms * MS, "compute") for _, begin in begins]
    run.run.window(0, spans, [(k, begin, begin + STEP) for k, begin in begins])
    return analyze_run(run.read()).findings[0]


def test_a_thread_that_waits_for_a_busy_one_is_said_to_wait_for_the_interpreter_lock(tmp_path: Path) -> None:
    states = [HostActivity.LOCK] * 5 + [None] * 5
    finding = first_finding(tmp_path, states, ran_ms=240, other_ms=250)
    assert finding.id == "host_blocked" and finding.gain_ns == pytest.approx(260 * MS)
    assert "the training thread is blocked" in finding.text.title
    assert "another thread" in finding.text.title and "GIL" in finding.text.detail
    assert "250 ms" in finding.text.detail and "processes" in finding.text.action


@pytest.mark.parametrize(
    ("activity", "says", "advises"),
    [
        (HostActivity.LOCK, "another thread", "locks"),
        (HostActivity.FILES, "file system", "fsync"),
        (HostActivity.PIPES, "another process", "ask earlier"),
        (HostActivity.SLEEP, "set time", "time.sleep"),
    ],
)
def test_what_it_sleeps_in_is_named_with_advice_of_its_own(
    tmp_path: Path, activity: HostActivity, says: str, advises: str
) -> None:
    finding = first_finding(tmp_path, [activity, activity, None], ran_ms=210)
    assert finding.id == "host_blocked"
    assert says in finding.text.title and "GIL" not in finding.text.detail and advises in finding.text.action


def test_pages_read_from_a_disk_are_what_it_waits_for(tmp_path: Path) -> None:
    finding = first_finding(tmp_path, [HostActivity.FILES, None], ran_ms=250, major_faults=120)
    assert "120 pages per step" in finding.text.detail and "mapped" in finding.text.action


def test_without_samples_it_is_blocked_in_what_is_not_known(tmp_path: Path) -> None:
    finding = first_finding(tmp_path, [], ran_ms=210)
    assert finding.id == "host_blocked" and "was not read" in finding.text.detail


def test_what_it_sleeps_is_taken_from_the_untraced_steps_which_are_more(tmp_path: Path) -> None:
    states = [HostActivity.LOCK, None]
    finding = first_finding(tmp_path, states, ran_ms=250, ran_traced_ms=375)
    assert finding.id == "host_blocked" and finding.gain_ns == pytest.approx(250 * MS, rel=0.01)
    assert "50.0 % of the untraced steps" in finding.text.detail


def test_sleep_inside_operators_of_traced_steps_is_no_gap_of_untraced_ones(tmp_path: Path) -> None:
    # Of 500 ms the thread runs 200 and computes 400: at least 200 ms of its sleep are in operators.
    finding = first_finding(tmp_path, [HostActivity.LOCK, None], ran_ms=200, busy_ms=400)
    assert finding.id == "host_blocked" and finding.gain_ns == pytest.approx(100 * MS, rel=0.01)


def test_a_thread_blocked_for_much_less_than_it_computes_still_stands_first(tmp_path: Path) -> None:
    states = [HostActivity.LOCK, None, None, None]
    finding = first_finding(tmp_path, states, ran_ms=425, busy_ms=400)
    assert finding.id == "host_blocked" and finding.gain_ns == pytest.approx(75 * MS)


def test_files_that_it_was_seen_to_wait_for_count_where_its_sleep_may_all_be_communication(
    tmp_path: Path,
) -> None:
    states = [HostActivity.FILES, None, None]
    finding = first_finding(tmp_path, states, ran_ms=490)  # of 500 ms, a third of the readings in files
    assert finding.id == "host_blocked" and finding.gain_ns == pytest.approx(500 * MS / 3, rel=0.1)


def test_a_thread_that_runs_while_no_operator_does_is_not_blocked(tmp_path: Path) -> None:
    assert first_finding(tmp_path, [None], ran_ms=490).id == "host_bound"


def test_a_rank_that_sleeps_before_a_collective_is_told_so_and_saves_all_that_it_sleeps(
    tmp_path: Path,
) -> None:
    """Traced steps take 600 ms, the others 500: tracing lengthens operators, not the 200 ms asleep."""
    file, num = SampleFile(), 40
    code = 1 + ASLEEP.index(HostActivity.SLEEP)
    for pid, codes in (("100", [0, 0, 0, 0, 0]), ("101", [code, code, 0, 0, 0])):
        values = [codes[at % 5] for at in range(len(TIMES))]
        file.add("rank_main_thread_state", TIMES, values, kind="gauge", unit="code", pid=pid)
    ranks = [{"pid": 100 + rank, "affinity": [rank]} for rank in (0, 1)]
    run = SampledRun(tmp_path, file, topology=two_nodes(), ranks=ranks).run
    starts, durations = [10 * SECOND], []
    for step in range(num):
        durations.append((600 if step in TRACED else 500) * MS)
        starts.append(starts[-1] + durations[-1])
    for rank, asleep_ms in ((0, 0), (1, 200)):
        run.steps(
            rank,
            durations,
            start_ns=[BOOT + start for start in starts[:-1]],
            window=[0 if step in TRACED else -1 for step in range(num)],
            thread_user_ns=[(300 if step in TRACED else 200) * MS for step in range(num)],
            **{name: [0] * num for name in ("user_ns", "system_ns", "thread_system_ns", "runqueue_ns")},
        )
        begin_ms = 300 + asleep_ms
        spans = [
            one
            for seq, start in enumerate(starts[step] for step in TRACED)
            for one in (
                span(start, 300 * MS, "compute"),
                comm(start + begin_ms * MS, (600 - begin_ms) * MS, seq),
            )
        ]
        run.window(rank, spans, [(step, starts[step], starts[step + 1]) for step in TRACED])
    finding = analyze_run(run.read()).findings[0]
    assert (finding.id, finding.rank) == ("straggler", 1)
    assert "because it sleeps for a set time" in finding.text.title
    assert "time.sleep" in finding.text.action and "Rank 1" in finding.text.action
    assert finding.gain_ns == pytest.approx(200 * MS, rel=0.05)


@pytest.mark.parametrize("state", [HostActivity.LOCK, HostActivity.BLOCKED])
def test_a_thread_that_waits_for_the_threads_of_its_runtime_is_not_blocked(
    tmp_path: Path, state: HostActivity
) -> None:
    finding = first_finding(tmp_path, [state], ran_ms=100, other_ms=600, busy_ms=300, framework="jax")
    assert finding.id not in ("host_blocked", "self_check_failed")


def test_more_sleep_in_untraced_steps_than_traced_ones_idle_is_no_contradiction(tmp_path: Path) -> None:
    states = [HostActivity.LOCK, None]
    finding = first_finding(tmp_path, states, ran_ms=150, ran_traced_ms=400, busy_ms=350)
    assert finding.id == "host_blocked" and (finding.gain_ratio or 0) > 0.5
