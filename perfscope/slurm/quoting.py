"""Words in a batch script: whatever they hold, the shell and sbatch read them back as they were."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfscope.errors import UsageError
from perfscope.rundir.shell import quote

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_./:,@%+=-]+")


def quote_all(texts: Iterable[str]) -> str:
    """Words for bash, with spaces between."""
    return " ".join(map(quote, texts))


def directive(option: str, value: str | None = None) -> str:
    """A line `#SBATCH --option=value`.

    Raises:
        UsageError: the value holds a line break or another control character.
    """
    if value is None:
        return f"#SBATCH --{option}"
    if _CONTROL.search(value):
        raise UsageError(f"--{option} {value!r} holds a line break or a control character")
    if _PLAIN_VALUE.fullmatch(value):
        return f"#SBATCH --{option}={value}"
    inside = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{option}="{inside}"'


def file_pattern(path: str) -> str:
    """A path for `--output`, where % and \\ mean something to Slurm."""
    if "\\" in path:
        raise UsageError(f"{path!r}: Slurm cannot write a log to a path with a backslash; name another -o")
    return path.replace("%", "%%")
