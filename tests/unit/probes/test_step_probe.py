"""The base of the frameworks' probes: a step's figures, windows that are cut, profilers that are lent."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from perfscope.probes import own_steps, step_probe
from perfscope.probes.calls import CallLog
from perfscope.probes.framework_probe import Trace
from perfscope.probes.process import Process
from perfscope.probes.step_probe import StepProbe

MS = 1_000_000


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1_000 * MS

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(step_probe, "_clock", found)
    monkeypatch.setattr(time, "monotonic_ns", found)  # as windows ask
    return found


class Profiler(Trace):
    """Takes 50 ms to write what it has."""

    suffix = ".jax.xplane.pb"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.said: list[str] = []

    def start(self) -> bool:
        self.said.append("start")
        return True

    def stop(self, path: str) -> bool:
        self.said.append("stop")
        self.clock.now += 50 * MS
        Path(path).write_bytes(b"trace")
        return True

    def abandon(self) -> None:
        self.said.append("abandon")

    def new_mark(self, name: str) -> Any:
        class Mark:
            def __enter__(mark) -> None:
                self.said.append(name)

            def __exit__(mark, *rest: object) -> None:
                self.said.append("ended")

        return Mark()


class Framework(StepProbe):
    """As a framework's probe that lends its profiler."""

    waited = described = 0

    def facts(self) -> dict[str, Any]:
        return {"framework": {"name": "lender", "version": "1"}}

    def in_use(self) -> bool:
        return True

    def wait(self) -> None:
        self.waited += 1

    def describe(self, recorder: Any) -> None:
        self.described += 1


def process(folder: Path, **config: Any) -> Process:
    return Process(str(folder), {"steps_per_window": 2, "windows": 1, **config})


def steps(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "ranks" / "0" / "steps.jsonl").read_text().splitlines()
    columns = json.loads(lines[0])["columns"]
    return [dict(zip(columns, json.loads(line), strict=True)) for line in lines[1:]]


def meta(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "ranks" / "0" / "rank.json").read_bytes())
    return found


def test_waiting_for_data_counts_for_the_step_whose_time_it_is_part_of(tmp_path: Path, clock: Clock) -> None:
    probe = StepProbe(process(tmp_path, trace=False), "one")
    probe.add_input(900 * MS)  # before any step: in none
    for _ in range(3):
        probe.boundary(4)
        clock.now += 10 * MS
        probe.step_ended()
        clock.now += 30 * MS
        probe.add_input(30 * MS)  # for the next step's batch
    told = probe.finish()
    found = steps(tmp_path)
    # The last step ends with its work: what was waited for afterwards lies in no step.
    assert [one["dur_ns"] for one in found] == [40 * MS, 40 * MS, 10 * MS]
    assert [one["input_ns"] for one in found] == [30 * MS, 30 * MS, 0]
    assert told["overhead"]["always_on_ns"] == 0


@pytest.mark.parametrize("joined", [False, True])
def test_another_thread_goes_on_with_the_training_only_if_the_first_waits_for_it(
    tmp_path: Path, clock: Clock, joined: bool
) -> None:
    owner = process(tmp_path, trace=False)
    probe = StepProbe(owner, "one")
    started, done = threading.Event(), threading.Event()

    def train() -> None:
        started.wait()
        for _ in range(3):
            probe.boundary(4)
            clock.now += 10 * MS
        done.set()

    started.set()
    train()
    started.clear()
    done.clear()
    other = threading.Thread(target=train)
    other.start()
    if joined:
        threading.Timer(0.05, started.set).start()
    else:
        started.set()
        done.wait()
    other.join()
    probe.finish()
    assert len(steps(tmp_path)) == (5 if joined else 2)
    assert owner.recorder is not None
    missing = [entry["reason"] for entry in owner.recorder.meta.get("missing", [])]
    assert [reason.split()[0] for reason in missing] == ([] if joined else ["3"])


