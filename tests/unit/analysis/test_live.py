"""A run that goes on: steps, hangs and hosts, as files that grow show them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.live import RECENT, LiveRun, RunWatch
from perfscope.reports.live import render_live
from perfscope.rundir import layout
from tests.support.synthetic_run import SyntheticRun

MS = 1_000_000
NOW = 1_790_000_000.0


class Growing:
    """Two ranks whose steps are appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        run = SyntheticRun(path, status="running", exit=None, end_unix_ns=None)
        for rank in (0, 1):
            run.rank(rank, finished=False)
        self.counts = {0: 0, 1: 0}

    def file(self, rank: int) -> Path:
        return self.path / layout.RANKS / str(rank) / layout.STEPS_JSONL

    def steps(self, rank: int, durations: list[int], at_s: float, *, window: int = -1) -> None:
        """Appends steps of 8 samples; the file is then of time `at_s`."""
        lines = []
        if not self.file(rank).exists():
            lines.append(json.dumps({"columns": ["step", "start_ns", "dur_ns", "window", "samples"]}))
        for duration in durations:
            lines.append(json.dumps([self.counts[rank], 0, duration, window, 8]))
            self.counts[rank] += 1
        with self.file(rank).open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.utime(self.file(rank), (at_s, at_s))


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path / "run")


def test_the_latest_untraced_steps_say_how_fast_a_rank_is(growing: Growing) -> None:
    watch = RunWatch(str(growing.path))
    assert watch.look(NOW).step_ns is None
    growing.steps(0, [20 * MS] * RECENT, NOW)
    growing.steps(0, [900 * MS] * 3, NOW, window=0)
    growing.steps(1, [10 * MS] * 5, NOW)
    run = watch.look(NOW)
    assert [(rank.steps, rank.step_ns, rank.trend) for rank in run.ranks] == [
        (RECENT + 3, 20 * MS, None), (5, 10 * MS, None)
    ]  # fmt: skip
    assert run.step_ns == 20 * MS and run.is_open
    assert run.ranks[0].samples_per_s == pytest.approx(400)
    growing.steps(0, [30 * MS] * RECENT, NOW)
    assert watch.look(NOW).ranks[0].trend == pytest.approx(0.5)


def test_a_rank_hangs_after_ten_usual_steps_and_the_floor(growing: Growing) -> None:
    for rank, age in ((0, 1), (1, 59)):
        growing.steps(rank, [10 * MS] * 20, NOW - age)
    watch = RunWatch(str(growing.path))
    assert not watch.look(NOW).hanging
    assert [rank.rank for rank in watch.look(NOW + 2).hanging] == [1]
    patient = RunWatch(str(growing.path), hang_after_s=600)
    assert not patient.look(NOW + 2).hanging
    growing.steps(0, [20_000 * MS] * 30, NOW)  # 20 s each: ten of them are 200 s
    assert [rank.rank for rank in watch.look(NOW + 199).hanging] == [1]
    assert [rank.rank for rank in watch.look(NOW + 203).hanging] == [0, 1]


def test_a_run_that_was_closed_hangs_no_more(growing: Growing) -> None:
    growing.steps(0, [10 * MS] * 20, NOW - 1000)
    watch = RunWatch(str(growing.path))
    assert watch.look(NOW).hanging
    manifest = json.loads((growing.path / layout.RUN_JSON).read_bytes())
    manifest |= {"status": "finished", "exit": {"code": 0, "signal": None}, "end_unix_ns": int(NOW * 1e9)}
    (growing.path / layout.RUN_JSON).write_text(json.dumps(manifest))
    run = watch.look(NOW)
    assert not run.hanging and not run.is_open


def test_hosts_show_what_their_last_two_readings_say(growing: Growing) -> None:
    folder = growing.path / layout.HOSTS / "node01"
    folder.mkdir(parents=True)
    series: list[dict[str, Any]] = [
        {"metric": "cpu_busy", "labels": {"cpu": "all"}},
        {"metric": "cpu_busy", "labels": {"node": "0"}},
        {"metric": "neighbour_cpu", "labels": {}},
        *(
            {"metric": f"node_memory_{part}", "labels": {"node": "0"}, "scale": 1024}
            for part in ("total", "free", "file")
        ),
        *(
            {"metric": f"net_{way}_bytes", "labels": {"interface": name}}
            for way in ("rx", "tx")
            for name in ("lo", "eth0")
        ),
    ]
    lines = [
        {"schema_version": 1, "host": "node01", "pid": 1, "interval_ns": 1, "anchor": [0, 0]},
        {"id": 0, "collector": "all", "series": series},
        [0, 0, 0, [0, 0, 0, 100, 60, 10, 0, 0, 0, 0]],
        [0, 0, 2 * 10**9, [3 * 10**9, 3 * 10**9, 10**9, 100, 50, 10, 900, 4000, 900, 2000]],
    ]
    (folder / layout.SAMPLES_JSONL).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
    (host,) = RunWatch(str(growing.path)).look(NOW).hosts
    assert (host.cpus_busy, host.others_cpus) == (1.5, 0.5)
    assert (host.memory_bytes, host.memory_total_bytes) == (40 * 1024, 100 * 1024)
    assert (host.received_bytes_per_s, host.sent_bytes_per_s) == (2000, 1000)


