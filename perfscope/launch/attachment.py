"""Who was recorded: which ranks attached, which are missing, and why that may be."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.errors import UnreadableFileError
from perfscope.launch.plan import LaunchPlan
from perfscope.launch.process import Ending
from perfscope.launch.sightings import Sightings
from perfscope.messages.lists import counted, plural, ranks_of
from perfscope.rundir import layout
from perfscope.rundir.documents import read_document
from perfscope.rundir.layout import host_name
from perfscope.rundir.opening import open_regular, read_bounded
from perfscope.rundir.redact import redact_labels

if TYPE_CHECKING:
    from perfscope.rundir.records import RankRecord


@dataclass(frozen=True, kw_only=True)
class AttachedRank:
    """What launch needs from one rank.json.

    Attributes:
        rank: global rank.
        directory: ranks/<rank>.
        record: rank.json.
        running: its process is still alive on this host.
    """

    rank: int
    directory: Path
    record: RankRecord
    running: bool

    @property
    def closed(self) -> bool:
        """Nothing will be written any more, as far as this host can know."""
        if self.record.finished:
            return True
        return not self.running and self.record.host == host_name()


def read_ranks(run_dir: Path) -> list[AttachedRank]:
    """Every process that left a readable rank.json, by rank: a restarted rank is there once per attempt."""
    from perfscope.rundir.records import rank_record  # here, because the command starts without msgspec

    ranks = []
    for path in (run_dir / layout.RANKS).glob(f"*/{layout.RANK_JSON}"):
        try:
            document: dict[str, Any] = read_document(path)
            rank = int(document["rank"])
        except (OSError, ValueError, TypeError, KeyError):
            continue
        record = rank_record(document)
        ranks.append(
            AttachedRank(rank=rank, directory=path.parent, record=record, running=_is_running(record))
        )
    return sorted(ranks, key=lambda attached: (attached.rank, attached.directory.name))


def await_end(run_dir: Path, *, limit_s: float = 2.0) -> None:
    """Wait a moment for ranks of this host to end: a command that a signal ended may be gone before them."""
    end = time.monotonic() + limit_s
    while any(rank.running and not rank.closed for rank in read_ranks(run_dir)) and time.monotonic() < end:
        time.sleep(0.05)


def num_attached(ranks: Sequence[AttachedRank]) -> int:
    """Distinct ranks: a restart makes no rank more."""
    return len({rank.rank for rank in ranks})


def world_size(ranks: Sequence[AttachedRank]) -> int | None:
    """The largest world size a rank reported."""
    return max((rank.record.world_size for rank in ranks if rank.record.world_size), default=None)


def without_helpers(ranks: Sequence[AttachedRank], expected: int | None) -> int | None:
    """Ranks to expect where some of the started processes are MXNet's servers and scheduler.

    A launcher starts them like workers, so they were counted; they train nothing and leave nothing. The store
    tells its workers how many of those there are.
    """
    workers = world_size(ranks)
    stores = [rank.record.backend.startswith("kvstore dist") for rank in ranks]
    if expected is None or workers is None or not stores or not all(stores):
        return expected
    return min(expected, workers)


def packages(ranks: Sequence[AttachedRank]) -> dict[str, str]:
    """Versions the ranks ran with: python and the framework."""
    versions: dict[str, str] = {}
    for rank in ranks:
        framework = rank.record.framework
        if framework.name:
            versions.setdefault(framework.name, framework.version)
        if rank.record.python:
            versions.setdefault("python", rank.record.python)
    return dict(sorted(versions.items()))


def labels(ranks: Sequence[AttachedRank], given: object) -> dict[str, str]:
    """Labels of the run: those of the command line, then what the programs of the ranks give."""
    of_ranks: dict[str, str] = {}
    for rank in ranks:
        of_ranks = {**rank.record.labels, **of_ranks}
    return {**redact_labels(of_ranks), **(given if isinstance(given, dict) else {})}


def verdict(num_attached: int, expected: int | None) -> str:
    """`attached 4 of expected 4 ranks`."""
    if expected is None:
        return f"attached {counted(num_attached, 'rank')}"
    return f"attached {num_attached} of expected {counted(expected, 'rank')}"


def explain(
    run_dir: Path,
    ranks: Sequence[AttachedRank],
    expected: int | None,
    plan: LaunchPlan,
    ending: Ending,
    seen: Sightings | None = None,
) -> list[str]:
    """One line for each thing the user should know about who attached, and why others did not.

    Args:
        seen: what was seen of the processes from outside; None = this host did not start them.
    """
    seen = seen or Sightings()
    notes = _unwritten(seen)
    if not ranks:
        notes = notes or _why_none(plan, ending, seen)
    missing = _missing(ranks, expected)
    if missing:
        notes.append(
            f"no record of {ranks_of(missing)}: its process ended, or was replaced, before its first step"
        )
        if plan.hosts:
            notes.append(f"ranks on other hosts are recorded only if they share the directory {run_dir}")
    notes.extend(_restarts(ranks))
    running = sorted({rank.rank for rank in ranks if rank.running and not rank.record.finished})
    if running:
        notes.append(
            f"{ranks_of(running)} still running; what is recorded from now on is not in this summary"
        )
    boot_error = _first_line(run_dir / layout.BOOT_ERRORS)
    if boot_error:
        notes.append(f"the probe failed to start in a process: {boot_error} (all in {layout.BOOT_ERRORS})")
    for rank in ranks:
        switched_off = _switched_off(rank.directory / layout.ERRORS_JSONL)
        if switched_off:
            notes.append(f"rank {rank.rank}: the probe switched off {', '.join(switched_off)} after errors")
    return list(dict.fromkeys(notes))


def _restarts(ranks: Sequence[AttachedRank]) -> list[str]:
    """Ranks that several processes claimed one after another, those that did so equally often in one line."""
    alike: dict[int, list[int]] = defaultdict(list)
    for rank, times in Counter(attached.rank for attached in ranks).items():
        alike[times - 1].append(rank)
    return [
        f"{ranks_of(alike[times])} {'was' if len(alike[times]) == 1 else 'were'} restarted {times} "
        f"{plural('time', times)}, or trained again in the same run; "
        "reports show the attempt with the most steps"
        for times in sorted(alike)
        if times
    ]


def _missing(ranks: Sequence[AttachedRank], expected: int | None) -> list[int]:
    """Ranks that left no record, when some did; empty where a launcher starts only a part of the world."""
    attached = num_attached(ranks)
    if expected is None or not ranks or attached >= expected:
        return []
    absent = sorted({*range(max(expected, world_size(ranks) or 0))} - {rank.rank for rank in ranks})
    return absent if len(absent) == expected - attached else []


def _unwritten(seen: Sightings) -> list[str]:
    """Processes that could not write their record, those with the same reason in one line."""
    alike: dict[int, list[int]] = defaultdict(list)
    for pid, number in seen.unwritten:
        alike[number].append(pid)
    lines = []
    for number, pids in alike.items():
        processes_text = f"process {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"
        why = os.strerror(number) if number else "an error of input or output"
        whose = "its" if len(pids) == 1 else "their"
        lines.append(f"{processes_text} could not write {whose} record: {why}")
    return lines


def _why_none(plan: LaunchPlan, ending: Ending, seen: Sightings) -> list[str]:
    if plan.unreachable:
        return [plan.unreachable]
    if seen.lost:
        return [f"no record is there: the run directory {seen.lost} while the command ran"]
    if seen.without_agent:
        return list(seen.without_agent)
    if plan.launcher == "srun" and (ending.code != 0 or ending.signal is not None):
        how = (
            f"was ended by signal {ending.signal}" if ending.signal else f"ended with exit code {ending.code}"
        )
        return [
            f"no task trained: srun {how}; its own lines above say why (a wrong option, no allocation, a "
            "controller that does not answer, or tasks that failed before their first step)"
        ]
    notes = [
        "no training was seen: no Python process that loaded perfscope's agent took an optimizer step, "
        "joined a process group or called perfscope.step() (which a loop without an optimizer object can do)"
    ]
    if ending.signal is not None:
        notes.append(f"the command was ended by signal {ending.signal}, perhaps before training began")
    elif ending.code != 0:
        notes.append(f"the command ended with exit code {ending.code}, perhaps before training began")
    return notes


def _is_running(record: RankRecord) -> bool:
    pid = record.pid
    if record.host != host_name() or pid is None or pid <= 0:
        return False
    try:  # a zombie has ended, though kill(pid, 0) finds it until its parent looks
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, IndexError):
        return True
    return state not in ("Z", "X")


def _first_line(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.readline(1000).decode(errors="replace").strip()
    except (OSError, UnreadableFileError):
        return ""


def _switched_off(path: Path) -> list[str]:
    """Hooks of this rank's probe that are off."""
    hooks = [str(entry.get("where")) for entry in read_json_lines(path) if entry.get("disabled")]
    return list(dict.fromkeys(hooks))


def read_json_lines(path: Path) -> list[dict[str, object]]:
    """The objects in a .jsonl file; lines that are torn, or no objects, are left out."""
    try:
        lines = read_bounded(path).splitlines()
    except (OSError, UnreadableFileError):
        return []
    return [entry for line in lines if isinstance(entry := _parse(line), dict)]


def _parse(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
