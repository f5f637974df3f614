"""Updates that a gradient scaler (float16) skips: the training made a step, its optimizer was not called."""

from __future__ import annotations

import sys
import time
from typing import Any

from ..frames import around

_clock = time.monotonic_ns
_MODULES = ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler")  # the latter before torch 2.3


def wrap_scaler(probe: Any) -> None:
    """A call of `GradScaler.step` that does not reach the optimizer's step is an update of no duration.

    Fused optimizers are called all the same, and look at the gradients themselves: those count as before.
    """
    kinds = [getattr(sys.modules.get(name), "GradScaler", None) for name in _MODULES]
    for kind in dict.fromkeys(kinds):
        if kind is not None and "step" in vars(kind):
            kind.step = _counted(probe, kind.step)


def _counted(probe: Any, original: Any) -> Any:
    @around(original)
    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        began = _clock()
        result = original(scaler, optimizer, *args, **kwargs)
        # An update notes when it began. With a scaler that is disabled the optimizer is always called.
        if probe._updated < began and scaler.is_enabled() and probe.on_training_thread:
            probe._optimizer_pre(optimizer, (), {})
            probe._optimizer_post(optimizer, (), {})
        return result

    return step
