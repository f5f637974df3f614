"""Expert parallelism as the cause: ranks whose experts are given more tokens than others'."""

from __future__ import annotations

from perfscope.analysis.findings.evidence import Evidence, prediction_of
from perfscope.analysis.results import Finding
from perfscope.analysis.whatif.parallel import EQUAL_EXPERTS
from perfscope.messages.findings.experts import UnequalExperts
from perfscope.vocabulary.findings import FindingKind

UNEQUAL = 1.1  # most loaded rank over the mean from which on loads differ notably


def unequal(evidence: Evidence) -> Finding | None:
    """Ranks that have more tokens for their experts than others."""
    experts, what_if = evidence.experts, evidence.what_ifs.of(EQUAL_EXPERTS)
    if experts is None or what_if is None or not experts.layers or experts.layers[0].imbalance < UNEQUAL:
        return None
    worst = experts.layers[0]
    return Finding(
        id=FindingKind.EXPERT_IMBALANCE,
        facts=UnequalExperts(
            imbalance=worst.imbalance,
            wait_ns=sum(layer.wait_ns for layer in experts.layers),
            num_layers=len(experts.layers),
            prediction=prediction_of(what_if),
        ),
        gain_ns=what_if.gain_ns,
        gain_ratio=what_if.gain_ratio,
        layer=worst.layer or None,
        rank=what_if.rank,
    )
