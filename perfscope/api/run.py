"""One run, opened for reading: `perfscope.open`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from perfscope.analysis.call_labels import CallLabels
from perfscope.analysis.loading.lanes import LoaderSpans, loader_spans
from perfscope.analysis.results import Finding, RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.api.columns import build, not_installed
from perfscope.api.documents import report_of, write_document
from perfscope.api.opening import latest_run, up_to_date
from perfscope.api.tables import SPECS
from perfscope.engines.opening import executor_or_local
from perfscope.errors import PerfscopeError, UsageError
from perfscope.messages.lists import counted
from perfscope.reports.export_source import ExportFormat, LaneName, TimelinePart
from perfscope.rundir.files import write_aside
from perfscope.rundir.reader import RunReader
from perfscope.rundir.schema import EXPORTED, STEPS
from perfscope.settings import nearest

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd

    from perfscope.analysis.rank_part import Progress
    from perfscope.api.plots import RunPlots
    from perfscope.reports.model import Report

TIMELINE = "timeline"
TABLES = ("steps", *(spec.name for spec in SPECS), TIMELINE)


def open_run(run: str | Path | None = None, *, executor: Executor | None = None) -> Run:
    """Opens a run for reading and brings its derived tables up to date.

    Args:
        run: a run directory, or its run.json; None = ``perfscope-runs/latest``.
        executor: reads the traces that are new, and the ranks; None = worker processes for traces, this
            process for ranks. Whatever reads them, the results are the same.

    Raises:
        RunDirectoryError: it is no run, or cannot be read.

    Examples:
        >>> run = perfscope.open("my-run")
        >>> run.table("layers").sort_by([("forward_ns", "descending")])["layer"][0].as_py()
        'features.0'
    """
    path = RunReader(Path(run) if run is not None else latest_run(), ranks=()).path
    closing: list[Callable[[], None]] = []
    reader = RunReader(up_to_date(path, closing.append, executor=executor))
    opened = Run(reader, path, executor=executor)
    for close in closing:
        weakref.finalize(opened, close)
    return opened


def load_traces(
    paths: str | Path | Iterable[str | Path],
    *,
    output: str | Path | None = None,
    executor: Executor | None = None,
) -> Run:
    """Imports traces of any profiler and opens the run that they make.

    Args:
        paths: trace files, or directories of them.
        output: the run directory to make; None = a temporary one, removed with the `Run`.
        executor: reads the traces and the ranks; None = as for `open_run`.

    Raises:
        TraceError: no file is of any use, or they are of different jobs.
        RunDirectoryError: `output` is there already, or cannot be written.

    Examples:
        >>> perfscope.load_traces("traces").table("ranks").num_rows
        2
    """
    import tempfile

    from perfscope.ingest.importing import import_traces

    several = [paths] if isinstance(paths, (str, Path)) else paths
    folder = None if output is not None else tempfile.TemporaryDirectory(prefix="perfscope-")
    target = Path(output) if output is not None else Path(str(folder and folder.name)) / "run"
    with executor_or_local(executor) as workers:
        result = import_traces([Path(path) for path in several], target, executor=workers)
    run = Run(RunReader(result.run_dir), executor=executor)
    if folder is not None:
        weakref.finalize(run, folder.cleanup)
    return run


class Run:
    """A recorded or imported run. Nothing is computed before it is asked for, and nothing twice.

    The tables are ``steps``, ``ranks``, ``layers``, ``rank_layers``, ``operators``, ``kernels``,
    ``collectives``, ``calls``, ``arrivals``, ``axes``, ``layer_axes``, ``phases``, ``loading``,
    ``findings``, ``what_ifs``, ``missing``, ``samples``, ``roofline`` and ``timeline``; docs/tables.md
    lists their columns. All but the last are also properties that give a pandas frame.

    Args:
        reader: of a run whose derived tables are up to date.
        path: the run directory, where `reader` has a stand-in for it; None = the reader's.
        executor: reads the ranks; None = this process.
        progress: called with (ranks read, ranks) while they are read.
    """

    if TYPE_CHECKING:  # set below the class
        steps: pd.DataFrame
        ranks: pd.DataFrame
        layers: pd.DataFrame
        rank_layers: pd.DataFrame
        operators: pd.DataFrame
        kernels: pd.DataFrame
        collectives: pd.DataFrame
        calls: pd.DataFrame
        arrivals: pd.DataFrame
        axes: pd.DataFrame
        layer_axes: pd.DataFrame
        phases: pd.DataFrame
        loading: pd.DataFrame
        findings: pd.DataFrame
        what_ifs: pd.DataFrame
        missing: pd.DataFrame
        samples: pd.DataFrame
        roofline: pd.DataFrame

    def __init__(
        self,
        reader: RunReader,
        path: Path | None = None,
        *,
        executor: Executor | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.reader = reader
        self.path = path if path is not None else reader.path
        self._executor, self._progress = executor, progress

    @property
    def manifest(self) -> Mapping[str, Any]:
        """run.json as it was recorded."""
        return self.reader.run.document

    @cached_property
    def analysis(self) -> RunAnalysis:
        """Everything that the reports show, as typed results."""
        return analyze_run(self.reader, executor=self._executor, progress=self._progress)

    @property
    def verdict(self) -> Finding | None:
        """What bounds the step; None where nothing was found. `verdict.text` has its sentences."""
        return self.analysis.findings[0] if self.analysis.findings else None

    # -- tables ---------------------------------------------------------------------------------------

    def table(self, name: str) -> pa.Table:
        """A table by name, one of those named above.

        Raises:
            UsageError: there is no table of that name.

        Examples:
            >>> run.table("collectives").column_names[:3]
            ['collective', 'group', 'group_size']
        """
        if name == TIMELINE:
            return self.timeline()
        if name == "steps":
            tables = [self.reader.steps(rank) for rank in self.reader.ranks]
            return pa.concat_tables(tables) if tables else STEPS.empty_table()
        for spec in SPECS:
            if spec.name == name:
                return build(spec, self.analysis)
        raise UsageError(f"there is no table {name!r}{nearest(name, TABLES)}")

    def frame(
        self,
        name: str,
        *,
        ranks: Iterable[int] | None = None,
        windows: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """A table as a pandas frame with Arrow's types: a missing figure is NA.

        Args:
            name: as for `table`.
            ranks: of the timeline, as in `timeline`.
            windows: likewise.
            columns: likewise.

        Raises:
            UsageError: there is no table of that name, or a part of another table than the timeline is asked
                for.
            PerfscopeError: pandas is not installed.

        Examples:
            >>> spans = run.frame("timeline", ranks=[0], columns=["kind", "dur_ns"])
            >>> sorted(spans["kind"].unique())
            ['annotation', 'comm', 'compute', 'host', 'input', 'optimizer']
        """
        if name == TIMELINE:
            return as_frame(self.timeline(ranks, windows, columns))
        if (ranks, windows, columns) != (None, None, None):
            raise UsageError(f"ranks, windows and columns select from the timeline, not from {name}")
        return as_frame(self.table(name))

    def timeline(
        self,
        ranks: Iterable[int] | None = None,
        windows: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Spans of the traced windows, one rank's window at a time read and selected.

        Args:
            ranks: global ranks; None = all.
            windows: traced windows, from 0; None = all.
            columns: names of columns; None = all.

        Raises:
            UsageError: there is no column of that name.

        Examples:
            >>> run.timeline(ranks=[1], columns=["name", "dur_ns"]).column_names
            ['name', 'dur_ns']
        """
        for column in columns or ():
            if column not in EXPORTED.names:
                hint = nearest(column, EXPORTED.names)
                raise UsageError(f"the timeline has no column {column!r}{hint}")
        names = list(columns) if columns is not None else EXPORTED.names
        chosen_ranks = None if ranks is None else frozenset(ranks)
        chosen_windows = None if windows is None else frozenset(windows)
        tables = [
            part.load().select(names)
            for part in self.timeline_parts()
            if (chosen_ranks is None or part.rank in chosen_ranks)
            and (chosen_windows is None or part.window in chosen_windows)
        ]
        if not tables:
            return EXPORTED.empty_table().select(names)
        return pa.concat_tables(tables).unify_dictionaries()

    def timeline_parts(self) -> tuple[TimelinePart, ...]:
        """Every traced window of every rank, each to be read by its `load`."""
        analysis = self.analysis
        labels = CallLabels(self.reader, analysis.process_groups, analysis.labeled_calls)

        def load(rank: int, window: int) -> pa.Table:
            return labels.labeled(self.reader.timeline(rank, window), rank, window)

        def loaders(rank: int) -> tuple[LoaderSpans, ...]:
            return loader_spans(self.reader.loading(rank), self.reader.rank_records[rank].anchors)

        return tuple(
            TimelinePart(
                rank=summary.rank,
                window=summary.window,
                host=summary.host,
                lanes=tuple(
                    LaneName(device=lane.device, lane=lane.lane, label=lane.label or lane.role)
                    for lane in summary.lanes
                ),
                load=partial(load, summary.rank, summary.window),
                steps=tuple(summary.steps) if summary.is_marked else (),
                loaders=partial(loaders, summary.rank),
            )
            for summary in self.reader.summaries()
        )

    # -- documents ------------------------------------------------------------------------------------

    @cached_property
    def document(self) -> Report:
        """The report, which every format is drawn from."""
        return report_of(self.reader, self.analysis)

    def report(self, format: str = "text", path: str | Path | None = None) -> bytes:
        """The report as ``text``, ``json``, ``html`` or ``pdf``.

        Args:
            format: which.
            path: where to write it, too.

        Raises:
            UsageError: there is no such format.
            OutputError: `path` cannot be written.

        Examples:
            >>> import json
            >>> json.loads(run.report("json"))["ranks"][0]["rank"]
            0
        """
        return write_document(self.document, format, path)

    def export(self, format: str, path: str | Path, *, table: str = TIMELINE) -> int:
        """Writes a table as ``parquet``, ``csv`` or ``arrow``, or the timeline as ``perfetto`` or
        ``speedscope``.

        Args:
            format: which.
            path: where; a file there is replaced.
            table: by name, as for `table`.

        Returns:
            Number of rows; for ``perfetto`` of spans.

        Raises:
            UsageError: there is no such format or table, or the format has no place for the table.
            PerfscopeError: there is no traced window, so there is no timeline.
            OutputError: `path` cannot be written.

        Examples:
            >>> run.export("parquet", "ranks.parquet", table="ranks")
            2
        """
        chosen = export_format(format, table)
        with write_aside(Path(path)) as file:
            return self.export_to(chosen, file, table)

    def export_to(self, chosen: ExportFormat, file: BinaryIO, table: str = TIMELINE) -> int:
        """As `export`, into a file that is open for writing."""
        if table != TIMELINE:
            return write_rows(chosen, self.table(table), self._title, file)
        parts = self.timeline_parts()
        if not parts:
            raise PerfscopeError(f"{self.path} has no traced window, so there is no timeline to export")
        machine = self.analysis.machine
        counters = machine.tracks if machine is not None and chosen.has_counters else ()
        return chosen.write(parts, self._title, file, counters)

    @property
    def _title(self) -> str:
        return self.reader.run.name or "run"

    # -- notebooks ------------------------------------------------------------------------------------

    @property
    def plot(self) -> RunPlots:
        """Charts on matplotlib axes.

        Raises:
            PerfscopeError: matplotlib is not installed.
        """
        from perfscope.api.plots import RunPlots

        return RunPlots(str(self.path), self.table, self.analysis.efficiency)

    def __repr__(self) -> str:
        return f"<perfscope.Run {self._title!r}: {counted(len(self.reader.ranks), 'rank')}>"

    def _repr_html_(self) -> str:
        from perfscope.api.html import run_html

        return run_html(self.analysis)


