"""`perfscope top`: a run while it trains."""

from __future__ import annotations

import math
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import color_option, in_color, print_result
from perfscope.cli.run_options import to_hang_floor, to_seconds

if TYPE_CHECKING:
    from perfscope.analysis.live import LiveRun
    from perfscope.rundir.reader import RunReader

_CLEAR = "\x1b[H\x1b[J"


@click.command("top", context_settings=HELP)
@click.argument("run", type=click.Path(path_type=Path), required=False, metavar="[RUN]")
@click.option("--once", is_flag=True, help="Print it once and end.")
@click.option(
    "--interval", callback=to_seconds, default="2s", show_default=True, metavar="TIME", help="Between looks."
)
@click.option(
    "--hang-after",
    callback=to_hang_floor,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="A rank that makes no step for ten usual ones, and for this long, hangs; `off` does not look.",
)
@click.option(
    "--ranks",
    "most",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Ranks to show, slowest first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line for each look.")
@color_option
def command(
    run: Path | None, once: bool, interval: float, hang_after: float | None, most: int, as_json: bool
) -> None:
    """Watch RUN (default: perfscope-runs/latest) while it trains, from any shell that sees its directory.

    Shows the step, the slowest ranks, how busy the hosts are, and ranks that hang: with the collective and
    the line of Python in which they stand, where py-spy may look. Of ranks on other hosts it shows what
    `perfscope run` saw there. Ends with the run, or with Ctrl-C; the training does not notice.

    \b
    Examples:
      perfscope top
      perfscope top /scratch/runs/latest --interval 10s
      perfscope top my-run --once --json | jq '.ranks[] | select(.hangs)'
    """
    from perfscope.analysis.live import RunWatch
    from perfscope.cli.report import open_run

    reader = open_run(run)
    watch = RunWatch(str(reader.path), math.inf if hang_after is None else hang_after)
    is_screen = not once and not as_json and sys.stdout is not None and sys.stdout.isatty()
    while True:
        state = watch.look(time.time())
        _print(state, _standing(state, reader), most, as_json=as_json, is_screen=is_screen)
        if once or not state.is_open:
            return
        time.sleep(max(interval, 0.1))


def _print(run: LiveRun, standing: dict[int, str], most: int, *, as_json: bool, is_screen: bool) -> None:
    from perfscope.reports.live import render_live

    if as_json:
        import msgspec

        document = {"schema_version": 1, **msgspec.to_builtins(run)}
        document["standing"] = {str(rank): text for rank, text in standing.items()}
        print_result(msgspec.json.encode(document).decode() + "\n")
        return
    size = shutil.get_terminal_size((100, 24))
    text = render_live(
        run, standing, width=size.columns, most=most, now_s=time.time(), color=in_color(sys.stdout)
    )
    print_result(_CLEAR + text if is_screen else text)


def _standing(run: LiveRun, reader: RunReader) -> dict[int, str]:
    """Where ranks that hang stand, as far as this host can tell and other hosts have recorded."""
    from perfscope.live.hangs import look_into, place_of
    from perfscope.live.recorded import with_recorded
    from perfscope.messages.hangs import place_text

    ranks = with_recorded(look_into(run.hanging, time.time()), reader.hangs)
    locations = ((rank.rank, place_text(place_of(rank))) for rank in ranks)
    return {rank: text for rank, text in locations if text}
