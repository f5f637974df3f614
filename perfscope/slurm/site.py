"""What a site wants in every batch script: perfscope-site.toml.

modules = ["cuda/12.4", "gcc/13"]     loaded in this order
setup = ["source .venv/bin/activate"] lines of shell after that: what makes `perfscope` and Python be found
partition = "gpu"                     and account, qos, constraint, time, mem, mpi, cpu_bind, mem_bind,
                                      gpu_bind: what the options of the same name are when they are not given
interface = "ib0"                     network interface that the frameworks are configured to use
stage = "cp -r data $TMPDIR/"         run once on every node before the clock starts
clean = true                          whole nodes, and who else uses them is written down (false: shared)
[options]                             any other option of sbatch; true = without a value
reservation = "bench"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from perfscope.errors import UsageError
from perfscope.settings import converted, one_line, read_toml

FILE = "perfscope-site.toml"
# What is in the script already, or would take the job out of perfscope's hands.
_TAKEN = frozenset(
    {"nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "exclusive", "array", "output"}
    | {"job-name", "partition", "account", "qos", "constraint", "time", "mem", "wait", "wrap", "parsable"}
    | {"open-mode", "test-only", "requeue", "no-requeue"}
)


Option = bool | int | str  # true = without a value, false = not given
Text = Annotated[str, Meta(pattern=r"\S", description="text")]
Line = Annotated[str, Meta(pattern=r"^[^\n]*$", description="text of one line")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The settings of a site file; what it does not say is None, or empty."""

    modules: tuple[Line, ...] = ()
    setup: tuple[Line, ...] = ()
    partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    constraint: Text | None = None
    time: Text | None = None
    mem: Text | None = None
    mpi: Text | None = None
    cpu_bind: Text | None = None
    mem_bind: Text | None = None
    gpu_bind: Text | None = None
    interface: Text | None = None
    stage: Text | None = None
    clean: bool = True
    options: dict[str, Option] = field(default_factory=dict)


def find_site(folder: Path) -> Path | None:
    """perfscope-site.toml in `folder` or the nearest folder above it."""
    for directory in (folder, *folder.parents):
        if (directory / FILE).is_file():
            return directory / FILE
    return None


def read_site(path: Path) -> Site:
    """The settings in a file.

    Raises:
        UsageError: it cannot be read, is no TOML, or says something that cannot be: one line for all.
    """
    site = converted(read_toml(path), Site, file=path)
    more_options(site.options, f"{one_line(path)}: options")
    return site


def more_options(table: Mapping[str, Option], file_text: str) -> tuple[tuple[str, str | None], ...]:
    """Further options of sbatch by name; None = without a value.

    Raises:
        UsageError: one that perfscope sets itself.
    """
    options_found: list[tuple[str, str | None]] = []
    for name, value in table.items():
        option = name.lstrip("-").replace("_", "-")
        if option in _TAKEN:
            raise UsageError(f"{file_text}: --{option} is set by an option of perfscope, or must not be set")
        if value is not False:
            options_found.append((option, None if value is True else str(value)))
    return tuple(options_found)
