"""What `perfscope run` finds out about its host and its run, beside the command."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfscope.launch.git_state import read_git_state
from perfscope.rundir import layout

_TIMEOUT_S = 2.0


def _nothing(folder: Path) -> None:
    """No duty."""


def _no_watch(folder: Path, over: threading.Event) -> None:
    """No duty."""


@dataclass(frozen=True, kw_only=True)
class HostDuties:
    """What is found out about this host; each is given hosts/<host> of the run and writes there.

    A duty may raise anything: the run goes on without, and says so at the end.

    Attributes:
        measure: before the command starts, while the machine is idle. Bounded to some seconds.
        describe: beside the running command.
        watch: beside it until the event is set.
    """

    measure: Callable[[Path], None] = _nothing
    describe: Callable[[Path], None] = _nothing
    watch: Callable[[Path, threading.Event], None] = _no_watch

    @property
    def measures(self) -> bool:
        return self.measure is not _nothing


class Facts(threading.Thread):
    """Collects what may take a moment (topology, git) beside the running command, and then watches it.

    Args:
        run_dir: absolute.
        host: duties of this process.
        wants_git: the state of the repository is this process's to record.
        environment: of the command.

    Attributes:
        environment: of the command.
        git: the state of the repository; None: not read, or there is none.
        problem: why a duty could not be done.
        over: to be set when the command has ended: nothing is watched any more.
    """

    def __init__(
        self, run_dir: Path, host: HostDuties, *, wants_git: bool, environment: Mapping[str, str]
    ) -> None:
        super().__init__(name="perfscope-facts", daemon=True)
        self._run_dir = run_dir
        self._host = host
        self._wants_git = wants_git
        self.environment = environment
        self.over = threading.Event()
        self.git: dict[str, object] | None = None
        self.problem: str | None = None

    def measure(self) -> None:
        """What must be measured before the command loads the machine."""
        self._do(self._host.measure)

    def run(self) -> None:
        self._do(self._host.describe)
        if self._wants_git:
            self.git = read_git_state(Path.cwd(), self.environment)
        self._do(lambda folder: self._host.watch(folder, self.over))

    def end(self) -> None:
        """The command has ended: wait a moment for what is under way."""
        self.over.set()
        if self.is_alive():
            self.join(_TIMEOUT_S)

    def _do(self, duty: Callable[[Path], None]) -> None:
        try:
            host_dir = self._run_dir / layout.HOSTS / layout.host_name()
            host_dir.parent.mkdir(exist_ok=True)  # no parents: a run directory that is gone stays gone
            host_dir.mkdir(exist_ok=True)
            duty(host_dir)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with our figures, the command starts
            self.problem = str(error)