def test_a_torn_line_and_a_host_without_readings_change_nothing(growing: Growing) -> None:
    growing.steps(0, [10 * MS] * 5, NOW)
    with growing.file(0).open("a") as file:
        file.write("[5,0,\n")
    (growing.path / layout.HOSTS / "node01").mkdir(parents=True)
    run = RunWatch(str(growing.path)).look(NOW)
    assert run.ranks[0].steps == 5
    assert run.hosts[0].cpus_busy is None


def text_of(run: LiveRun, standing: dict[int, str], width: int = 80) -> list[str]:
    return render_live(run, standing, width=width, most=1, now_s=NOW).splitlines()


def test_the_text_names_who_hangs_and_where_and_fits(growing: Growing) -> None:
    growing.steps(0, [10 * MS] * 20, NOW)
    growing.steps(1, [11 * MS] * 20, NOW - 75)
    run = RunWatch(str(growing.path)).look(NOW)
    lines = text_of(run, {1: "in all_reduce, called from train.py:41 (average)"}, 140)
    assert lines[2] == (
        "! rank 1 has made no step for 75 s (a step usually takes 11.0 ms); "
        "in all_reduce, called from train.py:41 (average)"
    )
    assert "1 faster rank is not shown (--ranks)" in lines
    assert all(len(line) <= 60 for line in text_of(run, {}, 60))


def mark(growing: Growing, rank: int, part: str, state: str, at_s: float) -> None:
    file = growing.file(rank).with_name(layout.MARKS_JSONL)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"t_ns": 0, "part": part, "state": state}) + "\n")
    os.utime(file, (at_s, at_s))


def test_no_rank_hangs_while_one_evaluates_or_writes_a_checkpoint(growing: Growing) -> None:
    for rank in (0, 1):
        growing.steps(rank, [10 * MS] * 20, NOW)
    watch = RunWatch(str(growing.path))
    watch.look(NOW)
    mark(growing, 0, "evaluation", "goes_on", NOW + 70)
    run = watch.look(NOW + 75)
    assert not run.hanging and run.ranks[0].part == "evaluation"
    assert [rank.rank for rank in watch.look(NOW + 131).hanging] == [0, 1]  # a minute without a further batch
    mark(growing, 0, "checkpoint", "begins", NOW + 131)
    assert not watch.look(NOW + 700).hanging
    assert [rank.rank for rank in watch.look(NOW + 800).hanging] == [0, 1]  # ten minutes: that is stuck
    mark(growing, 0, "checkpoint", "ended", NOW + 800)
    growing.steps(0, [10 * MS], NOW + 802)
    assert [rank.rank for rank in watch.look(NOW + 803).hanging] == [1]


def test_before_its_first_step_a_rank_has_ten_times_as_long(growing: Growing) -> None:
    growing.steps(0, [], NOW)
    watch = RunWatch(str(growing.path))
    assert not watch.look(NOW + 599).hanging
    assert [(rank.rank, rank.age_s) for rank in watch.look(NOW + 601).hanging] == [(0, None)]


def test_only_the_latest_process_of_a_rank_counts(growing: Growing) -> None:
    growing.steps(0, [10 * MS] * 20, NOW)
    watch = RunWatch(str(growing.path))
    assert watch.look(NOW + 61).hanging
    again = growing.path / layout.RANKS / "0.1"
    again.mkdir()
    (again / layout.RANK_JSON).write_bytes((growing.file(0).with_name(layout.RANK_JSON)).read_bytes())
    run = watch.look(NOW + 62)
    assert not run.hanging and run.ranks[0].steps == 0


def test_what_was_before_the_watcher_slept_does_not_count(growing: Growing) -> None:
    growing.steps(0, [10 * MS] * 20, NOW)
    watch = RunWatch(str(growing.path))
    watch.look(NOW + 5)
    watch.forgive(NOW + 500)
    assert not watch.look(NOW + 500).hanging and watch.look(NOW + 561).hanging


