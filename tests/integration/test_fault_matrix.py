"""Faults x moments x programs: what the training prints, returns and writes is what it is without perfscope.

The faults are done by the program itself (tests/data/launch/fault_training.py), plain and recorded.
`make test` and `make test-slow` run some of the cases, `make test-sweep` the others; each prints how many
were equal.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.run_support import DATA, PERFSCOPE, user_environment

PROGRAM = str(DATA / "fault_training.py")
FAULTS = ("full_disk", "removed", "replaced", "read_only", "setuid", "chroot", "emfile", "fsize", "closed")
MOMENTS = ("start", "step", "window", "exit")
PROGRAMS = ("python", "torch", "ddp", "jax")
MOST_LINES = 10  # of perfscope's in all, its closing ones included
LIMIT_S = 120

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, chroot and setuid are for root alone")


@dataclass(frozen=True)
class Case:
    fault: str
    moment: str
    framework: str
    thread: bool

    @property
    def arguments(self) -> list[str]:
        chosen = ["--fault", self.fault, "--moment", self.moment, "--framework", self.framework]
        return [*chosen, "--thread"] if self.thread else chosen

    def __str__(self) -> str:
        return "-".join([self.fault, self.moment, self.framework, *(["thread"] if self.thread else [])])


@dataclass(frozen=True)
class Outcome:
    """What a user of the training sees: its own words, its exit code, its files."""

    code: int
    stdout: str
    stderr: str
    files: dict[str, bytes]


def _cases() -> list[object]:
    """Every case. Of those that import a framework, a tenth is quick, as many are slow."""
    cases: list[object] = []
    for number, (fault, moment, thread) in enumerate(itertools.product(FAULTS, MOMENTS, (False, True))):
        for offset, framework in enumerate(PROGRAMS):
            # Each number goes through all faults, moments and both threads, with every framework.
            turn = (number + number // 11 - 3 * offset) % 11
            marks = []
            if turn % 2 if framework == "python" else turn:
                marks.append(pytest.mark.slow if framework == "python" or turn == 1 else pytest.mark.sweep)
            if framework in ("torch", "ddp"):
                marks.append(pytest.mark.torch)
            case = Case(fault, moment, framework, thread)
            cases.append(pytest.param(case, marks=marks, id=str(case)))
    return cases


class PlainRuns:
    """Runs cases without perfscope; a framework is imported once for all of them."""

    def __init__(self) -> None:
        self._servers: dict[str, subprocess.Popen[str]] = {}

    def run(self, case: Case, cwd: Path, disk: Path) -> Outcome:
        library = "torch" if case.framework == "ddp" else case.framework
        if library not in self._servers:
            self._servers[library] = subprocess.Popen(
                [sys.executable, PROGRAM, "--serve", library],
                env=user_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        server = self._servers[library]
        assert server.stdin is not None
        assert server.stdout is not None
        asked = {"arguments": case.arguments, "cwd": str(cwd), "environment": {"FAULT_DIR": str(disk)}}
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return Outcome(
            code, (cwd / "stdout").read_text(), (cwd / "stderr").read_text(), _own_files(cwd, disk)
        )

    def end(self) -> None:
        for server in self._servers.values():
            server.communicate()  # no more cases: it ends


@pytest.fixture(scope="module")
def plain_runs() -> Iterator[PlainRuns]:
    runs = PlainRuns()
    yield runs
    runs.end()


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Two small file systems with a folder to work in beside each: for the plain run and for the other."""
    places = {}
    for name in ("plain", "wrapped"):
        disk = tmp_path / name / "disk"
        (tmp_path / name / "work" / "jail").mkdir(parents=True)
        (tmp_path / name / "work").chmod(0o777)  # the training may no longer be root when it writes there
        disk.mkdir()
        mounting = ["mount", "-t", "tmpfs", "-o", "size=1m", "perfscope-test", str(disk)]
        if subprocess.run(mounting, capture_output=True, check=False).returncode:
            pytest.skip("no file system can be mounted here")
        places[name] = disk
    yield places
    for disk in places.values():
        while subprocess.run(["umount", "-l", str(disk)], capture_output=True, check=False).returncode == 0:
            pass  # twice where a read-only view lies above it


def _own_files(cwd: Path, disk: Path) -> dict[str, bytes]:
    paths = [*cwd.glob("own-*"), *disk.glob("run/precious")]
    return {path.name: path.read_bytes() for path in paths}


def _wrapped(case: Case, cwd: Path, disk: Path) -> tuple[Outcome, list[str]]:
    options = ["run", "--ceilings", "off", "-o", str(disk / "run"), "--"]
    ended = subprocess.run(
        [*PERFSCOPE, *options, sys.executable, PROGRAM, *case.arguments],
        cwd=cwd,
        env=user_environment(FAULT_DIR=str(disk)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    lines = ended.stderr.splitlines(keepends=True)
    ours = [line for line in lines if line.startswith("perfscope:")]
    own = "".join(line for line in lines if not line.startswith("perfscope:"))
    return Outcome(ended.returncode, ended.stdout, own, _own_files(cwd, disk)), ours


@pytest.mark.parametrize("case", _cases())
def test_training_is_the_same(
    case: Case,
    disks: dict[str, Path],
    plain_runs: PlainRuns,
    record_property: Callable[[str, object], None],
) -> None:
    if (
        case.framework != "python"
        and importlib.util.find_spec(case.framework.replace("ddp", "torch")) is None
    ):
        pytest.skip(f"{case.framework} is not installed")
    (disks["plain"] / "run").mkdir()  # what the fault is done to
    plain = plain_runs.run(case, disks["plain"].parent / "work", disks["plain"])
    assert plain.code == 7, plain  # the program survives its own fault
    wrapped, said = _wrapped(case, disks["wrapped"].parent / "work", disks["wrapped"])
    record_property("fault matrix", [case.fault, case.moment, wrapped == plain])
    assert wrapped == plain
    assert len(said) <= MOST_LINES, said
