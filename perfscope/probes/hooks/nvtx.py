"""NVTX ranges of the package `nvtx`: `annotate`, also as a decorator, `push_range` and `pop_range`.

The package does nothing while no tool listens; these ranges are phases all the same. What a `Domain`
object pushes is not seen.
"""

from __future__ import annotations

import sys
from typing import Any

from ..frames import around
from ..phases import Phases
from ..process import current
from .ranges import SOURCE, timed, watch_ranges


def arm(module: str) -> None:
    """`module`, which has the functions, has just been imported; the package takes them from it."""
    phases, nvtx = current().phases, sys.modules[module]
    watch_ranges(phases, nvtx, "push_range", "pop_range", lambda message=None, *_, **__: message)
    kind = getattr(nvtx, "annotate", None)
    if isinstance(kind, type):
        _watch_annotations(phases, kind)


def _watch_annotations(phases: Phases, kind: Any) -> None:
    enter, leave, decorate = kind.__enter__, kind.__exit__, kind.__call__

    @around(enter)
    def __enter__(annotation: Any) -> Any:
        result = enter(annotation)
        phases.push(_message(annotation) or "range", SOURCE)
        return result

    @around(leave)
    def __exit__(annotation: Any, *exc_info: Any) -> Any:
        phases.pop()
        return leave(annotation, *exc_info)

    @around(decorate)
    def __call__(annotation: Any, function: Any) -> Any:
        name = _message(annotation) or getattr(function, "__name__", "range")
        return timed(phases, decorate(annotation, function), function, name, SOURCE)

    kind.__enter__, kind.__exit__, kind.__call__ = __enter__, __exit__, __call__


def _message(annotation: Any) -> Any:
    given = getattr(annotation, "init_args", None)
    if given:
        return given[0]
    message = getattr(getattr(annotation, "attributes", None), "message", None)
    return getattr(message, "string", message)
