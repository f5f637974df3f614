"""What a site wants in every batch script: perfscope-site.toml.

modules = ["cuda/12.4", "gcc/13"]     loaded in this order
setup = ["source .venv/bin/activate"] lines of shell after that: what makes `perfscope` and Python be found
partition = "gpu"                     and account, qos, constraint, time, mem, mpi, cpu_bind, mem_bind,
                                      gpu_bind: what the options of the same name are when they are not given
interface = "ib0"                     network interface that the frameworks are told to use
stage = "cp -r data $TMPDIR/"         run once on every node before the clock starts
clean = true                          whole nodes, and who else uses them is written down (false: shared)
[options]                             any other option of sbatch; true = without a value
reservation = "bench"
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from perfscope.errors import UsageError

FILE = "perfscope-site.toml"
# What stands in the script already, or would take the job out of perfscope's hands.
_TAKEN = frozenset(
    {"nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "exclusive", "array", "output"}
    | {"job-name", "partition", "account", "qos", "constraint", "time", "mem", "wait", "wrap", "parsable"}
    | {"open-mode", "test-only", "requeue", "no-requeue"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The settings of a site file; what it does not say is None, or empty."""

    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: str | None = None
    mem: str | None = None
    mpi: str | None = None
    cpu_bind: str | None = None
    mem_bind: str | None = None
    gpu_bind: str | None = None
    interface: str | None = None
    stage: str | None = None
    clean: bool = True
    options: tuple[tuple[str, str | None], ...] = field(default=())


_LISTS = ("modules", "setup")
_KEYS = tuple(one.name for one in fields(Site))


def find_site(folder: Path) -> Path | None:
    """perfscope-site.toml in `folder` or the nearest folder above it."""
    for place in (folder, *folder.parents):
        if (place / FILE).is_file():
            return place / FILE
    return None


def read_site(path: Path) -> Site:
    """The settings in a file.

    Raises:
        UsageError: it cannot be read, is no TOML, or says something that cannot be: one line for all.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {' '.join(str(error).split())}") from error
    problems = [f"knows no {key!r}{nearest(key, _KEYS)}" for key in document if key not in _KEYS]
    problems += [text for key, value in document.items() if (text := _problem(key, value))]
    if problems:
        raise UsageError(f"{path}: {'; '.join(problems)}")
    settings: dict[str, Any] = {
        key: tuple(value) if key in _LISTS else value for key, value in document.items() if key != "options"
    }
    return Site(**settings, options=more_options(document.get("options", {}), f"{path} [options]"))


def more_options(table: Mapping[str, object], place: str) -> tuple[tuple[str, str | None], ...]:
    """Further options of sbatch by name; None = without a value.

    Raises:
        UsageError: one that perfscope sets itself, or a value that is none.
    """
    found: list[tuple[str, str | None]] = []
    for name, value in table.items():
        option = name.lstrip("-").replace("_", "-")
        if option in _TAKEN:
            raise UsageError(f"{place}: --{option} is set by an option of perfscope, or must not be set")
        if value is True:
            found.append((option, None))
        elif isinstance(value, str | int) and not isinstance(value, bool):
            found.append((option, str(value)))
        elif value is not False:
            raise UsageError(f"{place}: {name} = {value!r} is neither text, a number, true nor false")
    return tuple(found)


def nearest(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'partition'?`, or the list of what there is."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"


def _problem(key: str, value: object) -> str:
    if key in _LISTS:
        good = isinstance(value, list) and all(isinstance(one, str) and "\n" not in one for one in value)
        return "" if good else f"{key} is not a list of texts of one line each"
    if key == "clean":
        return "" if isinstance(value, bool) else "clean is neither true nor false"
    if key == "options":
        return "" if isinstance(value, dict) else "options is not a table, write [options]"
    if key in _KEYS and not (isinstance(value, str) and value.strip()):
        return f"{key} = {value!r} is not text"
    return ""
