"""A click group whose commands live in modules that are imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

#: Settings of every command: click caches a command's help option at its first use, with a parent or without.
HELP = {"help_option_names": ["-h", "--help"]}
_F = TypeVar("_F", bound=Callable[..., Any])


def with_options(options: Sequence[Any], function: _F) -> _F:
    """A command with several options, which its help lists in this order."""
    for option in reversed(options):  # click lists them in the order of decoration from below
        function = option(function)
    return function


class GroupedCommand(click.Command):
    """A command whose help lists its options under titles.

    Args:
        groups: title -> names of parameters; those in none stand under "Options", at the end.
    """

    def __init__(self, *args: Any, groups: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        params = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {param.name: param.get_help_record(ctx) for param in params if param.name is not None}
        grouped = [name for names in self._groups.values() for name in names]
        ungrouped = [name for name in records if name not in grouped]
        for title, names in {**self._groups, "Options": ungrouped}.items():
            lines = [record for name in names if (record := records[name]) is not None]
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)


class LazyGroup(click.Group):
    """Commands by name: (module with an attribute `command`, one-line help).

    The help is in the table so that listing commands imports none of them. `sections`: title -> names, for
    the help; without them all commands are in one list.
    """

    def __init__(
        self,
        *args: Any,
        table: Mapping[str, tuple[str, str]],
        sections: Mapping[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._table = table
        self._sections = sections or {"Commands": tuple(table)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        command: click.Command = importlib.import_module(self._table[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._table and not args[0].startswith("-"):
            from difflib import get_close_matches  # not at the top: most calls name a command that is there

            near = get_close_matches(args[0], self._table, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(self._table)}."
            ctx.fail(f"No such command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in self._table)
        for title, names in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), self._table[name][1]) for name in names])
