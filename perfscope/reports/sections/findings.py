"""Section "Recommendations": findings ranked by what removing them would gain."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

from msgspec.structs import replace

from perfscope import units
from perfscope.analysis.results import Finding, RunAnalysis
from perfscope.messages.findings import SYMPTOMS
from perfscope.messages.sentences import clause
from perfscope.reports.display import visible
from perfscope.reports.model import FindingCard, FindingList, PageLink, Section, Verdict
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
        in_terminal="blocks",
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
    title, detail, action, heading = (visible(text, LONGEST_SENTENCE) for text in finding.text)
    return FindingCard(
        slug=finding.id.value,
        title=title,
        detail=detail,
        action=action,
        gain="" if finding.gain_ns is None else units.format_ns(finding.gain_ns),
        share=_share(finding, short),
        gain_ratio=finding.gain_ratio,
        where=where,
        is_verdict=is_verdict,
        heading=heading or clause(title),
        confidence="" if finding.confidence is None else finding.confidence.sentence,
        links=tuple(_links(finding)),
    )


def with_card(verdict: Verdict, section: Section) -> Verdict:
    """The verdict with the symptoms and links of its card, which say the rest."""
    cards = (card for block in section.blocks if isinstance(block, FindingList) for card in block.cards)
    card = next((card for card in cards if card.is_verdict), None)
    if card is None or card.title != verdict.headline:
        return verdict
    symptoms = tuple(symptom.heading or symptom.title for symptom in card.symptoms)
    return replace(verdict, symptoms=symptoms, links=card.links)


def saving_sentence(finding: Finding) -> str:
    """``Saves at most 135 ms of a step (80.8 %).``; "" where nothing is known to be saved."""
    if not finding.gain_ns:
        return ""
    share = units.format_ratio(finding.gain_ratio)
    return f"Saves at most {units.format_ns(finding.gain_ns)} of a step ({share})."


def _links(finding: Finding) -> Iterator[PageLink]:
    """The spans of a finding, its rank's lanes on top, and the rows of its layer, collective and axis."""
    find = finding.layer or finding.collective
    query = {"find": visible(find)} if find is not None else {}
    if finding.rank is not None:
        query |= {"rank": str(finding.rank), "pin": str(finding.rank)}
    if query:
        yield PageLink("Show in the timeline", f"timeline&{urlencode(query)}")
    if finding.layer is not None:
        yield PageLink("Show the layer", f"layers&{urlencode({'filter': visible(finding.layer)})}")
    if finding.collective is not None:
        row = urlencode({"row": visible(finding.collective)})
        yield PageLink("Show the collective", f"collectives-table&{row}")
    if finding.axis is not None:
        yield PageLink("Show communication", "communication")


def _share(finding: Finding, short: str) -> str:
    """``41.6 % of the step``; of what long steps hold, a share of the training's mean step."""
    if finding.gain_ratio is None:
        return ""
    share = units.format_ratio(finding.gain_ratio)
    if finding.of_mean:
        return f"{share} of the mean step"
    if not finding.of_training or not finding.gain_ns:
        return f"{share} of the {short}"
    return f"{share} of the training's mean step of {units.format_ns(finding.gain_ns / finding.gain_ratio)}"
