"""Says in words why something of a run is absent: what the reader dropped, and why no window was traced."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfscope.analysis import advice
from perfscope.analysis.affected import Affected, affected_by
from perfscope.analysis.machine.absent_sources import NO_COUNTERS_NOTE
from perfscope.analysis.rank_facts import is_torch
from perfscope.analysis.results import MissingFigure, RankResult
from perfscope.analysis.source import Document, DroppedInput, RunSource
from perfscope.rundir import layout
from perfscope.rundir.records import RankRecord, RunRecord

_STEPS_NOTE = "steps are cut"  # how a probe's note on what it takes for a step begins
FIRST_STEP = 3  # that a window may begin with, counted from 0 (probes/windows.py)
WARM_UP_STEPS = 6  # a run of no more steps ends before its first window is written
_MAX_WORDS = 300
OF_WINDOWS = "step breakdown, timeline, layers and collectives"
# How the probes' entries about windows as such begin (rank.json `missing`).
_NO_WINDOWS = ("windows", "step breakdown")
_FIGURES = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoWindow:
    """Why no rank has a traced window, and what would give one: a clause and a sentence."""

    reason: str
    cure: str


def why_cut_short(run: RunRecord) -> str:
    """Why a run of a Slurm job is only a part, in one line; "" = it is not, or it was never closed.

    The reason that Slurm gave comes first, then what the tasks of the step, or `perfscope collect`, noted.
    """
    if run.incomplete:
        return _short(run.incomplete)
    if run.status != "incomplete":
        return ""
    of_step = run.slurm is not None and isinstance(run.slurm.step_id, int)
    if run.attach_notes and (of_step or run.collected):
        return _short(run.attach_notes[0])
    number = run.exit.signal if run.exit is not None else None
    how = f"signal {number}" if number is not None else "a signal"
    return f"{how} ended it inside its Slurm job: scancel, the time limit, a requeue or a failed task"


def run_in_progress(run: RunRecord) -> list[MissingFigure]:
    """What is absent of a run that was cut short, or that nobody closed."""
    cut_short = why_cut_short(run)
    if cut_short:
        return [MissingFigure(what="the rest of the run", reason=cut_short)]
    if not run.is_open:
        return []
    reason = (
        "the run was not closed: it is still running, or perfscope was killed; "
        "the figures cover what was written so far"
    )
    return [MissingFigure(what="the end of the run and its exit code", reason=reason)]


def dropped_parts(notes: Sequence[DroppedInput]) -> list[MissingFigure]:
    """What the reader could not use, one entry per file, whole ranks first."""
    by_path: dict[str, list[DroppedInput]] = defaultdict(list)
    for note in notes:
        by_path[note.path].append(note)
    entries = [
        (_weight(path), _dropped(path, of_path, affected_by(path))) for path, of_path in by_path.items()
    ]
    return [entry for _, entry in sorted(entries, key=lambda pair: pair[0])]


def _dropped(path: str, notes: Sequence[DroppedInput], affected: Affected) -> MissingFigure:
    of = f" (affects {affected.words})" if affected.words else ""
    return MissingFigure(
        what=_what(path, notes), reason=_short(f"{_reasons(notes)}{of}"), affects=affected.paths
    )


def empty_windows(summaries: Sequence[Document], ranks: Sequence[int]) -> list[MissingFigure]:
    """Windows whose trace gave no event."""
    missing = []
    for summary in summaries:
        if summary.get("rank") not in ranks or summary.get("events_kept") != 0:
            continue
        notes = summary.get("notes")
        said = "; ".join(str(note) for note in notes) if isinstance(notes, list) else ""
        what = f"window {summary.get('window')} of rank {summary.get('rank')}"
        reason = f"its trace holds no event that can be used{': ' if said else ''}{said}"
        affected = affected_by(f"{layout.RANKS}/{summary.get('rank')}/{layout.WINDOWS}/")
        missing.append(MissingFigure(what=what, reason=_short(reason), affects=affected.paths))
    return missing


def told_by_probes(metas: Mapping[int, RankRecord]) -> list[MissingFigure]:
    """What the ranks' framework cannot tell, in the probes' words; said once for all ranks of one mind."""
    ranks_of: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, meta in sorted(metas.items()):
        for entry in meta.missing:
            if entry.what:
                ranks_of[entry.what, entry.reason or "not said"].append(rank)
    found = []
    for (what, reason), ranks in ranks_of.items():
        of = "" if len(ranks) == len(metas) else f" of rank{'' if len(ranks) == 1 else 's'} {_numbers(ranks)}"
        found.append(MissingFigure(what=f"{what}{of}", reason=_short(reason)))
    return found


def _numbers(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:8]))
    return f"{named} and {len(ranks) - 8} more" if len(ranks) > 8 else named


def why_no_window(source: RunSource, ranks: Sequence[RankResult]) -> NoWindow:
    """Why no rank has a traced window, by what the run's files say."""
    if source.run.options.no_trace:
        cure = "Run again without `--no-trace`, and for long enough to reach a traced window."
        return NoWindow(reason="tracing was switched off (`--no-trace`)", cure=cure)
    if any(source.windows(rank) for rank in source.ranks) and not source.summaries():
        if any("/windows/" in note.path for note in source.notes):
            reason = "windows were traced, but their trace files are not there any more"
            return NoWindow(reason=reason, cure="Bring the trace files back, or run again.")
        reason = "the traced windows have not been read in; `perfscope report` does that"
        return NoWindow(reason=reason, cure="Run `perfscope report` on this run.")
    if source.summaries():
        reason = "no traced window can be used; each is named here with its reason"
        return NoWindow(reason=reason, cure="See what was not collected: each window stands there.")
    num_steps = max((rank.num_steps for rank in ranks), default=0)
    why = _why_none_taken(source, num_steps)
    return NoWindow(reason=f"no window was traced: {why.reason}", cure=why.cure)


