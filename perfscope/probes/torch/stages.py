"""Marks the work of each pipeline stage on each microbatch. In traced windows only.

torch.distributed.pipelining puts ranges around the actions of most schedules, but they include the waits for
other stages, and Schedule1F1B has none. So while a window is open the methods of a stage that compute run
inside a mark that is written as torch writes the action: `perfscope.stage:0F3`.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Tuple

from ...rundir import layout
from ..frames import around

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
        new_mark: name -> context manager that puts a span into the trace.
        unseen: True while a compiler follows the code.
        failed: called with the first fault; after it no mark is made any more.
    """

    def __init__(
        self,
        new_mark: Callable[[str], Any],
        unseen: Callable[[], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        self._new_mark = new_mark
        self._unseen = unseen
        self._failed = failed
        self._broken = False
        self._wrapped: Dict[str, Tuple[Any, Any, Any]] = {}  # name -> (class, original, ours)

    def install(self) -> None:
        """From now on mark the work of stages. Does nothing in a training without pipelines."""
        kind = getattr(sys.modules.get(_MODULE), _CLASS, None)
        if kind is None or self._broken or self._wrapped:
            return
        for name, work in METHODS.items():
            original = vars(kind).get(name)
            if original is not None:
                ours = self._marked(original, work)
                self._wrapped[name] = (kind, original, ours)
                setattr(kind, name, ours)

    def remove(self) -> None:
        """The class as it was before, but for methods that other code has replaced meanwhile."""
        wrapped, self._wrapped = self._wrapped, {}
        for name, (kind, original, ours) in wrapped.items():
            if vars(kind).get(name) is ours:
                setattr(kind, name, original)

    def _marked(self, original: Any, work: Callable[[tuple, dict], str]) -> Any:
        @around(original)
        def call(stage: Any, *args: Any, **kwargs: Any) -> Any:
            mark = self._enter(stage, work, args, kwargs) if self._wrapped else None
            if mark is None:
                return original(stage, *args, **kwargs)
            try:
                return original(stage, *args, **kwargs)
            finally:
                mark.__exit__(None, None, None)

        return call

    def _enter(self, stage: Any, work: Callable[..., str], args: tuple, kwargs: dict) -> Any:
        if self._broken or self._unseen():
            return None
        try:
            microbatch = args[0] if args else next(kwargs[name] for name in _MICROBATCH if name in kwargs)
            mark = self._new_mark(f"{layout.MARK_STAGE}{stage.stage_index}{work(args, kwargs)}{microbatch}")
            mark.__enter__()
            return mark
        except Exception as error:  # noqa: BLE001 - the boundary: the training goes on without the mark
            self._broken = True
            self._failed(error)
            return None
