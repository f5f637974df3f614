"""Idle time of CPU ranks is divided exactly, and what is not known stays untraced."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analysis.host_idle import with_names
from perfscope.analysis.machine.thread_states import ThreadStates
from perfscope.analysis.results import Breakdown, HostIdle, RankResult
from perfscope.analysis.run import analyze_run
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.host_activity import HostActivity
from tests.support.synthetic_run import SyntheticRun, span

US = 1_000
_UNTRACED: list[int | None] = [None] * 8


def rank_of(tmp_path: Path, **columns: int | None) -> RankResult:
    """Two traced steps of 1,000 us, each with 600 us of computation; `columns` per traced step."""
    run = SyntheticRun(tmp_path / "run")
    run.rank(0)
    window = [-1] * 8 + [0, 0]
    values: dict[str, list[int | None]] = {
        name: [*[None] * 8, value, value] for name, value in columns.items()
    }
    run.steps(0, [1_000 * US] * 10, window=window, **values)
    spans = [span(start * US, 600 * US, "compute") for start in (0, 1_000)]
    run.window(0, spans, [(8, 0, 1_000 * US), (9, 1_000 * US, 2_000 * US)])
    return analyze_run(RunReader(run.path)).ranks[0]


def test_parts_add_up_to_the_idle_time(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, gc_ns=100 * US, checkpoint_ns=0, runqueue_ns=250 * US)
    assert rank.breakdown_ns is not None and rank.breakdown_ns.idle == 400 * US
    assert rank.host_idle == (
        HostIdle(kind=HostActivity.UNTRACED, ns=200 * US),
        HostIdle(kind=HostActivity.GARBAGE_COLLECTION, ns=100 * US),
        HostIdle(kind=HostActivity.PREEMPTED, ns=100 * US),
    )


@pytest.mark.parametrize("collected", [400 * US, 900 * US])
def test_no_part_is_more_than_what_is_left(tmp_path: Path, collected: int) -> None:
    rank = rank_of(tmp_path, gc_ns=collected, runqueue_ns=900 * US)
    assert rank.host_idle == (HostIdle(kind=HostActivity.GARBAGE_COLLECTION, ns=400 * US),)


def test_time_asleep_beyond_communication_and_input_is_blocked(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, runqueue_ns=0, thread_user_ns=650 * US, thread_system_ns=50 * US)
    assert rank.host_idle == (
        HostIdle(kind=HostActivity.BLOCKED, ns=300 * US),
        HostIdle(kind=HostActivity.UNTRACED, ns=100 * US),
    )


def test_what_the_main_thread_was_seen_to_sleep_in_names_the_time_it_was_blocked(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, runqueue_ns=0, thread_user_ns=650 * US, thread_system_ns=50 * US)
    states = ThreadStates(num_readings=100, ratios={HostActivity.FILES: 0.2, HostActivity.LOCK: 0.05})
    (named,) = with_names([rank], {0: states})
    assert named.host_idle == (  # of 1,000 us: 20 % in files, 5 % in locks
        HostIdle(kind=HostActivity.FILES, ns=200 * US),
        HostIdle(kind=HostActivity.UNTRACED, ns=100 * US),
        HostIdle(kind=HostActivity.LOCK, ns=50 * US),
        HostIdle(kind=HostActivity.BLOCKED, ns=50 * US),
    )
    assert with_names([rank], {}) == (rank,)


def test_waits_in_communication_and_for_input_do_not_name_idle_time(tmp_path: Path) -> None:
    breakdown = Breakdown(
        step=1_000, compute=400, exposed_comm=200, copy=0, input_wait=100, optimizer=0, idle=300, num_steps=2
    )
    blocked = (HostIdle(kind=HostActivity.BLOCKED, ns=300),)
    rank = replace(rank_of(tmp_path), breakdown_ns=breakdown, host_idle=blocked)
    seen = {HostActivity.LOCK: 0.2, HostActivity.PIPES: 0.1, HostActivity.SLEEP: 0.3}
    (named,) = with_names([rank], {0: ThreadStates(num_readings=100, ratios=seen)})
    assert named.host_idle == (HostIdle(kind=HostActivity.SLEEP, ns=300),)


def test_without_readings_nothing_is_told(tmp_path: Path) -> None:
    assert rank_of(tmp_path).host_idle == (HostIdle(kind=HostActivity.UNTRACED, ns=400 * US),)
