"""Man pages, one per command and subcommand, written from click. `make man` puts them into build/man."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from perfscope import __version__
from perfscope.cli.main import COMMANDS, cli


def man_pages() -> dict[str, str]:
    """Roff text by page name (`perfscope-run`): the program, its commands and their subcommands."""
    root = click.Context(cli, info_name="perfscope", **cli.context_settings)
    return {name: "\n".join(lines) + "\n" for name, lines in _pages(root)}


def _pages(context: click.Context) -> Iterator[tuple[str, list[str]]]:
    yield _page_name(context), list(_page(context))
    for child in _children(context):
        yield from _pages(child)


def _children(context: click.Context) -> list[click.Context]:
    group = context.command
    if not isinstance(group, click.Group):
        return []
    found = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    return [click.Context(one, info_name=name, parent=context) for name, one in found if one is not None]


def _page_name(context: click.Context) -> str:
    return "-".join(one for one in context.command_path.split() if not one.startswith(("-", "[")))


def _page(context: click.Context) -> Iterator[str]:
    name = _page_name(context)
    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    yield f'.TH "{name.upper()}" 1 "{date}" "perfscope {__version__}" "User commands"'
    yield from [".SH NAME", f"{_text(name)} \\- {_text(_summary(context))}", ".SH SYNOPSIS"]
    yield f".B {_text(name.replace('-', ' ') if context.parent else name)}"
    yield _text(" ".join(context.command.collect_usage_pieces(context)))
    if help_text := context.command.help:
        yield ".SH DESCRIPTION"
        yield from _paragraphs(help_text)
    yield from _section("OPTIONS", _options(context))
    yield from _section("COMMANDS", [(_page_name(one), _summary(one)) for one in _children(context)])
    formatter = context.make_formatter()
    context.command.format_epilog(context, formatter)
    if formatter.getvalue().strip():
        yield ".SH NOTES"
        yield from _as_it_is(inspect.cleandoc(formatter.getvalue()).splitlines())
    if context.parent is not None:
        yield from [".SH SEE ALSO", f".BR {_text(_page_name(context.parent))} (1)"]


def _summary(context: click.Context) -> str:
    if context.parent is not None and context.parent.parent is None:
        return COMMANDS[str(context.info_name)][1].rstrip(".")
    return context.command.get_short_help_str(limit=200).rstrip(".")


def _options(context: click.Context) -> list[tuple[str, str]]:
    records = (one.get_help_record(context) for one in context.command.get_params(context))
    return [record for record in records if record is not None]


def _section(title: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield f".SH {title}"
    for term, text in rows:
        yield from [".TP", f".B {_text(term)}", _text(" ".join(text.split()))]


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs are filled, but for those marked \\b, which click prints as they are, too."""
    for number, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):
            yield from _as_it_is(paragraph.splitlines()[1:])
        else:
            yield from map(_text, paragraph.splitlines())


def _as_it_is(lines: list[str]) -> Iterator[str]:
    yield from [".nf", *map(_text, lines), ".fi"]


def _text(line: str) -> str:
    """Roff that shows the characters of `line`: hyphens can be copied, no line begins with a request."""
    shown = line.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{shown}" if shown.startswith(".") else shown


def main(folder: Path) -> None:
    """Writes the pages into FOLDER/man1."""
    target = folder / "man1"
    target.mkdir(parents=True, exist_ok=True)
    for name, text in man_pages().items():
        (target / f"{name}.1").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
