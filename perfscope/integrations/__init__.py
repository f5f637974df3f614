"""Optional callbacks of training libraries. Nothing needs them to be recorded.

Each module imports its library, so import the module that you use:
``from perfscope.integrations.lightning import PerfscopeCallback``. Outside `perfscope run` they do nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from perfscope import phase


def tell(function: str, value: Any) -> None:
    """Calls a function of the agent of this process, where the process is recorded and its agent has it."""
    call = getattr(sys.modules.get("_perfscope_agent"), function, None)
    if call is not None:
        call(value)


def tell_labels(labels: Mapping[str, Any]) -> None:
    """Labels of the run, beside those of `perfscope run --label`, which win."""
    if labels:
        tell("label", {str(name): str(value) for name, value in labels.items()})


class OpenPhases:
    """Phases whose begin and end are different calls."""

    def __init__(self) -> None:
        self._open: list[tuple[str, Any]] = []

    def begin(self, name: str) -> None:
        """`name` begins, within those that are open."""
        begun = phase(name)
        begun.__enter__()
        self._open.append((name, begun))

    def end(self, name: str) -> None:
        """`name` ends, with those within it; nothing if it is not open."""
        if not any(open_name == name for open_name, _ in self._open):
            return
        while self._open:
            open_name, begun = self._open.pop()
            begun.__exit__(None, None, None)
            if open_name == name:
                return

    def end_all(self) -> None:
        """An error has left all of them."""
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)
