"""What torch's training thread does between updates besides training (activities.py), and how it is seen."""

from __future__ import annotations

import sys
import weakref
from typing import Any, List, Optional, Tuple

from ..frames import around
from ..process import current
from . import host_calls
from .models import ForwardCall, is_trained

# Module -> functions that write a checkpoint, or start doing so.
_SAVING = {
    "torch": ("save",),
    "torch.serialization": ("save",),
    "torch.jit": ("save",),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
}
_MARKED = "_perfscope_saves"
_MAX_NEWCOMERS = 64  # calls between two updates whose inputs are kept


def arm(name: str) -> None:
    """The module `name`, which writes checkpoints, has just been imported."""
    for probe in current().lenders:
        if probe.name == "torch":
            wrap_saving(probe)


def inferred(probe: Any, now: int, module: Any) -> None:
    """`module` is called without gradients: a batch that was loaded for it is none of the training's."""
    taken = probe.process.activities.inferred(now, module)
    if taken:
        add_input(probe, -taken, 0)
    probe.skip()
    probe.batches.loaders.evaluated()


def add_input(probe: Any, duration: int, loader: int) -> None:
    """The training has waited `duration` ns for a batch; less than 0: some of what was said is none of it."""
    if probe.lends:
        add_to_marked_step(probe.process.cutter, input_ns=duration)
        return
    for tracker in probe.trackers():
        tracker.add_input(duration, loader)


def add_to_marked_step(cutter: Any, input_ns: int = 0, optimizer_ns: int = 0) -> None:
    """The step that the program has marked spent so long on these."""
    if cutter is None or not cutter.on_training_thread:
        return
    if input_ns:
        cutter.add_input(input_ns)
    if optimizer_ns:
        cutter.add_optimizer(optimizer_ns)


def watch(probe: Any) -> None:
    """Time what the training thread does besides, and calls that it waits in."""
    wrap_saving(probe)
    host_calls.watch(probe)


def wrap_saving(probe: Any) -> None:
    """Time the functions that write checkpoints, of the modules imported by now."""
    for name, functions in _SAVING.items():
        module = sys.modules.get(name)
        for function in functions:
            original = getattr(module, function, None)
            if original is not None and not hasattr(original, _MARKED):
                setattr(module, function, _timed(probe, original))


def _timed(probe: Any, original: Any) -> Any:
    activities = probe.process.activities

    @around(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        if not probe.on_training_thread or probe.off:
            return original(*args, **kwargs)
        activities.save_begins()
        try:
            return original(*args, **kwargs)
        finally:
            activities.save_ended()

    setattr(save, _MARKED, True)
    return save


class Newcomers:
    """Calls of modules that no optimizer holds yet, with their inputs, until the next update.

    A search over hyperparameters trains one model after the other: the update of a new optimizer shows that
    the calls before it were of its model. Inputs are kept only until then, and what loaders gave is taken
    only then: another model may have been given it.
    """

    def __init__(self) -> None:
        self._calls: List[Tuple[Any, Any, Any]] = []

    def called(self, probe: Any, module: Any, args: Any, source: Any) -> None:
        """`source`: the keyword arguments, or the frame of the caller that has them."""
        if not probe.bound or probe.lends:
            return
        if len(self._calls) < _MAX_NEWCOMERS and is_trained(module):
            kwargs = source if isinstance(source, dict) else source.f_locals.get("kwargs")
            self._calls.append((weakref.ref(module), args, kwargs))

    def updated(self, probe: Any, models: Optional[List[ForwardCall]]) -> None:
        """An update has begun; `models`: calls of models that have begun its step, None: it began before."""
        calls, self._calls = self._calls, []
        begun = {id(call.module()) for call in models or ()}
        for reference, args, kwargs in calls:
            module = reference()
            if module is not None and id(module) in begun:
                counts = probe.batches.forward(module, args, kwargs, probe.tracker.index, False)
                probe.tracker.count_newcomer(*counts)
                probe.batches.settled()  # its backward pass is over
