"""Marks the work of each pipeline stage on each microbatch. In traced windows only.

torch.distributed.pipelining puts ranges around the actions of most schedules, but they include the waits for
other stages, and Schedule1F1B has none. So while a window is open the methods of a stage that compute run
inside a mark that is written as torch writes the action: `perfscope.stage:0F3`.
"""

from __future__ import annotations

import functools
import sys
from typing import Callable, Dict

from ...rundir import layout
from .wrapped_calls import WrappedCalls

_MODULE = "torch.distributed.pipelining.stage"
_CLASS = "_PipelineStageBase"
_FULL = 2  # position of backward_one_chunk's full_backward
_MICROBATCH = ("fwd_chunk_id", "bwd_chunk_id")  # the first argument, where it is given by name


def _backward(args: tuple, kwargs: dict) -> str:
    full = kwargs.get("full_backward", args[_FULL] if len(args) > _FULL else True)
    return "B" if full else "I"


METHODS: Dict[str, Callable[[tuple, dict], str]] = {
    "forward_one_chunk": lambda args, kwargs: "F",
    "backward_one_chunk": _backward,
    "backward_weight_one_chunk": lambda args, kwargs: "W",
}


class StageMarks:
    """Wraps the methods, and takes the wraps off.

    Args:
        calls: of its own.
    """

    def __init__(self, calls: WrappedCalls) -> None:
        self._calls = calls

    def install(self) -> None:
        """From now on mark the work of stages. Does nothing in a training without pipelines."""
        kind = getattr(sys.modules.get(_MODULE), _CLASS, None)
        if kind is None or self._calls.broken or self._calls.active:
            return
        for name, work in METHODS.items():
            self._calls.wrap(kind, name, functools.partial(_text, work))

    def remove(self) -> None:
        """The class as it was before, but for methods that other code has replaced meanwhile."""
        self._calls.remove()


def _text(work: Callable[[tuple, dict], str], args: tuple, kwargs: dict) -> str:
    """Of a call: the stage, then the method's own arguments."""
    stage, rest = args[0], args[1:]
    microbatch = rest[0] if rest else next(kwargs[name] for name in _MICROBATCH if name in kwargs)
    return f"{layout.MARK_STAGE}{stage.stage_index}{work(rest, kwargs)}{microbatch}"
