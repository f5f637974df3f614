"""One Markdown page per command, written from click. `make docs` puts them into the site."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator

import click

from perfscope.cli.main import cli


def command_pages() -> dict[str, str]:
    """Page by the command's name: every top-level command, each with its subcommands."""
    root = click.Context(cli, info_name="perfscope", **cli.context_settings)
    pages = {}
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        assert command is not None
        pages[name] = "\n".join(_sections(click.Context(command, info_name=name, parent=root), 1))
    return pages


def _sections(context: click.Context, level: int) -> Iterator[str]:
    """The lines of a command and, below it, of its subcommands."""
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from [f"{'#' * level} {context.command_path}", "", "```text", usage, "```", ""]
    yield from _help(command.help or "")
    yield from _options(context)
    yield from _epilog(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _sections(click.Context(child, info_name=name, parent=context), level + 1)


def _help(text: str) -> Iterator[str]:
    """A help text; paragraphs that click prints as they are (marked \\b) become blocks of code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if not paragraph.startswith("\b"):
            yield from [_escaped(paragraph), ""]
            continue
        lines = paragraph.splitlines()[1:]
        if lines and lines[0].endswith(":"):
            yield from [_escaped(lines.pop(0)), ""]
        yield from _block("\n".join(lines))


def _options(context: click.Context) -> Iterator[str]:
    records = [one.get_help_record(context) for one in context.command.get_params(context)]
    rows = [f"| `{names}` | {_cell(text)} |" for names, text in filter(None, records) if text]
    if rows:
        yield from ["| option | meaning |", "|---|---|", *rows, ""]


def _epilog(context: click.Context) -> Iterator[str]:
    formatter = context.make_formatter()
    context.command.format_epilog(context, formatter)
    if formatter.getvalue().strip():
        yield from _block(formatter.getvalue().strip("\n"))


def _block(text: str) -> list[str]:
    return ["```text", *textwrap.dedent(text).splitlines(), "```", ""]


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Markdown that shows the characters of `text`, but for the code marks in it."""
    for character in "\\<*_[":
        text = text.replace(character, "\\" + character)
    return text
