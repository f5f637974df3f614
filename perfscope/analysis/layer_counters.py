"""Counters of layers: means per traced step and rank, of what each layer does itself.

A counter's mean is over the ranks that have it. Hardware counters that shared the PMU are scaled, layer by
layer, by time enabled / time running; a layer during which they never ran has none, and neither has the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from perfscope.analysis.affected import COUNTED
from perfscope.analysis.counter_results import Counters, LayerCounters, StepCounters
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.spans import WindowFacts
from perfscope.rundir.window_records import CountedLayers
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.layer_counters import (
    CACHE_LINE,
    HARDWARE,
    HARDWARE_ENABLED,
    HARDWARE_RUNNING,
    LayerCounter,
)

_NAMES = tuple(LayerCounter)
_Key = tuple[str, str]  # phase, layer
_Sums = dict[LayerCounter, float | None]  # by counter; None: not known


class CountedRun(Struct, frozen=True, kw_only=True):
    """The counters of a run."""

    layers: Mapping[str, LayerCounters]
    missing: tuple[Missing, ...]
    means: Mapping[_Key, _Sums]
    ranks: Mapping[int, int]  # rank -> steps; empty: no rank has counters
    software_sources: tuple[str, ...]
    user_only: bool

    def step(self, reported_layers: Collection[str]) -> StepCounters | None:
        """Those of the step; `reported_layers` are the layers of the report."""
        if not self.ranks:
            return None
        outside = [mean for (_, layer), mean in self.means.items() if layer not in reported_layers]
        return StepCounters(
            num_steps=sum(self.ranks.values()),
            ranks=tuple(sorted(self.ranks)),
            step=Counters(**_fields(_total(self.means.values()))),
            outside_layers=Counters(**_fields(_total(outside))),
            software_sources=self.software_sources,
            user_only=self.user_only,
        )


class _Rank(Struct):
    """One rank's sums over its windows."""

    num_steps: int = 0
    sums: dict[_Key, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    columns: set[str] | None = None  # that every window has

    def add(self, window: CountedLayers) -> None:
        if not window.num_steps:
            return
        self.num_steps += window.num_steps
        columns = set(window.columns)
        self.columns = columns if self.columns is None else self.columns & columns
        for phase, layer, values in window.rows:
            row = self.sums[phase, layer]
            for name, value in zip(window.columns, values, strict=True):
                row[name] += value

    def means(self, key: _Key) -> _Sums:
        """Per step; without the counters that this rank does not have."""
        row, columns = self.sums.get(key, {}), self.columns or set()
        factor: float | None = 1.0
        if enabled := row.get(HARDWARE_ENABLED, 0):
            running = row.get(HARDWARE_RUNNING, 0)
            factor = enabled / running if running else None
        means: _Sums = {}
        for name in _NAMES:
            if name.value in columns:
                scale = factor if name in HARDWARE else 1.0
                means[name] = None if scale is None else row.get(name.value, 0) * scale / self.num_steps
        return means


def counted_run(windows: Mapping[int, Sequence[WindowFacts]]) -> CountedRun:
    """The counters of all ranks' windows.

    Args:
        windows: by rank.
    """
    ranks: dict[int, _Rank] = {}
    counted = [(facts, facts.counters) for of_rank in windows.values() for facts in of_rank if facts.counters]
    for facts, window in counted:
        ranks.setdefault(facts.rank, _Rank()).add(window)
    ranks = {number: rank for number, rank in ranks.items() if rank.num_steps}
    keys = list(dict.fromkeys(key for rank in ranks.values() for key in rank.sums))
    means = {key: _mean([rank.means(key) for rank in ranks.values()]) for key in keys}
    layers = {
        layer: _layer(layer, means, _running(ranks.values(), layer))
        for layer in dict.fromkeys(layer for _, layer in keys if layer)
    }
    unscaled = [layer for layer, counters in layers.items() if counters.running_ratio == 0]
    return CountedRun(
        layers=layers,
        missing=_missing(counted, unscaled),
        means=means,
        ranks={number: rank.num_steps for number, rank in ranks.items()},
        software_sources=tuple(sorted({window.software_source for _, window in counted if window.num_steps})),
        user_only=any(window.user_only for _, window in counted),
    )


def _mean(of_ranks: Sequence[_Sums]) -> _Sums:
    """Over the ranks that have a counter; None where one of these cannot tell it."""
    mean: _Sums = {}
    for name in _NAMES:
        values = [means[name] for means in of_ranks if name in means]
        if values:
            measured = [value for value in values if value is not None]
            mean[name] = sum(measured) / len(values) if len(measured) == len(values) else None
    return mean


def _total(means: Iterable[_Sums]) -> _Sums:
    total: _Sums = {}
    for mean in means:
        for name, value in mean.items():
            earlier = total.get(name, 0.0)
            total[name] = None if value is None or earlier is None else earlier + value
    return total


def _layer(layer: str, means: Mapping[_Key, _Sums], running: float | None) -> LayerCounters:
    is_known = all(mean.get(LayerCounter.LLC_MISSES) is not None for mean in means.values())
    moved = {}
    for phase in ("forward", "backward"):
        mean = means.get((phase, layer), {LayerCounter.LLC_MISSES: 0.0 if is_known else None})
        moved[f"{phase}_llc_miss_bytes"] = _bytes(mean.get(LayerCounter.LLC_MISSES))
    total = _total(mean for (_, name), mean in means.items() if name == layer)
    return LayerCounters(**_fields(total), **moved, running_ratio=running)


def _running(ranks: Iterable[_Rank], layer: str) -> float | None:
    """The smallest share of the time that the hardware counters ran during a pass of a layer on a rank."""
    shares = [
        row.get(HARDWARE_RUNNING, 0) / row[HARDWARE_ENABLED]
        for rank in ranks
        for (_, name), row in rank.sums.items()
        if name == layer and row.get(HARDWARE_ENABLED)
    ]
    return min(shares, default=None)


def _fields(sums: _Sums) -> dict[str, Any]:
    """Fields of `Counters`."""
    fields: dict[str, Any] = {name.value: value for name, value in sums.items()}
    misses = fields.pop(LayerCounter.LLC_MISSES.value, None)
    instructions, cycles = sums.get(LayerCounter.INSTRUCTIONS), sums.get(LayerCounter.CYCLES)
    ipc = instructions / cycles if instructions is not None and cycles else None
    return {**fields, "ipc": ipc, "llc_miss_bytes": _bytes(misses)}


def _bytes(misses: float | None) -> float | None:
    return None if misses is None else misses * CACHE_LINE


def _missing(
    counted: Sequence[tuple[WindowFacts, CountedLayers]], unscaled: Sequence[str]
) -> tuple[Missing, ...]:
    """Counters that some ranks do not have, by reason; windows whose readings ended, or cannot be read."""
    refused: dict[tuple[Cause, str], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for facts, window in counted:
        for name, (cause, detail) in window.refused.items():
            refused[cause, detail][name].add(facts.rank)
        if window.ended is not None:
            refused[window.ended][""].add(facts.rank)
        if window.problem:
            refused[Cause.UNREADABLE, window.problem][""].add(facts.rank)
    entries = []
    for (cause, detail), names in refused.items():
        ranks = sorted(set().union(*names.values()))
        counters = tuple(name for name in names if name) or ("counters",)
        is_said = cause is Cause.UNREADABLE  # the detail is the whole reason
        entries.append(
            missing_figure(
                Figure.LAYER_COUNTERS,
                cause,
                affects=COUNTED if is_said else (),
                ranks=ranks,
                counters=counters,
                reason=detail if is_said else "",
                detail="" if is_said else detail,
            )
        )
    if unscaled:
        entries.append(
            missing_figure(
                Figure.LAYER_COUNTERS,
                Cause.MULTIPLEXED,
                ranks=sorted({facts.rank for facts, _ in counted}),
                counters=tuple(name.value for name in HARDWARE),
                layers=tuple(unscaled),
            )
        )
    return tuple(entries)
