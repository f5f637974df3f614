"""Reading a collector's real sources in tests: by name, on this machine, for these processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from perfscope.collectors.base import Collector, Fact
from perfscope.collectors.context import live_context
from perfscope.collectors.registry import own_collectors

Key = tuple[str, frozenset[tuple[str, str]]]
PATIENCE_S = 5


class Readings:
    """One reading of every series of a collector, found by metric and labels, in the metric's unit.

    Collectors read their dearer parts less often than they are asked to, so it asks until every series of
    `like` has been read again.
    """

    def __init__(self, collector: Collector, like: Readings | None = None) -> None:
        self.values: dict[Key, float] = {}
        self.times: dict[Key, tuple[int, int]] = {}
        self._take(collector)
        give_up = time.monotonic() + PATIENCE_S
        while (
            like is not None and not like.values.keys() <= self.values.keys() and time.monotonic() < give_up
        ):
            time.sleep(0.05)
            self._take(collector)

    def _take(self, collector: Collector) -> None:
        for reading in collector.sample():
            if reading.value is None:
                continue
            metric = reading.series.metric
            key = metric.name, frozenset(reading.series.labels.items())
            self.values[key] = reading.value * metric.scale
            self.times[key] = reading.t_begin_ns, reading.t_end_ns

    def over(self, before: Readings) -> Readings:
        """The same, and what was not read as it was before: an interface without traffic is read seldom."""
        self.values = {**before.values, **self.values}
        self.times = {**before.times, **self.times}
        return self

    def keys(self, metric: str, **labels: str) -> list[Key]:
        """Every series of `metric` whose labels include these."""
        return [key for key in self.values if key[0] == metric and set(labels.items()) <= key[1]]

    def key(self, metric: str, **labels: str) -> Key:
        """The only one. Fails with what there is."""
        keys = self.keys(metric, **labels)
        assert len(keys) == 1, f"{metric} {labels}: {len(keys)} series among {sorted(map(str, self.values))}"
        return keys[0]

    def value(self, metric: str, **labels: str) -> float:
        return self.values[self.key(metric, **labels)]

    def grown(self, before: Readings, metric: str, **labels: str) -> float:
        """How much the series has grown since `before`."""
        key = before.key(metric, **labels)
        assert key in self.values, f"{metric} {labels} was not read a second time"
        return self.values[key] - before.values[key]

    def elapsed_ns(self, before: Readings, metric: str, **labels: str) -> int:
        """From the end of its first read to the end of its second."""
        key = before.key(metric, **labels)
        return self.times[key][1] - before.times[key][1]


def made(name: str) -> Collector:
    """A new instance of the built-in collector `name`."""
    return next(collector for collector in own_collectors() if collector.name == name)


@contextmanager
def opened(name: str, pids: Sequence[int] = ()) -> Iterator[Collector]:
    """The collector, open on this machine with these processes as ranks; it must be available."""
    collector = made(name)
    ctx = live_context(pids=lambda: pids)
    capability = collector.probe(ctx)
    assert capability.available, f"{name}: {capability.reason}"
    collector.open(ctx)
    try:
        yield collector
    finally:
        collector.close()


def stopped(collector: Collector) -> list[Fact]:
    """The facts since the last call that say that something gives no more readings."""
    return [fact for fact in collector.facts() if fact.name == "stopped"]


def ip(*words: str) -> None:
    """`ip words`.

    Raises:
        OSError: ip is not there, or failed: with what it said.
    """
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
