"""`perfscope bench env create | list | remove`: pinned environments, one per framework."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from perfscope.cli.formatting import table
from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import notice, print_result
from perfscope.messages.lists import counted

SCHEMA_VERSION = 1
_DIR = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of environments.  [default: XDG_CACHE_HOME/perfscope/envs, else ~/.cache/perfscope/envs]",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.group("env", context_settings=HELP)
def command() -> None:
    """Make, list and remove pinned environments for `perfscope bench run --framework`.

    \b
    Examples:
      perfscope bench env create jax
      perfscope bench env create mxnet --python python3.10
      perfscope bench env create old-tf --framework tensorflow --dir /scratch/envs
      perfscope bench env list
    """


@command.command("create", context_settings=HELP)
@click.argument("name")
@click.option(
    "--framework",
    metavar="NAME",
    help="torch, tensorflow, keras, jax, mxnet or horovod.  [default: NAME of the environment]",
)
@_DIR
@click.option("--python", metavar="PATH", help="Python to make it from.  [default: this one]")
@click.option("--index-url", metavar="URL", help="Package index for pip.  [default: pip's own settings]")
@click.option("--build", is_flag=True, help="Allow building from source; horovod needs it, some minutes.")
@_JSON
def create_command(
    name: str,
    framework: str | None,
    folder: Path | None,
    python: str | None,
    index_url: str | None,
    build: bool,
    as_json: bool,
) -> None:
    """Make an environment with a framework's pinned versions, or finish one that was interrupted.

    Given twice it does nothing the second time. What pip said is kept in the environment's log.
    """
    from perfscope.runners.frameworks.envs.creation import create
    from perfscope.runners.frameworks.envs.pins import find_pins
    from perfscope.runners.frameworks.envs.store import default_dir

    base = Path.cwd() / folder if folder else default_dir()
    began = time.monotonic()
    made, done = create(
        name,
        find_pins(framework or name),
        base,
        python=_python(python),
        tell=notice,
        index_url=index_url,
        build=build,
    )
    took = f" in {time.monotonic() - began:.0f} s" if done else "; nothing was to be done"
    notice(f"the environment {name} is ready{took}")
    if as_json:
        _print({"environment": made.as_json(), "changed": done})
        return
    option = f"--env {name}" if folder is None else f"--env {made.path}"
    print_result(f"perfscope bench run --framework {_example(made.framework)} {option}\n")


@command.command("list", context_settings=HELP)
@_DIR
@_JSON
def list_command(folder: Path | None, as_json: bool) -> None:
    """List the environments there are."""
    from perfscope.runners.frameworks.envs.store import READY, default_dir, list_environments

    base = Path.cwd() / folder if folder else default_dir()
    environments = list_environments(base=base)
    if as_json:
        _print({"folder": str(base), "environments": [environment.as_json() for environment in environments]})
        return
    if not environments:
        print_result(f"no environment in {base}; make one: perfscope bench env create jax\n")
        return
    rows = [
        (
            environment.name,
            environment.framework,
            "ready" if environment.state == READY else "not finished",
            environment.python_version,
            ", ".join(environment.packages),
        )
        for environment in environments
    ]
    head = ("name", "framework", "state", "Python", "packages")
    print_result(
        "\n".join([f"{counted(len(environments), 'environment')} in {base}", *table(head, rows)]) + "\n"
    )


@command.command("remove", context_settings=HELP)
@click.argument("name")
@_DIR
@_JSON
def remove_command(name: str, folder: Path | None, as_json: bool) -> None:
    """Delete an environment that perfscope made."""
    from perfscope.runners.frameworks.envs.creation import remove
    from perfscope.runners.frameworks.envs.store import check_name, default_dir

    check_name(name)
    env_dir = (Path.cwd() / folder if folder else default_dir()) / name
    remove(env_dir)
    if as_json:
        _print({"removed": str(env_dir)})
    else:
        notice(f"{env_dir} is deleted")


def _python(python: str | None) -> str:
    """The interpreter that was named, found on PATH; this one's own without."""
    import shutil

    from perfscope.runners.config import BenchError

    if python is None:
        return sys.executable
    executable = shutil.which(str(Path(python).expanduser()))
    if executable is None:
        raise BenchError(f"--python {python} cannot be run; name the executable of a Python")
    return str(Path(executable).absolute())


def _example(framework: str) -> str:
    return "keras-jax" if framework == "keras" else framework


def _print(document: dict[str, Any]) -> None:
    versioned = {"schema_version": SCHEMA_VERSION, **document}
    print_result(json.dumps(versioned, indent=1, ensure_ascii=False) + "\n")
