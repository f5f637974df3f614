"""What the run says of itself: ranks that are missing or were killed, and what perfscope cost."""

from __future__ import annotations

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.results import Finding
from perfscope.messages.lists import plural
from perfscope.units import format_count, format_ratio


def overhead(evidence: Evidence) -> list[Finding]:
    budget, ratio = evidence.run.options.overhead, evidence.overhead_ratio
    if ratio is None or budget is None or ratio <= budget:
        return []
    return [
        Finding(
            id="overhead",
            title=(
                f"Profiling overhead was {format_ratio(ratio, 2)} of the run, "
                f"over the budget of {format_ratio(budget, 2)}."
            ),
            detail=_why_costly(evidence),
            action="Run longer."
            if evidence.no_window is not None
            else "Run longer, trace fewer steps (`--steps-per-window 1`), or none (`--no-trace`).",
            gain_ns=None,
            gain_ratio=None,
        )
    ]


def _why_costly(evidence: Evidence) -> str:
    if evidence.no_window is not None:
        return "No window was traced: a short run has little time over which the cost of its start is spread."
    return "A short run has little time over which the cost of its start and first window is spread."


def attached(evidence: Evidence) -> list[Finding]:
    expected, attached = evidence.run.expected_ranks, len(evidence.ranks)
    if expected is None or attached >= expected:
        return []
    count = f"{format_count(attached)} of {format_count(expected)} ranks"
    imported = evidence.run.is_imported
    why = " ".join(evidence.run.attach_notes)
    unreadable = (evidence.run.attached_ranks or 0) > attached
    return [
        Finding(
            id="ranks_missing",
            title=f"The traces of {count} were imported."
            if imported
            else f"{count} {'can be shown' if unreadable else 'were attached'}.",
            detail=why
            or ("The record of the others is damaged: see “Not collected”. " if unreadable else "")
            or ("" if imported else "The run does not record why the others were not. ")
            + "Values over all ranks cover these only.",
            action="Import the other ranks' traces too."
            if imported
            else "See the launcher's notes in run.json.",
            gain_ns=None,
            gain_ratio=None,
        )
    ]


def killed(evidence: Evidence) -> list[Finding]:
    cut = [rank for rank in evidence.ranks if rank.finished is False]
    if not cut:
        return []
    names = ", ".join(str(rank.rank) for rank in cut[:8]) + (", ..." if len(cut) > 8 else "")
    fewest = min(rank.num_steps for rank in cut)
    still = evidence.run.is_open
    why = "still running, or perfscope was killed with them" if still else "killed, or ended by os._exit"
    return [
        Finding(
            id="ranks_killed",
            title=(
                f"{plural('Rank', len(cut))} {names} did not close "
                f"{'their' if len(cut) > 1 else 'its'} files ({why}); "
                f"steps are recorded up to number {format_count(fewest)}."
            ),
            detail="Everything written before is in this report; a window being traced at that time is lost.",
            action="Look at the exit code and the kernel log (out of memory?) of that rank.",
            gain_ns=None,
            gain_ratio=None,
            rank=cut[0].rank,
        )
    ]
