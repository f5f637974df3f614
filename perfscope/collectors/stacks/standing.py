"""Where a process that makes no progress stands: its main thread's Python, read by py-spy once."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePath

import msgspec
from msgspec import Struct

from perfscope.collectors.stacks.bursts import find_py_spy

COMPILATION, CHECKPOINT = "compilation", "checkpoint"
_LIBRARIES = ("site-packages", "dist-packages", "/lib/python3", "<frozen", "<string>")
_COMMUNICATION = ("torch/distributed/", "mpi4py", "horovod")
# Work that takes long and makes no step: library -> its name here.
_WORK = {
    "torch/_dynamo/": COMPILATION,
    "torch/_inductor/": COMPILATION,
    "torch/serialization.py": CHECKPOINT,
    "torch/distributed/checkpoint/": CHECKPOINT,
    "safetensors/": CHECKPOINT,
}
_WRAPPERS = frozenset({"wrapper", "<lambda>"})


class Standing(Struct, frozen=True, kw_only=True):
    """Where a main thread stands.

    Attributes:
        call: function of a communication library that the program called, such as "all_reduce"; "" = none.
        file, line, function: of the program's own innermost code; "" and 0 = not known.
        work: that is long and makes no step: COMPILATION, CHECKPOINT or "".
    """

    call: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    work: str = ""


class _Frame(Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Thread(Struct):
    os_thread_id: int | None = None
    frames: list[_Frame] = []


def standing(pid: int, limit_s: float) -> Standing | None:
    """Where the main thread of a process of this host stands.

    None: py-spy is missing, may not look, or needs more than `limit_s` seconds.
    """
    program = find_py_spy()
    if program is None:
        return None
    command = (program, "dump", "--nonblocking", "--json", "--pid", str(pid))
    try:
        ended = subprocess.run(command, capture_output=True, timeout=limit_s, check=False)
        threads = msgspec.json.decode(ended.stdout, type=list[_Thread])
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError):
        return None
    main = next((thread for thread in threads if thread.os_thread_id == pid), None)
    return None if main is None else standing_of(main.frames)


def standing_of(frames: list[_Frame]) -> Standing:
    """From the frames of a thread, the innermost first."""
    at = next((n for n, frame in enumerate(frames) if not _is_library(frame.filename)), len(frames))
    program_frame = frames[at] if at < len(frames) else _Frame()
    calls = [
        name
        for frame in frames[:at]
        if any(part in frame.filename for part in _COMMUNICATION)
        and (name := frame.name.rpartition(".")[2]) not in _WRAPPERS
    ]
    return Standing(
        call=calls[-1] if calls else "",  # what the program called, not what that calls
        file=PurePath(program_frame.filename).name,
        line=program_frame.line,
        function=program_frame.name,
        work=next(
            (work for frame in frames[:at] for part, work in _WORK.items() if part in frame.filename), ""
        ),
    )


def thread_state(pid: int) -> str:
    """State of a process's main thread as the kernel names it, such as R, S or D; "" = it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _is_library(filename: str) -> bool:
    return any(part in filename for part in _LIBRARIES)