def test_ranks_of_other_hosts_are_looked_at_only_where_one_of_ours_hangs(growing: Growing) -> None:
    for rank in (0, 1):
        growing.steps(rank, [10 * MS] * 20, NOW)
    record = growing.file(1).with_name(layout.RANK_JSON)
    document = json.loads(record.read_bytes())
    record.write_text(json.dumps({**document, "host": "elsewhere"}))
    here = str(document["host"])
    watch = RunWatch(str(growing.path), is_wanted=lambda host: host == here)
    assert [rank.rank for rank in watch.look(NOW).ranks] == [0]
    mark(growing, 1, "evaluation", "goes_on", NOW + 60)
    assert not watch.look(NOW + 61).hanging
    assert [rank.rank for rank in watch.look(NOW + 121).hanging] == [0]


def test_a_mark_of_work_that_is_over_says_so(growing: Growing) -> None:
    for rank in (0, 1):
        growing.steps(rank, [10 * MS] * 20, NOW)
    watch = RunWatch(str(growing.path))
    seen = []
    marks = [
        ("checkpoint", "begins"),
        ("checkpoint", "ended"),
        ("input", "goes_on"),
        ("evaluation", "goes_on"),
    ]
    for number, (part, state) in enumerate(marks, 1):
        mark(growing, 0, part, state, NOW + number)
        first = watch.look(NOW + number).ranks[0]
        assert first.part == part
        seen.append(first.part_ended)
    assert seen == [False, True, True, False]


def test_a_mark_of_no_known_part_is_not_taken(growing: Growing) -> None:
    growing.steps(0, [10 * MS] * 20, NOW)
    mark(growing, 0, "\x1b[2J", "goes_on", NOW + 1)
    assert RunWatch(str(growing.path)).look(NOW + 2).ranks[0].part == ""


def test_a_broken_file_hides_neither_the_other_ranks_nor_the_run(growing: Growing) -> None:
    watch = RunWatch(str(growing.path))
    growing.file(0).write_text('{"no": "columns"}\n[0, 0, 1]\n')
    growing.steps(1, [10 * MS] * 20, NOW)
    run = watch.look(NOW)
    assert [rank.steps for rank in run.ranks] == [0, 20]
    assert run.unreadable == ("ranks/0",)
    assert "! ranks/0 cannot be read: what is shown of it is from before" in text_of(run, {})
    (growing.path / layout.RUN_JSON).write_text("{")
    growing.steps(1, [10 * MS] * 5, NOW)
    run = watch.look(NOW)
    assert run.ranks[1].steps == 25 and run.unreadable == ("run.json",)


def is_here(growing: Growing, rank: int, pid: int) -> None:
    """The rank is process `pid` of this host."""
    record = growing.file(rank).with_name(layout.RANK_JSON)
    document = json.loads(record.read_bytes())
    record.write_text(json.dumps({**document, "host": socket.gethostname(), "pid": pid}))


def ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def test_a_rank_whose_process_has_ended_does_not_hang_and_is_shown_as_died(growing: Growing) -> None:
    is_here(growing, 0, os.getpid())
    is_here(growing, 1, ended_pid())
    for rank in (0, 1):
        growing.steps(rank, [10 * MS] * 20, NOW)
    watch = RunWatch(str(growing.path))
    watch.look(NOW)
    run = watch.look(NOW + 61)
    assert [(rank.hangs, rank.lost) for rank in run.ranks] == [(True, False), (False, True)]
    assert "died" in render_live(run, {}, width=80, most=2, now_s=NOW)


def test_readings_of_a_sampler_that_has_ended_are_not_shown_for_ever(growing: Growing) -> None:
    folder = growing.path / layout.HOSTS / "node01"
    folder.mkdir(parents=True)
    file = folder / layout.SAMPLES_JSONL
    lines = [{"perfscope": 1}, {"id": 0, "series": [{"metric": "cpu_busy", "labels": {"cpu": "all"}}]}]
    rows = [[0, 0, at * 10**9, [at * 3 * 10**9]] for at in (1, 2)]
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *rows]))
    os.utime(file, (NOW, NOW))
    watch = RunWatch(str(growing.path))
    assert watch.look(NOW).hosts[0].cpus_busy == 3
    assert watch.look(NOW + 119).hosts[0].cpus_busy == 3
    assert watch.look(NOW + 600).hosts[0].cpus_busy == 3  # two looks are too few to tell
    assert watch.look(NOW + 601).hosts[0].cpus_busy is None


def test_a_host_is_asked_for_once_in_a_look(growing: Growing) -> None:
    asked: list[str] = []

    def is_wanted(host: str) -> bool:
        asked.append(host)
        return True

    assert len(RunWatch(str(growing.path), is_wanted=is_wanted).look(NOW, with_hosts=False).ranks) == 2
    assert len(asked) == 1
