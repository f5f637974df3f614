"""Runs a measuring script in a process of its own and keeps what it prints, however it ends."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfscope.rundir.sampler_call import QUIET_SITE

# As a script is run, but without the script's folder or the current one in sys.path: modules of this
# package are called `io` and the like.
_RUN = (
    QUIET_SITE + "import runpy; sys.path[:] = [p for p in sys.path if p]; del sys.argv[0]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
_CHUNK = 1 << 16
_TUNING = ("OPENBLAS_", "GOTO_", "MKL_", "OMP_", "GOMP_", "KMP_", "BLIS_", "NPY_")


@dataclass
class ChildResult:
    """What came back.

    Attributes:
        lines: JSON objects, in order; others are left out.
        failure: why there are fewer than there should be; "" = it ended well.
        took_ns: wall time.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""
    took_ns: int = 0


def run_child(
    python: str,
    script: Path,
    plan: Mapping[str, Any],
    environment: Mapping[str, str],
    deadline: float,
    launcher: Sequence[str] = (),
) -> ChildResult:
    """Run `script` with the plan as JSON until it ends, or kill it at `deadline` (monotonic s).

    `launcher`: a command and its options, which starts it.
    """
    began = time.monotonic_ns()
    answer = ChildResult()
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                [*launcher, python, "-S", "-c", _RUN, str(script), json.dumps(plan)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**_plain_environment(), **environment},
                start_new_session=True,  # one signal reaches its children too
            )
        except OSError as error:
            answer.failure = f"{next(iter(launcher), python)} cannot be started: {error.strerror}"
            return answer
        try:
            data, ended = _read(process, deadline)
        finally:
            _kill(process)
        answer.lines = _parsed(data)
        errors.seek(0)
        last = _last_line(errors.read())
        if not ended:
            answer.failure = f"no time was left; its last message: {last}" if last else "no time was left"
        elif process.returncode:
            answer.failure = last or f"ended with status {process.returncode}"
    answer.took_ns = time.monotonic_ns() - began
    return answer


def _plain_environment() -> dict[str, str]:
    """Ours, without what tunes arithmetic libraries: a ceiling is the machine's, not this shell's."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_TUNING)}


def _read(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bool]:
    """All it printed, and whether it came to its end in time."""
    assert process.stdout is not None
    data = b""
    with selectors.DefaultSelector() as selector, process.stdout as out:
        selector.register(out, selectors.EVENT_READ)
        while selector.select(max(deadline - time.monotonic(), 0)):
            part = os.read(out.fileno(), _CHUNK)
            if not part:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(deadline - time.monotonic(), 0))
                return data, process.poll() is not None
            data += part
    return data, False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and all it has started; only while it is not reaped is the number surely its own."""
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _parsed(data: bytes) -> list[dict[str, Any]]:
    lines = []
    for line in data.split(b"\n"):
        with suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                lines.append(value)
    return lines


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else ""
