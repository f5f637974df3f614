"""What a sampled figure is: the words that samples.jsonl uses. Standard library only (the sampler loads it).

A *metric* is a definition (name, unit, kind); a *series* is a metric with labels (this GPU, that NUMA node).
Raw values are stored as the source gives them; `scale` turns them into `unit`. Rates are made later, by
analysis, which knows how each kind of counter fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from perfscope.vocabulary.gpu import ThrottleBit

# How a value behaves over time.
GAUGE = "gauge"  # a level: any value may follow any other
COUNTER = "counter"  # only grows; with `limit`, starts again at 0 there (32-bit PCIe bytes, RAPL)
SATURATING = "saturating"  # only grows; sticks at `limit` (InfiniBand without the extended counters)

# How far a value can be trusted.
EXACT = "exact"
SCALED = "scaled"  # extrapolated from part of the time (multiplexed perf counters)
DERIVED = "derived"  # computed from other readings, or from a sample of the whole
MODELLED = "modelled"  # from a formula, not from an instrument
AMBIGUOUS = "ambiguous"  # a wrap may have been missed
SATURATED = "saturated"  # the counter had reached its top
QUALITIES = (EXACT, SCALED, DERIVED, MODELLED, AMBIGUOUS, SATURATED)


class Metric(Struct, frozen=True, kw_only=True):
    """One kind of figure.

    Attributes:
        name: field-standard snake_case name, the key by which analysis finds it.
        unit: what raw value x `scale` is in: bytes, ns, joules, watts, hz, celsius, ratio, pages, events, ...
        kind: one of KINDS.
        source: the file or call it comes from, with placeholders in capitals.
        description: one line for reading.
        limit: raw value at which a counter wraps to 0 (the modulus), or at which a saturating one sticks.
        scale: factor from the raw value to `unit`.
        quality: of its readings, unless a reading says otherwise.
        resolution: smallest step the source makes, in words; "" = one raw unit.
        bits: of a bitmask, what each means.
    """

    name: str
    unit: str
    kind: str
    source: str
    description: str
    limit: int | None = None
    scale: float = 1.0
    quality: str = EXACT
    resolution: str = ""
    bits: tuple[ThrottleBit, ...] = ()


class Series(Struct, frozen=True, eq=False):
    """A metric of one thing. Compared by identity: a collector makes each of its series once."""

    metric: Metric
    labels: Mapping[str, str] = {}

    def as_dict(self) -> dict[str, object]:
        """As it is in samples.jsonl."""
        metric = self.metric
        entry: dict[str, object] = {
            "metric": metric.name,
            "labels": dict(self.labels),
            "unit": metric.unit,
            "kind": metric.kind,
            "quality": metric.quality,
            "source": metric.source,
        }
        if metric.limit is not None:
            entry["limit"] = metric.limit
        if metric.scale != 1.0:
            entry["scale"] = metric.scale
        if metric.bits:
            entry["bits"] = [[bit.mask, bit.reason.value, bit.name] for bit in metric.bits]
        return entry
