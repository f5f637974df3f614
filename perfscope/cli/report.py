"""`perfscope report`: parse, call, print."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perfscope.cli.engine import ENGINE_NAMES, ENGINE_TITLE, UNSTATED, Engine, engine_options
from perfscope.cli.lazy_group import HELP, GroupedCommand, with_options
from perfscope.cli.output import color_option, in_color, notice, print_paged, print_result
from perfscope.cli.progress_bar import TRACES, counting
from perfscope.cycle_collector import collector_off
from perfscope.errors import PerfscopeError, UsageError
from perfscope.lean_imports import lean_arrays

if TYPE_CHECKING:
    from perfscope.api.run import Run
    from perfscope.reports.model import Report
    from perfscope.rundir.reader import RunReader

HTML_NAME, PDF_NAME = "report.html", "report.pdf"
FOLDER_KINDS = ("html", "pdf", "json")  # of -o
UNNAMED = Path("<unnamed>")  # of an option without a file; compare with `is`
_NOTHING_KEPT = (
    "perfscope: --html FILE and --pdf FILE write the whole report;\n  `perfscope import` keeps a run"
)
_F = TypeVar("_F", bound=Callable[..., Any])


class OptionalFile(click.Path):
    """The file of an option that may stand without one: a Path, or UNNAMED."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value is UNNAMED else super().convert(value, param, ctx)


def document_option(kind: str, default: str) -> Callable[[_F], _F]:
    """--html or --pdf; `default` says where the document goes without FILE.

    What follows is no file where it looks like an option: `--html --pdf` writes both documents.
    """
    return click.option(
        f"--{kind}",
        f"{kind}_file",
        type=OptionalFile(),
        is_flag=False,
        flag_value=UNNAMED,
        metavar="[FILE]",
        help=f"Write {kind.upper()} to FILE [default: {default}].",
    )


def file_options(stem: str, default_folder: str = "") -> Callable[[_F], _F]:
    """--html, --pdf, --json, and -o, which writes all three as `stem` with their endings.

    `default_folder`: where --html and --pdf without a file write, in words.
    """
    options = (
        document_option("html", f"{stem}.html{default_folder}"),
        document_option("pdf", f"{stem}.pdf{default_folder}"),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "-o",
            "--output",
            "folder",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="DIR",
            help=f"Write {stem}.html, {stem}.pdf and {stem}.json into DIR.",
        ),
    )

    return partial(with_options, options)


@click.command(
    "report",
    cls=GroupedCommand,
    groups={
        "Terminal": ("as_text", "full", "sections", "width", "color", "pager"),
        "Files": ("html_file", "pdf_file", "as_json", "folder"),
        ENGINE_TITLE: ENGINE_NAMES,
    },
    context_settings=HELP,
)
@click.argument("sources", type=click.Path(path_type=Path), nargs=-1, metavar="[RUN | TRACE...]")
@file_options("report", " in RUN")
@click.option("--text", "as_text", is_flag=True, help="Print the whole text report.")
@click.option("--full", is_flag=True, help="Print the whole text report instead of its summary.")
@click.option(
    "--section",
    "sections",
    multiple=True,
    metavar="NAME",
    help="Print one section of the text report, such as layers; may be repeated.",
)
@click.option(
    "--width",
    type=click.IntRange(60, 500),
    metavar="N",
    help="Columns of the text; default: the terminal's, 100 in a pipe.",
)
@color_option
@click.option("--pager/--no-pager", default=True, help="Page long text on a terminal. Default: on.")
@engine_options
def command(
    sources: tuple[Path, ...],
    html_file: Path | None,
    pdf_file: Path | None,
    as_json: bool,
    as_text: bool,
    full: bool,
    sections: tuple[str, ...],
    width: int | None,
    pager: bool,
    folder: Path | None,
    engine: Engine,
) -> None:
    """Write the report of RUN (default: perfscope-runs/latest), or of the traces of any profiler.

    Without options a summary goes to the terminal (--full: the whole text), report.html and report.pdf into
    the run, or with -o into DIR. --html, --pdf, --json, --text and --section make only what they name; they
    combine. --html and --pdf take the next word as FILE unless it begins with "-". With --json the text goes
    to stderr, so that stdout stays JSON. TRACE is a trace file, or a directory of them, as `perfscope import`
    takes them; of traces nothing is kept but what options name.

    \b
    Examples:
      perfscope report
      perfscope report my-run --section layers --section machine
      perfscope report my-run --html /tmp/my-run.html
      perfscope report my-run --json | jq .ranks[0].step_ns.median
      perfscope report trace_rank*.json.gz --html traces.html
      mpiexec -n 9 perfscope report my-run --engine mpi
    """
    from perfscope.cli.import_ import are_traces, import_for_now

    lean_arrays()
    of_traces = are_traces(sources)
    check_outputs(html_file, pdf_file, of_traces=of_traces)
    if of_traces:
        run_dir = ingested = import_for_now(sources, engine)
    else:
        run_dir = open_run(sources[0] if sources else None).path
        ingested = ingest(run_dir, engine)
    chosen = bool(html_file or pdf_file or as_json or as_text or sections)
    if as_json and not (html_file or pdf_file or as_text or sections or folder):
        print_figures(ingested, engine)
        return
    report = make_report(ingested, engine)
    if as_json:
        print_json(report.document)
    if sections:
        print_text(partial(_sections_of, report, sections), width, err=as_json, paged=pager)
    if as_text or not chosen:
        is_whole = as_text or full
        render = _whole_text if is_whole else summary_text
        print_text(partial(render, report), width, err=as_json, paged=pager and is_whole)
    write_files(report, html_file, pdf_file, run_dir=run_dir)
    if folder is not None:
        write_folder(report, folder, "report")
    elif not chosen and of_traces:
        click.echo(_NOTHING_KEPT, err=True)
    elif not chosen:
        _write_into_run(report, run_dir)


