"""Reading command lines: where options end, what a word names."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*[a-z]*")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "tcsh", "csh"})
_SHEBANG_BYTES = 256  # what the kernel looks at


def base(word: str) -> str:
    """The file name in a path: `/usr/bin/mpirun` -> `mpirun`."""
    return PurePath(word).name


def is_python(word: str) -> bool:
    return _PYTHON.fullmatch(base(word)) is not None


def is_shell(word: str) -> bool:
    return base(word) in _SHELLS


def end_of_options(argv: Sequence[str], with_value: Collection[str], start: int = 1) -> int:
    """Index of the first word after the options (len(argv) if there is none).

    Args:
        with_value: options whose value is the next word (`-n`, `--name`; `--name=x` needs no entry).
    """
    index = start
    while index < len(argv):
        word = argv[index]
        if word == "--":
            return index + 1
        if not word.startswith("-") or word == "-":
            return index
        index += 2 if word in with_value else 1
    return len(argv)


def last_value(options: Sequence[str], *names: str) -> str | None:
    """The value of the last of `names` among `options`, as `--name x` or `--name=x`."""
    value = None
    for index, word in enumerate(options):
        if word in names and index + 1 < len(options):
            value = options[index + 1]
            continue
        name, equals, attached = word.partition("=")
        if equals and name in names:
            value = attached
    return value


def as_count(text: str | None) -> int | None:
    """A positive number, or None for anything else."""
    if text is None or not re.fullmatch(r"[0-9]{1,7}", text):
        return None
    return int(text) or None


def shebang(word: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The interpreter line of the script `word` as words; empty when it is no script.

    `#!/usr/bin/env -S python3 -E` gives `("python3", "-E")`.
    """
    path = shutil.which(word, path=environment.get("PATH", os.defpath))
    if path is None:
        return ()
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - what `which` found, as bytes
            head = file.read(_SHEBANG_BYTES)
    except OSError:
        return ()
    if not head.startswith(b"#!"):
        return ()
    argv = tuple(head[2:].split(b"\n", 1)[0].decode("utf-8", "replace").split())
    if argv and base(argv[0]) == "env":
        argv = argv[end_of_options(argv, ("-u",)) :]
    return argv
