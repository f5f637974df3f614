"""A click group whose commands live in modules that are imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

#: Settings of every command: click caches a command's help option at its first use, with a parent or without.
HELP = {"help_option_names": ["-h", "--help"]}


class LazyGroup(click.Group):
    """Commands by name: (module with an attribute `command`, one-line help).

    The help is in the table so that listing commands imports none of them.
    """

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        command: click.Command = importlib.import_module(self._table[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._table.items()])