def test_opening_the_rank_is_no_cost_of_each_step_and_no_part_of_the_first(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = process(tmp_path, trace=False)
    opened = one.open

    def slowly() -> Any:
        clock.now += 70 * MS if one.recorder is None else 0
        return opened()

    monkeypatch.setattr(one, "open", slowly)
    probe = StepProbe(one, "one")
    for _ in range(3):
        probe.boundary()
        clock.now += 10 * MS
    assert probe.finish()["overhead"]["always_on_ns"] == 0
    assert [step["dur_ns"] for step in steps(tmp_path)] == [10 * MS, 10 * MS]


def test_a_step_in_which_a_window_is_cut_is_traced_and_lasts_no_longer(tmp_path: Path, clock: Clock) -> None:
    trace = Profiler(clock)
    probe = StepProbe(process(tmp_path), "one", trace)
    for step in range(8):
        probe.boundary()
        clock.now += 6 * MS
        if step == 4:
            probe.cut_window()  # 50 ms of writing the trace
        clock.now += 4 * MS
        probe.step_ended()
    probe.finish()
    found = steps(tmp_path)
    assert [one["dur_ns"] for one in found] == [10 * MS] * 8
    assert [one["window"] for one in found] == [-1, -1, -1, 0, 0, -1, -1, -1]
    assert trace.said == ["start", "perfscope.step:3", "ended", "perfscope.step:4", "stop", "ended"]
    [window] = map(json.loads, (tmp_path / "ranks" / "0" / "windows.jsonl").read_text().splitlines())
    assert (window["cost_ns"], window["num_steps"]) == (50 * MS, 1)  # the fourth is only partly there


def test_what_follows_the_last_step_is_no_step_of_the_window(tmp_path: Path, clock: Clock) -> None:
    one = process(tmp_path, steps_per_window=8)
    probe = own_steps.OwnSteps(one)
    for _ in range(5):
        probe.boundary()
        clock.now += 10 * MS
    probe.step_ended()
    probe.boundary()  # "and once after the loop"
    clock.now += 900 * MS
    one.finish(os.getpid())
    calls = json.loads((tmp_path / "ranks" / "0" / "windows" / "0.calls.json").read_bytes())
    assert [(step, end - start) for step, start, end in calls["steps"]] == [(3, 10 * MS), (4, 10 * MS)]
    assert len(steps(tmp_path)) == 5


def test_a_window_that_ends_within_its_first_step_is_given_up(tmp_path: Path, clock: Clock) -> None:
    one = process(tmp_path)
    probe = StepProbe(one, "one", Profiler(clock))
    for _ in range(4):
        probe.boundary()
        clock.now += 10 * MS
    probe.cut_window()
    one.finish(os.getpid())
    assert not list((tmp_path / "ranks" / "0" / "windows").iterdir())
    assert meta(tmp_path)["notes"] == ["window 0 was lost: it ended within its first step"]


def test_steps_that_the_program_marks_are_traced_by_its_framework(tmp_path: Path, clock: Clock) -> None:
    one = process(tmp_path)
    trace = Profiler(clock)
    lender = Framework(one, "lender", trace)
    one.lend(lender)
    probe = own_steps.OwnSteps(one)
    for _ in range(8):
        probe.boundary(2)
        clock.now += MS
    one.finish(os.getpid())
    assert trace.said == ["start", "perfscope.step:3", "ended", "perfscope.step:4", "ended", "stop"]
    assert (tmp_path / "ranks" / "0" / "windows" / "0.jax.xplane.pb").read_bytes() == b"trace"
    assert [step["samples"] for step in steps(tmp_path)] == [2] * 7
    assert meta(tmp_path)["framework"]["name"] == "lender"
    assert lender.waited >= 3 and lender.described >= 2


def test_a_program_that_profiles_itself_ends_the_window_that_borrowed_the_profiler(
    tmp_path: Path, clock: Clock
) -> None:
    one = process(tmp_path)
    trace = Profiler(clock)
    lender = Framework(one, "lender", trace)
    one.lend(lender)
    probe = own_steps.OwnSteps(one)
    for _ in range(5):
        probe.boundary()
        clock.now += MS
    assert probe.in_window
    lender.off = True  # it cuts no steps here
    lender.step_aside()
    assert not probe.in_window and trace.said[-2:] == ["stop", "ended"]


def test_communicators_of_two_probes_stand_in_the_same_file(tmp_path: Path) -> None:
    log = CallLog()
    log.tell_groups([{"name": "world", "ranks": [0, 1]}])
    for window in (0, 1):
        log.open()
        log.tell_groups([{"name": "horovod", "ranks": [0]}])
        log.add(1, 2, "comm", "call")
        log.close(str(tmp_path / f"{window}.calls.json"), 1, False)
        found = json.loads((tmp_path / f"{window}.calls.json").read_bytes())
        assert [group["name"] for group in found["groups"]] == ["world", "horovod"]
