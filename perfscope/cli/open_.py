"""`perfscope open`: a run's HTML report in the browser."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import notice, print_result
from perfscope.cli.report import HTML_NAME, ingest, make_report, open_run

_OF_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


@click.command("open", context_settings=HELP)
@click.argument("run", type=click.Path(path_type=Path), required=False, metavar="[RUN]")
@click.option("--refresh", is_flag=True, help="Write the report again even if it is newer than the run.")
def command(run: Path | None, refresh: bool) -> None:
    """Open the HTML report of RUN (default: perfscope-runs/latest) in the browser.

    The report is written first if there is none, or if the run is newer. Where there is no display, as on a
    login node, the path is printed with a command that shows it on another machine.

    \b
    Examples:
      perfscope open
      perfscope open perfscope-runs/2026-05-04-train --refresh
    """
    from perfscope.api.documents import write_document

    reader = open_run(run)
    page = reader.path / HTML_NAME
    if refresh or is_outdated(page, reader.path):
        write_document(make_report(ingest(reader.path)), "html", page, in_run=True)
    if has_display(os.environ) and _show(page):
        notice(f"opened {page}")
        return
    print_result(f"{page}\n")
    host, path = os.uname().nodename, page.resolve()
    notice(f"no browser here; on your machine: scp {host}:{path} . and open {HTML_NAME}")


def is_outdated(page: Path, run_dir: Path) -> bool:
    """Whether a report is missing, or older than the run's records."""
    from perfscope.rundir import layout

    if not page.is_file():
        return True
    records = [run_dir / layout.RUN_JSON, *(run_dir / layout.RANKS).glob(f"*/{layout.RANK_JSON}")]
    return any(record.stat().st_mtime > page.stat().st_mtime for record in records if record.exists())


def has_display(environment: Mapping[str, str]) -> bool:
    """Whether a browser can show something to the user."""
    return sys.platform == "darwin" or any(environment.get(name) for name in _OF_DISPLAYS)


def _show(page: Path) -> bool:
    import webbrowser

    try:
        return webbrowser.open(page.resolve().as_uri())
    except webbrowser.Error:
        return False
