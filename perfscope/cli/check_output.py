"""Everything a check gives back: text or JSON on stdout, files, and what GitHub Actions reads."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from perfscope.cli.output import print_result
from perfscope.errors import PerfscopeError
from perfscope.gate.results import CheckResult, Outcome
from perfscope.reports.display import visible
from perfscope.reports.files import write_aside

_MOST_SUMMARY = 1_000_000  # bytes; GitHub takes 1 MiB a step


def say(text: str) -> None:
    click.echo(f"perfscope: {visible(text, 600)}", err=True)


def emit(result: CheckResult, *, as_json: bool, formats: tuple[tuple[str, Path], ...]) -> None:
    """Prints and writes the result. A file that cannot be written does not change the verdict's text.

    Raises:
        PerfscopeError: after everything else was written: some file could not be.
    """
    from perfscope.reports.gate.registry import FORMATS
    from perfscope.reports.gate.text import render_check
    from perfscope.reports.text import wants_color

    problems = []
    if as_json:
        print_result(FORMATS["json"](result).rstrip("\n") + "\n")
    elif not any(str(path) == "-" for _, path in formats):
        width = shutil.get_terminal_size((100, 24)).columns
        color = sys.stdout is not None and wants_color(sys.stdout)
        encoding = (sys.stdout.encoding if sys.stdout is not None else None) or "utf-8"
        text = render_check(result, width=width, color=color)
        print_result(text.encode(encoding, "replace").decode(encoding))
    for name, path in formats:
        text = FORMATS[name](result)
        try:
            write_text(path, text)
        except PerfscopeError as error:
            problems.append(str(error))
    problems += _github(result, as_json=as_json)
    if problems:
        raise PerfscopeError("; ".join(problems))


def write_text(path: Path, text: str) -> None:
    """`-` is stdout. Raises PerfscopeError."""
    if str(path) == "-":
        print_result(text if text.endswith("\n") else text + "\n")
        return
    with write_aside(path) as file:
        file.write(text.encode("utf-8", "replace"))


def _github(result: CheckResult, *, as_json: bool) -> list[str]:
    """Annotations and the step's summary, where GitHub Actions runs us; problems in words."""
    from perfscope.reports.gate.registry import FORMATS

    problems = []
    if os.environ.get("GITHUB_ACTIONS") == "true":
        # The runner reads commands from both streams; stdout stays JSON where JSON was asked for.
        click.echo(FORMATS["annotations"](result).rstrip("\n"), err=as_json)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        text = FORMATS["markdown"](result)
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(text[:_MOST_SUMMARY] + "\n")
        except OSError as error:
            problems.append(f"$GITHUB_STEP_SUMMARY: {summary}: {error.strerror}")
    return problems


def add_to_history(result: CheckResult, file: Path | None) -> None:
    """Keeps the head's judged runs for `perfscope history`. Raises BaselineError."""
    if file is None or result.outcome is Outcome.FAILED or not result.head.runs:
        return
    from perfscope.gate.store import open_store

    store = open_store(file, create=True)
    for fingerprint in {run.fingerprint for run in result.head.runs}:
        store.put(result.name, [run for run in result.head.runs if run.fingerprint == fingerprint])
    say(f"{len(result.head.runs)} runs added to {file}")
