"""`perfscope list`: the runs of a folder, the latest first."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import color_option, in_color, notice, print_result
from perfscope.errors import PerfscopeError

if TYPE_CHECKING:
    from perfscope.api.listing import ListedRun

_LEAST_NAME, _LEAST_VERDICT = 16, 24  # columns


@click.command("list", context_settings=HELP)
@click.argument("folder", type=click.Path(path_type=Path), default="perfscope-runs", metavar="[FOLDER]")
@click.option(
    "-n",
    "--number",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="N",
    help="How many runs at most.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@color_option
def command(folder: Path, number: int, as_json: bool) -> None:
    """List the runs in FOLDER (default: perfscope-runs), the latest first.

    The step is the median of the first rank; a report has that of all ranks. Verdicts are those of the last
    `perfscope report` of a run; a run without one has none yet.

    \b
    Examples:
      perfscope list
      perfscope list /scratch/runs -n 100
      perfscope list --json | jq -r '.runs[0].path'
    """
    from perfscope.api.listing import list_runs

    if not folder.is_dir():
        raise PerfscopeError(f"{folder} is no directory: name the folder that holds the runs")
    runs = list_runs(folder)
    if as_json:
        import msgspec

        document = {"schema_version": 1, "runs": msgspec.to_builtins(runs[:number])}
        print_result(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
        return
    if not runs:
        notice(f"no run in {folder}; `perfscope run` makes one")
        return
    print_result(_text(runs[:number], shutil.get_terminal_size((100, 24)).columns))
    if len(runs) > number:
        notice(f"{len(runs) - number} older runs; --number shows more")


def _text(runs: Sequence[ListedRun], width: int) -> str:
    from perfscope import units
    from perfscope.reports.display import visible
    from perfscope.reports.moments import utc
    from perfscope.reports.terminal import Style, cells, fit, head, pad

    rows = [("Started", "Run", "Ranks", "Step", "Samples/s", "Verdict")]
    for run in runs:
        started = "" if run.started_unix_ns is None else utc(run.started_unix_ns, "%Y-%m-%d %H:%M")
        ranks = f"{run.ranks}/{run.expected}" if run.expected else f"{run.ranks}"
        step = units.MISSING if run.step_ns is None else units.format_ns(run.step_ns)
        rate = units.MISSING if run.samples_per_s is None else units.format_count(run.samples_per_s)
        state = "" if run.state == "finished" else f"[{run.state}] "
        rows.append((started, visible(Path(run.path).name), ranks, step, rate, state + visible(run.verdict)))
    sizes = [max(cells(row[column]) for row in rows) for column in range(5)]
    # A long name makes way for the verdict.
    others = sum(sizes) - sizes[1] + 2 * len(sizes)
    sizes[1] = min(sizes[1], max(_LEAST_NAME, width - _LEAST_VERDICT - others))
    room = max(width - sum(sizes) - 2 * len(sizes), 1)
    style = Style(in_color(sys.stdout))
    lines = []
    for number, row in enumerate(rows):
        parts = [pad(fit(row[at], sizes[at]), sizes[at], right=at >= 2) for at in range(5)]
        line = "  ".join([*parts, head(row[5], room)]).rstrip()
        lines.append(style.quiet(line) if number == 0 else line)
    return "\n".join(lines) + "\n"
