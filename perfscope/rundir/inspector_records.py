"""What records of NCCL Inspector say: a rank's in derived/ingest, those of a run in inspector.json."""

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


class CommunicatorCalls(WholeLists, frozen=True):
    """The calls of one collective on one communicator.

    Attributes:
        num_ranks: of the communicator; num_recorded of them have a file.
        num_calls: different calls; num_matched of them have a record of every rank.
        bytes: of all calls, each counted once: all_gather its result, reduce_scatter its input.
        median_ns, p95_ns: duration of a call on a rank, its wait for others included.
        algbw_bytes_per_s, busbw_bytes_per_s: bytes / duration, as NCCL Inspector defines them.
        transfer_busbw_bytes_per_s: bytes / shortest duration over ranks, of matched calls; None: no call is
            matched, or durations are not of kernels.
        wait_ns: mean per rank over matched calls; None likewise.
        last_counts: (rank, calls in which it came last), most frequent first.
        num_compared, num_deviating, worst_ratio: the file's own bandwidths against these: StatedBandwidth.
    """

    group: str
    title: str
    collective: str
    num_ranks: int
    num_recorded: int
    num_calls: int
    num_matched: int
    bytes: int
    median_ns: int
    p95_ns: int
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    transfer_busbw_bytes_per_s: float | None
    wait_ns: int | None
    last_counts: tuple[tuple[int, int], ...]
    num_compared: int
    num_deviating: int
    worst_ratio: float


class ImportedCalls(WholeLists, frozen=True):
    """inspector.json: calls of a run by files of NCCL Inspector that were imported into it, by name."""

    files: tuple[str, ...] = ()
    communicators: tuple[CommunicatorCalls, ...] = ()
