"""What a run is to reach on the held-out set: `accuracy=0.9`, `auc=0.8`, `loss=0.5`. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perfscope.errors import UsageError

ACCURACY, TOP5, AUC, LOSS, PERPLEXITY = "accuracy", "top5", "auc", "loss", "perplexity"
METRICS = (ACCURACY, TOP5, AUC, LOSS, PERPLEXITY)
FALLING = (LOSS, PERPLEXITY)  # reached from above


class Target(NamedTuple):
    """A figure of the held-out set, and the value that it must reach."""

    metric: str
    value: float

    def reached(self, figures: Mapping[str, float | None]) -> bool:
        """Whether an evaluation's figures, by METRICS, are as good."""
        measured = figures.get(self.metric)
        if measured is None:
            return False
        return measured <= self.value if self.metric in FALLING else measured >= self.value


def parse_target(text: str) -> Target:
    """`accuracy=0.9`, `accuracy=90%`, `loss=0.5`.

    Raises:
        UsageError: an unknown metric, no number, or one that no training can reach.
    """
    metric, equals, value_text = (part.strip() for part in text.partition("="))
    if metric not in METRICS or not equals:
        raise UsageError(f"--target {text}: write METRIC=VALUE with {', '.join(METRICS)}, as accuracy=0.9")
    try:
        value = float(value_text.rstrip("%")) / (100 if value_text.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"--target {text}: {value_text!r} is not a number") from None
    low, high = (0.0, 1.0) if metric not in FALLING else (0.0 if metric == LOSS else 1.0, 1e9)
    if not low < value <= high:
        raise UsageError(f"--target {text}: {metric} must be above {low:g} and at most {high:g}")
    return Target(metric, value)
