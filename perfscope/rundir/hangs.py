"""hosts/<host>/hangs.jsonl: ranks that made no step for long, as the `perfscope run` of their host saw them.

    {"hang": 0, "noticed_unix_ns": .., "ranks": [{"rank": 1, "since_unix_ns": .., "file": "train.py", ..}]}
    {"hang": 0, "resumed_unix_ns": ..}

The first line is written when a hang is noticed, the second when its ranks make steps again; a run that was
killed has only the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfscope.rundir.documents import Document
from perfscope.rundir.typed import Count, Nanoseconds, PartialRow, Record, WholeLists, read_as

FROM_PY_SPY, FROM_MARK = "py-spy", "mark"  # values of `source`
GONE = "gone"  # a value of `state`: there is no such process any more
ENDED = ("Z", "X", GONE)


class HangingRank(PartialRow, frozen=True):
    """A rank that made no step, and where it stood.

    Attributes:
        since_unix_ns: when it made its last step, or when its record began; 0 = not known.
        steps: that it had recorded.
        usual_ns: median of its recent steps; None: it had none.
        source: what the place is known from; "" = it is not known.
        call: function of a communication library that the program had called; "" = none.
        file, line, function: of the program's own innermost code.
        part: of the run that the rank was in by its last mark or by its stack, see vocabulary/run_parts.py.
        part_ended: by its last mark it had left that part.
        state: of its main thread by the kernel: R runs, S sleeps, D waits for a device, Z has ended, GONE; ""
            = unknown.
    """

    rank: Count = 0
    host: str = ""
    since_unix_ns: Count = 0
    steps: Count = 0
    usual_ns: Nanoseconds | None = None
    source: str = ""
    call: str = ""
    file: str = ""
    line: Count = 0
    function: str = ""
    part: str = ""
    part_ended: bool = False
    state: str = ""


class HangRecord(Record, frozen=True):
    """Ranks of one host that made no step at the same time; `resumed_unix_ns` is None if they never did."""

    hang: Count = 0
    noticed_unix_ns: Count = 0
    resumed_unix_ns: Count | None = None
    ranks: tuple[HangingRank, ...] = ()


class _Line(WholeLists, frozen=True):
    hang: Count | None = None
    resumed_unix_ns: Count | None = None


def read_hangs(lines: Iterable[Mapping[str, object]]) -> tuple[HangRecord, ...]:
    """The hangs of one host's file, in the order in which they were noticed."""
    begun: dict[int, Document] = {}
    for document in lines:
        line = read_as(_Line, document)
        if line.hang is None:
            continue
        if "ranks" in document:
            begun[line.hang] = dict(document)
        elif line.hang in begun and line.resumed_unix_ns is not None:
            begun[line.hang]["resumed_unix_ns"] = line.resumed_unix_ns
    records = (read_as(HangRecord, document) for document in begun.values())
    return tuple(record for record in records if record.ranks)
