"""Hangs of a run: what the hosts noticed, put together."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfscope.analysis.source import RunSource
from perfscope.messages.hangs import Place
from perfscope.rundir.hangs import HangingRank, HangRecord
from perfscope.rundir.records import RunRecord
from perfscope.vocabulary.hangs import HangEnd


class HungRank(Struct, frozen=True, kw_only=True):
    """A rank that made no step, and where it stood when that was noticed.

    Attributes:
        since_unix_ns: when its last step was written; of a rank without steps, when its record began.
        steps: that it had made.
        usual_ns: median of its steps before; None: it had made none.
        source: what the place is known from: "py-spy", "mark" (of the probe), or "" where it is not known.
        call: function of a communication library that the program had called; "" = none.
        file: name of the file of the program's own innermost code; "" = not known.
        line: in it.
        function: in which it stood.
        part: of the run, where its last mark or its stack tells: evaluation, checkpoint, ...
        part_ended: by its last mark it had left that part.
        state: of its main thread as the kernel names it, such as R, S or D; "gone"; "" = not known.
    """

    rank: int
    host: str
    since_unix_ns: int
    steps: int
    usual_ns: int | None
    source: str
    call: str
    file: str
    line: int
    function: str
    part: str
    part_ended: bool
    state: str

    @property
    def place(self) -> Place:
        return Place(**{name: getattr(self, name) for name in Place.__struct_fields__})


class Hang(Struct, frozen=True, kw_only=True):
    """Ranks that made no step for long at the same time.

    Attributes:
        since_unix_ns: when the first of them made its last step.
        noticed_unix_ns: when it was noticed.
        stood_ns: until steps went on, or the run ended; None: the run was not closed.
        end: how it ended.
        ranks: in order.
    """

    since_unix_ns: int
    noticed_unix_ns: int
    stood_ns: int | None
    end: HangEnd
    ranks: tuple[HungRank, ...]

    @property
    def is_last_word(self) -> bool:
        """The run ended, or was lost, while it hung."""
        return self.end in (HangEnd.RUN_FAILED, HangEnd.NOT_CLOSED)


def hangs_of(source: RunSource) -> tuple[Hang, ...]:
    """The hangs of a run in order of time; those of several hosts that overlap are one."""
    records = [record for host in source.hosts for record in source.hangs(host)]
    records.sort(key=_since)
    together: list[list[HangRecord]] = []
    end = 0
    for record in records:
        if together and _since(record) <= end:
            together[-1].append(record)
        else:
            together.append([record])
            end = 0
        end = max(end, record.resumed_unix_ns or record.noticed_unix_ns)
    return tuple(_hang(source.run, group) for group in together)


def _since(record: HangRecord) -> int:
    return min(rank.since_unix_ns for rank in record.ranks)


def _hang(run: RunRecord, records: Sequence[HangRecord]) -> Hang:
    since = min(map(_since, records))
    resumed = [record.resumed_unix_ns for record in records]
    last = max((time for time in resumed if time is not None), default=None)
    if None in resumed:
        end, last = _end_of(run), None if run.is_open else run.end_unix_ns
    else:
        end = HangEnd.RESUMED
    ranks = {rank.rank: rank for record in records for rank in record.ranks}
    return Hang(
        since_unix_ns=since,
        noticed_unix_ns=min(record.noticed_unix_ns for record in records),
        stood_ns=None if last is None else max(0, last - since),
        end=end,
        ranks=tuple(_rank(ranks[rank]) for rank in sorted(ranks)),
    )


def _end_of(run: RunRecord) -> HangEnd:
    if run.is_open or run.exit is None:
        return HangEnd.NOT_CLOSED
    return HangEnd.RUN_EXITED if run.exit.code == 0 else HangEnd.RUN_FAILED


def _rank(rank: HangingRank) -> HungRank:
    return HungRank(**{name: getattr(rank, name) for name in HungRank.__struct_fields__})
