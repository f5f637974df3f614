"""Says in words why something of a run is absent: what the reader dropped, and why no window was traced."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from perfscope.analysis import advice
from perfscope.analysis.affected import Affected, affected_by
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.rank_facts import framework_of, is_torch
from perfscope.analysis.results import RankResult
from perfscope.analysis.source import DroppedInput, RunSource
from perfscope.messages import files
from perfscope.messages.missing import cause_text
from perfscope.messages.windows import no_window_reason, probe_error
from perfscope.rundir import layout
from perfscope.rundir.old_words import missing_figure_of, note_kind, notes_of
from perfscope.rundir.records import RankRecord, RunRecord
from perfscope.rundir.window_records import WindowSummary
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.defaults import FIRST_WINDOW_STEP, WARM_UP_STEPS
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.notes import NoteKind

_MAX_WORDS = 300
_FIGURES = re.compile(r"\d[\d.,]*")


class NoWindow(Struct, frozen=True, kw_only=True):
    """Why no rank has a traced window.

    Attributes:
        num_steps: recorded by the rank that recorded most.
        recorded: why, in the words of a probe; "" = `cause` says it all.
        framework: that trained.
        ends_early: a trace file does.
    """

    cause: Cause
    num_steps: int = 0
    recorded: str = ""
    framework: str = ""
    ends_early: bool = False

    @property
    def reason(self) -> str:
        """A clause."""
        return no_window_reason(self.cause, self.num_steps, self.recorded)


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
    return files.ended_by_signal(number)


def run_in_progress(run: RunRecord) -> list[Missing]:
    """What is absent of a run that was cut short, or that was not closed."""
    cut_short = why_cut_short(run)
    if cut_short:
        return [missing_figure(Figure.RUN_REMAINDER, Cause.CUT_SHORT, reason=cut_short)]
    return [missing_figure(Figure.RUN_END, Cause.NOT_CLOSED)] if run.is_open else []


def dropped_parts(notes: Sequence[DroppedInput]) -> list[Missing]:
    """What the reader could not use, one entry per file, whole ranks first."""
    by_path: dict[str, list[DroppedInput]] = defaultdict(list)
    for note in notes:
        by_path[note.path].append(note)
    entries = [
        (_weight(path), _dropped(path, of_path, affected_by(path))) for path, of_path in by_path.items()
    ]
    return [entry for _, entry in sorted(entries, key=lambda pair: pair[0])]


def _dropped(path: str, notes: Sequence[DroppedInput], affected: Affected) -> Missing:
    figure, detail = _figure_of(path, notes)
    return missing_figure(
        figure,
        Cause.INPUT_DROPPED,
        affects=affected.paths,
        reason=_short(f"{_reasons(notes)}{files.affects(affected.text)}"),
        **detail,
    )


def damaged_windows(summaries: Sequence[WindowSummary], ranks: Sequence[int]) -> list[Missing]:
    """Windows whose trace gave no event, and those of which a part could not be read."""
    missing = []
    for summary in summaries:
        if summary.rank not in ranks or not (summary.events_kept == 0 or summary.salvaged):
            continue
        affected = affected_by(f"{layout.RANKS}/{summary.rank}/{layout.WINDOWS}/")
        notes = "; ".join(summary.notes)
        is_part = summary.events_kept != 0
        figure, cause, reason = (
            (Figure.WINDOW_PART, Cause.TRACE_DAMAGED, files.part_of_trace(notes, summary.events_dropped))
            if is_part
            else (Figure.WINDOW, Cause.NO_USABLE_EVENT, files.no_event(notes))
        )
        entry = missing_figure(
            figure,
            cause,
            affects=affected.paths,
            window=str(summary.window),
            rank=str(summary.rank),
            reason=_short(f"{reason}{files.affects(affected.text) if is_part else ''}"),
        )
        missing.append(entry)
    return missing


def steps_left_out(summaries: Sequence[WindowSummary]) -> list[Missing]:
    """Steps that files do not hold whole because they end early."""
    return [
        missing_figure(
            Figure.STEPS_LEFT_OUT,
            Cause.FILE_ENDS_EARLY,
            count=summary.steps_cut,
            window=str(summary.window),
            rank=str(summary.rank),
        )
        for summary in summaries
        if summary.steps_cut
    ]


def told_by_probes(metas: Mapping[int, RankRecord]) -> list[Missing]:
    """What the ranks' framework cannot record, in the probes' words; once for all ranks that report it."""
    ranks_of: dict[tuple[Figure, str, str], list[int]] = defaultdict(list)
    for rank, meta in sorted(metas.items()):
        for entry in meta.missing:
            if entry.what:
                figure = missing_figure_of(entry.figure, entry.what)
                ranks_of[figure, entry.what, entry.reason or "not said"].append(rank)
    return [
        missing_figure(
            figure,
            Cause.PROBE_LIMIT,
            ranks=() if len(ranks) == len(metas) else ranks,
            what=what,
            reason=_short(reason),
        )
        for (figure, what, reason), ranks in ranks_of.items()
    ]


def why_no_window(source: RunSource, ranks: Sequence[RankResult]) -> NoWindow:
    """Why no rank has a traced window, by what the run's files say."""
    if source.run.options.no_trace:
        return NoWindow(cause=Cause.TRACING_OFF)
    if any(summary.lacks_device for summary in source.summaries()):
        ends_early = any(summary.ends_early for summary in source.summaries())
        return NoWindow(cause=Cause.NO_DEVICE_EVENTS, ends_early=ends_early)
    if any(summary.steps_cut and not summary.steps for summary in source.summaries()):
        return NoWindow(cause=Cause.FILE_ENDS_EARLY, ends_early=True)
    if any(summary.execution is not None for summary in source.summaries()):
        return NoWindow(cause=Cause.STRUCTURE_ONLY)
    if source.summaries():
        return NoWindow(cause=Cause.NO_USABLE_WINDOW)
    if any(source.windows(rank) for rank in source.ranks):
        gone = any("/windows/" in note.path for note in source.notes)
        return NoWindow(cause=Cause.TRACES_GONE if gone else Cause.NOT_INGESTED)
    return _why_none_taken(source, max((rank.num_steps for rank in ranks), default=0))


