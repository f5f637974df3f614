"""Section "Recommendations": findings ranked by what removing them would gain."""

from __future__ import annotations

from msgspec.structs import replace

from perfscope import units
from perfscope.analysis.results import Finding, RunAnalysis
from perfscope.messages.findings import SYMPTOMS
from perfscope.reports.display import visible
from perfscope.reports.model import FindingCard, FindingList, Section
from perfscope.reports.sections.steps import scope_of

LONGEST_SENTENCE = 1200


def findings_section(analysis: RunAnalysis) -> Section:
    short = scope_of(analysis).short
    cards: list[FindingCard] = []
    for number, finding in enumerate(analysis.findings):
        card = _card(finding, short, is_verdict=number == 0)
        if finding.symptom_of is None:
            cards.append(card)
        else:  # right after its cause
            cards[-1] = replace(cards[-1], symptoms=(*cards[-1].symptoms, card), symptoms_title=SYMPTOMS)
    return Section(
        id="findings",
        title="Recommendations",
        lead="The verdict, then interference, then causes by the most that removing each alone can save. "
        "Savings overlap."
        if len(cards) > 1
        else "",
        blocks=(
            FindingList(
                id="finding-list",
                cards=tuple(cards),
                empty="No single cause dominates: no known cause takes a notable share of the time.",
            ),
        ),
    )


def _card(finding: Finding, short: str, *, is_verdict: bool) -> FindingCard:
    locations = (
        ("layer", finding.layer),
        ("rank", finding.rank),
        ("collective", finding.collective),
    )
    where = " · ".join(f"{word} {visible(value)}" for word, value in locations if value is not None)
    whole = "training" if finding.of_training else short
    title, detail, action = (visible(text, LONGEST_SENTENCE) for text in finding.text)
    return FindingCard(
        slug=finding.id.value,
        title=title,
        detail=detail,
        action=action,
        gain="" if finding.gain_ns is None else units.format_ns(finding.gain_ns),
        share=""
        if finding.gain_ratio is None
        else f"{units.format_ratio(finding.gain_ratio)} of the {whole}",
        gain_ratio=finding.gain_ratio,
        where=where,
        is_verdict=is_verdict,
        confidence="" if finding.confidence is None else finding.confidence.sentence,
    )
