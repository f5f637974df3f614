"""Phases that a program marks with torch's own means: `record_function`, `torch.cuda.nvtx`."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from ..frames import around
from ..hooks.ranges import watch_ranges
from ..phases import Phases

SOURCE = "record_function"
_DECORATORS = "torch.utils._contextlib"  # calls on behalf of a decorated function


def watch(phases: Phases, torch: Any) -> None:
    """From now on these are phases, apart from those that torch itself marks."""
    _watch_record_function(phases, torch.autograd.profiler.record_function)
    nvtx = sys.modules.get("torch.cuda.nvtx")
    if nvtx is not None:
        watch_ranges(phases, nvtx, "range_push", "range_pop", lambda msg: msg)


def _watch_record_function(phases: Phases, kind: Any) -> None:
    enter, leave = kind.__enter__, kind.__exit__
    begun: "weakref.WeakKeyDictionary[Any, list]" = weakref.WeakKeyDictionary()

    @around(enter)
    def __enter__(mark: Any) -> Any:
        result = enter(mark)
        if not _is_torchs_own(sys._getframe(2)):
            begun.setdefault(mark, []).append(phases.begin(mark.name, SOURCE))
        return result

    @around(leave)
    def __exit__(mark: Any, *exc_info: Any) -> Any:
        stack = begun.get(mark)
        if stack:
            phases.end(stack.pop())
        return leave(mark, *exc_info)

    kind.__enter__, kind.__exit__ = __enter__, __exit__


def _is_torchs_own(frame: Any) -> bool:
    """Whether torch's code entered the mark: optimizers, loaders, FSDP. Their times are known otherwise."""
    name = frame.f_globals.get("__name__", "")
    while name == _DECORATORS and frame.f_back is not None:
        frame = frame.f_back
        name = frame.f_globals.get("__name__", "")
    return bool(name == "torch" or name.startswith("torch."))