def _why_none_taken(source: RunSource, num_steps: int) -> NoWindow:
    swallowed = _swallowed(source)
    if swallowed:
        return NoWindow(cause=Cause.PROBE_ERROR, recorded=swallowed)
    metas = source.rank_records
    causes = [cause_text(entry) for entry in told_by_probes(metas) if entry.figure is Figure.WINDOWS]
    if causes:
        summary = _short("; ".join(causes))
        return NoWindow(cause=Cause.PROBE_LIMIT, recorded=summary, framework=framework_of(metas))
    if 0 < num_steps <= FIRST_WINDOW_STEP and not source.run.is_imported:
        return NoWindow(cause=Cause.RUN_TOO_SHORT, num_steps=num_steps)
    rootless = all(meta.root is None for meta in metas.values())
    if not source.run.is_imported and num_steps and rootless and is_torch(metas):
        return NoWindow(cause=Cause.FORWARD_NOT_SEEN)
    notes = {text: kind for meta in metas.values() for kind, text in notes_of(meta)}
    remarks = [text for text, kind in notes.items() if kind is NoteKind.WINDOW]
    if not remarks and is_torch(metas):
        remarks = [text for text, kind in notes.items() if kind is NoteKind.OTHER]
    if remarks:
        return NoWindow(cause=Cause.WINDOW_PUT_OFF, recorded=_short("; ".join(remarks)))
    cause = Cause.RUN_TOO_SHORT if num_steps <= WARM_UP_STEPS else Cause.NO_WINDOW_REACHED
    return NoWindow(cause=cause, num_steps=num_steps)


