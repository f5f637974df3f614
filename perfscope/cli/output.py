"""Standard output, which may be closed, full or gone."""

from __future__ import annotations

import os
import sys

import click

from perfscope.errors import PerfscopeError


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
