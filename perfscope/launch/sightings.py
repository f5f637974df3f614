"""Looking at the processes below the command from outside, while none of them has left a record.

A process that never loaded the agent cannot say so. Its environment and its options, which the kernel shows,
say why it did not.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfscope.launch.command_line import base, is_python
from perfscope.launch.environment import PYTHONPATH
from perfscope.rundir import layout
from perfscope.rundir.last_word import Listener
from perfscope.rundir.redact import redact_argv

_FIRST_LOOK_S, _LONGEST_S = 0.1, 10.0
_MOST_SEEN = 4
_MOST_LETTERS = 60
_TOO_OLD = re.compile(r"python(2(\.\d+)?|3\.[0-7])")


@dataclass(frozen=True, kw_only=True)
class Sightings:
    """What was seen from outside of processes that left no record.

    Attributes:
        without_agent: one line for each way in which a Python process came to run without the agent.
        unwritten: (pid, errno) of processes that trained and could not write.
        lost: what became of the run directory; "" = it is as it was.
    """

    without_agent: tuple[str, ...] = ()
    unwritten: tuple[tuple[int, int], ...] = ()
    lost: str = ""


class ProcessWatch(threading.Thread):
    """Looks at the command's descendants, ever more rarely, until a rank is recorded or it is stopped.

    Args:
        run_dir: absolute.
        site_dir: our directory, which stands on PYTHONPATH where the agent can be loaded.
    """

    def __init__(self, run_dir: Path, site_dir: str) -> None:
        super().__init__(name="perfscope-sightings", daemon=True)
        self._run_dir = run_dir
        self._site_dir = site_dir
        self._identity = _identity(run_dir)
        self._listener = Listener(str(run_dir))
        self._found: dict[str, str] = {}
        self._done = threading.Event()
        self._root = 0

    def begin(self, pid: int) -> None:
        """Look at what runs below `pid`, the command's."""
        self._root = pid
        self.start()

    def run(self) -> None:
        pause = _FIRST_LOOK_S
        while not self._done.wait(pause) and len(self._found) < _MOST_SEEN and not self._has_rank():
            for pid in _below(self._root):
                argv, reason = _why_without_agent(pid, self._site_dir)
                if reason:
                    self._found.setdefault(
                        reason, f"`{_shown(argv)}` ran without perfscope's agent: {reason}"
                    )
            pause = min(2 * pause, _LONGEST_S)

    def end(self) -> Sightings:
        """Stop looking; what was seen."""
        self._done.set()
        unwritten = self._listener.heard()
        self._listener.close()
        return Sightings(
            without_agent=tuple(self._found.values()),
            unwritten=tuple(unwritten),
            lost=self._lost(),
        )

    def _has_rank(self) -> bool:
        try:
            return any(os.scandir(self._run_dir / layout.RANKS))
        except OSError:
            return False

    def _lost(self) -> str:
        if self._identity is None:
            return ""
        now = _identity(self._run_dir)
        if now is None:
            return "was removed"
        if now != self._identity:
            return "was replaced by another"
        with suppress(OSError):
            filesystem = os.statvfs(self._run_dir)
            if filesystem.f_flag & os.ST_RDONLY:
                return "became read-only"
            if filesystem.f_blocks and not filesystem.f_bfree:
                return "ran out of space"
        return ""


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _below(root: int) -> Iterator[int]:
    """`root` and its descendants; nothing where the kernel does not list children."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):  # the thread has ended
                waiting += map(int, path.read_text().split())


def _why_without_agent(pid: int, site_dir: str) -> tuple[Sequence[str], str]:
    """A process's command line, and why it cannot have loaded the agent; "" = it can, or is no Python."""
    try:
        program = base(os.readlink(f"/proc/{pid}/exe"))  # noqa: PTH115 - not resolved further
        if not is_python(program):
            return (), ""
        argv = _strings(pid, "cmdline")
        variables = dict(word.partition("=")[::2] for word in _strings(pid, "environ"))
    except OSError:  # it has ended, or is another user's
        return (), ""
    return argv, _reason(program, argv, variables, site_dir)


def _reason(program: str, argv: Sequence[str], variables: Mapping[str, str], site_dir: str) -> str:
    option = _ignoring_option(argv)
    if option:
        return f"Python's option -{option} keeps it out; leave the option away"
    if _TOO_OLD.fullmatch(program):
        return "it is older than Python 3.8"
    if layout.ENV_RUN_DIR not in variables:
        return f"its environment was emptied (`env -i`, sudo); pass {PYTHONPATH} and PERFSCOPE_* on"
    if site_dir not in variables.get(PYTHONPATH, "").split(os.pathsep):
        return f"{PYTHONPATH} was replaced; add to it instead ({PYTHONPATH}=DIRECTORY:${PYTHONPATH})"
    return ""


def _ignoring_option(argv: Sequence[str]) -> str:
    """The letter among Python's own options by which it ignores PYTHONPATH or sitecustomize."""
    following = iter(argv[1:])
    for word in following:
        if not word.startswith("-") or word in ("-", "--"):
            return ""
        for position, letter in enumerate(word[1:], 2):
            if letter in "EIS":
                return letter
            if letter in "cm":  # what follows is the program's
                return ""
            if letter in "WX" and len(word) == position:
                next(following, "")  # its value
            if letter in "WX-":
                break
    return ""


def _strings(pid: int, name: str) -> list[str]:
    return [os.fsdecode(word) for word in Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")[:-1]]


def _shown(argv: Sequence[str]) -> str:
    text = " ".join(shlex.join([base(argv[0]), *redact_argv(argv)[1:4]] if argv else ["python"]).split())
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    return printable if len(printable) <= _MOST_LETTERS else f"{printable[: _MOST_LETTERS - 1]}…"
