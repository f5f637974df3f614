"""run.json of a collected run: made anew from the manifests of all its parts and the ranks that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfscope.launch import attachment
from perfscope.launch.plan import LaunchPlan
from perfscope.launch.process import Ending
from perfscope.messages.lists import ranks_of
from perfscope.rundir import layout, seal
from perfscope.rundir.documents import read_document
from perfscope.rundir.writer import write_json

PARTS = "parts"  # below .owner: one file per part
# Notes that hold for one directory, and are found out again for the whole.
_OF_ONE_PART = (
    *(
        "no record of ",
        "ranks on other hosts are ",
        "only task",
        "no Python process below ",  # of runs by perfscope 0.9 and before
        "no training was seen: ",
        "no record is there: ",
        "no task trained: ",
    ),
    *("rank ", "ranks ", "the probe failed to start "),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestPart:
    """One directory's run.json, the ranks that were beside it, and how the user called the directory."""

    manifest: Mapping[str, object]
    ranks: tuple[int, ...]
    origin: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """Names the part: the host of its wrapper and when that began."""
        return f"{self.manifest.get('host')}-{self.start_ns}".replace("/", "_")

    @property
    def start_ns(self) -> int:
        return as_whole(self.manifest.get("start_unix_ns")) or 0

    @property
    def end_ns(self) -> int | None:
        return as_whole(self.manifest.get("end_unix_ns"))

    @property
    def fullness(self) -> tuple[bool, int, int, int]:
        """A later copy of the same run.json is greater."""
        attached = as_whole(self.manifest.get("attached_ranks")) or 0
        return self.manifest.get("status") != "running", self.end_ns or 0, attached, len(self.ranks)


def read_parts(run_dir: Path) -> tuple[ManifestPart, ...]:
    """The parts of a collected run, by key; empty for other directories."""
    parts = [
        _read_part(path, str(run_dir)) for path in sorted((run_dir / layout.OWNER / PARTS).glob("*.json"))
    ]
    return tuple(part for part in parts if part is not None)


def _read_part(path: Path, origin: str) -> ManifestPart | None:
    """None where the one who copied the run tore the file: its source can be collected again."""
    try:
        document: dict[str, Any] = read_document(path)
        ranks = tuple(map(int, document["ranks"]))
        return ManifestPart(manifest=dict(document["manifest"]), ranks=ranks, origin=origin)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_parts(run_dir: Path, parts: Sequence[ManifestPart]) -> bool:
    """Keep the fullest copy of every part. Whether anything had to be written.

    Raises:
        RunDirectoryError: the run cannot be written.
    """
    best: dict[str, ManifestPart] = {}
    for part in parts:
        if part.key not in best or part.fullness > best[part.key].fullness:
            best[part.key] = part
    folder = run_dir / layout.OWNER / PARTS
    folder.mkdir(parents=True, exist_ok=True)
    held = {part.key: part for part in read_parts(run_dir)}
    new = [part for key, part in best.items() if held.get(key) != part]
    for part in new:
        write_json(folder / f"{part.key}.json", {"manifest": part.manifest, "ranks": list(part.ranks)})
    return bool(new)


def merge(run_dir: Path, parts: Sequence[ManifestPart]) -> dict[str, object]:
    """The manifest of the whole: rank 0's, with counts, notes and the ending of all.

    Args:
        run_dir: the collected run, its ranks in place.
        parts: at least one.
    """
    ordered = sorted(parts, key=lambda part: (min(part.ranks, default=1 << 31), part.start_ns, part.key))
    manifests = [part.manifest for part in ordered]
    base = manifests[0]
    ranks = attachment.read_ranks(run_dir)
    expected = _expected(manifests, attachment.world_size(ranks))
    attached = attachment.num_attached(ranks)
    ending = _ending(manifests)
    ends = [part.end_ns for part in ordered]
    is_whole = expected is None or attached >= expected
    finished = is_whole and all(manifest.get("status") == "finished" for manifest in manifests)
    return {
        **base,
        "start_unix_ns": min(part.start_ns for part in ordered),
        "end_unix_ns": None if None in ends else max(end for end in ends if end is not None),
        "status": "finished" if finished else "incomplete",
        "exit": None if ending is None else {"code": ending.code, "signal": ending.signal},
        "expected_ranks": expected,
        "attached_ranks": attached,
        "attach_notes": _notes(run_dir, manifests, ranks, expected, ending),
        "world_size": attachment.world_size(ranks) or base.get("world_size"),
        "packages": attachment.packages(ranks),
        "git": next((manifest["git"] for manifest in manifests if manifest.get("git")), None),
        "slurm": _slurm(manifests),
        "collected": [
            {"host": part.manifest.get("host"), "start_unix_ns": part.start_ns, "ranks": list(part.ranks)}
            for part in ordered
        ],
        seal.SEALS: None if any(seal.SEALS not in manifest for manifest in manifests) else seal.SEALS_VERSION,
    }


