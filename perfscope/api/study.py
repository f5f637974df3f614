"""Several runs side by side: `perfscope.compare`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.grouping import names_of
from perfscope.analysis.study.results import RunEntry, StudyAnalysis, UnusableRun
from perfscope.api.columns import Column, TableSpec, build
from perfscope.api.documents import compared_timeline, write_document
from perfscope.api.run import Run, as_frame, export_format, open_run, write_rows
from perfscope.api.tables import AXES, LAYERS
from perfscope.errors import PerfscopeError, RunDirectoryError, UsageError
from perfscope.rundir.files import write_aside
from perfscope.settings import nearest

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd

    from perfscope.api.plots import StudyPlots
    from perfscope.reports.model import Report


def compare(
    runs: Iterable[Run | str | Path],
    *,
    by: str | None = None,
    mode: Literal["strong", "weak"] | None = None,
    executor: Executor | None = None,
) -> Study:
    """Compares runs: how they scale, which scheme is fastest, what changed.

    Args:
        runs: runs, or their directories; those that cannot be read are left out, and named in
            ``analysis.missing``.
        by: what to group them by, as ``--by`` of ``perfscope compare``; None = what differs.
        mode: what scaling is meant; None = from the batches.
        executor: reads the runs that are directories, as for `perfscope.open`.

    Raises:
        UsageError: there is no such `by`.
        RunDirectoryError: fewer than two of the runs can be read.

    Examples:
        >>> study = perfscope.compare(["n1", "n2", "n4"], mode="strong")
        >>> study.table("scaling")["speedup"].to_pylist()
        [1.0, 1.66..., 2.5]
    """
    if by is not None:
        try:
            names_of(by)
        except ValueError as error:
            raise UsageError(f"by: {error}") from None
    entries, lost, opened = [], [], {}
    for run in runs:
        name = str(run.path if isinstance(run, Run) else run)
        try:
            opened[name] = run if isinstance(run, Run) else open_run(run, executor=executor)
            entries.append(entry_of(opened[name], name))
        except PerfscopeError as error:
            lost.append(UnusableRun(name=name, reason=str(error)))
    if len(entries) < 2:
        reasons = "".join(f"; {run.name}: {run.reason}" for run in lost)
        raise RunDirectoryError(f"there are {len(entries)} runs to compare, and it takes two{reasons}")
    analysis = analyze_study(entries, by=by, mode=mode, reference=None, left_out=lost)
    return Study(analysis, entries, opened if len(opened) == 2 else {})


def entry_of(run: Run, name: str) -> RunEntry:
    """What a comparison takes of a run."""
    reader = run.reader
    return RunEntry(
        name=name,
        analysis=run.analysis,
        bench_records=reader.bench_records(),
        metas=reader.rank_records,
        layers={rank: layers for rank in reader.ranks if (layers := reader.layers(rank)) is not None},
    )


RUNS = TableSpec(
    "runs",
    "run",
    (
        Column("label", "text", "short name, unique in the comparison"),
        Column("name", "text", "as it was given"),
        Column("group", "text", "what the runs are grouped by"),
        Column("repeat", "int", "number among the runs of one setting"),
        Column("world_size", "int", "ranks of the job"),
        Column("num_hosts", "int", "hosts of the job"),
        Column("framework", "text", "that trained"),
        Column("scheme", "text", "of a bench run"),
        Column("mesh", "text", "of a bench run"),
        Column("model", "text", "that was trained"),
        Column("dtype", "text", "of its parameters"),
        Column("backend", "text", "of the collectives"),
        Column("batch", "int", "samples of a step over all ranks"),
        Column("samples_per_s", "float", "over all ranks"),
        Column("step_median_ns", "int", "median step", lambda run: run.step_ns and run.step_ns.median),
        Column("peak_memory_bytes", "int", "of the rank with most"),
        Column("held_out_loss", "float", "of a bench run"),
        Column("disturbed", "bool", "whether other load slowed its steps; null: not known"),
        Column("diverged", "bool", "whether its loss left the finite numbers"),
    ),
    lambda study: study.runs,
)
SCALING = TableSpec(
    "scaling",
    "number of ranks in a series",
    (
        Column("series", "text", "what its runs share", lambda row: row[0].name),
        Column("mode", "text", "strong or weak", lambda row: row[0].mode),
        Column("world_size", "int", "ranks", lambda row: row[1].world_size),
        Column("is_reference", "bool", "the others are relative to it", lambda row: row[1].is_reference),
        Column("samples_per_s", "float", "median over repeats", lambda row: row[1].samples_per_s),
        Column("step_ns", "float", "typical step, median over repeats", lambda row: row[1].step_ns),
        Column("speedup", "float", "over the reference", lambda row: row[1].speedup),
        Column(
            "ideal_speedup", "float", "ranks over those of the reference", lambda row: row[1].ideal_speedup
        ),
        Column("efficiency", "float", "speedup over the ideal", lambda row: row[1].efficiency),
        Column("karp_flatt", "float", "experimentally determined serial part", lambda row: row[1].karp_flatt),
        Column("num_disturbed", "int", "of its runs, slowed by other load", lambda row: row[1].disturbed),
    ),
    lambda study: ((series, point) for series in _series(study) for point in series.points),
)
FITS = TableSpec(
    "fits",
    "parameter of a scaling law",
    (
        Column("series", "text", "what its runs share", lambda row: row[0].name),
        Column("law", "text", "amdahl, gustafson, usl or pmnf", lambda row: row[1].law),
        Column("parameter", "text", "its symbol", lambda row: row[2].name),
        Column("meaning", "text", "what it stands for", lambda row: row[2].meaning),
        Column("value", "float", "fitted", lambda row: row[2].value),
        Column("low", "float", "lower end of its interval", lambda row: row[2].low),
        Column("high", "float", "upper end", lambda row: row[2].high),
        Column("error_ratio", "float", "SMAPE of the fit", lambda row: row[1].error_ratio),
    ),
    lambda study: (
        (series, fit, parameter)
        for series in _series(study)
        for fit in series.fits
        for parameter in fit.parameters
    ),
)
NO_RUNS: Mapping[str, Run] = MappingProxyType({})
OF_STUDY = (RUNS, SCALING, FITS)
OF_RUNS = (LAYERS, AXES)  # with the run's label in front
TABLES = tuple(spec.name for spec in (*OF_STUDY, *OF_RUNS))


class Study:
    """Runs that were compared. `analysis` has everything the reports of `perfscope compare` show.

    The tables are ``runs``, ``scaling``, ``fits``, ``layers`` and ``axes``; docs/tables.md lists their
    columns.
    """

    def __init__(
        self, analysis: StudyAnalysis, entries: Sequence[RunEntry], drawn: Mapping[str, Run] = NO_RUNS
    ) -> None:
        self.analysis = analysis
        self._entries = tuple(entries)
        self._drawn = drawn  # runs whose timelines are in the report, by name

    @property
    def headline(self) -> str:
        """The comparison in one sentence."""
        return self.analysis.headline

    def table(self, name: str) -> pa.Table:
        """A table by name: ``runs``, ``scaling``, ``fits``, ``layers`` or ``axes``.

        Raises:
            UsageError: there is no table of that name.

        Examples:
            >>> study.table("runs")["world_size"].to_pylist()
            [1, 2, 4]
        """
        for spec in OF_STUDY:
            if spec.name == name:
                return build(spec, self.analysis)
        for spec in OF_RUNS:
            if spec.name == name:
                return pa.concat_tables(self._of_runs(spec))
        raise UsageError(f"there is no table {name!r}{nearest(name, TABLES)}")

    def _of_runs(self, spec: TableSpec) -> Iterator[pa.Table]:
        labels = {run.name: run.label for run in self.analysis.runs}
        for entry in self._entries:
            table = build(spec, entry.analysis)
            column = pa.array([labels[entry.name]] * table.num_rows, pa.string())
            yield table.add_column(0, "run", column)

    def frame(self, name: str) -> pd.DataFrame:
        """The same as a pandas frame with Arrow's types: a missing figure is NA.

        Raises:
            UsageError: there is no table of that name.
            PerfscopeError: pandas is not installed.
        """
        return as_frame(self.table(name))

    @property
    def plot(self) -> StudyPlots:
        """Charts on matplotlib axes."""
        from perfscope.api.plots import StudyPlots

        return StudyPlots(self.table)

    @cached_property
    def document(self) -> Report:
        """The report, which every format is drawn from."""
        from perfscope.reports.study.build import build_study_report

        started = {
            entry.name: start
            for entry in self._entries
            if (start := entry.analysis.run.start_unix_ns) is not None
        }
        timelines = {name: compared_timeline(run.reader, run.analysis) for name, run in self._drawn.items()}
        return build_study_report(self.analysis, started, timelines)

    def report(self, format: str = "text", path: str | Path | None = None) -> bytes:
        """The report as ``text``, ``json``, ``html`` or ``pdf``; see `Run.report`."""
        return write_document(self.document, format, path)

    def export(self, format: str, path: str | Path, *, table: str) -> int:
        """Writes a table as ``parquet``, ``csv`` or ``arrow``.

        Args:
            format: which.
            path: where; a file there is replaced.
            table: by name, as for `table`.

        Returns:
            Number of rows.

        Raises:
            UsageError: there is no such format or table.
            OutputError: `path` cannot be written.
        """
        chosen = export_format(format, table)
        rows = self.table(table)
        with write_aside(Path(path)) as file:
            return write_rows(chosen, rows, "comparison", file)

    def __repr__(self) -> str:
        return f"<perfscope.Study of {len(self.analysis.runs)} runs: {self.headline}>"

    def _repr_html_(self) -> str:
        from perfscope.api.html import study_html

        return study_html(self.headline, self.analysis.action, self.table("runs"))


def _series(study: StudyAnalysis) -> Iterator[Any]:
    yield from study.scaling.series if study.scaling is not None else ()
