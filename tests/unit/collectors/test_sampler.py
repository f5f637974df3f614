"""The sampling loop: faults of one collector stay with it, slow ones delay nobody, it ends with the ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from perfscope.collectors import sampler as sampler_module
from perfscope.collectors.base import BaseCollector, Capability, Collector, Reading
from perfscope.collectors.context import Context
from perfscope.collectors.ranks import LocalRanks
from perfscope.collectors.registry import foreign_collectors
from perfscope.collectors.sample_log import SampleLog
from perfscope.collectors.sampler import Sampler
from perfscope.rundir.metrics import COUNTER, Metric, Series
from perfscope.rundir.sample_facts import Gap
from perfscope.rundir.samples import HostSamples, read_samples

TICK_NS = 20_000_000


class Counting(BaseCollector):
    """Gives 0, 1, 2 ...; does `act` before each."""

    def __init__(self, name: str, act: Callable[[int], None] = lambda n: None, *, slow: bool = False) -> None:
        super().__init__()
        self.name, self.slow, self._act, self.count, self.closed = name, slow, act, 0, False
        metric = Metric(name=name, unit="events", kind=COUNTER, source="here", description="")
        self._series = Series(metric)

    def probe(self, ctx: Context) -> Capability:
        return Capability(collector=self.name, available=True)

    def open(self, ctx: Context) -> None:
        pass

    def sample(self) -> Sequence[Reading]:
        self._act(self.count)
        now = time.monotonic_ns()
        self.count += 1
        return [Reading(self._series, self.count - 1, now, now)]

    def close(self) -> None:
        self.closed = True


class Unavailable(Counting):
    def probe(self, ctx: Context) -> Capability:
        return Capability(collector=self.name, available=False, reason="not here")


class Unopenable(Counting):
    def open(self, ctx: Context) -> None:
        raise OSError(19, "No such device")


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def sample_for(
    seconds: float, rank: subprocess.Popen[bytes], tmp_path: Path, *collectors: Collector
) -> HostSamples:
    """Sample beside `rank`, which is killed after `seconds`."""
    ranks = LocalRanks(tmp_path / "pids", rank.pid)
    log = SampleLog(tmp_path / "s", "h", TICK_NS)
    killer = subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -9 {rank.pid}"])
    Sampler(Context(pids=ranks), ranks, log, collectors, TICK_NS).run()
    killer.wait()
    log.close()
    return read_samples(tmp_path / "s", "h")


def values(samples: HostSamples, metric: str) -> list[float]:
    found = samples.find(metric)
    return found[0].values.tolist() if found else []


def test_it_ends_when_the_last_rank_is_killed_and_says_what_it_cost(
    rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    collector = Counting("steady")
    samples = sample_for(0.5, rank, tmp_path, collector)
    (end,) = samples.ends
    assert end.end == "every rank has ended" and (end.cost.cpu_ns or 0) > 0
    written = json.loads((tmp_path / "s").read_text().splitlines()[-1])
    assert written["cost"]["collectors"]["steady"]["samples"] == collector.count
    counted = values(samples, "steady")
    assert counted == list(range(collector.count)) and len(counted) > 5
    assert collector.closed


def test_a_collector_that_fails_again_and_again_is_switched_off_and_the_others_go_on(
    rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    def fail(count: int) -> None:
        raise RuntimeError("broken")

    samples = sample_for(0.5, rank, tmp_path, Counting("bad", fail), Counting("good"))
    stopped = [fact for fact in samples.facts if fact.name == "stopped"]
    assert [fact.collector for fact in stopped] == ["bad"]
    assert isinstance(stopped[0].value, Gap) and "broken" in stopped[0].value.reason
    assert values(samples, "bad") == [] and len(values(samples, "good")) > 5


def test_a_call_that_blocks_delays_no_other_collector(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    def block(count: int) -> None:
        time.sleep(0.3)

    samples = sample_for(1.5, rank, tmp_path, Counting("blocking", block, slow=True), Counting("fast"))
    fast = samples.find("fast")[0].t_begin_ns
    slow = values(samples, "blocking")
    assert 1 <= len(slow) <= 6
    # Had the loop waited for it, there would be one fast reading for each slow one.
    assert len(fast) > 4 * len(slow)


def test_a_hanging_call_does_not_keep_the_sampler_alive(
    rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    def hang(count: int) -> None:
        time.sleep(30)

    began = time.monotonic()
    samples = sample_for(0.3, rank, tmp_path, Counting("hanging", hang, slow=True), Counting("fast"))
    assert time.monotonic() - began < 15
    assert samples.ends


def test_what_is_not_available_is_not_opened_and_what_cannot_be_opened_is_said(
    rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    absent, gone = Unavailable("absent"), Unopenable("gone")
    samples = sample_for(0.2, rank, tmp_path, absent, gone)
    assert absent.count == gone.count == 0
    gaps = [(fact, fact.value) for fact in samples.facts if isinstance(fact.value, Gap)]
    assert [(fact.name, fact.collector, gap.reason) for fact, gap in gaps] == [
        ("absent", "absent", "not here"),
        ("stopped", "gone", "cannot be opened: [Errno 19] No such device"),
    ]


def burn(count: int) -> None:
    end = time.thread_time() + 0.01  # half of every tick
    while time.thread_time() < end:
        pass


def test_sampling_that_costs_too_much_becomes_rarer(
    rank: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "SETTLE_NS", 0)
    monkeypatch.setattr(sampler_module, "REVIEW_NS", 200_000_000)
    alike = [Counting(f"dear {number}", burn) for number in range(4)]  # none costs more than all others
    samples = sample_for(1.5, rank, tmp_path, *alike)
    ticks = [interval for _, interval in samples.intervals]
    assert ticks[0] == TICK_NS and len(ticks) > 1
    assert all(later == 2 * earlier for earlier, later in pairwise(ticks))


def test_a_collector_that_costs_more_than_the_others_is_read_less_often_than_they_are(
    rank: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "SETTLE_NS", 0)
    monkeypatch.setattr(sampler_module, "REVIEW_NS", 200_000_000)
    monkeypatch.setattr(sampler_module, "MAX_CPU_RATIO", 0.15)
    samples = sample_for(2.0, rank, tmp_path, Counting("dear", burn), Counting("cheap"))
    assert [interval for _, interval in samples.intervals] == [TICK_NS]
    assert 3 < len(values(samples, "dear")) < 0.6 * len(values(samples, "cheap"))


def test_a_large_file_makes_the_tick_longer(
    rank: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "SETTLE_NS", 0)
    monkeypatch.setattr(sampler_module, "REVIEW_NS", 100_000_000)
    monkeypatch.setattr(sampler_module, "BYTES_PER_DOUBLING", 200)
    samples = sample_for(1.0, rank, tmp_path, Counting("steady"))
    assert len(samples.intervals) > 1


def test_ranks_that_come_later_are_found_and_all_are_waited_for(
    rank: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "LOOK_NS", TICK_NS)
    (tmp_path / "pids").mkdir()
    late = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.2)"])
    (tmp_path / "pids" / str(late.pid)).touch()
    (tmp_path / "pids" / "999999999").touch()  # an earlier attempt's
    collector = Counting("steady")
    samples = sample_for(0.2, rank, tmp_path, collector)
    assert late.poll() is not None or late.wait(5) == 0
    one = samples.find("steady")[0]
    assert int(one.t_end_ns[-1] - one.t_begin_ns[0]) > 500_000_000  # went on after the first had been killed


def test_a_rank_that_ended_but_is_not_yet_reaped_counts_as_gone(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    time.sleep(0.3)  # a zombie now: we have not waited for it
    ranks = LocalRanks(tmp_path, child.pid)
    ranks.wait(0)
    assert ranks() == ()
    child.wait()


def test_other_packages_collectors_are_found_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "extra-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[perfscope.collectors]\nfine = extra_collectors:Fine\nbroken = extra_collectors:Missing\n"
    )
    (tmp_path / "extra_collectors.py").write_text("class Fine:\n    name = 'fine'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found, problems = foreign_collectors()
    assert [collector.name for collector in found] == ["fine"]
    assert len(problems) == 1 and "broken" in problems[0]


def test_options_reach_the_process_as_json(tmp_path: Path) -> None:
    """The sampler as a process of its own: a rank that ends at once leaves a whole file."""
    folder = tmp_path / "hosts" / "h"
    (folder / "pids").mkdir(parents=True)
    rank = subprocess.Popen(["sleep", "1"])
    options = json.dumps({"interval_ns": 50_000_000, "collectors": {}})
    command = [
        sys.executable,
        "-m",
        "perfscope.collectors.sampler",
        str(tmp_path),
        "h",
        str(rank.pid),
        options,
    ]
    first, second = subprocess.Popen(command), subprocess.Popen(command)
    rank.wait()
    assert (first.wait(20), second.wait(20)) == (0, 0)
    samples = read_samples(folder / "samples.jsonl", "h")
    assert (
        len(samples.ends) == 1 and samples.intervals[0][1] == 50_000_000
    )  # the other one found the lock held
    assert samples.num_dropped == 0


def test_a_signal_while_the_sampler_stops_does_not_hang_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler runs in the thread that is within `Event.set`."""
    ranks = LocalRanks(tmp_path / "pids", os.getpid())
    log = SampleLog(tmp_path / "s", "h", TICK_NS)
    sampler = Sampler(Context(pids=ranks), ranks, log, [], TICK_NS)
    event = sampler._stop
    notify_all = event._cond.notify_all  # type: ignore[attr-defined]

    def interrupted() -> None:
        sampler.stop("asked to end")
        notify_all()

    monkeypatch.setattr(event._cond, "notify_all", interrupted)  # type: ignore[attr-defined]
    done = threading.Thread(target=sampler.stop, args=("every rank has ended",), daemon=True)
    done.start()
    done.join(10)
    assert not done.is_alive() and event.is_set()
    log.close()
