"""`perfscope completion`: the script that makes a shell complete perfscope's commands and options."""

from __future__ import annotations

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import print_result


@click.command("completion", context_settings=HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script for SHELL.

    \b
    Examples:
      perfscope completion bash >> ~/.bashrc
      perfscope completion zsh >> ~/.zshrc
      perfscope completion fish > ~/.config/fish/completions/perfscope.fish
    """
    from click.shell_completion import get_completion_class

    from perfscope.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click has no completion for {shell}")
    print_result(kind(cli, {}, "perfscope", "_PERFSCOPE_COMPLETE").source() + "\n")
