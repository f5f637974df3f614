"""Memory that is given back to the kernel and mapped again in every step."""

from __future__ import annotations

from perfscope.analysis.fault_results import RankFaults
from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.page_faults import PAGE
from perfscope.analysis.results import Finding
from perfscope.messages.findings.page_faults import PageFaultChurn
from perfscope.vocabulary.findings import FindingKind

NOTABLE = 0.03  # of the step
_KEPT = 0.5  # of the bytes mapped per step that a process keeps, where its memory grows
FEWEST = 250  # faults per step: about 1 MB


def churn(evidence: Evidence) -> Finding | None:
    """Page faults of ranks that compute on the CPU; the mean rank's cost."""
    on_cpu = [
        faults
        for faults in evidence.page_faults
        if faults.cost_ratio is not None
        and evidence.metas[faults.rank].device in ("", "cpu")
        and not _are_growth(evidence, faults)
    ]
    if not on_cpu or evidence.step_ns is None:
        return None
    num_faults = _mean(on_cpu, "minor_faults")
    ratio = min(_mean(on_cpu, "cost_ratio"), 1 - _input_share(evidence))
    if num_faults < FEWEST or ratio < NOTABLE:
        return None
    system, user = _mean(on_cpu, "system_ns"), _mean(on_cpu, "user_ns")
    usual = evidence.step_ns.median
    changed = [faults for faults in on_cpu if faults.changed_by_windows]
    facts = PageFaultChurn(
        num_faults=num_faults,
        num_bytes=num_faults * PAGE,
        system_ratio=system / (system + user) if system + user else 0.0,
        cost_ns=ratio * usual,
        step_ns=usual,
        num_major=_mean(on_cpu, "major_faults"),
        num_after=_mean(changed, "after_windows") if changed else None,
        num_before=_mean(changed, "before_windows") if changed else None,
        is_of_before=any(faults.are_of_before for faults in changed),
    )
    worst = max(on_cpu, key=lambda faults: faults.minor_faults)
    return Finding(
        id=FindingKind.PAGE_FAULT_CHURN,
        facts=facts,
        gain_ns=round(ratio * usual),
        gain_ratio=ratio,
        rank=worst.rank if len(on_cpu) > 1 else None,
    )


def _are_growth(evidence: Evidence, faults: RankFaults) -> bool:
    """Whether what a rank maps in a step is mostly memory that it keeps, none given back."""
    ranks = evidence.machine.rank_memory if evidence.machine is not None else ()
    growth = next((memory.growth_bytes_per_s for memory in ranks if memory.rank == faults.rank), None)
    step_ns = evidence.mean_step_ns
    if growth is None or step_ns is None:
        return False
    return growth * step_ns / 1e9 >= _KEPT * faults.minor_faults * PAGE


def _input_share(evidence: Evidence) -> float:
    """Of the step, waited for input: faults of what loads the data there are no cost beside that wait."""
    return evidence.mean("input_wait") / evidence.step if evidence.traced and evidence.step else 0.0


def _mean(faults: list[RankFaults], name: str) -> float:
    return float(sum(getattr(of_rank, name) for of_rank in faults)) / len(faults)
