"""Everything a check gives back: text or JSON on stdout, files, and what GitHub Actions reads."""

from __future__ import annotations

import os
import select
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope import notices
from perfscope.cli.check.options import STDOUT
from perfscope.cli.output import discard_stdout, print_result
from perfscope.errors import PerfscopeError
from perfscope.messages.lists import counted
from perfscope.notices import discard_stderr
from perfscope.reports.display import visible
from perfscope.rundir.files import write_aside

if TYPE_CHECKING:
    from perfscope.gate.results import CheckResult


def say(text: str) -> None:
    """A message on stderr, on a terminal folded to its width; see `say_plainly`."""
    notices.say(visible(text, 600))


def say_plainly(text: str) -> None:
    """A line on stderr as it is. Where no reader is left, a measurement goes on all the same."""
    try:
        click.echo(text, err=True)
    except OSError:
        discard_stderr()


def emit(result: CheckResult, *, as_json: bool, formats: tuple[tuple[str, Path], ...]) -> tuple[str, ...]:
    """Prints and writes the result: the verdict first, then files, one after the other.

    Nothing that goes wrong here raises, for the exit code is the verdict's. A reader of stdout that went
    away (`| head`) has what it wanted; anything else that could not be written is a problem.

    Returns:
        What could not be written and why, a sentence each.
    """
    from perfscope.reports.gate.registry import FORMATS
    from perfscope.reports.gate.text import render_check
    from perfscope.reports.text import wants_color

    problems: list[str] = []
    on_stdout = {name for name, path in formats if str(path) == STDOUT}
    if as_json:
        problems += _printed(FORMATS["json"](result).rstrip("\n") + "\n")
    elif not on_stdout:
        width = shutil.get_terminal_size((100, 24)).columns
        color = sys.stdout is not None and wants_color(sys.stdout)
        encoding = (sys.stdout.encoding if sys.stdout is not None else None) or "utf-8"
        text = render_check(result, width=width, color=color)
        problems += _printed(text.encode(encoding, "replace").decode(encoding))
    for name, path in formats:
        text = FORMATS[name](result)
        if str(path) == STDOUT:
            problems += _printed(text if text.endswith("\n") else text + "\n")
            continue
        try:
            write_text(path, text)
        except PerfscopeError as error:
            problems.append(str(error))
    # The runner reads commands from both streams; what a format needs to itself stays so.
    if os.environ.get("GITHUB_ACTIONS") == "true" and "annotations" not in on_stdout:
        commands = FORMATS["annotations"](result).rstrip("\n")
        if as_json or on_stdout:
            say_plainly(commands)
        else:
            problems += _printed(commands + "\n")
    return (*problems, *_summarized(result))


def write_text(path: Path, text: str) -> None:
    """The file, whole or not at all. Raises PerfscopeError."""
    with write_aside(path) as file:
        file.write(text.encode("utf-8", "replace"))


def _printed(text: str) -> list[str]:
    """Text on stdout; the problem with it, if there is one."""
    try:
        print_result(text)
    except BrokenPipeError:
        discard_stdout()
    except PerfscopeError as error:
        return [str(error)]
    return []


def _summarized(result: CheckResult) -> list[str]:
    """Adds Markdown to the step's summary, where GitHub Actions runs us; the problem with it."""
    from perfscope.reports.gate.registry import FORMATS

    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return []
    try:
        with Path(summary).open("a", encoding="utf-8", errors="replace") as file:
            file.write(FORMATS["markdown"](result) + "\n")
    except OSError as error:
        return [f"$GITHUB_STEP_SUMMARY: {summary}: {error.strerror}"]
    return []


def mute_dead_stderr() -> None:
    """Where stderr leads to a closed pipe or a terminal that is gone, saying why we end must not fail."""
    with suppress(OSError, ValueError, AttributeError):
        listener = select.poll()
        listener.register(sys.stderr.fileno(), 0)
        if listener.poll(0):  # POLLERR, POLLHUP: reported without being asked for
            discard_stderr()


def add_to_history(result: CheckResult, file: Path | None) -> None:
    """Keeps the head's judged runs for `perfscope history`. Raises BaselineError."""
    from perfscope.gate.results import Outcome

    if file is None or result.outcome is Outcome.FAILED or not result.head.runs:
        return
    from perfscope.gate.store import open_store

    store = open_store(file, create=True)
    for fingerprint in {run.fingerprint for run in result.head.runs}:
        store.put(result.name, [run for run in result.head.runs if run.fingerprint == fingerprint])
    say(f"{counted(len(result.head.runs), 'run')} added to {file}")
