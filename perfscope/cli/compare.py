"""`perfscope compare`: parse, read the runs, call, print."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.cli.engine import ENGINE_NAMES, ENGINE_TITLE, Engine, engine_options
from perfscope.cli.lazy_group import HELP, GroupedCommand
from perfscope.cli.output import color_option, left_out_notice
from perfscope.cli.report import check_outputs, file_options, ingest, opened_run, write_folder, write_outputs
from perfscope.errors import PerfscopeError, RunDirectoryError, UsageError
from perfscope.rundir.layout import RUN_JSON

if TYPE_CHECKING:
    from perfscope.analysis.study.results import RunEntry, StudyAnalysis
    from perfscope.analysis.timeline_extract import TimelineExtract
    from perfscope.api.run import Run

STUDY_JSON, FRAMEWORKS_JSON = "study.json", "frameworks.json"
STUDIES = (STUDY_JSON, FRAMEWORKS_JSON)


@click.command(
    "compare",
    cls=GroupedCommand,
    groups={
        "Comparison": ("by", "rank_by", "mode", "reference"),
        "Output": ("as_text", "color", "html_file", "pdf_file", "as_json", "folder"),
        ENGINE_TITLE: ENGINE_NAMES,
    },
    context_settings=HELP,
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--by",
    metavar="WHAT",
    help="Group runs by world_size, scheme, framework, batch, dtype, device, backend, machine, model, mesh, "
    "threads, a column of the taxonomy (parallelism, synchrony, topology, compression, state, optimisation), "
    "label:K, option:K or env:K, several with commas; what is named may differ [default: what differs].",
)
@click.option(
    "--rank-by",
    type=click.Choice(["time", "energy", "cost"]),
    default="time",
    help="What schemes with a --target are ranked by [default: time].",
)
@click.option(
    "--mode",
    type=click.Choice(["strong", "weak"]),
    help="What scaling is meant [default: from the batch of each run].",
)
@click.option(
    "--reference",
    metavar="RUN",
    help="The run to compare with [default: the one on the fewest ranks; of two, the first].",
)
@file_options("compare")
@click.option("--text", "as_text", is_flag=True, help="Print the text report.")
@color_option
@engine_options
def command(
    runs: tuple[Path, ...],
    by: str | None,
    rank_by: str,
    mode: str | None,
    reference: str | None,
    html_file: Path | None,
    pdf_file: Path | None,
    as_json: bool,
    as_text: bool,
    folder: Path | None,
    engine: Engine,
) -> None:
    """Compare runs: how they scale, which scheme is fastest, what changed.

    RUN is a run directory, or the directory of a study by `perfscope bench sweep` or `bench frameworks`,
    which stands for all its runs. Two runs give a diff, runs of several world sizes their scaling, runs of
    several schemes a ranking, runs of several frameworks a comparison, losses before speed. Runs that may not
    be compared (another model, batch, machine) are named below the headline.

    Without options the text report goes to the terminal. Options for output combine; with --json and --text
    together the text goes to stderr, so that stdout stays JSON.

    \b
    Examples:
      perfscope compare before after
      perfscope compare run-n1 run-n2 run-n4 --mode strong -o scaling
      perfscope compare my-study --by scheme --html schemes.html
      perfscope compare perfscope-studies/frameworks -o frameworks
      perfscope compare runs/* --by label:bucket_mb --json | jq .headline
      perfscope compare b16 b64 b256 --by batch
      perfscope compare my-study --by synchrony
    """
    if by is not None:
        _check_names(by)
    check_outputs(html_file, pdf_file)
    lost: list[tuple[str, str]] = []
    places_found = find_runs(runs, lost)
    wanted = _reference_name(reference, places_found)
    chosen = bool(html_file or pdf_file or as_json)
    as_text = as_text or not chosen
    has_pages = bool(as_text or html_file or pdf_file or folder)  # JSON has no timelines
    draws = has_pages and len(places_found) == 2
    entries, started, timelines = _read(places_found, lost, engine, draws=draws)
    if len(entries) < 2:
        raise RunDirectoryError(_too_few(len(entries), len(places_found)))
    study = analyze(entries, by=by, mode=mode, reference=wanted, lost=lost, rank_by=rank_by)
    del entries
    from perfscope.reports.study.build import build_study_report

    report = build_study_report(study, started, timelines)
    write_outputs(report, "compare", html_file, pdf_file, as_json=as_json, as_text=as_text)
    if folder is not None:
        write_folder(report, folder, "compare")


def _check_names(by: str) -> None:
    """Raises UsageError: a name in `--by` is not known."""
    from perfscope.analysis.study.grouping import names_of

    try:
        names_of(by)
    except ValueError as error:
        raise UsageError(f"--by {error}") from None


def _too_few(read: int, named: int) -> str:
    if not read:
        return "none of the runs can be read, so there is nothing to compare"
    if named == 1:
        return "only one run was named: name a second one to compare it with, or use `perfscope report`"
    return f"only one of {named:,} runs can be read: there is nothing to compare it with"


def analyze(
    entries: Sequence[RunEntry],
    *,
    by: str | None,
    mode: str | None,
    reference: str | None,
    lost: Sequence[tuple[str, str]] = (),
    rank_by: str = "time",
) -> StudyAnalysis:
    """The comparison of the runs that were read; `lost`: name and reason of those that were not."""
    from perfscope.analysis.study.analyze import analyze_study
    from perfscope.analysis.study.results import UnusableRun
    from perfscope.vocabulary.comparison import RankBasis

    left_out = [UnusableRun(name=name, reason=reason) for name, reason in lost]
    return analyze_study(
        entries, by=by, mode=mode, reference=reference, left_out=left_out, rank_by=RankBasis(rank_by)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRun:
    """A run directory under the name that the user knows it by."""

    name: str
    path: Path


def find_runs(named: Sequence[Path], lost: list[tuple[str, str]]) -> list[NamedRun]:
    """The runs that are meant, each once: studies stand for the runs they finished.

    What of a study has not been run is stated in a line each on stderr, and added to `lost`, (name, reason).
    Raises RunDirectoryError: a study that cannot be read.
    """
    by_path: dict[Path, NamedRun] = {}
    for path in named:
        # Another run's by tomorrow: `latest`.
        name = str(path.parent / path.readlink() if path.is_symlink() else path)
        for located in _of_study(path, lost) if _is_study(path) else (NamedRun(name=name, path=path),):
            by_path.setdefault(located.path.resolve(), located)
    return list(by_path.values())


def _is_study(path: Path) -> bool:
    return any((path / name).is_file() for name in STUDIES) and not (path / RUN_JSON).is_file()


def _of_study(folder: Path, lost: list[tuple[str, str]]) -> Iterator[NamedRun]:
    if not (folder / STUDY_JSON).is_file():
        yield from _of_frameworks(folder, lost)
        return
    from perfscope.runners.sweep.state import DONE, load_study

    study = load_study(folder)
    for cell in study.wanted if study else ():
        if cell.impossible:
            _leave_out(lost, folder / cell.name, f"it cannot be run: {cell.impossible}")
        for run in cell.runs:
            path = folder / run.path
            if run.status == DONE:
                yield NamedRun(name=str(path), path=path)
            elif not cell.impossible:
                _leave_out(lost, path, f"{run.status}{f': {run.error}' if run.error else ''}")


def _of_frameworks(folder: Path, lost: list[tuple[str, str]]) -> Iterator[NamedRun]:
    from perfscope.runners.frameworks.matrix import DONE, load_cells

    for cell in load_cells(folder):
        if cell.skipped and not cell.runs_done:
            _leave_out(lost, folder / cell.name, cell.skipped)
            continue
        for run in cell.runs:
            path = folder / run["path"]
            if run["status"] == DONE:
                yield NamedRun(name=str(path), path=path)
            else:
                _leave_out(lost, path, ": ".join(filter(None, (run["status"], run["error"]))))


def _leave_out(lost: list[tuple[str, str]], name: str | Path, reason: str) -> None:
    left_out_notice(name, reason)
    lost.append((str(name), reason))


def _reference_name(reference: str | None, located_runs: Sequence[NamedRun]) -> str | None:
    """The reference as the study knows it. Raises UsageError: it is none of the runs."""
    if reference is None:
        return None
    same = [p for p in located_runs if p.path.resolve() == Path(reference).resolve()]
    same = same or [located for located in located_runs if reference in (located.name, located.path.name)]
    if len(same) == 1:
        return same[0].name
    if same:
        raise UsageError(f"--reference {reference} is the name of {len(same)} runs; name its directory")
    raise UsageError(f"--reference {reference} is none of the runs named; name it among them, too")


def _read(
    located_runs: Sequence[NamedRun], lost: list[tuple[str, str]], engine: Engine, *, draws: bool
) -> tuple[list[RunEntry], dict[str, int], dict[str, TimelineExtract]]:
    """The runs that can be read, one after the other.

    Returns:
        The runs; by name, when each started (Unix ns); where they are drawn, by name, their timelines.
    """
    from perfscope.api.documents import compared_timeline
    from perfscope.api.study import entry_of

    show_progress = sys.stderr.isatty()
    entries: list[RunEntry] = []
    started: dict[str, int] = {}
    timelines: dict[str, TimelineExtract] = {}
    for number, located in enumerate(located_runs, 1):
        if show_progress:
            click.echo(f"\r\x1b[Kreading run {number} of {len(located_runs)}", nl=False, err=True)
        try:
            run = _opened(located, engine)
            entry = entry_of(run, located.name)
            if draws:
                timelines[located.name] = compared_timeline(run.reader, run.analysis)
            del run  # before the next one is read
        except PerfscopeError as error:
            _clear(show_progress)
            _leave_out(lost, located.name, str(error))
            continue
        start = entry.analysis.run.start_unix_ns
        if start is not None:
            started[located.name] = start
        entries.append(entry)
    _clear(show_progress)
    return entries, started, timelines


def _opened(located: NamedRun, engine: Engine) -> Run:
    """One run, analyzed. Raises RunDirectoryError, TraceError."""
    from perfscope.rundir.reader import RunReader

    reader = RunReader(ingest(RunReader(located.path).path, engine))
    return opened_run(reader, engine)


def _clear(is_terminal: bool) -> None:
    if is_terminal:
        click.echo("\r\x1b[K", nl=False, err=True)