def _as_property(name: str) -> property:
    return property(lambda run: run.frame(name), doc=f"The table ``{name}`` as a pandas frame.")


for _name in TABLES:
    if _name != TIMELINE:
        setattr(Run, _name, _as_property(_name))


def as_frame(table: pa.Table) -> pd.DataFrame:
    """A table as a pandas frame with Arrow's types; what is encoded as a dictionary becomes text.

    pandas can neither sort nor search columns of Arrow's dictionary type.

    Raises:
        PerfscopeError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise not_installed("pandas") from None
    plain = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(plain)).to_pandas(types_mapper=pd.ArrowDtype)


def export_format(name: str, table: str) -> ExportFormat:
    """The way out called `name`, for a table.

    Raises:
        UsageError: there is none, or it has no place for that table.
    """
    from perfscope.reports.exports import EXPORTS

    chosen = next((entry for entry in EXPORTS if entry.name == name), None)
    if chosen is None:
        raise UsageError(f"there is no export {name!r}{nearest(name, [e.name for e in EXPORTS])}")
    if chosen.timeline_only and table != TIMELINE:
        raise UsageError(f"{name} holds the timeline only: export the table {table} as parquet, csv or arrow")
    return chosen


def write_rows(chosen: ExportFormat, rows: pa.Table, title: str, file: BinaryIO) -> int:
    """Writes a table other than the timeline; the number of its rows."""
    chosen.write((TimelinePart(rank=-1, window=-1, host="", lanes=(), load=lambda: rows),), title, file)
    return len(rows)
