"""What all trainings of `perfscope bench run` share, under a scheme or in a framework: being recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfscope.errors import EXIT_OWN_FAILURE, PerfscopeError, UsageError
from perfscope.launch.process import CommandNotStarted
from perfscope.launch.session import RunRequest, run_command
from perfscope.notices import say
from perfscope.runners.sweep.settings import SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions:
    """The options that do not depend on what is trained.

    Attributes:
        output, force: the run directory, and whether a run in it may be replaced.
        name: of the run; None = of what is trained.
        labels: of the user.
        ceilings: `auto`, `off` or `fresh`.
        dry_run: print the plan, and make nothing.
        as_json: figures, or the plan, as JSON.
        click_options: all other options, by click's names: `settings` of the training and `recording`.
    """

    output: Path | None
    force: bool
    name: str | None
    labels: Mapping[str, str]
    ceilings: str
    dry_run: bool
    as_json: bool
    click_options: Mapping[str, Any] = field(repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        """What is trained: names of sweep.settings.SETTINGS; None = not set."""
        return {name: value for name, value in self.click_options.items() if name in SETTINGS}

    @property
    def recording(self) -> dict[str, Any]:
        """How it is recorded: arguments of run_options.probe_options."""
        return {name: value for name, value in self.click_options.items() if name not in SETTINGS}


class RecordedRequest:
    """A request, and the run directory that it was given: every duty gets a folder inside it.

    Attributes:
        run_dir: known once the run has begun; None before, and where it could not be made.
    """

    def __init__(self, request: RunRequest) -> None:
        self.run_dir: Path | None = None
        self._measure = request.host.measure
        self._request = replace(request, host=replace(request.host, measure=self._note))

    def _note(self, folder: Path) -> None:
        self.run_dir = folder.parent.parent
        self._measure(folder)

    def run(self, environment: Mapping[str, str]) -> int:
        """Trains; the code to exit with.

        Raises:
            UsageError: the run directory cannot be used.
            PerfscopeError: perfscope could not start it; its exit code is 125.
        """
        try:
            return run_command(self._request, environment)
        except CommandNotStarted as error:
            say(str(error))
            return error.exit_code
        except UsageError:
            raise
        except PerfscopeError as error:
            error.exit_code = EXIT_OWN_FAILURE
            raise
