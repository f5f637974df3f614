"""ranks/<rank>/phases.jsonl: how long the phases took that a program or its framework marks by name.

    {"phase": 1, "name": "rollout", "source": "perfscope", "parent": -1, "trains": true}
    {"begin_ns": .., "end_ns": .., "phases": [[1, ns, begun, ended], ..]}

A line of the first kind comes before the first that has its number. One of the second kind says what took how
long between two moments of CLOCK_MONOTONIC at which a step may have begun or ended; a phase that takes very
little of that time is written later, with a longer time.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.rundir.rows import decode_lines
from perfscope.rundir.typed import Count, Nanoseconds

MOST_PHASES = 100_000
_BLOCK = 20_000  # lines decoded at a time
Int64 = NDArray[np.int64]


class PhaseName(Struct, frozen=True):
    """A path of nested phases.

    Attributes:
        phase: its number.
        source: who marked it: perfscope, record_function, nvtx, lightning, transformers; call: a function
            of vocabulary.host_calls.
        parent: number of the phase around it; -1 = none.
        trains: in the thread that trains.
    """

    phase: Count
    name: str
    source: str = ""
    parent: int = -1
    trains: bool = True


class PhaseTimes(Struct, frozen=True, kw_only=True, eq=False):
    """The phases of one rank.

    Attributes:
        names: by number.
        begin_ns, end_ns: shape (rows,), CLOCK_MONOTONIC.
        phase: shape (rows,), numbers of `names`.
        ns: shape (rows,), how long it took between these moments.
        begun, ended: shape (rows,), how many began and ended.
        num_bad: lines that could not be used.
    """

    names: dict[int, PhaseName]
    begin_ns: Int64
    end_ns: Int64
    phase: Int64
    ns: Int64
    begun: Int64
    ended: Int64
    num_bad: int = 0


class _Line(Struct):
    begin_ns: Count = 0
    end_ns: Count = 0
    phases: list[tuple[Count, Nanoseconds, Count, Count]] = []
    phase: Count | None = None
    name: str = ""
    source: str = ""
    parent: int = -1
    trains: bool = True


def read_phases(data: bytes) -> PhaseTimes:
    """The phases of a whole phases.jsonl."""
    decoder = msgspec.json.Decoder(_Line)
    lines = data.splitlines()
    names: dict[int, PhaseName] = {}
    blocks: list[Int64] = []
    num_bad = 0
    for at in range(0, len(lines), _BLOCK):
        good, bad = decode_lines(lines[at : at + _BLOCK], decoder)
        num_bad += bad
        rows = []
        for line in good:
            if line.phase is not None:
                if not _take_name(line, names):
                    num_bad += 1
            elif line.end_ns < line.begin_ns:
                num_bad += 1
            else:
                named = [row for row in line.phases if row[0] in names]
                num_bad += len(named) < len(line.phases)
                rows += [(line.begin_ns, line.end_ns, *row) for row in named]
        if rows:
            blocks.append(np.array(rows, dtype=np.int64))
    table = np.concatenate(blocks) if blocks else np.empty((0, 6), dtype=np.int64)
    begin, end, phase, ns, begun, ended = table.T
    return PhaseTimes(
        names=names,
        begin_ns=begin,
        end_ns=end,
        phase=phase,
        ns=ns,
        begun=begun,
        ended=ended,
        num_bad=num_bad,
    )


def _take_name(line: _Line, names: dict[int, PhaseName]) -> bool:
    """Whether a line that names a phase makes sense: its parent comes before it."""
    number = line.phase
    if number is None or number >= MOST_PHASES or number in names:
        return False
    if line.parent != -1 and line.parent not in names:
        return False
    names[number] = PhaseName(number, line.name, line.source, line.parent, line.trains)
    return True
