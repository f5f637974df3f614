"""What a check of the report's own figures gives."""

from __future__ import annotations

from msgspec import Struct

from perfscope.vocabulary.self_checks import Check


class Contradiction(Struct, frozen=True, kw_only=True):
    """Two figures of the report that do not agree.

    Attributes:
        of: rank, layer, finding or step that they are of; "" = the run.
        actual: the figure that is checked, ns or a ratio.
        expected: what it must equal, or not exceed.
    """

    of: str
    actual: float
    expected: float


class SelfCheck(Struct, frozen=True, kw_only=True):
    """One check of a report.

    Attributes:
        ok: no figure contradicts another.
        num_checked: pairs of figures.
        failures: those that do not agree.
    """

    check: Check
    ok: bool
    num_checked: int
    failures: tuple[Contradiction, ...] = ()
