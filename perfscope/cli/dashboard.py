"""`perfscope dashboard`: a static site of all runs and studies below a folder."""

from __future__ import annotations

from pathlib import Path

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import notice, print_result
from perfscope.errors import PerfscopeError


@click.command("dashboard", context_settings=HELP)
@click.argument("folder", type=click.Path(path_type=Path), default="perfscope-runs", metavar="[DIR]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default="site",
    show_default=True,
    metavar="SITE",
    help="Folder of the site; is made. Only runs that changed since it was written are read again.",
)
@click.option(
    "--title", default="Training runs", show_default=True, metavar="TEXT", help="Title of the page."
)
@click.option(
    "--reports",
    type=click.Choice(["link", "copy", "none"]),
    default="link",
    show_default=True,
    help="Link reports where they are, copy them into SITE, or leave them out.",
)
@click.option("--show-users", is_flag=True, help="Leave users' names and paths of files as they are.")
@click.option(
    "--charts",
    type=click.IntRange(0, 500),
    default=12,
    show_default=True,
    metavar="N",
    help="Series whose charts are drawn.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the index of runs and studies, too.")
def command(
    folder: Path, output: Path, title: str, reports: str, show_users: bool, charts: int, as_json: bool
) -> None:
    """Write a static page of all runs and studies below DIR (default: perfscope-runs).

    The page filters by name, label, commit, machine, host and state, shows how the step time and samples/s of
    each series of runs develop and where they changed, and leads to reports. It needs no server. Users' names
    and paths are replaced; copied reports are as `perfscope report` wrote them.

    \b
    Examples:
      perfscope dashboard
      perfscope dashboard /scratch/runs -o public --reports copy --title "Nightly runs"
      perfscope dashboard --json | jq -r '.runs[] | select(.state == "failed") | .path'
    """
    from perfscope.api.site import Site, check_site
    from perfscope.cli.progress_bar import counting
    from perfscope.messages.lists import counted
    from perfscope.reports.dashboard.build import build_dashboard
    from perfscope.reports.html import render_html

    if not folder.is_dir():
        raise PerfscopeError(f"{folder} is no directory: name the folder that holds the runs")
    check_site(output)
    site = Site(folder, output, reports=reports, keep_users=show_users)
    with counting("reading runs") as progress:
        index = site.index(progress)
    site.write(index, render_html(build_dashboard(index, title, charts)))
    if site.num_unlinked:
        notice(
            f"{site.num_unlinked} reports are not linked, because the links would show paths or "
            "users' names; --reports copy copies them, --show-users allows the links"
        )
    if site.uncopied:
        notice(f"{counted(len(site.uncopied), 'report')} could not be copied; the first: {site.uncopied[0]}")
    num_runs = counted(len(index.runs), "run")
    notice(f"{output / 'index.html'}: {num_runs}, {site.num_read} of them read now")
    if as_json:
        import msgspec

        print_result(msgspec.json.format(msgspec.json.encode(index), indent=2).decode() + "\n")
