"""What analysis reads: a run, given by the one who opened it. Analysis itself touches no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from perfscope.rundir.host_records import CeilingsRecord, StacksRecord, TopologyRecord
from perfscope.rundir.records import LayersRecord, RankRecord, RunRecord
from perfscope.rundir.samples import HostSamples
from perfscope.rundir.scheme_records import BenchRecord
from perfscope.rundir.window_records import ProbeError, WindowSummary

Document = dict[str, object]


class DroppedInput(Protocol):
    """Something of a run that could not be read (satisfied by rundir.reader.ReadNote)."""

    @property
    def path(self) -> str: ...
    @property
    def num_dropped(self) -> int: ...
    @property
    def reason(self) -> str: ...


class RunSource(Protocol):
    """A run's documents and tables, one rank at a time (satisfied by rundir.reader.RunReader).

    `ranks` and `hosts` are sorted; `rank_records` has each of `ranks`. `steps` gives schema.STEPS, `timeline`
    the asked-for columns of schema.TIMELINE. `part` gives the same run with some of its ranks and without
    notes, to be read in another process; `add_notes` takes what was dropped there.
    """

    run: RunRecord
    rank_records: Mapping[int, RankRecord]
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]

    @property
    def notes(self) -> Sequence[DroppedInput]: ...
    def add_notes(self, notes: Sequence[Any]) -> None: ...
    def part(self, ranks: Sequence[int]) -> RunSource: ...
    def layers(self, rank: int) -> LayersRecord | None: ...
    def bench_records(self) -> dict[int, BenchRecord]: ...
    def windows(self, rank: int) -> Sequence[Document]: ...
    def errors(self, rank: int) -> Sequence[ProbeError]: ...
    def steps(self, rank: int) -> pa.Table: ...
    def summaries(self) -> Sequence[WindowSummary]: ...
    def timeline(self, rank: int, window: int, columns: Sequence[str] | None = None) -> pa.Table: ...
    def topology(self, host: str) -> TopologyRecord | None: ...
    def ceilings(self, host: str) -> CeilingsRecord | None: ...
    def stacks(self, host: str) -> StacksRecord | None: ...
    def samples(self, host: str) -> HostSamples | None: ...
