"""What a rank's flight-recorder dump says of each of its process groups; kept in derived/ingest."""

from __future__ import annotations

from perfscope.rundir.typed import Record, WholeLists


class FlightCall(WholeLists, frozen=True):
    """One call of a collective that a rank made.

    Attributes:
        seq: the collective's number in its process group, the same on all ranks.
        name: as recorded, without the backend.
        shapes: of the inputs, "8x4 Float" each.
        frames: of Python, "file:line function", the innermost first.
    """

    seq: int = -1
    group: str = ""
    name: str = ""
    backend: str = ""
    state: str = ""
    shapes: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    created_ns: int | None = None


class FlightGroup(WholeLists, frozen=True):
    """How far a rank is in one process group.

    Attributes:
        ranks: the group's global ranks; None: the dump does not list them.
        enqueued, started, completed: number of the last collective; None: not recorded.
        calls: the last ones, in the order of `seq`.
        num_p2p: sends and receives that are not over.
    """

    name: str = ""
    title: str = ""
    ranks: tuple[int, ...] | None = None
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    calls: tuple[FlightCall, ...] = ()
    num_p2p: int = 0


class FlightDump(Record, frozen=True):
    """A rank's dump.

    Attributes:
        last: its latest call in any group; None: it made none.
        begins_later: the recorder was full, and its first calls are not there any more.
    """

    version: str = ""
    groups: tuple[FlightGroup, ...] = ()
    last: FlightCall | None = None
    begins_later: bool = False
