"""Findings: what they are made of, and their sentences, a module per topic."""

from __future__ import annotations

from perfscope.messages.findings.facts import Basis
from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject
from perfscope.messages.lists import counted
from perfscope.units import format_count

__all__ = ["SYMPTOMS", "FindingFacts", "FindingText", "Subject", "finding_text"]

SYMPTOMS = "Likely symptoms: fix the cause and measure again."


def finding_text(facts: FindingFacts, subject: Subject, basis: Basis | None = None) -> FindingText:
    """Title, detail and action of a finding.

    Args:
        facts: its figures.
        subject: what it is about.
        basis: what the verdict rests on; None: it is not the verdict.
    """
    text = facts.text(subject)
    if basis is None:
        return text
    return text._replace(detail=f"{text.detail} {_basis_text(basis)}")


def _basis_text(basis: Basis) -> str:
    """How much the verdict rests on."""
    ranks_text = "one rank" if basis.num_ranks == 1 else counted(basis.num_ranks, "rank")
    if not basis.has_step_marks:
        return f"The traces of {ranks_text} have no step marks, so each counts as one step."
    steps = format_count(basis.num_steps)
    return f"Mean of {steps} traced step{'' if steps == '1' else 's'} on {ranks_text}."