def _why_none_taken(source: RunSource, num_steps: int) -> NoWindow:
    swallowed = _swallowed(source)
    if swallowed:
        return NoWindow(
            reason=swallowed, cure="See errors.jsonl of that rank; steps are recorded all the same."
        )
    metas = source.rank_records
    told = [entry.reason for entry in told_by_probes(metas) if _is_of_windows(entry)]
    if told:
        return NoWindow(reason=_short("; ".join(told)), cure=advice.training(metas).trace_anyway)
    if 0 < num_steps <= FIRST_STEP and not source.run.is_imported:
        return _too_short(num_steps)
    rootless = all(meta.root is None for meta in metas.values())
    if not source.run.is_imported and num_steps and rootless and is_torch(metas):
        reason = (
            "the model's forward was never seen in the thread that trains, and windows begin with it "
            "(a model run by another thread or process, or one that is no torch.nn.Module)"
        )
        return NoWindow(reason=reason, cure="Call the model in the thread that calls the optimizer.")
    said = [note for note in remarks_of(metas) if not note.startswith(_STEPS_NOTE)]
    said = [note for note in said if "window" in note] or (said if is_torch(metas) else [])
    if said:
        cure = "Let the training's own profiler rest, or train for longer: windows are tried again."
        return NoWindow(reason=_short("; ".join(said)), cure=cure)
    if num_steps <= WARM_UP_STEPS:
        return _too_short(num_steps)
    reason = "the run ended before the first one, or its trace could not be written"
    return NoWindow(reason=reason, cure="Train for more steps, to reach a traced window.")


def _too_short(num_steps: int) -> NoWindow:
    steps = "1 step was recorded" if num_steps == 1 else f"{num_steps:,} steps were recorded"
    return NoWindow(
        reason=f"the run ended before the first one ({steps}; windows begin after {FIRST_STEP} steps)",
        cure=f"Train for more than {WARM_UP_STEPS} steps, to reach a traced window.",
    )


