"""Making an environment: a virtual environment, its pinned packages, and a look whether they can be imported.

What is there already is kept: a second call does nothing, one after an interruption or an error goes on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from perfscope.errors import RunDirectoryError
from perfscope.rundir.file_locks import try_lock
from perfscope.rundir.writer import write_json
from perfscope.runners.config import BenchError
from perfscope.runners.frameworks.envs import building
from perfscope.runners.frameworks.envs.pins import Pins
from perfscope.runners.frameworks.envs.store import (
    CREATING,
    LOG,
    MARKER,
    READY,
    Environment,
    check_name,
    read_environment,
)

Tell = Callable[[str], None]
_SCHEMA_VERSION = 1
_ROOM = 1.3  # times what it takes at the end: wheels lie beside what is unpacked from them
_ASK_TIMEOUT_S = 300.0  # importing TensorFlow for the first time from a slow disk
_LARGE_MB = 5.0  # downloads that are worth a line
# What pip says -> what is wrong, and what to do. The first that matches counts.
_REASONS = (
    (r"No space left on device|Errno 28", "the disk is full; free some space, or choose another --dir"),
    (
        r"requires a different Python|Requires-Python|is not a supported wheel on this platform",
        "a pinned version does not run on this Python; name another with --python",
    ),
    (
        r"Failed to establish a new connection|NewConnectionError|NameResolutionError|Network is unreachable"
        r"|Temporary failure in name resolution|Connection refused|ConnectTimeoutError|Read timed out"
        r"|ProxyError|ConnectionResetError|Connection aborted|SSLError",
        "the package index cannot be reached; check the network, or name a mirror with --index-url; the same "
        "command goes on",
    ),
    (
        r"from versions: none\)[^$]*No matching distribution found for ([^\s]+)",
        "the package index offers no version of {0}: it cannot be reached, or has none for this Python and "
        "machine; check the network, or name another --python or --index-url",
    ),
    (
        r"No matching distribution found for ([^\s]+)",
        "the package index has no {0} for this Python and machine; name another --python or --index-url",
    ),
    (r"No module named '?pip", "this Python has no pip; name another with --python"),
)


def create(
    name: str,
    pins: Pins,
    base: Path,
    *,
    python: str,
    tell: Tell,
    index_url: str | None = None,
    build: bool = False,
) -> tuple[Environment, bool]:
    """Makes the environment `base`/`name`, or finishes it.

    Args:
        name: of its folder.
        pins: what it is made of.
        base: folder of all environments.
        python: that it is made from; a path.
        tell: called with what is being done, a line each.
        index_url: package index for pip; None = pip's own settings.
        build: whether building from source is allowed.

    Returns:
        (the environment, whether anything had to be done).

    Raises:
        BenchError: it cannot be made; one line that says why and what to do.
    """
    check_name(name)
    folder = base / name
    old = read_environment(folder)
    if old is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BenchError(f"{folder} is there already and was not made by perfscope; choose another NAME")
    if old is not None and old.framework != pins.name:
        raise BenchError(
            f"the environment {name} is for {old.framework}; choose another NAME, or remove it first: "
            f"perfscope bench env remove {name}"
        )
    if pins.patched and not build:
        raise BenchError(
            f"{pins.name} is built from source, which takes some minutes and needs a C++ compiler; "
            "say so with --build"
        )
    if old is not None and old.state == READY and old.packages == _wanted(pins) and _works(old, pins):
        return old, False
    version = _check_python(python, pins) if old is None or not old.python.exists() else old.python_version
    with _alone(base, name):
        _check_room(base, pins, old)
        _mark(folder, pins, CREATING, version, {})
        _make(folder, pins, python, tell, index_url)
        versions = _versions(folder)
        _mark(folder, pins, READY, version, versions)
    made = read_environment(folder)
    assert made is not None
    return made, True


def remove(folder: Path) -> None:
    """Deletes an environment.

    Raises:
        BenchError: there is none that perfscope made, it is being made right now, or it cannot be deleted.
    """
    if read_environment(folder) is None:
        what = "was not made by perfscope" if folder.exists() else "is not there"
        raise BenchError(f"{folder} {what}; `perfscope bench env list` shows environments")
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.removed")
    with _alone(folder.parent, folder.name):
        try:
            folder.replace(aside)  # a half-deleted one is no environment any more
            shutil.rmtree(aside)
            _lock(folder.parent, folder.name).unlink(missing_ok=True)
        except OSError as error:
            raise BenchError(f"{folder} cannot be deleted: {error.strerror}") from error


def _wanted(pins: Pins) -> tuple[str, ...]:
    return (*pins.packages, *([pins.patched] if pins.patched else []))


def _make(folder: Path, pins: Pins, python: str, tell: Tell, index_url: str | None) -> None:
    stages = 3 + bool(pins.patched)
    log = folder / LOG
    log.write_bytes(b"")
    if not _has_pip(folder):
        tell(f"[1/{stages}] making a virtual environment in {folder}")
        _run([python, "-m", "venv", "--clear", str(folder)], log, _nothing, keep=(folder / MARKER, log))
    tell(f"[2/{stages}] installing {', '.join(pins.packages)} (about {pins.megabytes:,} MB on disk)")
    env_python = str(folder / "bin" / "python")
    index = ["--index-url", index_url] if index_url else []
    command = [env_python, *building.PIP, "install", "--progress-bar", "off", *index, *pins.packages]
    _run(command, log, lambda line: _tell_download(line, tell))
    if pins.patched:
        tell(f"[3/{stages}] building {pins.patched} with the gloo controller; some minutes")
        building.build(pins.patched, folder, index, lambda argv, more: _run(argv, log, _nothing, more=more))
    tell(f"[{stages}/{stages}] checking that {', '.join(pins.imports)} can be imported")
    for name in pins.imports:
        _run([env_python, "-c", f"import {name}"], log, _nothing)


def _nothing(line: str) -> None:
    """No progress to tell."""


def _tell_download(line: str, tell: Tell) -> None:
    match = re.search(r"Downloading (\S+) \(([0-9.]+) ([kMG])B\)", line)
    if match is None:
        return
    size = float(match[2]) * {"k": 1e-3, "M": 1.0, "G": 1e3}[match[3]]
    if size >= _LARGE_MB:
        name = match[1].rpartition("/")[2].partition("-")[0]
        tell(f"      downloading {name} ({match[2]} {match[3]}B)")


def _run(
    command: Sequence[str],
    log: Path,
    look: Callable[[str], None],
    *,
    more: Mapping[str, str] | None = None,
    keep: tuple[Path, ...] = (),
) -> None:
    """Runs a command to its end, its words into the log; raises BenchError with the reason if it fails.

    `keep`: files that the command deletes and that are put back.
    """
    kept = {path: path.read_bytes() for path in keep}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    lines: list[str] = []
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**environment, "PYTHONNOUSERSITE": "1", **(more or {})},
        )
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                look(line)
    except OSError as error:
        raise BenchError(f"{command[0]} cannot be run: {error.strerror}") from error
    finally:
        for path, data in kept.items():
            if path.parent.is_dir():
                path.write_bytes(data)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n{''.join(lines)}")
    if process.returncode != 0:
        raise BenchError(f"{_reason(lines, command)} (all that was said: {log})")


def _reason(output: Sequence[str], command: Sequence[str]) -> str:
    """One line: what went wrong, and what to do about it."""
    text = "".join(output)
    for pattern, reason in _REASONS:
        match = re.search(pattern, text)
        if match:
            return reason.format(*match.groups())
    if "ensurepip" in text:
        return "this Python cannot make virtual environments (Debian: apt-get install python3-venv)"
    lines = [line.strip() for line in output if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "error:"))] or lines
    what = Path(command[0]).name if "pip" not in command else "pip"
    return f"{what} failed: {errors[-1][:300] if errors else 'it said nothing'}"


def _check_python(python: str, pins: Pins) -> str:
    """The version of a Python that runs the pinned versions."""
    try:
        answer = subprocess.run(
            [python, "-c", "import sys; print(*sys.version_info[:3])"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=True,
        )
        version = tuple(int(word) for word in answer.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        raise BenchError(f"{python} does not run as a Python; name another with --python") from None
    if not pins.oldest <= version[:2] <= pins.newest:
        raise BenchError(
            f"{pins.name} as pinned needs Python {pins.pythons}, but {python} is "
            f"{'.'.join(map(str, version))}; name another with --python"
        )
    return ".".join(map(str, version))


def _check_room(base: Path, pins: Pins, old: Environment | None) -> None:
    free = shutil.disk_usage(base).free / 1e6
    needed = pins.megabytes * _ROOM
    if old is None and free < needed:
        raise BenchError(
            f"{base} has {free:,.0f} MB left, but {pins.name} needs about {needed:,.0f} MB; free some space, "
            "or choose another --dir"
        )


def _lock(base: Path, name: str) -> Path:
    return base / f".{name}.lock"


@contextmanager
def _alone(base: Path, name: str) -> Iterator[None]:
    """No other process makes this environment meanwhile."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        file = _lock(base, name).open("wb")
    except OSError as error:
        raise BenchError(f"environments cannot be made in {base}: {error.strerror}; choose --dir") from error
    with file:
        if not try_lock(file):
            raise BenchError(f"another perfscope is making the environment {name} right now")
        yield


