"""`perfscope baseline`: keep, show and list the runs that later checks are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import left_out_notice, notice, print_result
from perfscope.errors import PerfscopeError, UsageError
from perfscope.messages.lists import counted

if TYPE_CHECKING:
    from perfscope.gate.records import RunFigures
    from perfscope.gate.settings import Settings
    from perfscope.gate.store import BaselineEntry, Store

_PATH = click.Path(path_type=Path)


@click.group("baseline", context_settings=HELP)
def command() -> None:
    """Keep the figures of runs in a file, for `perfscope check --baseline FILE` to compare with.

    FILE is JSON, made to be committed: a line per run, nothing that is private to a machine but its host's
    name. With a name that ends in .sqlite or .db it is an SQLite file, a history for `perfscope history`.
    Runs are kept apart by benchmark and by fingerprint: CPU and GPU model, cores, versions of torch and
    perfscope, ranks, batch, scheme. A check needs 5 runs or more of its own fingerprint.

    \b
    Examples:
      perfscope baseline update perfscope-baseline.json perfscope-runs/2026*
      perfscope baseline show perfscope-baseline.json
      perfscope baseline list perfscope-baseline.json --json
    """


@command.command("update", context_settings=HELP, short_help="Measure runs and store their metrics.")
@click.argument("file", type=_PATH, metavar="FILE")
@click.argument("runs", nargs=-1, required=True, type=_PATH, metavar="RUN...")
@click.option(
    "--name", metavar="TEXT", help="The benchmark's name [default: the settings', or the script's]."
)
@click.option("--replace", "replacing", is_flag=True, help="Replace what is stored for these fingerprints.")
@click.option(
    "--keep", type=click.IntRange(min=1), metavar="N", help="Keep only the newest N runs of a fingerprint."
)
@click.option(
    "--allow-disturbed",
    is_flag=True,
    help="Keep runs, too, that something from outside disturbed: for a history; a check leaves them out.",
)
@click.option(
    "--allow-regression",
    is_flag=True,
    help="Keep the runs of a check, too, that is no pass: they are what is normal from now on.",
)
def update(
    file: Path,
    runs: tuple[Path, ...],
    name: str | None,
    replacing: bool,
    keep: int | None,
    allow_disturbed: bool,
    allow_regression: bool,
) -> None:
    """Measure runs and keep their figures in FILE, which is made if need be.

    RUN is a run directory, the folder of an earlier `perfscope check` (its head's runs are taken), or a file
    of step times. Runs that failed, have too few steps or were disturbed are left out, and said so. A check
    that is no pass is refused. Adding a run again changes nothing. Several may update one FILE at once: they
    wait for each other.

    \b
    Examples:
      perfscope baseline update perfscope-baseline.json runs/main-*
      perfscope baseline update perfscope-baseline.json runs/new-* --replace
      perfscope baseline update perfscope-baseline.json runs/nightly-* --name resnet --keep 20
      perfscope baseline update .perfscope/history.sqlite runs/*
    """
    from perfscope.gate.config import load_settings
    from perfscope.gate.store import open_store
    from perfscope.gate.store.entries import check_name

    settings = load_settings(Path.cwd())
    if name is not None:
        check_name(name)
    if not allow_regression:
        _refuse_failed_checks(runs)
    store = open_store(file, create=True)  # before any run is measured: that takes a while
    groups = _measured(runs, settings, name or settings.name, allow_disturbed=allow_disturbed)
    if not groups:
        raise PerfscopeError(f"no run was kept, {file} is as it was; see the reasons above")
    lines = [
        _put(store, key, members, settings, keep=keep, replacing=replacing)
        for (key, _), members in groups.items()
    ]
    print_result("\n".join(lines) + "\n")


def _measured(
    paths: Sequence[Path], settings: Settings, name: str | None, *, allow_disturbed: bool
) -> dict[tuple[str, str], list[RunFigures]]:
    """The runs that may be kept, by benchmark and fingerprint's key; a line on stderr for every other one.

    Raises:
        UsageError: a path is not there, or a run has no name and none was given.
    """
    from perfscope.cli.check.runs import read_runs
    from perfscope.gate.records import HEAD
    from perfscope.gate.store.shareable import shareable

    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} is not there; name run directories")
    groups: dict[tuple[str, str], list[RunFigures]] = {}
    for path in paths:
        read = read_runs([path], HEAD)
        for lost in read.lost:
            left_out_notice(lost.name, lost.reason)
        for run in read.runs:
            reason = _why_refused(run, settings, allow_disturbed=allow_disturbed)
            if reason:
                left_out_notice(run.name, reason)
                continue
            benchmark = name or read.name
            if not benchmark:
                raise UsageError(f"{path} does not say what was trained; name the benchmark with --name")
            kept = replace(shareable(run), side="", pair=None)  # of which pair it was says nothing here
            groups.setdefault((benchmark, kept.fingerprint.key), []).append(kept)
    return groups


def _refuse_failed_checks(paths: Sequence[Path]) -> None:
    """Raises PerfscopeError: a path is the folder of a check of which the outcome is not pass."""
    import json

    from perfscope.cli.check.runs import CHECK_JSON, is_check_folder

    for path in paths:
        if not is_check_folder(path):
            continue
        try:
            outcome = json.loads((path / CHECK_JSON).read_bytes())["outcome"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path / CHECK_JSON} cannot be read as a check: {error}") from error
        if outcome != "pass":
            raise PerfscopeError(
                f"{path} is a check whose outcome is {outcome}, not pass: a baseline that has its runs takes "
                "their speed for normal; if it is, give --allow-regression"
            )


def _why_refused(run: RunFigures, settings: Settings, *, allow_disturbed: bool) -> str:
    from perfscope.gate.decide import why_unusable

    reason = why_unusable(run, settings)
    if not reason and run.clean is False and not allow_disturbed:
        reason = f"disturbed: {run.clean_reason} Repeat it (--allow-disturbed keeps it all the same)"
    return reason


def _put(
    store: Store,
    name: str,
    runs: list[RunFigures],
    settings: Settings,
    *,
    keep: int | None,
    replacing: bool,
) -> str:
    """Stores runs of one benchmark and fingerprint, and says what is kept now."""
    from perfscope.cli.baseline_text import update_lines

    fingerprint = runs[0].fingerprint
    before = store.runs(name, fingerprint.key)
    entry = store.put(name, runs, keep=keep, replace=replacing)
    after = store.runs(name, entry.key)
    num_fit = sum(run.clean is not False for run in after)
    if num_fit < settings.fewest:
        notice(
            f"{counted(num_fit, 'undisturbed run')} of {name} with this fingerprint: "
            f"a check needs {settings.fewest} or more and is inconclusive with fewer"
        )
    return update_lines(store.path, entry, before, after)


@command.command("show", context_settings=HELP, short_help="Show machines, dates, commits and metrics.")
@click.argument("file", type=_PATH, metavar="[FILE]", required=False)
@click.option("--name", metavar="TEXT", help="Only this benchmark.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def show(file: Path | None, name: str | None, as_json: bool) -> None:
    """Show what FILE keeps: machines, dates, commits, and every metric with its spread.

    FILE may be left out where the settings name a baseline.

    \b
    Examples:
      perfscope baseline show perfscope-baseline.json
      perfscope baseline show perfscope-baseline.json --name train --json | jq .entries[0].metrics
    """
    from perfscope.cli import baseline_text

    store, entries = _opened(file, name)
    with_runs = [(entry, store.runs(entry.name, entry.key)) for entry in entries]
    if as_json:
        print_result(baseline_text.show_document(store.path, with_runs))
    else:
        print_result(baseline_text.show_text(store.path, with_runs))


@command.command("list", context_settings=HELP, short_help="List benchmarks, a line each.")
@click.argument("file", type=_PATH, metavar="[FILE]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_(file: Path | None, as_json: bool) -> None:
    """List what FILE keeps, a line for each benchmark and fingerprint.

    FILE may be left out where the settings name a baseline.

    \b
    Examples:
      perfscope baseline list perfscope-baseline.json
      perfscope baseline list .perfscope/history.sqlite --json | jq -r .entries[].name
    """
    from perfscope.cli import baseline_text

    store, entries = _opened(file, None)
    if as_json:
        print_result(baseline_text.list_document(store.path, entries))
    else:
        print_result(baseline_text.list_text(store.path, entries))


def _opened(file: Path | None, name: str | None) -> tuple[Store, tuple[BaselineEntry, ...]]:
    """The store, and its entries (of one benchmark). Raises BaselineError, UsageError."""
    from perfscope.gate.store import BaselineError, open_store

    if file is None:
        from perfscope.gate.config import load_settings

        file = load_settings(Path.cwd()).baseline
        if file is None:
            raise UsageError("no file named, and the settings name no baseline: give FILE")
    store = open_store(file)
    entries = store.entries()
    chosen = tuple(entry for entry in entries if name is None or entry.name == name)
    if name is not None and not chosen:
        from perfscope.reports.display import visible

        names = ", ".join(dict.fromkeys(entry.name for entry in entries)) or "nothing"
        raise BaselineError(visible(f"there is no benchmark {name} in {file}; it keeps {names}", 600))
    return store, chosen
