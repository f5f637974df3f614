"""What a rank's records of NCCL Inspector say of its communicators; kept in derived/ingest."""

from __future__ import annotations

from perfscope.rundir.typed import Record, WholeLists


class InspectorGroup(WholeLists, frozen=True):
    """One communicator; `rank` is within it, `title` the application's name for it."""

    name: str = ""
    title: str = ""
    rank: int = 0
    num_ranks: int = 0


class StatedBandwidth(WholeLists, frozen=True, kw_only=False):
    """The bandwidths in the file against those of its bytes and times, of one collective.

    Attributes:
        worst_ratio: stated / computed where they differ the most.
    """

    group: str = ""
    collective: str = ""
    num_compared: int = 0
    num_deviating: int = 0
    worst_ratio: float = 1.0


class InspectorRecord(Record, frozen=True):
    """A rank's file; `timing_sources` as NCCL calls them, the most frequent first."""

    groups: tuple[InspectorGroup, ...] = ()
    stated: tuple[StatedBandwidth, ...] = ()
    timing_sources: tuple[str, ...] = ()
