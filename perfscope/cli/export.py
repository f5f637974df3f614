"""`perfscope export`: parse, call, say where the file is."""

from __future__ import annotations

from pathlib import Path

import click

from perfscope.cli.engine import Engine, engine_options
from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import notice

FORMATS = ("perfetto", "speedscope", "parquet", "csv", "arrow", "openmetrics", "otf2", "chakra")
FOLDERS = ("otf2", "chakra")  # of FORMATS
TRACKERS = ("mlflow", "wandb", "tensorboard")


@click.command("export", context_settings=HELP)
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--format", "format_name", type=click.Choice(FORMATS), help="What to write.")
@click.option(
    "--to", "tracker", type=click.Choice(TRACKERS), help="Write the run into an experiment tracker instead."
)
@click.option(
    "--table",
    metavar="NAME",
    default="timeline",
    show_default=True,
    help="Which table: steps, ranks, layers, rank_layers, operators, kernels, collectives, calls, "
    "arrivals, axes, layer_axes, phases, loading, findings, what_ifs, missing, samples, roofline or "
    "timeline.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write it, with --to a folder (default: beside the report, in the run).",
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it is there.")
@engine_options
def command(
    run: Path | None,
    format_name: str | None,
    tracker: str | None,
    table: str,
    output: Path | None,
    force: bool,
    engine: Engine,
) -> None:
    """Write a table of RUN for another tool: by default the timeline, every traced window of every rank.

    \b
    perfetto    one JSON trace for https://ui.perfetto.dev: a process per rank,
                a thread per lane, the hardware counters of each host;
                the timeline only
    speedscope  one JSON profile for https://www.speedscope.app; timeline only
    parquet     one table, for pandas, polars or DuckDB
    csv         the same table as text
    arrow       the same table as an Arrow file, to be mapped into memory
    otf2        a folder with an OTF2 archive, for Vampir; the timeline only;
                needs the package otf2
    chakra      a folder with a Chakra execution trace per rank, for ASTRA-sim
                and other simulators; the timeline only
    openmetrics the figures of the run as OpenMetrics text, for a metrics store

    \b
    Examples:
      perfscope export --format perfetto
      perfscope export my-run --format parquet -o timeline.parquet
      perfscope export my-run --format csv --table layers
      perfscope export my-run --format chakra -o my-run.chakra
      perfscope export my-run --to mlflow -o mlruns
    """
    if (format_name is None) == (tracker is None):
        raise click.UsageError("give either --format, or --to with a tracker")
    if tracker is not None:
        _to_tracker(run, tracker, table, output, engine)
    elif format_name in FOLDERS:
        _to_folder(run, format_name, table, output, engine)
    elif format_name is not None:
        _to_file(run, format_name, table, output, force, engine)


def _to_tracker(run: Path | None, tracker: str, table: str, output: Path | None, engine: Engine) -> None:
    from perfscope.api.run import TIMELINE
    from perfscope.api.tracked import tracked_run
    from perfscope.cli.report import ingest, open_run, opened_run
    from perfscope.errors import UsageError
    from perfscope.reports.trackers import target_of, write_to_tracker
    from perfscope.rundir.reader import RunReader

    if table != TIMELINE:
        raise UsageError(f"{tracker} takes the whole run: leave --table out")
    reader = open_run(run)
    opened = opened_run(RunReader(ingest(reader.path, engine)), engine, reader.path)
    where = write_to_tracker(tracker, tracked_run(opened), target_of(tracker, output, reader.path))
    click.echo(f"perfscope: {tracker}: {where}")


def _to_folder(run: Path | None, format_name: str, table: str, output: Path | None, engine: Engine) -> None:
    from perfscope.api.run import TIMELINE
    from perfscope.cli.report import ingest, open_run, opened_run
    from perfscope.errors import PerfscopeError, UsageError
    from perfscope.reports.chakra import ranks_of_groups, write_chakra
    from perfscope.reports.otf2_archive import write_otf2
    from perfscope.rundir.reader import RunReader
    from perfscope.units import format_count

    if table != TIMELINE:
        raise UsageError(
            f"{format_name} holds the timeline only: export the table {table} as parquet, csv or arrow"
        )
    reader = open_run(run)
    target = output if output is not None else reader.path / f"timeline.{format_name}"
    opened = opened_run(RunReader(ingest(reader.path, engine)), engine, reader.path)
    parts = opened.timeline_parts()
    if not parts:
        raise PerfscopeError(f"{reader.path} has no traced window, so there is no timeline to export")
    if format_name == "chakra":
        groups = ranks_of_groups(group for summary in opened.reader.summaries() for group in summary.groups)
        what = f"{format_count(write_chakra(parts, groups, target))} nodes"
    else:
        what = f"{format_count(write_otf2(parts, opened.reader.run.name or 'run', target))} spans"
    notice(f"{what} in {target}")
    click.echo(target)


def _to_file(
    run: Path | None, format_name: str, table: str, output: Path | None, force: bool, engine: Engine
) -> None:
    from perfscope.api.run import TABLES, TIMELINE, export_format
    from perfscope.cli.report import ingest, open_run, opened_run
    from perfscope.errors import PerfscopeError, UsageError
    from perfscope.reports.exports import FIGURES
    from perfscope.rundir.files import write_aside, write_into_run
    from perfscope.rundir.reader import RunReader
    from perfscope.settings import nearest
    from perfscope.units import format_bytes, format_count

    if output == Path("-"):
        raise UsageError("-o cannot write to stdout; name a file")
    if table not in TABLES:
        raise UsageError(f"there is no table {table!r}{nearest(table, TABLES)}")
    figures = FIGURES.get(format_name)
    if figures is not None and table != TIMELINE:
        raise UsageError(f"{format_name} holds the figures of the run, no table: leave --table out")
    chosen = export_format(format_name, table) if figures is None else None
    reader = open_run(run)
    name = f"{format_name}.txt" if chosen is None else f"{table}{chosen.suffix}"
    target = output if output is not None else reader.path / name
    if target.is_file() and not force:
        raise PerfscopeError(f"{target} is there already; give --force to overwrite it, or another -o")
    opened = opened_run(RunReader(ingest(reader.path, engine)), engine, reader.path)
    with (write_aside if output is not None else write_into_run)(target) as file:
        if chosen is not None:
            rows = opened.export_to(chosen, file, table)
        elif figures is not None:
            text = figures(opened.analysis)
            file.write(text.encode())
            rows = sum(not line.startswith("#") for line in text.splitlines())
    size = f", {format_bytes(target.stat().st_size)}" if target.is_file() else ""
    what = "samples" if figures else "spans" if table == TIMELINE else f"rows of {table}"
    notice(f"{format_count(rows)} {what} in {target}{size}")
    click.echo(target)
