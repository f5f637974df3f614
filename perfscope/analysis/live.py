"""A run that still goes on: how fast its ranks step now, whether one hangs, and how busy its hosts are.

Light: `perfscope run` looks at its own run with it, beside the training.
"""

from __future__ import annotations

import functools
import math
import re
import socket
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from msgspec import Struct

from perfscope.analysis.live_files import RECENT, MarksFile, SamplesFile, StepsFile
from perfscope.analysis.rank_facts import data_parallel_width
from perfscope.errors import RunDirectoryError, UnreadableFileError
from perfscope.rundir import layout
from perfscope.rundir.documents import read_document
from perfscope.rundir.files import names_in
from perfscope.rundir.links import refuse_links
from perfscope.rundir.manifest import locate, read_manifest
from perfscope.rundir.migrations import migrate
from perfscope.rundir.records import RankRecord, RunRecord, decode_run, rank_record
from perfscope.rundir.sampler_call import has_ended
from perfscope.rundir.tail import Tail
from perfscope.vocabulary.defaults import HANG_AFTER_S

__all__ = ["HANG_AFTER_S", "HANG_STEPS", "RECENT", "LiveHost", "LiveRank", "LiveRun", "RunWatch"]

HANG_STEPS = 10  # usual steps without one, from which on a rank hangs, but not before HANG_AFTER_S
# Before its first step a rank may compile or load a model; a checkpoint, or an evaluation that is not seen,
# may be long, too: then the floor is so many times as high.
PATIENCE = 10
_MARK_EVERY_S = 10.0  # twice as often as probes/marks.py writes
_LOCAL = "lo"  # an interface that leaves no host
# By a file that cannot be read, or that holds JSON of another shape.
_BROKEN = (
    *(OSError, RunDirectoryError, UnreadableFileError),
    *(ValueError, TypeError, LookupError, AttributeError),
)
_FOLDER = re.compile(r"(\d+)(?:\.(\d+))?", re.ASCII)


class LiveRank(Struct, frozen=True, kw_only=True):
    """One rank, now.

    Attributes:
        steps: that it has finished.
        step_ns: median of its last RECENT untraced steps; None: it has none yet.
        trend: that median over the one of as many steps before, minus 1; None: too few steps.
        samples_per_s: of these steps; None: the batch size is not known.
        age_s: since its last step reached the disk; None: it has none yet.
        silent_s: since its last step or mark did, or since its record began; None: not known.
        part: of the run that it is in while it makes no step, by its last mark; "": none.
        part_ended: it was in that part, and has left it.
        hangs: it has made no step for HANG_STEPS usual ones, and longer than the floor, although no rank is
            seen to evaluate or to write a checkpoint.
        lost: it shows nothing for so long, and its process on this host has ended.
    """

    rank: int
    host: str
    pid: int | None
    steps: int
    step_ns: int | None
    trend: float | None
    samples_per_s: float | None
    age_s: float | None
    finished: bool
    hangs: bool
    silent_s: float | None = None
    part: str = ""
    part_ended: bool = False
    lost: bool = False


class LiveHost(Struct, frozen=True, kw_only=True):
    """One host, since the look before; None: not measured.

    Attributes:
        cpus_busy, others_cpus: CPUs that were busy, and of these with other processes than the run's.
        memory_bytes, memory_total_bytes: in use without the page cache, and there.
        received_bytes_per_s, sent_bytes_per_s: of all interfaces but loopback.
        throttled_ratio: share of time in which the job's CPU quota held its threads back.
        pressure_ratio: share of time in which a task of the host waited for a CPU.
        gpu_busy_ratio: of each GPU's time, by its number; empty: not measured.
        gpu_memory_bytes: in use, likewise.
    """

    host: str
    cpus_busy: float | None
    others_cpus: float | None
    memory_bytes: int | None
    memory_total_bytes: int | None
    received_bytes_per_s: float | None
    sent_bytes_per_s: float | None
    throttled_ratio: float | None = None
    pressure_ratio: float | None = None
    gpu_busy_ratio: dict[str, float] = {}
    gpu_memory_bytes: dict[str, int] = {}


