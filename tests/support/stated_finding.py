"""Findings with any text, for tests of what draws and compares findings."""

from __future__ import annotations

from typing import Any

from perfscope.analysis.results import Finding
from perfscope.messages.findings import FindingFacts, FindingText, Subject
from perfscope.vocabulary.findings import FindingKind


class Stated(FindingFacts, frozen=True, kw_only=True):
    title: str
    detail: str
    action: str
    heading: str = ""

    def text(self, subject: Subject) -> FindingText:
        return FindingText(self.title, self.detail, self.action, self.heading)


def stated(
    kind: FindingKind, title: str, detail: str = "", action: str = "", heading: str = "", **others: Any
) -> Finding:
    facts = Stated(title=title, detail=detail, action=action, heading=heading)
    return Finding(id=kind, facts=facts, **others)
