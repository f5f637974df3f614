"""The sampler: one small process per host that reads the hardware while ranks live.

The host's `perfscope run` starts it when a rank appears (launch/sampling.py); on hosts without one a rank
does (probes/sampler_start.py). A lock decides between several. It ends with the last rank of its host,
however that ends.

Fast collectors are read in one loop, 10 times a second by default. Each slow one has a thread, so a call
that blocks never delays the others. Should sampling cost more than its budget, the collector that costs more
than all others together is read less often (a GPU's driver takes 5 ms where the kernel takes 0.2 ms);
without such a one, and where the file grows large, the tick becomes longer. Counters lose resolution by that,
not counts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfscope.collectors.base import Capability, Collector, Fact
from perfscope.collectors.context import Context, live_context
from perfscope.collectors.ranks import LocalRanks
from perfscope.collectors.registry import foreign_collectors, own_collectors
from perfscope.collectors.sample_log import SampleLog
from perfscope.errors import RunDirectoryError
from perfscope.rundir import layout
from perfscope.rundir.file_locks import try_lock
from perfscope.rundir.writer import write_json

DEFAULT_INTERVAL_NS = 100_000_000
LONGEST_INTERVAL_NS = 10_000_000_000
LOOK_NS = 1_000_000_000  # between looks for new ranks
ANCHOR_NS = 10_000_000_000
SETTLE_NS = 1_000_000_000  # until then everything is opened and read for the first time: start-up
FLUSH_NS = 400_000_000  # what SIGKILL may cost; a write is a tenth of a tick's work
REVIEW_NS = 5_000_000_000  # between looks at our own cost
MAX_CPU_RATIO = 0.005  # of one core: the budget; above it the tick doubles
BYTES_PER_DOUBLING = 16 << 20  # every so many bytes the tick doubles: a week of training stays below 200 MB
NICE = 5
MAX_FAULTS = 3


@dataclass
class _Reader:
    """One open collector and what it has cost."""

    collector: Collector
    next_ns: int = 0
    samples: int = 0
    cpu_ns: int = 0
    cpu_at_review_ns: int = 0
    stretch: int = 1  # its ticks are so many times as long
    faults: int = 0
    off: bool = False


class Sampler:
    """Reads collectors until the ranks are gone.

    Args:
        ctx: where to read; `ctx.pids` must be `ranks`.
        ranks: the ranks of this host.
        log: where to write.
        collectors: those to try; only available ones are opened.
        interval_ns: the fast tick.
    """

    def __init__(
        self,
        ctx: Context,
        ranks: LocalRanks,
        log: SampleLog,
        collectors: Sequence[Collector],
        interval_ns: int = DEFAULT_INTERVAL_NS,
    ) -> None:
        self._ctx = ctx
        self._ranks = ranks
        self._log = log
        self._interval_ns = interval_ns
        self._stop = threading.Event()
        self._is_stopping = False
        self._why = ""
        self._ticks = self._late = 0
        self._is_settled = False
        self._settled_ns = self._last_review_ns = ctx.clock()
        self._start_up_ns = time.process_time_ns()
        self._next_look_ns = self._next_flush_ns = 0
        self._next_anchor_ns = self._settled_ns + ANCHOR_NS
        self._cpu_at_review_ns = time.process_time_ns()
        self._next_size = BYTES_PER_DOUBLING
        self._readers = [_Reader(collector) for collector in collectors]

    def stop(self, why: str) -> None:
        """End soon; safe from a signal handler and from other threads."""
        self._why = self._why or why
        if not self._is_stopping:  # a signal may come within `set`, whose lock cannot be taken twice
            self._is_stopping = True
            self._stop.set()

    def run(self) -> None:
        """Sample until no rank is left. Never raises for a collector's fault."""
        threads = [
            threading.Thread(target=self._run_slow, args=(reader,), daemon=True, name=reader.collector.name)
            for reader in self._readers
            if reader.collector.slow
        ]
        fast = [reader for reader in self._readers if not reader.collector.slow and self._open(reader)]
        for thread in threads:
            thread.start()
        self._run_fast(fast)
        self.stop("")
        for thread in threads:
            thread.join(0.3)
        for reader in fast:
            self._guarded(reader, reader.collector.close)
        self._log.end(self._why or "every rank has ended", self.cost())

    def cost(self) -> dict[str, object]:
        """What sampling has cost so far: CPU time of the process, and per collector.

        `cpu_ns` goes over `wall_ns`; Python's start and the first second, `start_up_ns`, came before.
        """
        return {
            "cpu_ns": time.process_time_ns() - self._start_up_ns,
            "start_up_ns": self._start_up_ns,
            "wall_ns": self._ctx.clock() - self._settled_ns,
            "ticks": self._ticks,
            "late_ticks": self._late,
            "readings": self._log.num_readings,
            "lost_lines": self._log.num_lost,
            "collectors": {
                reader.collector.name: {"samples": reader.samples, "cpu_ns": reader.cpu_ns}
                for reader in self._readers
                if reader.samples
            },
        }

    def _run_fast(self, fast: Sequence[_Reader]) -> None:
        due = self._ctx.clock()
        while not self._stop.is_set():
            now = self._ctx.clock()
            self._ticks += 1
            self._late += now > due + self._interval_ns // 2
            for reader in fast:
                if now >= reader.next_ns:
                    self._sample(reader, now)
            self._keep_house(now)
            due += self._interval_ns
            now = self._ctx.clock()
            if due < now:  # ticks that were missed are not made up for
                due = now + self._interval_ns - (now - due) % self._interval_ns
            self._ranks.wait((due - now) / 1e9)
            if not self._anybody():
                break
        for reader in fast:  # once more: what the counters say at the end of the training
            self._sample(reader, self._ctx.clock())

    def _anybody(self) -> bool:
        """Whether a rank lives; one of an elastic restart may have come in the same moment."""
        if not self._ranks():
            self._ranks.look()
        return bool(self._ranks())

    def _keep_house(self, now: int) -> None:
        """What is due less often than sampling."""
        if now >= self._next_flush_ns:
            self._log.flush()
            self._next_flush_ns = now + FLUSH_NS
        if now >= self._next_look_ns:
            self._ranks.look()
            self._next_look_ns = now + LOOK_NS
        if now >= self._next_anchor_ns:
            self._log.anchor()
            self._next_anchor_ns = now + ANCHOR_NS
        if not self._is_settled and now >= self._settled_ns + SETTLE_NS:
            self._is_settled = True
            self._settled_ns = self._last_review_ns = now
            self._start_up_ns = self._cpu_at_review_ns = time.process_time_ns()
        if self._is_settled and now >= self._last_review_ns + REVIEW_NS:
            self._review(now)

    def _run_slow(self, reader: _Reader) -> None:
        if not self._open(reader):
            return
        due = self._ctx.clock()
        while not self._stop.is_set() and not reader.off:
            self._sample(reader, self._ctx.clock())
            due += self._interval_of(reader)
            due = max(due, self._ctx.clock())  # never back to back: a slow source is slow
            self._stop.wait((due - self._ctx.clock()) / 1e9)
        self._guarded(reader, reader.collector.close)

    def _open(self, reader: _Reader) -> bool:
        collector = reader.collector
        capability = collector.probe(self._ctx) if not reader.off else None
        if capability is None or not capability.available:
            if capability is not None:
                self._note_absent(capability)
            return False
        try:
            collector.open(self._ctx)
        except Exception as error:  # noqa: BLE001 - one source is out; the others and the training go on
            self._note_stop(collector, f"cannot be opened: {error}")
            return False
        return True

    def _sample(self, reader: _Reader, now: int) -> None:
        if reader.off:
            return
        began = time.thread_time_ns()
        self._guarded(reader, lambda: self._read(reader.collector))
        reader.cpu_ns += time.thread_time_ns() - began
        reader.samples += 1
        step = self._interval_of(reader)
        # A collector that is read every tick must not miss one because the tick came a little early.
        reader.next_ns = now + step - self._interval_ns // 2

    def _interval_of(self, reader: _Reader) -> int:
        return max(reader.collector.min_interval_ns, self._interval_ns) * reader.stretch

    def _read(self, collector: Collector) -> None:
        self._log.readings(collector.name, collector.sample())
        for fact in collector.facts():
            self._log.fact(collector.name, fact, self._ctx.clock())

    def _guarded(self, reader: _Reader, call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001 - the boundary: a collector's fault ends that collector only
            reader.faults += 1
            if reader.faults >= MAX_FAULTS and not reader.off:
                reader.off = True
                self._note_stop(reader.collector, f"switched off after {reader.faults} faults: {error!r}")

    def _note_absent(self, capability: Capability) -> None:
        """What this host does not show is part of the record: it must not be taken for zero."""
        value = {
            "what": capability.collector,
            "reason": capability.reason,
            "remedy": capability.remedy,
        }
        self._log.fact(capability.collector, Fact("absent", {}, dict(value)), self._ctx.clock())

    def _note_stop(self, collector: Collector, reason: str) -> None:
        fact = Fact("stopped", {}, {"what": collector.name, "reason": reason})
        self._log.fact(collector.name, fact, self._ctx.clock())

    def _review(self, now: int) -> None:
        """Double the tick, or one collector's, when sampling costs too much or the file has grown by much."""
        cpu = time.process_time_ns()
        spent = cpu - self._cpu_at_review_ns
        ratio = spent / max(now - self._last_review_ns, 1)
        costs = [reader.cpu_ns - reader.cpu_at_review_ns for reader in self._readers]
        for reader in self._readers:
            reader.cpu_at_review_ns = reader.cpu_ns
        self._cpu_at_review_ns, self._last_review_ns = cpu, now
        if self._log.num_bytes > self._next_size:
            self._next_size += BYTES_PER_DOUBLING
        elif ratio <= MAX_CPU_RATIO:
            return
        elif 2 * max(costs, default=0) > spent:
            reader = self._readers[costs.index(max(costs))]
            if self._interval_of(reader) < LONGEST_INTERVAL_NS:
                reader.stretch *= 2
                return
        if self._interval_ns < LONGEST_INTERVAL_NS:
            self._interval_ns *= 2
            self._log.interval(self._interval_ns)


def main(arguments: Sequence[str]) -> int:
    """The sampler process: RUN_DIR HOST PID OPTIONS(JSON).

    Gives 0, also when another sampler has this host. Nothing is printed: there is no reader.
    """
    run_dir, host, first = Path(arguments[0]), arguments[1], int(arguments[2])
    options = json.loads(arguments[3])
    folder = run_dir / layout.HOSTS / host
    lock = os.open(folder / layout.SAMPLER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not try_lock(lock):
            return 0
    except OSError:  # a file system without locks: only local rank 0 starts one, so go on
        os.set_inheritable(lock, False)
    _step_aside()
    interval_ns = int(options.get("interval_ns") or DEFAULT_INTERVAL_NS)
    ranks = LocalRanks(folder / layout.PIDS, first)
    ctx = live_context(pids=ranks, out_dir=folder, options=dict(options.get("collectors") or {}))
    foreign, problems = foreign_collectors()
    log = SampleLog(folder / layout.SAMPLES_JSONL, host, interval_ns)
    for problem in problems:
        log.fact("registry", Fact("note", {}, {"text": problem}), time.monotonic_ns())
    wanted = [
        collector for collector in (*own_collectors(), *foreign) if ctx.options.get(collector.name, True)
    ]
    sampler = Sampler(ctx, ranks, log, wanted, interval_ns)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: sampler.stop("asked to end"))
    describing = threading.Thread(target=_describe, args=(ctx, host, folder), daemon=True)
    describing.start()
    sampler.run()
    describing.join(0.5)
    log.close()
    return 0


def _step_aside() -> None:
    """Any CPU the host allows, not the one rank 0 is bound to; behind the training where it is crowded."""
    with suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with suppress(OSError):
        os.nice(NICE)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)


def _describe(ctx: Context, host: str, folder: Path) -> None:
    """topology.json of a host where no `perfscope run` wrote it."""
    target = folder / layout.TOPOLOGY_JSON
    if target.exists():
        return
    from perfscope.collectors.machine.topology import read_topology

    topology = read_topology(ctx, host)
    if not target.exists():  # it may have come meanwhile
        with suppress(RunDirectoryError):
            write_json(target, topology)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # a thread may hang in a driver; nothing is left to flush
