"""The figures that a check judges: what each is called, in what unit, which way is worse, and from when on.

`step_p10`, the tenth percentile of a run's step times, decides: neighbors and the system only ever add
time, so the fast steps are what the code costs. The others warn unless the configuration says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from perfscope.messages.gate.metrics import HINTS, TITLES

Direction = Literal["lower", "higher"]  # which is better
Severity = Literal["error", "warn", "off"]
Scale = Literal["itself", "step"]
DECIDES = "step_p10"


class MetricUnit(str, Enum):
    """What the figures of a metric are in; `reports.gate.units` has how they look."""

    NS = "ns"
    PER_S = "per_s"
    BYTES = "bytes"
    RATIO = "ratio"
    JOULES = "joules"


@dataclass(frozen=True, slots=True)
class GateMetric:
    """One figure of a run.

    Attributes:
        better: the direction that is good.
        threshold: worse by more than this share is a regression of this figure.
        scale: what the share is of: the figure itself, or the base's step_p10. A wait of 0.1 ms that
            becomes 0.2 ms has doubled and yet does not matter; as a share of the step it says what it
            costs. For figures of unit RATIO (already shares of the step) `step` means the plain difference.
    """

    id: str
    unit: MetricUnit
    better: Direction
    threshold: float
    severity: Severity
    scale: Scale = "itself"
    title: str = field(init=False)
    hint: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", TITLES[self.id])
        object.__setattr__(self, "hint", HINTS[self.id])


METRICS: Mapping[str, GateMetric] = {
    metric.id: metric
    for metric in (
        GateMetric("step_p10", MetricUnit.NS, "lower", 0.05, "error"),
        GateMetric("step_mean", MetricUnit.NS, "lower", 0.10, "warn"),
        GateMetric("stalls", MetricUnit.RATIO, "lower", 0.05, "warn", "step"),
        GateMetric("throughput", MetricUnit.PER_S, "higher", 0.10, "warn"),
        GateMetric("input_wait", MetricUnit.NS, "lower", 0.03, "warn", "step"),
        GateMetric("exposed_comm", MetricUnit.NS, "lower", 0.05, "warn", "step"),
        GateMetric("peak_memory", MetricUnit.BYTES, "lower", 0.10, "warn"),
        GateMetric("peak_device_memory", MetricUnit.BYTES, "lower", 0.10, "warn"),
        GateMetric("energy", MetricUnit.JOULES, "lower", 0.10, "warn"),
    )
}


def worse_by(metric: GateMetric, base: float, head: float, base_step: float | None) -> float | None:
    """How much worse `head` is than `base`, as the share `metric.threshold` speaks of; negative is better.

    Args:
        base_step: the base's step_p10, ns; for metrics of scale "step".

    Returns:
        None where the share is not known (nothing to divide by).
    """
    if metric.scale == "step":
        if metric.unit is MetricUnit.RATIO:
            change = head - base
        elif base_step:
            change = (head - base) / base_step
        else:
            return None
        return change if metric.better == "lower" else -change
    if base <= 0 or head <= 0:
        return None
    # Of rates the inverse is taken, so that half the throughput is twice the time: 100 % worse.
    return head / base - 1 if metric.better == "lower" else base / head - 1
