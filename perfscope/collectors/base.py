"""What every collector is: it says what it can do here, then gives readings, and never raises.

A collector reads one source. `probe` is cheap and answers for machines with and without the source; the
sampler opens only what is available. Parts with different costs (a 2 µs file, a 20 ms call) are
collectors of their own, so that `slow` ones get a thread each and never stretch the fast ones' tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from perfscope.collectors.context import Context
from perfscope.rundir.metrics import Metric, Series

FAST_NS = 0  # as often as the sampler ticks (10 Hz by default)
SECOND_NS = 1_000_000_000


class Reading(NamedTuple):
    """One value of one series, read between two times of the context's clock (monotonic ns).

    `value` is raw (see Metric.scale); None where the read failed. `quality` None: the metric's own.
    All readings of one read share their times, so that they are stored together.
    """

    series: Series
    value: int | float | None
    t_begin_ns: int
    t_end_ns: int
    quality: str | None = None


class Fact(NamedTuple):
    """Something found out that is no number over time: a binding, a neighbor's name, a reading that ended.

    `name` is one of: binding, neighbour, stopped, absent, note. `value` is JSON-able.
    """

    name: str
    labels: dict[str, str]
    value: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A part of a source that is not to be had here."""

    what: str  # metric name, or a group of them in words
    reason: str  # what was found: "/proc/pressure is not there"
    remedy: str = ""  # what the user can do: "boot with psi=1"; "" = nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What a collector can do on this machine.

    Attributes:
        collector: its name.
        available: whether opening it is worth while.
        metrics: what it would give (with unit, source and resolution).
        source: file, interface or library, as found here.
        min_interval_ns: it is not sampled more often.
        reason: why not available, one line; "" when available.
        remedy: what to do about it; "" = nothing can be done.
        absent: parts that are not available though the whole is.
        detail: what was found, in a few words ("2 nodes", "6 IMC channels on each of 2 sockets").
    """

    collector: str
    available: bool
    metrics: tuple[Metric, ...] = ()
    source: str = ""
    min_interval_ns: int = FAST_NS
    reason: str = ""
    remedy: str = ""
    absent: tuple[Absent, ...] = ()
    detail: str = ""


class Collector(Protocol):
    """One source. Made without arguments; used by one thread at a time.

    Attributes:
        name: `source` or `source.part`, lower case: "numa", "numa.placement".
        slow: gets a thread of its own (a call may block for more than a millisecond).
        min_interval_ns: FAST_NS, or the interval at which sampling makes sense.
    """

    name: str
    slow: bool
    min_interval_ns: int

    def probe(self, ctx: Context) -> Capability:
        """What is available. Never raises, leaves nothing open."""
        ...

    def open(self, ctx: Context) -> None:
        """Open files and handles. Raises OSError when what `probe` saw is gone."""
        ...

    def sample(self) -> Sequence[Reading]:
        """Read once. A series that fails is None or left out, and a `stopped` fact says why, once."""
        ...

    def facts(self) -> Sequence[Fact]:
        """What was found out since the last call. Usually nothing."""
        ...

    def close(self) -> None:
        """Release everything; may be called twice."""
        ...


class BaseCollector:
    """What collectors share: kept facts, and series that stop once and for all, with the reason."""

    name = ""
    slow = False
    min_interval_ns = FAST_NS

    def __init__(self) -> None:
        self._facts: list[Fact] = []

    def capability(
        self,
        *,
        reason: str = "",
        metrics: tuple[Metric, ...] = (),
        source: str = "",
        remedy: str = "",
        absent: tuple[Absent, ...] = (),
        detail: str = "",
    ) -> Capability:
        """What `probe` returns; available unless there is a reason why not."""
        return Capability(
            collector=self.name,
            available=not reason,
            metrics=metrics,
            source=source,
            min_interval_ns=self.min_interval_ns,
            reason=reason,
            remedy=remedy,
            absent=absent,
            detail=detail,
        )

    def facts(self) -> Sequence[Fact]:
        pending, self._facts = self._facts, []
        return pending

    def stopped(self, what: str, labels: dict[str, str], reason: str) -> None:
        """Note that `what` gives no more readings from now on. The caller says it once only."""
        self._facts.append(Fact("stopped", labels, {"what": what, "reason": reason}))

    def close(self) -> None:
        """Nothing to release unless a collector says otherwise."""


def reason_of(error: OSError) -> str:
    """The system's words for an error, without its number: ``Permission denied``."""
    return error.strerror or str(error) or type(error).__name__


def words_of(error: Exception) -> str:
    """The system's words for a read that failed; of contents that cannot be parsed, just that."""
    return reason_of(error) if isinstance(error, OSError) else "not in the kernel's format"
