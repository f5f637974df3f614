"""Link classes by what decides speed: a byte stays on its host, or it crosses the network. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.vocabulary.links import BETWEEN_HOSTS

UNEXPECTED = "unexpected"
WITHIN, BETWEEN = "within hosts", "between hosts"


def by_side(by_link: Mapping[str, float] | None) -> dict[str, float] | None:
    """Bytes within and between hosts; unexpected calls are on none."""
    if by_link is None:
        return None
    by_side_ = {WITHIN: 0.0, BETWEEN: 0.0}
    for link, amount in by_link.items():
        if link != UNEXPECTED:
            by_side_[BETWEEN if link in BETWEEN_HOSTS else WITHIN] += amount
    return by_side_
