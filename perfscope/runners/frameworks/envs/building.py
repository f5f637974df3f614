"""Building Horovod from its source archive: its release asks for C++14, torch's headers need C++17."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perfscope.runners.config import BenchError

Run = Callable[[Sequence[str], Mapping[str, str]], None]  # (command, more environment); raises BenchError
_OLD = re.compile(r"(CMAKE_CXX_STANDARD\s+)14\b")
_ENVIRONMENT = {
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # of what it brings along, which newer CMakes refuse otherwise
}
# Its own setup.py needs what is installed in the environment (torch, setuptools < 81): no isolation.
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


def build(requirement: str, folder: Path, index: Sequence[str], run: Run) -> None:
    """Downloads the source of `requirement`, patches it and installs it into the environment `folder`.

    Raises:
        BenchError: no C++ compiler, no such version, no network, or it does not build.
    """
    if shutil.which("c++") is None:
        raise BenchError(
            f"building {requirement} needs a C++ compiler; no c++ is on PATH (Debian: apt-get install g++)"
        )
    python = str(folder / "bin" / "python")
    build_dir = folder / "build"
    path = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", os.defpath)])  # its own cmake
    environment = {**_ENVIRONMENT, "PATH": path}
    shutil.rmtree(build_dir, ignore_errors=True)
    build_dir.mkdir()
    how = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    run([python, *PIP, "download", *how, *index, "-d", str(build_dir), requirement], environment)
    source = _unpack(build_dir)
    patch(source)
    run([python, *PIP, "install", "--no-deps", "--no-build-isolation", str(source)], environment)
    shutil.rmtree(build_dir, ignore_errors=True)


def patch(source: Path) -> int:
    """C++14 to C++17 in the CMakeLists.txt of the project and of its bindings; returns the lines changed.

    Raises:
        BenchError: there is no such line: it is another release than the patch was made for.
    """
    changed = 0
    for path in (source / "CMakeLists.txt", *sorted((source / "horovod").glob("*/CMakeLists.txt"))):
        if not path.is_file():
            continue
        text, num = _OLD.subn(r"\g<1>17", path.read_text(encoding="utf-8"))
        if num:
            path.write_text(text, encoding="utf-8")
            changed += num
    if not changed:
        raise BenchError(f"{source.name}: no line asks for C++14; the patch does not fit this release")
    return changed


def _unpack(build_dir: Path) -> Path:
    archives = list(build_dir.glob("*.tar.gz"))
    if len(archives) != 1:
        raise BenchError(f"pip left {len(archives)} archives in {build_dir}, not one")
    with tarfile.open(archives[0]) as file:
        file.extractall(build_dir, filter="data")
    (source,) = (entry for entry in build_dir.iterdir() if entry.is_dir())
    return source
