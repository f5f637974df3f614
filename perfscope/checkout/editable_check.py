"""Whose code would a command in a checkout import: its own, or by an editable install the working tree's?

A package that was installed with `pip install -e .` is found in the working tree wherever Python is started.
Then base and head are the same code, and every check passes. So the interpreter that would run is asked.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfscope.checkout.worktree import PYTHONPATH, Worktree
from perfscope.messages.lists import first_of

_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?t?")
_ASK_S = 30.0
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """How the command in the checkout imports.

    Attributes:
        environment: for the command; PYTHONPATH puts the checkout's own packages first where that was needed.
        python: the interpreter that was asked; "" = the command does not tell which one runs.
        redirected: packages for which it was needed.
        shadowed: packages that nevertheless come from the working tree.
        notes: sentences about that.
    """

    environment: Mapping[str, str]
    python: str = ""
    redirected: tuple[str, ...] = ()
    shadowed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def own_imports(base: Worktree, command: Sequence[str], environment: Mapping[str, str]) -> Imports:
    """Makes the command in the checkout import the checkout's packages, and says which it cannot.

    Args:
        command: as it would run in the working tree.
        environment: as it would be there.
    """
    changed = base.environment(environment)
    argv = base.command(command)
    python = interpreter(argv, changed, base.folder)
    first = _script_folder(argv, base)
    before = _ask(python, base, first, changed) if python else None
    if before is None:
        return Imports(environment=changed, python=python, notes=_unasked(base, python))
    roots = [there for root in dict.fromkeys(before.values()) if (there := base.counterpart(Path(root)))]
    entries = [str(root) for root in roots if root.is_dir()]
    after = before
    if entries:
        kept = changed.get(PYTHONPATH)
        changed[PYTHONPATH] = os.pathsep.join([*entries, *([kept] if kept else [])])
        after = _ask(python, base, first, changed) or {}
    # What only the head has, the base does not import.
    shadowed = {name: root for name, root in after.items() if _may_matter(base, name, Path(root))}
    redirected = tuple(sorted(set(before) - set(after)))
    return Imports(
        environment=changed,
        python=python,
        redirected=redirected,
        shadowed=tuple(sorted(shadowed)),
        notes=tuple(_sentences(shadowed, redirected, python)),
    )


def interpreter(argv: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    """The Python that a command starts: named in it (mpirun python x.py), or in its script's first line."""
    for word in argv:
        if _PYTHON.fullmatch(Path(word).name):
            return _program(word, environment, folder)
    for word in argv:
        program = "" if word.startswith("-") else _program(word, environment, folder)
        if program and (interpreter_path := _from_first_lines(Path(program), environment, folder)):
            return interpreter_path
    return ""


def _program(word: str, environment: Mapping[str, str], folder: Path) -> str:
    if os.sep in word:
        path = folder / word
        return str(path) if path.is_file() and os.access(path, os.X_OK) else ""
    return shutil.which(word, path=environment.get("PATH", os.defpath)) or ""


def _from_first_lines(script: Path, environment: Mapping[str, str], folder: Path) -> str:
    try:
        with script.open("rb") as file:
            lines = file.read(2000).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    if not lines or not lines[0].startswith("#!"):
        return ""
    # pip writes `#!/bin/sh` and `'''exec' /a/long/path/python "$0" "$@"` where the path is too long for #!.
    for line in (lines[0][2:], *[line for line in lines[1:2] if line.startswith("'''exec'")]):
        try:
            parts = shlex.split(line.replace("'''exec'", ""))
        except ValueError:
            continue
        for part in parts:
            if _PYTHON.fullmatch(Path(part).name):
                return _program(part, environment, folder)
    return ""


def _script_folder(argv: Sequence[str], base: Worktree) -> Path:
    """What Python puts first on sys.path: the script's folder, or with -m the current one."""
    for word in argv:
        if word.endswith(".py") and (base.folder / word).is_file():
            return (base.folder / word).parent
    return base.folder


def _ask(python: str, base: Worktree, first: Path, environment: Mapping[str, str]) -> dict[str, str] | None:
    """Module -> folder of the working tree where it would be found; None = the interpreter does not say."""
    question = (Path(__file__).parent / "module_origins.py").read_text(encoding="utf-8")
    try:
        answer = subprocess.run(
            [python, "-c", question, str(base.repository), str(base.path), str(first)],
            cwd=base.folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_ASK_S,
            check=True,
        )
        origins = json.loads(answer.stdout.decode("utf-8", "surrogateescape").rstrip().rpartition("\n")[2])
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return origins if isinstance(origins, dict) else None


def _may_matter(base: Worktree, name: str, root: Path) -> bool:
    there = base.counterpart(root)
    if there is None or not there.is_dir():
        return True
    return (there / name).is_dir() or any(there.glob(f"{name}.*"))


def _unasked(base: Worktree, python: str) -> tuple[str, ...]:
    """Worth saying only of a project that can be installed."""
    if not any((base.repository / name).is_file() for name in ("pyproject.toml", "setup.py", "setup.cfg")):
        return ()
    why = f"{python} did not say" if python else "the command does not show which Python it starts"
    return (
        f"Not checked whether the base imports its own packages ({why}): if they are installed from the "
        "working tree (pip install -e), both sides run the head's code.",
    )


def _sentences(shadowed: Mapping[str, str], redirected: Sequence[str], python: str) -> list[str]:
    sentences = []
    if shadowed:
        name = next(iter(sorted(shadowed)))
        sentences.append(
            f"Base and head would both import {_listed(sorted(shadowed))} from the working tree "
            f"({shadowed[name]}), because {python} has it installed from there (pip install -e): the check "
            "would compare the head with itself. Give the base an environment of its own with --base-cmd, or "
            "uninstall the editable install."
        )
    if redirected:
        sentences.append(
            f"The base imports its own {_listed(redirected)} by PYTHONPATH, because {python} has it "
            "installed from the working tree; what it compiles must be built in the checkout."
        )
    return sentences


def _listed(names: Sequence[str]) -> str:
    return first_of(names, _MOST_NAMED)
