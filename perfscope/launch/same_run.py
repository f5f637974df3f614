"""Whether directories are parts of one run: same job and step, same command, at the same time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from perfscope.errors import RunDirectoryError
from perfscope.launch.merged_manifest import ManifestPart, as_mapping
from perfscope.rundir.attempts import Attempt
from perfscope.rundir.records import RankRecord

_SLACK_NS = 5_000_000_000  # clocks of hosts differ, though Slurm itself fails at more than some seconds
_LONGEST_START_NS = 600_000_000_000  # between the first and the last node of a job that begins
_STEP = ("cluster", "job_id", "step_id", "restart_count")
_BY_ORDER = "order of start"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """What one process left: `record` is its rank.json, None where that was not written or not copied yet."""

    attempt: Attempt
    record: RankRecord | None

    @property
    def rank(self) -> int:
        return self.attempt.rank

    @property
    def is_finished(self) -> bool:
        return self.record is not None and self.record.finished is True

    @property
    def name(self) -> tuple[object, ...] | None:
        """Names the process among all; None = not known."""
        if self.record is None:
            return None
        times = self.times
        return self.record.host, self.record.pid, times[0] if times else None

    @property
    def times(self) -> tuple[int, int] | None:
        """First and last moment its clock was read, unix ns."""
        times = [unix_ns for _, unix_ns in self.record.anchors] if self.record is not None else []
        return (min(times), max(times)) if times else None

    def is_same(self, other: RankProcess) -> bool:
        """Whether both are copies of what one process left; a copy without rank.json goes by its folder."""
        if self.rank != other.rank:
            return False
        if self.name is None or other.name is None:
            return self.attempt.number == other.attempt.number
        return self.name == other.name


def require_one_run(
    parts: Sequence[ManifestPart], run_dirs: Sequence[tuple[Path, Sequence[RankProcess]]]
) -> None:
    """Refuse what is not one run.

    Args:
        parts: run.json of every directory that has one, those already collected first.
        run_dirs: every directory and the processes in it.

    Raises:
        RunDirectoryError: nothing says what the run was, or something speaks against its being one.
    """
    if not parts:
        raise RunDirectoryError(
            "none of the directories has a run.json: name the one of the node that started it"
        )
    first = parts[0]
    for other in parts[1:]:
        reason = _difference(first, other)
        if reason:
            raise RunDirectoryError(f"{first.origin} and {other.origin} are different runs: {reason}")
    for one_run, another in combinations(run_dirs, 2):
        for clash in _clashes(one_run, another):
            raise RunDirectoryError(f"these are different runs: {clash}")
    _require_time_of(parts, run_dirs)


def _difference(this: ManifestPart, other: ManifestPart) -> str:
    """Why two manifests are not of one run; '' if nothing says so."""
    jobs = [as_mapping(part.manifest.get("slurm")) for part in (this, other)]
    for name in _STEP:
        if jobs[0].get(name) != jobs[1].get(name):
            return _unlike(name, jobs[0], jobs[1])
    if this.manifest.get("name") != other.manifest.get("name"):
        return _unlike("name", this.manifest, other.manifest)
    if _command(this) != _command(other):
        return _unlike("command", this.manifest, other.manifest)
    apart_s = abs(this.start_ns - other.start_ns) / 1e9
    if apart_s * 1e9 > _LONGEST_START_NS:
        return f"they began {apart_s:,.0f} s apart"
    first, second = sorted((this, other), key=lambda part: part.start_ns)
    if first.end_ns is not None and first.end_ns + _SLACK_NS < second.start_ns:
        return f"one began {(second.start_ns - first.end_ns) / 1e9:,.0f} s after the other ended"
    return ""


def _unlike(name: str, first: Mapping[str, object], other: Mapping[str, object]) -> str:
    return f"{name} is {_word(first.get(name))} and {_word(other.get(name))}"


def _command(part: ManifestPart) -> list[str]:
    """The command without what differs between nodes: `--node-rank 1`, `--local-addr=node2`."""
    command = part.manifest.get("command")
    return [re.sub(r"\d+", "#", str(word)) for word in command] if isinstance(command, list) else []


def _clashes(
    first: tuple[Path, Sequence[RankProcess]], another: tuple[Path, Sequence[RankProcess]]
) -> Iterator[str]:
    """What two directories cannot both say of one run."""
    by_rank: dict[int, list[RankProcess]] = {}
    for process in another[1]:
        by_rank.setdefault(process.rank, []).append(process)
    sizes = {
        size
        for _, processes in (first, another)
        for p in processes
        if p.record is not None and (size := p.record.world_size)
    }
    if len(sizes) > 1:
        sizes_text = " and ".join(str(size) for size in sorted(sizes))
        yield f"the ranks of {first[0]} and {another[0]} are of worlds of {sizes_text} ranks"
    for process in first[1]:
        for other in by_rank.get(process.rank, []):
            if process.record is None or other.record is None or process.is_same(other):
                continue
            if _BY_ORDER in (process.record.rank_source, other.record.rank_source):
                yield (
                    f"their processes did not know their ranks, so both {first[0]} and {another[0]} "
                    f"count from rank {process.rank}"
                )
            elif _overlap(process.times, other.times):
                yield (
                    f"two processes were rank {process.rank} at the same time, in {first[0]} and {another[0]}"
                )


def _require_time_of(
    parts: Sequence[ManifestPart], run_dirs: Sequence[tuple[Path, Sequence[RankProcess]]]
) -> None:
    """Ranks without a run.json beside them must have run while the run did."""
    start = min(part.start_ns for part in parts) - _SLACK_NS
    ends = [part.end_ns for part in parts]
    end = max((known_end for known_end in ends if known_end is not None), default=None)
    for run_dir, processes in run_dirs:
        for process in processes:
            times = process.times
            if times is None:
                continue
            late = None not in ends and end is not None and times[0] > end + _SLACK_NS
            if times[1] < start or late:
                raise RunDirectoryError(
                    f"these are different runs: rank {process.rank} of {run_dir} did not train while the "
                    "run went on"
                )


def _overlap(first: tuple[int, int] | None, other: tuple[int, int] | None) -> bool:
    return first is not None and other is not None and first[0] < other[1] and other[0] < first[1]


def _word(value: object) -> str:
    if isinstance(value, list):
        text = " ".join(map(str, value))
        return repr(text if len(text) <= 60 else f"{text[:59]}…")
    return "not said" if value is None else str(value)
