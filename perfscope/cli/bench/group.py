"""`perfscope bench`: a group of its own, one file per command."""

from __future__ import annotations

import click

from perfscope.cli.lazy_group import HELP, LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("perfscope.cli.bench.listing", "Show the schemes, modifiers and models there are."),
    "run": ("perfscope.cli.bench.run", "Train a model under one scheme, and record it."),
    "sweep": ("perfscope.cli.bench.sweep", "Run a matrix of schemes, and compare them in a study."),
    "frameworks": (
        "perfscope.cli.bench.frameworks",
        "Train the same CNNs in several frameworks, and compare them.",
    ),
    "env": ("perfscope.cli.bench.env", "Make, list and remove pinned environments of frameworks."),
}


@click.group("bench", cls=LazyGroup, table=COMMANDS, context_settings=HELP)
def command() -> None:
    """Train one model under many parallel schemes, or in many frameworks, and compare them.

    Every run is an ordinary run directory: `perfscope report` explains it.

    \b
    Examples:
      perfscope bench list
      perfscope bench run dp.packed --model alexnet --ranks 4 --batch 32 --steps 20
      perfscope bench run hy.owt --mesh dp=4 --cluster 2x2@1gbit
      perfscope bench sweep examples/hybrid.toml
      perfscope bench run --framework jax --model lenet --ranks 2
      perfscope bench frameworks --models lenet,smallcnn --ranks 1,2
    """