class LiveRun(Struct, frozen=True, kw_only=True):
    """A run at one moment.

    Attributes:
        started_unix_ns: None: not recorded.
        expected: ranks of the job; None: not known.
        is_open: it has not been closed: it goes on, or perfscope was killed.
        step_ns: of the slowest rank; None: no rank has steps.
        samples_per_s: of all ranks of the job; None: not known how large a batch is, or how it is split.
        looks_for_hangs: otherwise it is not known whether a rank hangs.
        unreadable: what could not be read in this look, below the run directory; the rest is up to date.
    """

    name: str
    path: str
    started_unix_ns: int | None
    expected: int | None
    is_open: bool
    step_ns: int | None
    ranks: tuple[LiveRank, ...]
    hosts: tuple[LiveHost, ...]
    samples_per_s: float | None = None
    looks_for_hangs: bool = True
    unreadable: tuple[str, ...] = ()

    @property
    def hanging(self) -> tuple[LiveRank, ...]:
        """Ranks that hang."""
        return tuple(rank for rank in self.ranks if rank.hangs)


class _Rank:
    """What is known of one rank: the files of its latest process."""

    def __init__(self, folder: Path, record: RankRecord) -> None:
        self.folder, self.record = folder, record
        self.steps = StepsFile(Tail(folder / layout.STEPS_JSONL))
        self.marks = MarksFile(Tail(folder / layout.MARKS_JSONL))
        self._version: tuple[int, int] | None = None

    def look(self, now_s: float) -> None:
        self.steps.look(now_s)
        self.marks.look(now_s)
        version = _version(self.folder / layout.RANK_JSON)
        if version is not None and version != self._version:
            self._version = version
            self.record = _read_record(self.folder) or self.record

    @property
    def sign_s(self) -> float | None:
        """When it last showed that it goes on."""
        return max((at for at in (self.steps.at_s, self.marks.at_s) if at is not None), default=None)

    @property
    def part(self) -> str:
        """What it does by its last mark, where that is newer than its last step."""
        steps, marks = self.steps.at_s or 0.0, self.marks.at_s
        if marks is None:
            return ""
        slack = _MARK_EVERY_S if self.marks.is_unseen else 0.0
        return self.marks.part if marks > steps - slack else ""

    def is_lost(self) -> bool:
        """Its process on this host has ended, without a word."""
        return self.record.host == socket.gethostname() and has_ended(self.record.pid)

    def limit_s(self, floor_s: float) -> float:
        """How long it may show nothing."""
        if not self.steps.num_steps or (self.marks.is_unseen and self.part):
            return max(PATIENCE * floor_s, HANG_STEPS * (self.steps.median_ns() or 0) / 1e9)
        return max(floor_s, HANG_STEPS * (self.steps.median_ns() or 0) / 1e9)


