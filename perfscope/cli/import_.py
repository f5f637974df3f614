"""`perfscope import`: parse, call, print."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from perfscope import units
from perfscope.cli.engine import Engine, engine_options
from perfscope.cli.labels import parse_labels
from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import notice
from perfscope.cli.progress_bar import TRACES, counting
from perfscope.cycle_collector import collector_off
from perfscope.errors import UsageError
from perfscope.messages.lists import counted, first_of

if TYPE_CHECKING:
    from perfscope.ingest.importing import ImportedTrace, ImportResult
    from perfscope.ingest.summary import IngestSummary

JSON_SCHEMA_VERSION = 1
# What was added, (file, what is to be said of it), and lines about it.
_Added: TypeAlias = tuple[Any, list[tuple[Path, str]], list[str]]


class _Import(click.Command):
    """Lists the trace formats behind the options."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from perfscope.ingest.formats.registry import FORMATS

        with formatter.section("Formats"):
            formatter.write_dl(
                [
                    (
                        trace_format.name,
                        f"{trace_format.title}: {' '.join(f'*{end}' for end in trace_format.endings)}",
                    )
                    for trace_format in FORMATS
                ]
            )


@click.command("import", cls=_Import, context_settings=HELP)
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE...")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Run directory to make.")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Add scrapes of DCGM exporter (its text), logs of Darshan (*.darshan) or files of NCCL Inspector "
    "to a run that is there.",
)
@click.option("--force", is_flag=True, help="Replace a run that is already there.")
@click.option(
    "--name",
    metavar="TEXT",
    help="Name of the run. [default: that of the trace, or of the folder that holds several]",
)
@click.option(
    "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Keep a label with the run; repeatable."
)
@click.option(
    "--samples-per-step",
    type=click.IntRange(min=1),
    metavar="N",
    help="Samples in a step over all ranks. Traces do not state it: without it there is no throughput.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was imported as JSON.")
@engine_options
def command(
    traces: tuple[Path, ...],
    output: Path | None,
    into: Path | None,
    force: bool,
    name: str | None,
    labels: tuple[str, ...],
    samples_per_step: int | None,
    as_json: bool,
    engine: Engine,
) -> None:
    """Turn traces of any profiler into a run directory.

    TRACE is a file in one of the formats below, from any machine; or a directory of them. The rank of a trace
    is what the trace itself says, else a number in its file name, else its place in the order; perfscope
    says which. JSON and XPlane files may be gzipped.

    \b
    Examples:
      perfscope import trace_rank*.json.gz -o my-run
      perfscope import ./log/worker0.1694128201556.pt.trace.json -o my-run --name baseline
      perfscope import trace_rank*.json.gz -o my-run --label gpu=h100 --samples-per-step 256
      perfscope import ./traces/ -o my-run --force && perfscope report my-run
      perfscope import --into my-run dcgm.prom
      perfscope import --into my-run user_python_id4711-4711_11-27-*.darshan
      perfscope import --into my-run nccl-logs/
    """
    if (output is None) == (into is None):
        raise UsageError(
            "give either --output DIR (a new run of traces) or --into RUN (scrapes, logs or calls)"
        )
    if into is not None:
        if name is not None or labels or samples_per_step is not None:
            raise UsageError("--name, --label and --samples-per-step go with -o, not with --into")
        click.echo(_add_into(into, traces, as_json=as_json))
        return
    if name is not None and not name.strip():
        raise UsageError("--name is empty")
    named = parse_labels(labels)
    from perfscope.ingest.importing import RunFacts, import_traces
    from perfscope.lean_imports import lean_process

    lean_process()
    facts = RunFacts(name=name, labels=named, samples_per_step=samples_per_step)
    with counting(TRACES) as progress:
        result = import_traces(
            traces, output, facts=facts, force=force, executor=engine.executor, progress=progress
        )
    for trace in result.traces:
        process = "" if trace.process is None else f", process {trace.process},"
        source = _source(trace.rank_source)
        notice(f"{trace.path}{process} is rank {trace.rank} (from {source})")
    for beside in result.companions:
        source = _source(beside.rank_source)
        notice(f"{beside.path} is the execution trace of rank {beside.rank} (from {source})")
    print_damage(result)
    click.echo(json.dumps(_document(result), indent=1) if as_json else _text(result))
    if not as_json:
        _print_hangs(result)


def _add_into(run: Path, paths: tuple[Path, ...], *, as_json: bool) -> str:
    from msgspec import to_builtins

    from perfscope.cli.import_calls import are_records

    are_logs = {path.suffix == ".darshan" for path in paths}
    if len(are_logs) > 1:
        raise UsageError("--into takes logs of Darshan by themselves: import one kind after the other")
    add = _add_logs if are_logs.pop() else _add_calls if are_records(paths) else _add_scrapes
    added, left_out, lines = add(run, paths)
    for path, reason in left_out:
        notice(f"{path}: {reason}")
    if as_json:
        facts = to_builtins(added, enc_hook=str)
        return json.dumps({"schema_version": JSON_SCHEMA_VERSION, "run": str(run), **facts}, indent=1)
    return "\n".join([*lines, f"run: {run}"])


def _left_out(files: Iterable[tuple[Path, str]]) -> list[tuple[Path, str]]:
    return [(path, f"left out: {reason}") for path, reason in files]


def _add_calls(run: Path, paths: tuple[Path, ...]) -> _Added:
    from perfscope.cli.import_calls import add_records

    added = add_records(run, paths)
    of = f"{counted(added.num_ranks, 'rank')} on {counted(added.num_communicators, 'communicator')}"
    return added, _left_out(added.left_out), [f"{counted(added.num_calls, 'call')} of {of}"]


