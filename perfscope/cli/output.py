"""Standard output, which may be closed, full or gone."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from perfscope.errors import PerfscopeError
from perfscope.notices import notice as notice

_F = TypeVar("_F", bound=Callable[..., Any])
_COLORS = {"auto": None, "always": True, "never": False}
_PAGER_SETTINGS = "FRX"  # of less: ends by itself where the text fits, keeps colors, leaves the text standing


def color_option(function: _F) -> _F:
    """--color of a command; `in_color` follows it."""

    def chosen(ctx: click.Context, param: click.Parameter, value: str) -> None:
        ctx.color = _COLORS[value]

    return click.option(
        "--color",
        type=click.Choice([*_COLORS]),
        default="auto",
        show_default=True,
        expose_value=False,
        callback=chosen,
        help="Styled text; auto: on a terminal, unless NO_COLOR is set.",
    )(function)


def in_color(stream: TextIO) -> bool:
    """Whether text for a stream is styled."""
    from perfscope.reports.text import wants_color

    context = click.get_current_context(silent=True)
    wanted = context.color if context is not None else None
    return wants_color(stream) if wanted is None else wanted


def left_out_notice(name: str | Path, reason: str) -> None:
    """That a run is left out, and why; both may come from anyone."""
    from perfscope.reports.display import visible

    notice(visible(f"{name}: left out, {reason}", 600))


def this_command() -> str:
    """The command that runs, as a shell takes it."""
    return shlex.join(["perfscope", *sys.argv[1:]])


def print_paged(text: str) -> None:
    """Print `text` on stdout, through the user's pager where that is a terminal on which it does not fit."""
    is_long = text.count("\n") >= shutil.get_terminal_size((100, 24)).lines
    if sys.stdout is None or not sys.stdout.isatty() or not is_long:
        print_result(text)
        return
    os.environ.setdefault("LESS", _PAGER_SETTINGS)
    click.echo_via_pager(text, color=in_color(sys.stdout))


def print_result(text: str) -> None:
    """Print `text` as it is on stdout.

    Raises:
        PerfscopeError: stdout is closed or takes no more. A reader that went away raises BrokenPipeError.
    """
    if sys.stdout is None:
        raise PerfscopeError("cannot write to stdout: it is closed")
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise PerfscopeError(f"cannot write to stdout: {error.strerror or error}") from error


def discard_stdout() -> None:
    """Let what is still buffered go nowhere, or Python would fail on it once more when it exits."""
    if sys.stdout is None:
        return
    try:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)
    except (OSError, ValueError):
        return  # stdout is no file, so there is nothing of it to fail on
