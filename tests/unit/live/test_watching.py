"""The thread that watches a run: what keeps it going, whom it watches, and what it leaves."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfscope.analysis.live import LiveRun, RunWatch
from perfscope.collectors.stacks import standing
from perfscope.live import hangs, watching
from perfscope.live.hangs import HangWatch
from perfscope.live.options import WatchOptions
from perfscope.rundir import layout
from tests.support.synthetic_run import SyntheticRun
from tests.unit.analysis.test_live import MS, NOW, Growing, ended_pid, is_here


class Ticks(threading.Event):
    """Each wait takes as long as it is meant to, by the clock of the test, up to a number of waits."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self.now_s, self.num = NOW, num

    def wait(self, timeout: float | None = None) -> bool:
        self.num -= 1
        self.now_s += timeout or 0
        return self.num < 0

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    growing = Growing(tmp_path / "run")
    (growing.path / layout.HOSTS / "node01").mkdir(parents=True)
    return growing


def host_dir(growing: Growing) -> Path:
    return growing.path / layout.HOSTS / "node01"


def watch(
    growing: Growing, ticks: Ticks, monkeypatch: pytest.MonkeyPatch, options: WatchOptions
) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(watching, "time", SimpleNamespace(time=ticks.time))
    watching.watch_run(host_dir(growing), ticks, options, said.append)
    return said


def test_a_look_that_fails_is_said_once_and_the_last_metrics_are_written(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, real = growing.path / "train.prom", RunWatch.look
    ticks = Ticks(6)

    def look(self: RunWatch, now_s: float, *, with_hosts: bool = True) -> LiveRun:
        if ticks.num in (2, 3, -1):
            raise RuntimeError("broken")
        return real(self, now_s, with_hosts=with_hosts)

    monkeypatch.setattr(RunWatch, "look", look)
    said = watch(growing, ticks, monkeypatch, WatchOptions(metrics_file=file, metrics_every_s=1))
    assert said == ["the run could not be watched for a moment: broken"]
    assert next(line for line in file.read_text().splitlines() if "run_running{" in line).endswith(" 0")


def test_a_run_that_cannot_be_read_at_first_is_watched_later(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = growing.path / layout.RUN_JSON
    whole = manifest.read_bytes()
    manifest.write_text("{")
    growing.steps(0, [10 * MS] * 20, NOW)

    class Repaired(Ticks):
        def wait(self, timeout: float | None = None) -> bool:
            if self.num == 8:
                manifest.write_bytes(whole)
            return super().wait(timeout)

    said = watch(growing, Repaired(10), monkeypatch, WatchOptions(hang_after_s=None, live_every_s=1))
    assert "could not be watched for a moment" in said[0]
    assert any("step 20" in line for line in said[1:])


def test_a_slow_look_is_no_sleep(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    growing.steps(0, [10 * MS] * 20, NOW)
    ticks, real = Ticks(20), RunWatch.look

    def slow(self: RunWatch, now_s: float, *, with_hosts: bool = True) -> LiveRun:
        ticks.now_s += 30
        return real(self, now_s, with_hosts=with_hosts)

    monkeypatch.setattr(RunWatch, "look", slow)
    said = watch(growing, ticks, monkeypatch, WatchOptions())
    assert [line for line in said if "rank 0 has made no step for" in line]


def test_hosts_that_are_watched_say_so_without_a_sampler_too(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked: list[bool] = []

    class Looks(Ticks):
        def wait(self, timeout: float | None = None) -> bool:
            marked.append((host_dir(growing) / layout.WATCHING).exists())
            return super().wait(timeout)

    watch(growing, Looks(2), monkeypatch, WatchOptions())
    assert marked and all(marked) and not (host_dir(growing) / layout.WATCHING).exists()
    other = growing.path / layout.HOSTS / "node02"
    other.mkdir()
    assert watching._is_ours(host_dir(growing), "node02")
    (other / layout.WATCHING).touch()
    assert not watching._is_ours(host_dir(growing), "node02")


def test_no_line_has_escapes_for_the_terminal(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    watching._Watching(host_dir(growing), WatchOptions(), said.append)._say("at \x1b[2J.py:1")
    assert said == ["at \\x1b[2J.py:1"]


def records(growing: Growing) -> list[dict[str, object]]:
    file = host_dir(growing) / layout.HANGS_JSONL
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_after_a_hang_whose_ranks_have_died_another_one_is_recorded(growing: Growing) -> None:
    growing.steps(0, [10 * MS] * 20, NOW)
    run = RunWatch(str(growing.path))
    hang_watch = HangWatch(run, host_dir(growing), lambda text: None)
    growing.steps(1, [10 * MS] * 20, NOW + 61)
    hang_watch.look(run.look(NOW + 61), NOW + 61)
    assert [line["hang"] for line in records(growing)] == [0]
    is_here(growing, 0, ended_pid())
    growing.steps(1, [10 * MS] * 20, NOW + 100)
    hang_watch.look(run.look(NOW + 100), NOW + 100)
    assert len(records(growing)) == 1
    hang_watch.look(run.look(NOW + 162), NOW + 162)
    first, second = records(growing)
    assert second["hang"] == 1 and 1 in [rank["rank"] for rank in second["ranks"]]  # type: ignore[attr-defined]
    assert first != second


def test_stacks_of_many_ranks_take_a_bounded_time_and_the_dead_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, calls = tmp_path / "py-spy", tmp_path / "calls"
    program.write_text(f'#!/bin/sh\necho "$6" >> {calls}\nexec sleep 30\n')
    program.chmod(0o755)
    monkeypatch.setattr(standing, "find_py_spy", lambda: str(program))
    monkeypatch.setattr(hangs, "_STACKS_S", 1.0)
    run = SyntheticRun(tmp_path / "run", status="running", exit=None, end_unix_ns=None)
    growing = Growing.__new__(Growing)
    growing.path, growing.counts = tmp_path / "run", dict.fromkeys(range(4), 0)
    for rank in range(4):
        run.rank(rank, finished=False)
        is_here(growing, rank, os.getpid() if rank else ended_pid())
        growing.steps(rank, [10 * MS] * 20, NOW)
    places = hangs.look_into(RunWatch(str(growing.path)).look(NOW + 61).ranks, NOW + 61)
    assert places[0].state == "gone" and all(place.state for place in places)
    assert len(calls.read_text().splitlines()) == 1  # the first one took all of the time