class RunWatch:
    """Looks at a run again and again; each look reads what was appended since.

    Args:
        path: of the run directory.
        hang_after_s: the shortest time without a step that is a hang, seconds; infinity: none is looked for.
        is_wanted: host -> whether its ranks are looked at in every look; the others are looked at only where
            one of these hangs. Default: all are.

    Raises:
        RunDirectoryError: there is no run.
    """

    def __init__(
        self,
        path: str,
        hang_after_s: float = HANG_AFTER_S,
        is_wanted: Callable[[str], bool] | None = None,
    ) -> None:
        self._path, self._hang_after_s = locate(Path(path)), hang_after_s
        refuse_links(self._path)
        self._is_wanted = is_wanted or (lambda host: True)
        self._ranks: dict[int, _Rank] = {}
        self._samples: dict[str, SamplesFile] = {}
        self._unreadable: dict[str, None] = {}  # in this look
        self._run = self._read_run()
        self._version = _version(self._path / layout.RUN_JSON)

    def look(self, now_s: float, *, with_hosts: bool = True) -> LiveRun:
        """The run now.

        Args:
            now_s: Unix time, seconds.
            with_hosts: also read what the samplers append.
        """
        self._unreadable = {}
        self._look_at_run()
        self._find_ranks()
        is_wanted = functools.cache(self._is_wanted)  # many ranks share a host
        wanted = {number for number, rank in self._ranks.items() if is_wanted(rank.record.host)}
        self._look_at(wanted, now_s)
        hanging = self._hanging(wanted, now_s)
        if hanging and len(wanted) < len(self._ranks):
            self._look_at(self._ranks.keys() - wanted, now_s)
            hanging = self._hanging(self._ranks, now_s) & wanted
        ranks = tuple(self._shown(number, now_s, number in hanging) for number in sorted(wanted))
        step_times_ns = [rank.step_ns for rank in ranks if rank.step_ns is not None]
        hosts = tuple(self._host(host, now_s) for host in self._hosts()) if with_hosts else ()
        return LiveRun(
            name=self._run.name or self._path.name,
            path=str(self._path),
            started_unix_ns=self._run.start_unix_ns,
            expected=self._run.expected_ranks or self._run.world_size,
            is_open=self._run.is_open,
            step_ns=max(step_times_ns, default=None),
            ranks=ranks,
            hosts=hosts,
            samples_per_s=self._samples_per_s(ranks),
            looks_for_hangs=self._hang_after_s < math.inf,
            unreadable=tuple(self._unreadable),
        )

    def forgive(self, now_s: float) -> None:
        """There was no look for long, perhaps because the machine slept: earlier times do not count."""
        for rank in self._ranks.values():
            rank.steps.forgive(now_s)
            rank.marks.forgive(now_s)

    @property
    def patience_s(self) -> float:
        """How long work may take that makes no step and gives no other sign."""
        return PATIENCE * self._hang_after_s

    def last_end_ns(self, rank: int) -> int:
        """End of a rank's last step on its own CLOCK_MONOTONIC; 0 = it has none."""
        return self._ranks[rank].steps.end_ns if rank in self._ranks else 0

    def _look_at(self, numbers: Collection[int], now_s: float) -> None:
        for number in sorted(numbers):
            rank = self._ranks[number]
            self._guarded(rank.folder, functools.partial(rank.look, now_s))

    def _guarded(self, path: Path, look: Callable[[], None]) -> None:
        """A file that holds something else than it should does not hide the others."""
        try:
            look()
        except _BROKEN:
            self._unreadable[str(path.relative_to(self._path))] = None

    def _hanging(self, numbers: Collection[int], now_s: float) -> set[int]:
        """Ranks that hang; none while one of them is seen to do something else than steps."""
        hanging = set()
        for number in numbers:
            rank = self._ranks[number]
            sign = rank.sign_s
            if sign is None or self._has_finished(rank):
                continue
            if now_s - sign > rank.limit_s(self._hang_after_s):
                if not rank.is_lost():
                    hanging.add(number)
            elif rank.part and not rank.is_lost():
                return set()
        return hanging

    def _has_finished(self, rank: _Rank) -> bool:
        return bool(rank.record.finished) or not self._run.is_open

    def _shown(self, number: int, now_s: float, hangs: bool) -> LiveRank:
        rank = self._ranks[number]
        steps, sign = rank.steps, rank.sign_s
        has_steps = steps.num_steps and steps.at_s is not None
        is_silent = sign is not None and now_s - sign > min(rank.limit_s(self._hang_after_s), HANG_AFTER_S)
        return LiveRank(
            rank=number,
            host=rank.record.host,
            pid=rank.record.pid,
            steps=steps.num_steps,
            step_ns=steps.median_ns(),
            trend=steps.trend(),
            samples_per_s=steps.samples_per_s(),
            age_s=max(0.0, now_s - (steps.at_s or now_s)) if has_steps else None,
            finished=self._has_finished(rank),
            hangs=hangs,
            silent_s=None if sign is None else max(0.0, now_s - sign),
            part=rank.part,
            part_ended=bool(rank.part) and rank.marks.has_ended,
            lost=is_silent and not self._has_finished(rank) and rank.is_lost(),
        )

    def _samples_per_s(self, ranks: Sequence[LiveRank]) -> float | None:
        """Of the job, from its last steps; as the report has it from all of them (analysis/steps.py)."""
        slowest = max((rank.step_ns for rank in ranks if rank.step_ns), default=None)
        option = self._run.options.samples_per_step
        if option and slowest:
            return option * 1e9 / slowest
        width = data_parallel_width({number: rank.record for number, rank in self._ranks.items()})
        rates = [rank.samples_per_s for rank in ranks if rank.samples_per_s is not None]
        return width * sum(rates) / len(rates) if width and rates and len(rates) == len(ranks) else None

    def _read_run(self) -> RunRecord:
        return decode_run(migrate(read_manifest(self._path)[0], str(self._path)))[0]

    def _look_at_run(self) -> None:
        version = _version(self._path / layout.RUN_JSON)
        if version is not None and version != self._version:
            self._guarded(self._path / layout.RUN_JSON, lambda: self._take_run(version))

    def _take_run(self, version: tuple[int, int]) -> None:
        self._run, self._version = self._read_run(), version

    def _find_ranks(self) -> None:
        """The latest process of each rank."""
        latest: dict[int, tuple[int, str]] = {}
        for name in names_in(self._path / layout.RANKS):
            if match := _FOLDER.fullmatch(name):
                attempt = (int(match[2] or 0), name)
                latest[int(match[1])] = max(attempt, latest.get(int(match[1]), attempt))
        for number, (_, name) in latest.items():
            current = self._ranks.get(number)
            if current is not None and current.folder.name == name:
                continue
            folder = self._path / layout.RANKS / name
            record = _read_record(folder)
            if record is not None:
                self._ranks[number] = _Rank(folder, record)

    def _hosts(self) -> list[str]:
        folder = self._path / layout.HOSTS
        return [n for n in sorted(names_in(folder)) if self._is_wanted(n) and (folder / n).is_dir()]

    def _host(self, host: str, now_s: float) -> LiveHost:
        path = self._path / layout.HOSTS / host / layout.SAMPLES_JSONL
        samples = self._samples.setdefault(host, SamplesFile(Tail(path)))
        self._guarded(path, lambda: samples.look(now_s))
        busy, neighbor_cpus = samples.rate("cpu_busy", cpu="all"), samples.rate("neighbour_cpu")
        total, free, cached = (samples.last(f"node_memory_{part}") for part in ("total", "free", "file"))
        used = None if total is None or free is None or cached is None else int(total - free - cached)
        return LiveHost(
            host=host,
            cpus_busy=_ratio(busy),
            others_cpus=_ratio(neighbor_cpus),
            memory_bytes=used,
            memory_total_bytes=None if total is None else int(total),
            received_bytes_per_s=samples.rate("net_rx_bytes", beside=_LOCAL),
            sent_bytes_per_s=samples.rate("net_tx_bytes", beside=_LOCAL),
            throttled_ratio=_ratio(samples.rate("job_throttled")),
            pressure_ratio=_ratio(samples.rate("pressure_some", scope="system", resource="cpu")),
            gpu_busy_ratio=samples.each("gpu_utilization", "gpu"),
            gpu_memory_bytes={gpu: int(n) for gpu, n in samples.each("gpu_memory_used", "gpu").items()},
        )


def _ratio(ns_per_s: float | None) -> float | None:
    return None if ns_per_s is None else ns_per_s / 1e9


def _version(path: Path) -> tuple[int, int] | None:
    """Of a document that is replaced as a whole; None: it is not there."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ino


def _read_record(folder: Path) -> RankRecord | None:
    try:
        return rank_record(read_document(folder / layout.RANK_JSON))
    except (OSError, UnreadableFileError, RunDirectoryError):
        return None