def of_windows(stated: Sequence[Missing], why: NoWindow) -> Missing:
    """The one entry for all that windows would show; layers have their own where a probe has said why."""
    layers = "" if any(entry.figure is Figure.LAYERS and not entry.ranks for entry in stated) else ", layers"
    return missing_figure(Figure.TRACED_FIGURES, why.cause, and_layers=layers, reason=why.reason)


def without_windows(stated: Sequence[Missing]) -> list[Missing]:
    """Those of the probes' entries that are not about windows as such: of them one entry tells for all."""
    return [entry for entry in stated if entry.figure is not Figure.WINDOWS]


def remarks_of(metas: Mapping[int, RankRecord]) -> list[str]:
    """What the ranks' probes noted of the training, each once."""
    notes = (note for meta in metas.values() for note in notes_of(meta))
    # a host without counters is reported with the machine's figures
    return list(dict.fromkeys(text for kind, text in notes if kind is not NoteKind.NO_COUNTERS))


def remarks_of_windows(source: RunSource, metas: Mapping[int, RankRecord]) -> list[str]:
    """What the readers of other frameworks' traces noted, those that differ in figures only once.

    torch's own are about its files and are listed with these.
    """
    if is_torch(metas) and not advice.has_calls_beside(metas):
        return []
    alike: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for summary in source.summaries():
        where = files.window_of(summary.window, summary.rank)
        for note in summary.notes if summary.events_kept else ():
            if note_kind(None, note) is not NoteKind.NO_STEP_MARKS:  # said as what is missing
                alike[_FIGURES.sub("#", note)].append((note, where))
    remarks = []
    for same in alike.values():
        (text, where), num_others = same[0], len(same) - 1
        alone = len({note for note, _ in same}) == 1
        remarks.append(text if alone else files.same_elsewhere(text, where, num_others))
    return remarks


def _swallowed(source: RunSource) -> str:
    """The error that the probe met most lastingly, in one line; '' when it met none."""
    entries = [(rank, entry) for rank in source.ranks for entry in source.errors(rank)]
    if not entries:
        return ""
    rank, worst = next((pair for pair in entries if pair[1].disabled), entries[0])
    where, error = worst.where or "somewhere", _short(worst.error or "an error")
    return probe_error(rank, where, error, disabled=worst.disabled)


def _weight(path: str) -> int:
    """Whole ranks before attempts before windows before lines."""
    if path.endswith("/rank.json"):
        return 0
    if path.count("/") == 1:
        return 1
    return 2 if "/windows/" in path else 3


def _figure_of(path: str, notes: Sequence[DroppedInput]) -> tuple[Figure, dict[str, Any]]:
    """What the file is of, with its names."""
    parts = path.split("/")
    if parts[0] != "ranks":
        return Figure.FILE, {"path": path}
    if len(parts) == 2:
        return Figure.ATTEMPT, {"path": path}
    if parts[2] == "rank.json":
        return Figure.RANK, {"rank": parts[1]}
    if parts[2] == "windows" and len(parts) == 4:
        return Figure.WINDOW, {"window": parts[3].partition(".")[0], "rank": parts[1].partition(".")[0]}
    lines = sum(note.num_dropped for note in notes)
    if path.endswith(".jsonl") and lines > 1:
        return Figure.FILE_LINES, {"count": lines, "path": path}
    return Figure.FILE, {"path": path}


def _reasons(notes: Sequence[DroppedInput]) -> str:
    return _short("; ".join(dict.fromkeys(note.reason for note in notes)))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_WORDS else f"{line[: _MAX_WORDS - 1]}…"


def uneven_steps(ranks: Sequence[RankResult]) -> list[Missing]:
    """Ranks that recorded fewer steps than others."""
    counts = {rank.rank: rank.num_steps for rank in ranks if rank.num_steps}
    most = max(counts.values(), default=0)
    fewer = [rank for rank, count in sorted(counts.items()) if count < most - 1]
    if not fewer:
        return []
    least = min(counts[rank] for rank in fewer)
    return [missing_figure(Figure.LATER_STEPS, Cause.UNEVEN_STEPS, ranks=fewer, least=least, most=most)]
