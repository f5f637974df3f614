"""`--slurm` of `bench sweep`, and the options that mean something only with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from perfscope.cli.slurm.options import resource_options, waiting_options
from perfscope.errors import UsageError

_F = TypeVar("_F", bound=Callable[..., Any])
_ONLY_WITH = (
    *("cpus_per_task", "gpus_per_node", "mem", "time", "partition", "account", "qos", "constraint"),
    *("exclusive", "job_name", "more", "site", "array_limit", "no_wait", "timeout_pending"),
)


def sweep_options(function: _F) -> _F:
    """--slurm, --array-limit, and what tasks are asked for."""
    function = waiting_options(resource_options(function))
    limit = click.option(
        "--array-limit",
        type=click.IntRange(1),
        metavar="N",
        help="Runs at the same time at most, with --slurm.",
    )
    slurm = click.option(
        "--slurm", is_flag=True, help="Run the cells as an array job; the options below say on what."
    )
    return slurm(limit(function))


def taken_out(options: Mapping[str, Any], *, with_slurm: bool) -> dict[str, Any]:
    """The options above, by name.

    Raises:
        UsageError: one is given without --slurm.
    """
    array_values = {name: options[name] for name in _ONLY_WITH}
    given = [name for name, value in array_values.items() if value not in (None, False, ())]
    if array_values["exclusive"] is False:
        given.append("shared")
    if given and not with_slurm:
        name = {"more": "sbatch"}.get(given[0], given[0]).replace("_", "-")
        raise UsageError(f"--{name} needs --slurm")
    if array_values["no_wait"] and array_values["timeout_pending"] is not None:
        raise UsageError("--timeout-pending waits, --no-wait does not; leave one out")
    return array_values
