"""Marks the work of each pipeline stage on each microbatch. In traced windows only.

torch.distributed.pipelining puts ranges around the actions of most schedules, but they include the waits for
other stages, and Schedule1F1B has none. So while a window is open the methods of a stage that compute run
inside a mark that is written as torch writes the action: `perfscope.stage:0F3`. Messages are sent later, in
batches: what a stage prepares is remembered by its tensor until the process group is given that, which then
happens inside `perfscope.boundary:1 2 3`.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from ...rundir import layout
from ..frames import around
from .wrapped_calls import WrappedCalls

_MODULE = "torch.distributed.pipelining.stage"
_CLASS = "_PipelineStageBase"
_FULL = 2  # position of backward_one_chunk's full_backward
_MICROBATCH = ("fwd_chunk_id", "bwd_chunk_id")  # the first argument, where it is given by name
# What prepares messages -> (stage that sends, stage that receives), relative to the stage's own.
_MESSAGES = {
    "get_fwd_recv_ops": (-1, 0),
    "get_fwd_send_ops": (0, 1),
    "get_bwd_recv_ops": (1, 0),
    "get_bwd_send_ops": (0, -1),
}


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
        self._messages: Dict[int, Tuple[Any, str]] = {}  # id of a tensor -> weak reference, mark

    def install(self) -> None:
        """From now on mark the work of stages. Does nothing in a training without pipelines."""
        kind = getattr(sys.modules.get(_MODULE), _CLASS, None)
        if kind is None or self._calls.broken or self._calls.active:
            return
        for name, work in METHODS.items():
            self._calls.wrap(kind, name, functools.partial(_text, work))
        for name, ends in _MESSAGES.items():
            self._calls.replace(kind, name, functools.partial(self._remembered, ends))
        for name in ("send", "recv"):
            self._calls.wrap(sys.modules["torch"].distributed.ProcessGroup, name, self._message)

    def remove(self) -> None:
        """The classes as they were before, but for methods that other code has replaced meanwhile."""
        self._calls.remove()
        self._messages.clear()

    def _remembered(self, ends: Tuple[int, int], original: Any) -> Any:
        @around(original)
        def call(stage: Any, *args: Any, **kwargs: Any) -> Any:
            messages = original(stage, *args, **kwargs)
            if self._calls.active and not self._calls.unseen():
                try:
                    self._remember(stage, ends, args or tuple(kwargs.values()), messages)
                except Exception as error:  # noqa: BLE001 - the boundary: messages go without marks
                    self._calls.fail(error)
            return messages

        return call

    def _remember(self, stage: Any, ends: Tuple[int, int], args: tuple, messages: Sequence[Any]) -> None:
        dist = sys.modules["torch"].distributed
        index = stage.stage_index
        rank = stage.stage_index_to_group_rank.get(index + sum(ends))  # one of the two ends is 0
        if rank is None:
            return
        peer = dist.get_global_rank(stage.group or dist.group.WORLD, rank)
        text = "%s%d %d %d" % (layout.MARK_BOUNDARY, index + ends[0], index + ends[1], args[0])
        for message in messages:
            if message.peer == peer:  # not to a stage further away
                self._messages[id(message.tensor)] = (weakref.ref(message.tensor), text)

    def _message(self, args: tuple, kwargs: dict) -> Optional[str]:
        """Of `send` and `recv` of a process group: (tensors, rank, tag)."""
        if len(args) < 2 or len(args[1]) != 1:
            return None
        (tensor,) = args[1]
        reference, text = self._messages.pop(id(tensor), (None, None))
        return text if reference is not None and reference() is tensor else None


def _text(work: Callable[[tuple, dict], str], args: tuple, kwargs: dict) -> str:
    """Of a call: the stage, then the method's own arguments."""
    stage, arguments = args[0], args[1:]
    microbatch = arguments[0] if arguments else next(kwargs[name] for name in _MICROBATCH if name in kwargs)
    return f"{layout.MARK_STAGE}{stage.stage_index}{work(arguments, kwargs)}{microbatch}"
