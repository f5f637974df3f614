"""Makes the rows for figures that are missing. Everything analysis yields may carry some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.missing import Missing as Missing


def missing_figure(
    figure: Figure,
    cause: Cause,
    *,
    ranks: Sequence[int] = (),
    affects: Sequence[str] = (),
    reason: str = "",
    **detail: Any,
) -> Missing:
    """A row; `detail` holds what its message states (see `Missing`), hashable values; "" is no `reason`."""
    if reason:
        detail["reason"] = reason
    return Missing(
        figure=figure,
        cause=cause,
        ranks=tuple(ranks),
        affects=tuple(affects),
        detail=tuple(detail.items()),
    )
