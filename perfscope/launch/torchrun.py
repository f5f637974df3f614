"""How many processes a torchrun command line starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from perfscope.launch import command_line

# torchrun's options without a value (dashes and underscores mean the same); every other takes one.
_FLAGS = frozenset(
    {
        "--standalone",
        "-m",
        "--module",
        "--no-python",
        "--run-path",
        "--use-env",
        "--virtual-local-rank",
        "-h",
        "--help",
    }
    | {"--duplicate-stdout-filters", "--duplicate-stderr-filters"}
)


@dataclass(frozen=True, kw_only=True)
class TorchrunJob:
    """What torchrun was asked for.

    Attributes:
        num_local_ranks: processes this torchrun starts on this host; None = not known.
        world_size: ranks of all nodes; None = not known (elastic, or the above).
        script: the script and its arguments; None when there is none.
        runs_command: script is a command of its own (`--no-python`).
        name: script or module name.
    """

    num_local_ranks: int | None
    world_size: int | None
    script: tuple[str, ...] | None
    runs_command: bool
    name: str


def read(options_and_script: tuple[str, ...], environment: Mapping[str, str]) -> TorchrunJob:
    """Read what follows `torchrun`. Defaults come from PET_* variables, as torchrun's own do."""
    given: dict[str, str] = {}
    index = 0
    while index < len(options_and_script):
        word = options_and_script[index]
        if word == "--":
            index += 1
            break
        if not word.startswith("-"):
            break
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        if name in _FLAGS or equals:
            given[name] = value
            index += 1
        else:
            given[name] = options_and_script[index + 1] if index + 1 < len(options_and_script) else ""
            index += 2
    script = options_and_script[index:] or None
    is_module = "-m" in given or "--module" in given
    local = _num_local(given.get("--nproc-per-node", environment.get("PET_NPROC_PER_NODE", "1")), environment)
    nodes = _num_nodes(given, environment)
    return TorchrunJob(
        num_local_ranks=local,
        world_size=local * nodes if local and nodes else None,
        script=script,
        runs_command="--no-python" in given,
        name="torchrun" if script is None else script[0] if is_module else PurePath(script[0]).stem,
    )


def _num_nodes(given: Mapping[str, str], environment: Mapping[str, str]) -> int | None:
    if "--standalone" in given:
        return 1
    low, _, high = given.get("--nnodes", environment.get("PET_NNODES", "1")).partition(":")
    return command_line.as_count(low) if not high or high == low else None


def _num_local(text: str, environment: Mapping[str, str]) -> int | None:
    """`4`, `cpu`, `gpu` or `auto`, as torchrun reads it."""
    if text == "cpu":
        return os.cpu_count()
    if text not in ("gpu", "auto"):
        return command_line.as_count(text)
    from perfscope.collectors.context import Context
    from perfscope.collectors.gpu.registry import num_visible

    num_gpus = num_visible(Context(), environment)
    return os.cpu_count() if num_gpus == 0 and text == "auto" else num_gpus or None
