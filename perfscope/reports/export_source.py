"""What an export reads: the timelines of a run, one table at a time, given by the one who opened the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    import pyarrow as pa

    from perfscope.analysis.loading.lanes import LoaderSpans
    from perfscope.analysis.machine.results import CounterTrack

BATCH_ROWS = 16_384


class LaneName(Struct, frozen=True, kw_only=True):
    """One thread or stream of a rank and what a person should read for it."""

    device: int  # -1 = a host thread
    lane: int
    label: str


class TimelinePart(Struct, frozen=True, kw_only=True):
    """The timeline of one rank and window. `load` gives rows of schema.EXPORTED, read anew by each call.

    `steps`: (number, start, end) in ns of the host's clock; () where the trace marks none. `loaders`: data
    loaders of the rank over the whole run; () where it has none with workers.
    """

    rank: int
    window: int
    host: str
    lanes: tuple[LaneName, ...]
    load: Callable[[], pa.Table]
    steps: tuple[tuple[int, int, int], ...] = ()
    loaders: Callable[[], tuple[LoaderSpans, ...]] = tuple


class Writer(Protocol):
    """Writes `parts`, and `counters` where the format has room for them; gives the number of spans."""

    def __call__(
        self, parts: Sequence[TimelinePart], title: str, file: BinaryIO, counters: Sequence[CounterTrack] = ()
    ) -> int: ...


class ExportFormat(Struct, frozen=True, kw_only=True):
    """One way out. `has_counters`: whether machine counters are worth computing for it; `timeline_only`: no
    other table has a place in it."""

    name: str
    suffix: str
    write: Writer
    has_counters: bool = False
    timeline_only: bool = False


def lane_text(device: int, lane: int) -> str:
    """What a person reads for a thread or stream without a name."""
    return f"thread {lane}" if device < 0 else f"GPU {device} stream {lane}"


def first_start(parts: Sequence[TimelinePart]) -> int:
    """When the first span of all begins, ns; 0 without spans."""
    import pyarrow.compute as pc

    starts = [pc.min(part.load().column("start_ns")).as_py() for part in parts]
    return min((start for start in starts if start is not None), default=0)