def _mark(folder: Path, pins: Pins, state: str, version: str, versions: Mapping[str, str]) -> None:
    document = {
        "schema_version": _SCHEMA_VERSION,
        "framework": pins.name,
        "state": state,
        "packages": list(_wanted(pins)),
        "python_version": version,
        "versions": dict(versions),
        "made_unix_s": round(time.time()),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / MARKER, document)
    except (OSError, RunDirectoryError) as error:
        raise BenchError(f"{folder} cannot be written: {error}") from error


def _has_pip(folder: Path) -> bool:
    return _answers([str(folder / "bin" / "python"), *building.PIP, "--version"])


def _works(made: Environment, pins: Pins) -> bool:
    """A look, no import: TensorFlow's takes seconds."""
    tops = sorted({name.partition(".")[0] for name in pins.imports})
    question = f"from importlib.util import find_spec; import sys; sys.exit(None in map(find_spec, {tops!r}))"
    return _answers([str(made.python), "-c", question])


def _answers(command: Sequence[str]) -> bool:
    try:
        ended = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


def _versions(folder: Path) -> dict[str, str]:
    """What is installed, by package."""
    command = [str(folder / "bin" / "python"), *building.PIP, "list", "--format", "json"]
    answer = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_TIMEOUT_S, check=False
    )
    try:
        return {str(package["name"]): str(package["version"]) for package in json.loads(answer.stdout)}
    except (ValueError, KeyError, TypeError):
        return {}
