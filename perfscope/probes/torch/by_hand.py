"""Steps of a training whose updates pass no hook: written by hand, `p.data.add_(p.grad, alpha=-lr)`.

The update is taken to follow each backward pass, unless the gradients are still what that pass left when the
next one begins: they accumulate. Where `torch.autograd.grad` gave the gradients to the training, the
parameters themselves must have changed. Changes made through `.data` show in the values only, which are
looked at on the CPU; on a device that would make the training wait.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any, Callable, List, Optional, Sequence, Set, Tuple

from ...vocabulary.notes import NoteKind
from ..activities import StepReadings
from ..steps import Step, StepTracker
from .models import ForwardCalls

ENOUGH = 8  # sets of gradients used up without any optimizer: the updates are written by hand
SOURCE = "backward passes"  # `step_source` in rank.json
THEN_OPTIMIZERS = SOURCE + ", then optimizers"
NOTE_KIND = NoteKind.STEPS
NOTE = (
    "steps are cut at backward passes, for no optimizer object stepped (updates written by hand); passes "
    "whose gradients add up are one step where that can be determined; "
    "call perfscope.step() to mark the steps exactly"
)
_MAX_NODES = 2_000  # of the graph looked through for a parameter
_LOOK = 16  # elements of a gradient that are compared


class ByHand:
    """Follows backward passes, in case that no optimizer ever steps.

    Args:
        readings: of what the process does, for the steps cut here.

    Attributes:
        tracker: cuts steps at the passes; what it emits is kept until `steps` are wanted.
        num_used: sets of gradients that were used up by now.
        accumulates: a pass has added to the gradients of the one before.
    """

    def __init__(self, readings: StepReadings) -> None:
        self.steps: List[Step] = []
        self.tracker = StepTracker(self.steps.append, readings)
        self.num_used = 0
        self.accumulates = False
        self._parameter: Optional[Callable[[], Any]] = None
        self._left: Optional[Tuple[Any, ...]] = None
        self._look: Callable[[Any], Optional[Tuple[Any, ...]]] = _look_at_gradient
        self._goes_on = False

    @property
    def enough(self) -> bool:
        return self.num_used >= ENOUGH

    @property
    def number(self) -> int:
        """Of the step that a forward pass now belongs to, as far as can be known now."""
        parameter = self._parameter() if self._parameter is not None else None
        waits = parameter is not None and self._look(parameter) != self._left
        return self.num_used + waits

    def backward_begins(self, tensors: Any, returned: Sequence[Any]) -> None:
        """A backward pass from `tensors` is about to run; gradients of the parameters `returned` go to the
        training, those of others are collected by the parameters.
        """
        before = self._parameter() if self._parameter is not None else None
        # The smallest one: all of it is looked at, or much of it, so that rows without a gradient are few.
        parameter = min(returned, key=lambda each: each.numel()) if returned else _leaf_of(tensors)
        self._look, look_before = _look if returned else _look_at_gradient, self._look
        self._parameter = weakref.ref(parameter) if parameter is not None else None
        # Gradients that are kept elsewhere (FSDP2, ZeRO), or leaves that are new in each pass, tell nothing.
        comparable = self._left is not None and parameter is before and parameter is not None
        self._goes_on = comparable and self._left == look_before(parameter)
        self.accumulates = self.accumulates or self._goes_on
        self.num_used += comparable and not self._goes_on

    def backward_ended(self, now: int) -> None:
        """It has ended, at `now`: a step ends here, if the gradients are used up before the next pass."""
        parameter = self._parameter() if self._parameter is not None else None
        self._left = self._look(parameter) if parameter is not None else None
        # Gradients are moved elsewhere (`main_grad`). FSDP2 frees the parameter, too: then nothing is known.
        if self._left is None and parameter is not None and _has_memory(parameter):
            self._look = _look
            self._left = _look(parameter)
        if self._left is not None:  # else no gradient was collected, or not where it can be seen
            self.tracker.update_by_hand(now, self._goes_on)


def _look_at_gradient(parameter: Any) -> Optional[Tuple[Any, ...]]:
    """What changes when the gradient is cleared, scaled or replaced; None: there is none."""
    return None if parameter.grad is None else _look(parameter.grad)


def _look(tensor: Any) -> Tuple[Any, ...]:
    """What changes when `tensor` is written to or replaced."""
    torch = sys.modules["torch"]
    # Operations of a distributed tensor communicate, and those of other subclasses run the training's code.
    tensor = getattr(tensor, "_local_tensor", tensor)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or str(tensor.layout) != "torch.strided":
        return (id(tensor), tensor._version, None)
    values = None
    if tensor.device.type == "cpu" and _has_memory(tensor):
        values = tuple(tensor.detach().reshape(-1)[:_LOOK].tolist())
    return (tensor.data_ptr(), tensor._version, values)


def _has_memory(tensor: Any) -> bool:
    """Whether the storage of a tensor, or of this rank's part of it, has not been freed."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    is_strided = str(tensor.layout) == "torch.strided"
    return bool(not is_strided or not tensor.numel() or tensor.untyped_storage().nbytes())


def _leaf_of(tensors: Any) -> Any:
    """A tensor that collects gradients in a backward pass from `tensors`; None: not found."""
    first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
    waiting = [getattr(first, "grad_fn", None)]
    seen: Set[Any] = set()
    while waiting and len(seen) < _MAX_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            return leaf
        waiting.extend(following for following, _ in reversed(node.next_functions))
    return None


def take_over(probe: Any) -> None:
    """So many gradients were used up without an optimizer: steps are cut at backward passes."""
    hand = probe.hand
    assert hand is not None
    probe.models.find(probe.calls.outermost())
    probe.bind()
    recorder = probe.process.recorder
    if recorder is None or not probe.bound:
        return
    probe.calls = ForwardCalls()
    probe.tracker = hand.tracker
    for step in hand.steps:
        probe.step_done(step)
    hand.tracker.emit_to(probe.step_done)
    recorder.meta["step_source"] = SOURCE
    probe.process.note(NOTE, NOTE_KIND)
    probe.name_layers()


def at_exit(probe: Any) -> None:
    """The program ends and no optimizer has stepped; there may have been a few updates by hand."""
    hand = probe.hand
    if hand is None or probe.bound or not hand.num_used or probe.process.owner not in ("", "torch"):
        return
    take_over(probe)
    probe.process.finish(os.getpid())