def _add_scrapes(run: Path, paths: tuple[Path, ...]) -> _Added:
    from perfscope.collectors.gpu.scrapes import import_scrapes

    added = import_scrapes(run, paths)
    undated = [(path, "no times in it: dated by when the file was written") for path in added.by_file_time]
    left_out = {
        "from before or after the run": added.num_outside,
        "of GPUs that are not of the run, or of parts of GPUs": added.num_unknown,
        "of figures that perfscope sampled itself": added.num_sampled,
        "unreadable or not available": added.num_dropped,
    }
    gpus = first_of([f"{host} GPU {gpu}" for host, gpu in added.gpus], 8)
    values = f"{counted(added.num_values, 'value')} of {counted(len(added.metrics), 'figure')}"
    lines = [f"{values}: {gpus}"]
    lines += [
        f"left out: {units.format_count(number)} {reason}" for reason, number in left_out.items() if number
    ]
    return added, undated, lines


def _add_logs(run: Path, paths: tuple[Path, ...]) -> _Added:
    from perfscope.collectors.darshan.importing import import_logs

    added = import_logs(run, paths)
    read, written = units.format_bytes(added.read_bytes), units.format_bytes(added.written_bytes)
    of = f"{counted(added.num_ranks, 'rank')} and {counted(added.num_workers, 'loader worker')}"
    return added, _left_out(added.left_out), [f"{of}: {read} read from files, {written} written"]


def _print_hangs(result: ImportResult) -> None:
    """Of dumps of a flight recorder: who hangs where."""
    dumps = {summary.rank: summary.flight for summary in result.summaries if summary.flight is not None}
    if dumps:
        from perfscope.analysis.progress import group_progress
        from perfscope.reports.sections.progress import progress_lines

        click.echo("\n".join(progress_lines(group_progress(dumps))))


def print_damage(result: ImportResult) -> None:
    """What could not be read, on stderr."""
    from perfscope.ingest.summary import MENDED

    for path, reason in result.rejected:
        notice(f"{path}: {reason}: left out")
    for trace, summary in zip(result.traces, result.summaries, strict=True):
        if summary.salvaged or MENDED in summary.notes:
            notice(f"{trace.path}: {_damage(summary.notes, summary.events_dropped)}")


def _source(rank_source: str) -> str:
    return {"file name": "its file name", "order": "the order of the files"}.get(rank_source, rank_source)


def _damage(notes: tuple[str, ...], dropped: int) -> str:
    lost = f"events that could not be used: {units.format_count(dropped)}" if dropped else ""
    return "; ".join([*notes, *([lost] if lost else [])])


def _document(result: ImportResult) -> dict[str, object]:
    return {
        "schema_version": JSON_SCHEMA_VERSION,
        "run": str(result.run_dir),
        "traces": [
            {
                "path": str(trace.path),
                "format": trace.format,
                "rank": trace.rank,
                "window": trace.window,
                "rank_source": trace.rank_source,
                "stored": trace.stored,
                "num_steps": len(summary.steps),
                "step_source": summary.step_source,
                "has_device": summary.has_device,
                "salvaged": summary.salvaged,
                "notes": list(summary.notes),
                "events": {
                    "read": summary.events_read,
                    "kept": summary.events_kept,
                    "cut": summary.events_cut,
                    "dropped": summary.events_dropped,
                    "skipped": summary.events_skipped,
                    "unclassified": dict(summary.unclassified),
                },
            }
            for trace, summary in zip(result.traces, result.summaries, strict=True)
        ],
        "rejected": [{"path": str(path), "reason": reason} for path, reason in result.rejected],
    }


def _place(entry: tuple[ImportedTrace, IngestSummary]) -> tuple[int, int]:
    return entry[0].rank, entry[0].window


def _text(result: ImportResult) -> str:
    lines, several = [], Counter(trace.rank for trace in result.traces)
    for trace, summary in sorted(zip(result.traces, result.summaries, strict=True), key=_place):
        read, kept = units.format_count(summary.events_read), units.format_count(summary.events_kept)
        steps = f"{counted(len(summary.steps), 'step')} ({summary.step_source})"
        window = f", window {trace.window}" if several[trace.rank] > 1 else ""
        lines.append(
            f"rank {trace.rank}{window}: {read} events read, {kept} kept, {steps}, {trace.path.name}"
        )
    lines.append(f"run: {result.run_dir}")
    return "\n".join(lines)


def are_traces(sources: Sequence[Path]) -> bool:
    """Whether the user names traces, not a run."""
    from perfscope.ingest.importing import traces_in
    from perfscope.rundir import layout

    if len(sources) != 1:
        return bool(sources)
    (source,) = sources
    if not source.is_dir():
        return source.is_file()
    is_run = (source / layout.RUN_JSON).exists() or (source / layout.RANKS).exists()
    return not is_run and bool(traces_in(source))


@collector_off()
def import_for_now(traces: Sequence[Path], engine: Engine) -> Path:
    """A run made of traces, which lasts as long as the command. Raises TraceError, RunDirectoryError."""
    import tempfile  # not at the top: it takes ten milliseconds, and few reports need it

    from perfscope.ingest.importing import import_traces

    folder = tempfile.TemporaryDirectory(prefix="perfscope-")
    click.get_current_context().call_on_close(folder.cleanup)
    with counting(TRACES) as progress:
        target = Path(folder.name) / "run"
        result = import_traces(traces, target, for_now=True, executor=engine.executor, progress=progress)
    print_damage(result)
    return result.run_dir