NOTHING_SEEN = NoWindow(
    reason="no profiler looks into this program, and its traced steps made no call that perfscope records",
    cure="Look into it with `perfscope run --stacks`, which samples its Python.",
)


def of_windows(told: Sequence[MissingFigure], reason: str) -> MissingFigure:
    """The one entry for all that windows would show; layers have their own where a probe has said why."""
    what = OF_WINDOWS
    if any(entry.what == "layers" for entry in told):
        what = OF_WINDOWS.replace(", layers", "")
    return MissingFigure(what=what, reason=reason)


def without_windows(told: Sequence[MissingFigure]) -> list[MissingFigure]:
    """Those of the probes' entries that are not about windows as such: of them one entry tells for all."""
    return [entry for entry in told if not _is_of_windows(entry)]


def _is_of_windows(entry: MissingFigure) -> bool:
    return entry.what.startswith(_NO_WINDOWS)


def remarks_of(metas: Mapping[int, RankRecord]) -> list[str]:
    """What the ranks' probes noted of the training, each once."""
    said = (note for meta in metas.values() for note in meta.notes)
    # a host without counters is told with the machine's figures
    return list(dict.fromkeys(note for note in said if not note.startswith(NO_COUNTERS_NOTE)))


def remarks_of_windows(source: RunSource, metas: Mapping[int, RankRecord]) -> list[str]:
    """What the readers of other frameworks' traces noted, those that differ in figures only once.

    torch's own are about its files and stand with these.
    """
    if is_torch(metas) and not advice.has_calls_beside(metas):
        return []
    alike: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for summary in source.summaries():
        where = f"window {summary.get('window')} of rank {summary.get('rank')}"
        for note in _list(summary.get("notes")) if summary.get("events_kept") else ():
            if not str(note).startswith("no step marks"):  # said as what is missing
                alike[_FIGURES.sub("#", str(note))].append((str(note), where))
    found = []
    for same in alike.values():
        (text, where), others = same[0], len(same) - 1
        alone = len({note for note, _ in same}) == 1
        found.append(text if alone else f"{text} ({where}; much the same in {others} more)")
    return found


def _swallowed(source: RunSource) -> str:
    """The error that the probe met most lastingly, in one line; '' when it met none."""
    entries = [(rank, entry) for rank in source.ranks for entry in source.errors(rank)]
    if not entries:
        return ""
    rank, worst = next((pair for pair in entries if pair[1].get("disabled")), entries[0])
    off = ", and switched that part of itself off" if worst.get("disabled") else ""
    where, error = worst.get("where") or "somewhere", worst.get("error") or "an error"
    return f"{_short(f'the probe of rank {rank} met an error in {where!r}: {error}')}{off} (see errors.jsonl)"


def _weight(path: str) -> int:
    """Whole ranks before attempts before windows before lines."""
    if path.endswith("/rank.json"):
        return 0
    if path.count("/") == 1:
        return 1
    return 2 if "/windows/" in path else 3


def _what(path: str, notes: Sequence[DroppedInput]) -> str:
    parts = path.split("/")
    if parts[0] != "ranks":
        return path
    if len(parts) == 2:
        return f"attempt {path}"
    if parts[2] == "rank.json":
        return f"rank {parts[1]}"
    if parts[2] == "windows" and len(parts) == 4:
        return f"window {parts[3].partition('.')[0]} of rank {parts[1].partition('.')[0]}"
    lines = sum(note.num_dropped for note in notes)
    if path.endswith(".jsonl") and lines > 1:
        return f"{lines:,} lines of {path}"
    return path


def _reasons(notes: Sequence[DroppedInput]) -> str:
    return _short("; ".join(dict.fromkeys(note.reason for note in notes)))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_WORDS else f"{line[: _MAX_WORDS - 1]}…"


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
