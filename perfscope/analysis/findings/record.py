"""What the run says of itself: ranks that are missing or were killed, and what perfscope cost."""

from __future__ import annotations

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.results import Finding
from perfscope.messages.findings.recording import Overhead, RanksKilled, RanksMissing
from perfscope.vocabulary.findings import FindingKind

_DIGITS = 4  # overheads are shown in hundredths of a percent


def overhead(evidence: Evidence) -> list[Finding]:
    budget, ratio = evidence.run.options.overhead, evidence.overhead_ratio
    if ratio is None or budget is None or round(ratio, _DIGITS) <= budget:
        return []
    traced = evidence.no_window is None
    return [Finding(id=FindingKind.OVERHEAD, facts=Overhead(ratio=ratio, budget=budget, traced=traced))]


def attached(evidence: Evidence) -> list[Finding]:
    expected, attached = evidence.run.expected_ranks, len(evidence.ranks)
    if expected is None or attached >= expected:
        return []
    missing = RanksMissing(
        num_ranks=attached,
        num_expected=expected,
        imported=evidence.run.is_imported,
        unreadable=(evidence.run.attached_ranks or 0) > attached,
        notes=tuple(evidence.run.attach_notes),
    )
    return [Finding(id=FindingKind.RANKS_MISSING, facts=missing)]


def killed(evidence: Evidence) -> list[Finding]:
    cut = [rank for rank in evidence.ranks if rank.finished is False]
    if not cut:
        return []
    ended = RanksKilled(
        ranks=tuple(rank.rank for rank in cut),
        num_steps=min(rank.num_steps for rank in cut),
        is_open=evidence.run.is_open,
    )
    return [Finding(id=FindingKind.RANKS_KILLED, facts=ended, rank=cut[0].rank)]
