"""Single lines over time, before they are thinned: a gauge's readings, a counter's rate, sums of several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64
from perfscope.analysis.machine.counters import Float64, Rates, middle_ns, on_grid, thin
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.results import CounterTrack
from perfscope.rundir.metrics import QUALITIES
from perfscope.rundir.samples import SampleSeries

_SHORTEST = 0.3  # of the usual interval; shorter ones are left out of a line, not out of a sum


class SampledLine(Struct, frozen=True, kw_only=True, eq=False):
    """Values at instants; arrays of shape (n,)."""

    t_ns: Int64  # monotonic
    values: Float64
    weight: Float64  # ns each stands for
    quality: str

    def times(self, factor: float) -> SampledLine:
        return SampledLine(
            t_ns=self.t_ns, values=self.values * factor, weight=self.weight, quality=self.quality
        )

    @property
    def moves(self) -> bool:
        """Anything but zeros."""
        return bool(len(self.values)) and bool((self.values != 0).any())


def rate_line(counted: Rates) -> SampledLine:
    """A counter's rate per second, each at the middle of its interval."""
    drawn = _drawn(counted)
    length = (counted.end_ns - counted.start_ns)[drawn]
    return SampledLine(
        t_ns=counted.start_ns[drawn] + length // 2,
        values=counted.per_s[drawn],
        weight=length.astype(np.float64),
        quality=counted.worst_quality,
    )


def _drawn(counted: Rates) -> NDArray[np.bool_]:
    """Intervals as long as usual. The last reading comes when the training ends, perhaps a moment after the
    one before: over so short a time a rate is a spike, and counters of 10 ms steps say anything."""
    length = counted.end_ns - counted.start_ns
    result: NDArray[np.bool_] = length >= _SHORTEST * np.median(length) if len(length) else length > 0
    return result


def gauge_line(series: SampleSeries) -> SampledLine:
    """A gauge's readings in its unit."""
    return SampledLine(
        t_ns=middle_ns(series),
        values=series.values.astype(np.float64) * series.scale,
        weight=np.ones(len(series.values)),
        quality=QUALITIES[int(series.quality.max(initial=0))],
    )


def summed(counters: Sequence[Rates]) -> SampledLine | None:
    """The rates of several counters together; on common stretches of time where they were read apart."""
    parts = [rates for rates in counters if len(rates.delta)]
    if not parts:
        return None
    worst = max((part.worst_quality for part in parts), key=QUALITIES.index)
    first = parts[0]
    if all(np.array_equal(part.start_ns, first.start_ns) for part in parts):
        line = rate_line(first)
        total = np.sum([part.per_s for part in parts], axis=0)[_drawn(first)]
        return SampledLine(t_ns=line.t_ns, values=total, weight=line.weight, quality=worst)
    start = max(int(part.start_ns[0]) for part in parts)
    end = min(int(part.end_ns[-1]) for part in parts)
    width = max(int(np.median(part.end_ns - part.start_ns)) for part in parts)
    grids = [on_grid(part, start, end, width) for part in parts]
    values = np.sum([grid.per_s for grid in grids], axis=0)
    finite = np.isfinite(values)
    middle = grids[0].start_ns + (grids[0].end_ns - grids[0].start_ns) // 2  # it may be wider than asked
    return SampledLine(
        t_ns=middle[finite], values=values[finite], weight=np.full(finite.sum(), width), quality=worst
    )


def track(
    host: Host,
    group: str,
    title: str,
    unit: str,
    line: SampledLine,
    *,
    key: str,
    peak: float | None = None,
    peak_source: str = "",
) -> CounterTrack:
    """A line as the reports draw it: at most 400 points, Unix time."""
    points = thin(line.t_ns, line.values, line.weight)
    # Clocks of 10 ms grain let a share of the time pass 1 now and then.
    top = 1.0 if unit == "ratio" and (group == "cpu" or peak == 1.0) else np.inf
    return CounterTrack(
        id=f"{host.name}/{key}",
        host=host.name,
        group=group,
        title=title,
        unit=unit,
        t_ns=tuple(host.samples.unix_ns(points.t_ns).tolist()),
        mean=tuple(np.minimum(points.mean, top).tolist()),
        low=tuple(np.minimum(points.low, top).tolist()),
        high=tuple(np.minimum(points.high, top).tolist()),
        peak=peak,
        peak_source=peak_source,
        quality=line.quality,
    )
