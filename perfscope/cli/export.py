"""`perfscope export`: parse, call, say where the file is."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.cli.lazy_group import HELP

if TYPE_CHECKING:
    import pyarrow as pa

    from perfscope.analysis.results import CommGroupResult
    from perfscope.reports.export_source import TimelinePart
    from perfscope.rundir.reader import RunReader

FORMATS = ("perfetto", "parquet", "csv")


@click.command("export", context_settings=HELP)
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--format", "format_name", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write it (default: beside the report, in the run).",
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it is there.")
def command(run: Path | None, format_name: str, output: Path | None, force: bool) -> None:
    """Write the timeline of RUN, every traced window of every rank, for another tool.

    \b
    perfetto  one JSON trace for https://ui.perfetto.dev: a process per rank, a thread per lane,
              the hardware counters of each host
    parquet   one table, for pandas, polars or DuckDB
    csv       the same table as text

    \b
    Examples:
      perfscope export --format perfetto
      perfscope export my-run --format parquet -o timeline.parquet
    """
    from perfscope.analysis.run import analyze_run
    from perfscope.cli.report import ingest, open_run
    from perfscope.errors import PerfscopeError, UsageError
    from perfscope.reports.registry import EXPORTS
    from perfscope.rundir.files import write_aside, write_into_run
    from perfscope.rundir.reader import RunReader
    from perfscope.units import format_bytes, format_count

    if output == Path("-"):
        raise UsageError("-o cannot write to stdout; name a file")
    reader = open_run(run)
    chosen = next(export for export in EXPORTS if export.name == format_name)
    target = output if output is not None else reader.path / f"timeline{chosen.suffix}"
    if target.is_file() and not force:
        raise PerfscopeError(f"{target} is there already; give --force to overwrite it, or another -o")
    reader = RunReader(ingest(reader.path))
    analysis = analyze_run(reader)
    parts = timeline_parts(reader, analysis.process_groups)
    if not parts:
        raise PerfscopeError(f"{reader.path} has no traced window, so there is no timeline to export")
    machine = analysis.machine
    counters = machine.tracks if machine is not None and chosen.has_counters else ()
    with (write_aside if output is not None else write_into_run)(target) as file:
        spans = chosen.write(parts, reader.run.name or "run", file, counters)
    size = f", {format_bytes(target.stat().st_size)}" if target.is_file() else ""
    click.echo(f"perfscope: {format_count(spans)} spans in {target}{size}", err=True)
    click.echo(target)


def timeline_parts(reader: RunReader, groups: Iterable[CommGroupResult]) -> tuple[TimelinePart, ...]:
    """Every ingested (rank, window) of a run, tables to be read one at a time."""
    from perfscope.analysis.call_labels import CallLabels
    from perfscope.reports.export_source import LaneName, TimelinePart

    labels = CallLabels(reader, groups)

    def load(rank: int, window: int) -> pa.Table:
        return labels.labeled(reader.timeline(rank, window), rank, window)

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
        )
        for summary in reader.summaries()
    )