def check_outputs(html_file: Path | None, pdf_file: Path | None, *, of_traces: bool = False) -> None:
    """Refuses output files before any work is done. Raises UsageError.

    `of_traces`: no run is kept that a document without a name could go into.
    """
    for option, path in (("--html", html_file), ("--pdf", pdf_file)):
        if path is UNNAMED and of_traces:
            raise UsageError(f"{option} needs a FILE for traces, because no run is kept")
        if path == Path("-"):
            raise UsageError(f"{option} cannot write to stdout; name a file")
    if html_file is None or pdf_file is None or UNNAMED in (html_file, pdf_file):
        return
    if html_file.resolve() == pdf_file.resolve():
        raise UsageError(f"--html and --pdf both name {html_file}; give them two files")


def open_run(run: Path | None) -> RunReader:
    """The run the user means, read but for its ranks; says which one where none is named.

    Raises:
        RunDirectoryError: it is no run, or cannot be read.
    """
    from perfscope.api.opening import latest_run
    from perfscope.rundir.reader import RunReader

    if run is not None:
        return RunReader(run, ranks=())
    latest = latest_run()
    reader = RunReader(latest, ranks=())
    notice(f"{latest} is {reader.path}")
    return reader


def ingest(path: Path, engine: Engine = UNSTATED) -> Path:
    """Brings the run's derived tables up to date.

    Args:
        path: the run directory.
        engine: where the work runs; unstated: processes of this machine.

    Returns:
        Where the run can be read with its derived tables, as long as the command lasts.
    """
    from perfscope.api.opening import up_to_date

    with counting(TRACES) as progress:
        on_close = click.get_current_context().call_on_close
        return up_to_date(path, on_close, progress=progress, executor=engine.executor)


def opened_run(reader: RunReader, engine: Engine = UNSTATED, path: Path | None = None) -> Run:
    """An ingested run, analyzed.

    Args:
        reader: of the run.
        engine: where ranks are read; unstated: this process.
        path: as for `Run`.
    """
    from perfscope.api.run import Run

    executor = engine.for_ranks(len(reader.ranks))
    with counting("reading ranks") as progress:
        run = Run(reader, path, executor=executor, progress=progress)
        _ = run.analysis  # now, while there is progress to show
    return run


@collector_off()
def print_figures(path: Path, engine: Engine = UNSTATED) -> None:
    """JSON of an ingested run on stdout, without making the timeline and the sections of a report."""
    from perfscope.reports.document import json_parts
    from perfscope.rundir.reader import RunReader

    for part in json_parts(opened_run(RunReader(path), engine).analysis):
        print_result(part)


def print_json(document: Mapping[str, object]) -> None:
    """On stdout."""
    from perfscope.reports.document import render_json

    print_result(render_json(document))


def make_report(path: Path, engine: Engine = UNSTATED) -> Report:
    """Analyses an ingested run."""
    from perfscope.rundir.reader import RunReader

    return opened_run(RunReader(path), engine).document