def keep_later_facts(manifest: dict[str, object], before: Mapping[str, object]) -> dict[str, object]:
    """`manifest` with what `perfscope slurm` added to the collected run itself: no part knows of it.

    Args:
        before: the run's run.json as it is; empty where there is none.
    """
    slurm, earlier = as_mapping(manifest.get("slurm")), as_mapping(before.get("slurm"))
    later = {name: earlier[name] for name in ("job", "neighbours") if name in earlier and name not in slurm}
    if later:
        manifest = {**manifest, "slurm": {**slurm, **later}}
    reason = before.get("incomplete")
    if not reason or manifest.get("incomplete"):
        return manifest
    notes = [note for note in as_list(manifest.get("attach_notes")) if note != reason]
    return {**manifest, "status": "incomplete", "incomplete": reason, "attach_notes": [reason, *notes]}


def _expected(manifests: Sequence[Mapping[str, object]], reported: int | None) -> int | None:
    """Tasks of the step, which every part knows; else what ranks said; else the sum of what was started."""
    counts = [as_whole(manifest.get("expected_ranks")) for manifest in manifests]
    present = [count for count in counts if count is not None]
    if any(as_mapping(manifest.get("slurm")).get("step_id") is not None for manifest in manifests):
        return max(present, default=reported)
    if reported is not None:
        return reported
    return sum(present) if present and None not in counts else None


def _ending(manifests: Sequence[Mapping[str, object]]) -> Ending | None:
    """The highest code of all parts; None = no part failed, but not every end is known."""
    endings = [as_mapping(manifest.get("exit")) for manifest in manifests]
    codes = [
        (code, as_whole(ending.get("signal")))
        for ending in endings
        if (code := as_whole(ending.get("code"))) is not None
    ]
    worst = max(codes, key=lambda pair: pair[0], default=None)
    if worst is not None and (worst[0] or len(codes) == len(endings)):
        return Ending(*worst)
    return None


def _notes(
    run_dir: Path,
    manifests: Sequence[Mapping[str, object]],
    ranks: Sequence[attachment.AttachedRank],
    expected: int | None,
    ending: Ending | None,
) -> list[str]:
    notes = [str(note) for manifest in manifests for note in as_list(manifest.get("attach_notes"))]
    notes = [note for note in notes if not note.startswith(_OF_ONE_PART)]
    absent = sorted(set(range(expected or 0)) - {attached.rank for attached in ranks})
    half = [rank for rank in absent if (run_dir / layout.RANKS / str(rank)).is_dir()]
    absent = [rank for rank in absent if rank not in half]
    if absent:
        is_ = "is" if len(absent) == 1 else "are"
        notes.append(f"{ranks_of(absent)} {is_} in none of the collected directories")
    if half:
        is_ = "was" if len(half) == 1 else "were"
        notes.append(f"{ranks_of(half)} {is_} copied half (without rank.json): copy and collect again")
    plan = LaunchPlan(launcher=str(manifests[0].get("launcher")), argv=(), name="")
    notes += attachment.explain(run_dir, ranks, None, plan, ending or Ending(0, None))
    return list(dict.fromkeys(notes))


def _slurm(manifests: Sequence[Mapping[str, object]]) -> dict[str, object] | None:
    jobs = [as_mapping(manifest.get("slurm")) for manifest in manifests]
    if not jobs[0]:
        return None
    failed: list[object] = []
    for job in jobs:
        failed += [task for task in as_list(job.get("failed_tasks")) if task not in failed]
    return {**jobs[0], "failed_tasks": failed}


def as_mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def as_whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
