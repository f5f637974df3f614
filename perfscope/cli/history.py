"""`perfscope history`: parse, read the runs that were kept, call, print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import notice
from perfscope.cli.report import check_outputs, document_option, write_outputs
from perfscope.errors import EXIT_USER, PerfscopeError, UsageError

if TYPE_CHECKING:
    from perfscope.gate.metrics import GateMetric
    from perfscope.gate.settings import Settings
    from perfscope.gate.store import BaselineEntry
    from perfscope.gate.trend import Trend

DEFAULT_FILE = Path("perfscope-history.sqlite")
ADD = "add"
EXIT_WORSE, EXIT_FAILED = 1, 5  # as `perfscope check`
NEWEST = 10
FEWEST_NEWEST = 5  # a level lasts at least so many sessions: with fewer no change could ever fail
_PATH = click.Path(path_type=Path)


class _History(click.Command):
    """Shows a history, unless its first word is `add`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == [ADD]:
            return add.make_context(f"{info_name} {ADD}", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.command is not self:
            return ctx.command.invoke(ctx)
        try:
            return super().invoke(ctx)
        except PerfscopeError as error:
            if ctx.params.get("fail_on_change") and error.exit_code == EXIT_USER:
                error.exit_code = EXIT_FAILED  # 1 says that a benchmark became worse, and nothing else
            raise


@click.command("history", cls=_History, context_settings=HELP)
@click.argument("file", type=_PATH, required=False, metavar="[FILE | add FILE RUN...]")
@click.option("--name", metavar="TEXT", help="Only this benchmark [default: all in FILE].")
@click.option(
    "--metric",
    "metric_id",
    default="step_p10",
    metavar="ID",
    help="The metric to follow [default: step_p10].",
)
@document_option("html", "history.html")
@document_option("pdf", "history.pdf")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--text", "as_text", is_flag=True, help="Print the text report.")
@click.option(
    "--fail-on-change",
    is_flag=True,
    help="Exit with 1 where a benchmark became worse by more than the metric's threshold, within the newest "
    "sessions.",
)
@click.option(
    "--newest",
    type=click.IntRange(min=FEWEST_NEWEST),
    default=NEWEST,
    metavar="N",
    help=f"Sessions in which --fail-on-change looks for it [default: {NEWEST}].",
)
def command(
    file: Path | None,
    name: str | None,
    metric_id: str,
    html_file: Path | None,
    pdf_file: Path | None,
    as_json: bool,
    as_text: bool,
    fail_on_change: bool,
    newest: int,
) -> None:
    """Show how a benchmark's figures went over many runs, and between which commits they changed.

    FILE is a history that `perfscope history add`, `perfscope check` or `perfscope baseline` keep [default:
    the settings' `history`, or perfscope-history.sqlite]. Runs of one commit without an hour's pause are one
    session, a point of the series; changes are searched from 10 sessions on. Benchmarks and kinds of machines
    are kept apart. `perfscope history add FILE RUN...` measures runs and adds them.

    Without options the text goes to the terminal. Options for output combine; with --json and --text
    together the text goes to stderr, so that stdout stays JSON. Changes alone do not make the exit code 1:
    see --fail-on-change; its thresholds are those of `perfscope check` (5 % for step_p10), and with it what
    could not be read or written makes the exit code 4 or 5, not 1.

    \b
    Examples:
      perfscope history
      perfscope history add perfscope-history.sqlite perfscope-runs/latest --name nightly
      perfscope history perfscope-history.sqlite --html history.html
      perfscope history --metric throughput --json | jq '.series[0].changes'
      perfscope history --fail-on-change
    """
    check_outputs(html_file, pdf_file)
    from perfscope.gate.config import load_settings
    from perfscope.gate.store import open_store

    settings = load_settings(Path.cwd())
    metric = _metric(metric_id, settings)
    path = _existing(file, settings)
    store = open_store(path)
    _check_name(name, store.entries(), path)

    from perfscope.gate.trend import trends
    from perfscope.reports.gate_history.build import build_history_report

    histories = trends(store, metric, name=name, newest=newest)
    report = build_history_report(histories, str(path))
    is_text = as_text or not (html_file or pdf_file or as_json)
    write_outputs(report, "history", html_file, pdf_file, as_json=as_json, as_text=is_text)
    if fail_on_change:
        _fail(histories)


def _existing(file: Path | None, settings: Settings) -> Path:
    """The history to read."""
    from perfscope.gate.store.errors import BaselineError, shown

    path = file or settings.history or DEFAULT_FILE
    if file is None:
        notice(f"the history is {path}")
    if not path.exists():
        raise BaselineError(
            f"there is no history {shown(path)}: make it with `perfscope history add {shown(path)} RUN...`"
        )
    return path


def _fail(histories: Sequence[Trend]) -> None:
    """Names the benchmarks that became worse and ends with EXIT_WORSE; returns where none did."""
    from perfscope.reports.display import visible
    from perfscope.reports.gate_history.wording import headline

    failing = [trend for trend in histories if trend.failing is not None]
    for trend in failing:
        notice(f"{visible(trend.name, 60)}: {visible(headline(trend), 300)}")
    if failing:
        raise click.exceptions.Exit(EXIT_WORSE)


def _metric(metric_id: str, settings: Settings) -> GateMetric:
    """Raises UsageError: there is none of that name."""
    if metric_id in settings.metrics:
        return settings.metrics[metric_id]
    raise UsageError(f"--metric {metric_id!r} is not known; use one of {', '.join(settings.metrics)}")


def _check_name(name: str | None, entries: Sequence[BaselineEntry], path: Path) -> None:
    """Raises UsageError: no run was kept under that name."""
    names = sorted({entry.name for entry in entries})
    if name is None or name in names:
        return
    from perfscope.reports.display import visible

    there = (
        f"it has {', '.join(visible(entry_name, 60) for entry_name in names[:8])}" if names else "it is empty"
    )
    raise UsageError(f"{path} has no runs of {visible(name, 60)!r}; {there}")


@click.command(ADD, context_settings=HELP)
@click.argument("file", type=_PATH, metavar="FILE")
@click.argument("runs", nargs=-1, required=True, type=_PATH, metavar="RUN...")
@click.option(
    "--name", metavar="TEXT", help="The benchmark's name [default: the settings', or the script's]."
)
def add(file: Path, runs: tuple[Path, ...], name: str | None) -> None:
    """Measure runs and add their figures to the history FILE, which is made if need be.

    RUN is a run directory of `perfscope run`. Adding a run again changes nothing. Runs that something
    disturbed are kept and marked: a history shows them and does not judge them. Names that end in .sqlite or
    .db make an SQLite file, others JSON.

    \b
    Examples:
      perfscope history add perfscope-history.sqlite perfscope-runs/latest
      perfscope history add perfscope-history.sqlite nightly/* --name resnet
    """
    from perfscope.cli.baseline import update

    click.get_current_context().invoke(
        update, file=file, runs=runs, name=name, replacing=False, keep=None, allow_disturbed=True
    )