def write_outputs(
    report: Report, stem: str, html_file: Path | None, pdf_file: Path | None, *, as_json: bool, as_text: bool
) -> None:
    """JSON and text on the streams, HTML and PDF into files, with a line that says where they are.

    `stem`: of files without a name, which go into the current directory.
    """
    if as_json:
        print_json(report.document)
    if as_text:
        print_text(partial(_whole_text, report), err=as_json)
    write_files(report, html_file, pdf_file, stem=stem)


def write_files(
    report: Report,
    html_file: Path | None,
    pdf_file: Path | None,
    *,
    stem: str = "report",
    run_dir: Path | None = None,
) -> None:
    """HTML and PDF into files, with a line that says where they are.

    UNNAMED is `stem` with its ending, in the run directory, or in the current one where there is none.
    """
    from perfscope.api.documents import write_document

    for kind, file in (("html", html_file), ("pdf", pdf_file)):
        if file is None:
            continue
        is_unnamed = file is UNNAMED
        target = (run_dir or Path()) / f"{stem}.{kind}" if is_unnamed else file
        write_document(report, kind, target, in_run=is_unnamed and run_dir is not None)
        notice(f"{kind.upper()} report in {target}")


def write_folder(report: Report, folder: Path, stem: str) -> None:
    """HTML, PDF and JSON of one name into a folder, which is made. Raises PerfscopeError."""
    from perfscope.api.documents import write_document

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PerfscopeError(f"{folder} cannot be made: {error.strerror}") from error
    names = [f"{stem}.{kind}" for kind in FOLDER_KINDS]
    for kind, name in zip(FOLDER_KINDS, names, strict=True):
        write_document(report, kind, folder / name)
    notice(f"{', '.join(names)} in {folder}")


def _whole_text(report: Report, width: int, color: bool) -> str:
    from perfscope.reports.text import render_text

    return render_text(report, width=width, color=color)


def summary_text(report: Report, width: int, color: bool) -> str:
    from perfscope.reports.summary import render_summary

    return render_summary(report, width=width, color=color)


def _sections_of(report: Report, names: Sequence[str], width: int, color: bool) -> str:
    from perfscope.reports.text import render_sections
    from perfscope.settings import nearest

    there = [section.id for section in report.sections]
    for name in names:
        if name not in there:
            raise UsageError(f"the report has no section {name!r}{nearest(name, there)}")
    return render_sections(report, names, width=width, color=color)


def print_text(
    render: Callable[[int, bool], str], width: int | None = None, *, err: bool = False, paged: bool = False
) -> None:
    """A text on stdout, or stderr where stdout carries JSON; in color on a terminal.

    Args:
        render: gives the text for so many columns, with or without color.
        width: columns; None = the terminal's.
        err: whether it goes to stderr.
        paged: through the user's pager, where it does not fit on the terminal.
    """
    stream = sys.stderr if err else sys.stdout
    if stream is None:
        raise PerfscopeError(f"cannot write to {'stderr' if err else 'stdout'}: it is closed")
    text = render(width or shutil.get_terminal_size((100, 24)).columns, in_color(stream))
    encoding = stream.encoding or "utf-8"
    printable = text.encode(encoding, "replace").decode(encoding)
    if err:
        click.echo(printable, nl=False, err=True)
    else:
        (print_paged if paged else print_result)(printable)


def _write_into_run(report: Report, path: Path) -> None:
    """HTML and PDF into the run. Where that cannot be written to, the text has been printed all the same."""
    from perfscope.api.listing import keep_verdict

    keep_verdict(path, report)
    written, refused = [], []
    for name, file_name in (("html", HTML_NAME), ("pdf", PDF_NAME)):
        reason = _why_not_written(report, name, path / file_name)
        if reason is None:
            written.append((name.upper(), path / file_name))
        else:
            refused.append(reason)
    if written:
        file_lines = (f"  {title:4}  {file_path}\n" for title, file_path in written)
        print_result("".join(file_lines))
    if refused:
        raise PerfscopeError(f"{'; '.join(refused)}. Use --html FILE and --pdf FILE to write elsewhere")


def _why_not_written(report: Report, name: str, path: Path) -> str | None:
    from perfscope.api.documents import write_document

    try:
        write_document(report, name, path, in_run=True)
    except PerfscopeError as error:
        return str(error)
    return None
