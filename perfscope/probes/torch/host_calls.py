"""Calls of the training thread that wait for files or exchange Python objects, timed as phases.

These are `os.fsync` and `os.fdatasync`, and torch's collectives of objects, with their pickling as phases
within. Those of a checkpoint are part of the checkpoint.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ...vocabulary.host_calls import OBJECT_COLLECTIVES, PICKLING, SOURCE, SYNCS
from ..frames import around

_COLLECTIVES = ("torch.distributed", "torch.distributed.distributed_c10d")
_MARKED = "_perfscope_times"


def watch(probe: Any) -> None:
    """From now on their time is known by name."""
    for function, name in SYNCS.items():
        _wrap(probe, os, function, name)
    for module in (sys.modules.get(each) for each in _COLLECTIVES):
        for name in OBJECT_COLLECTIVES:
            _wrap(probe, module, name, name)
    for function, name in PICKLING.items():
        _wrap(probe, sys.modules.get(_COLLECTIVES[-1]), function, name)


def _wrap(probe: Any, module: Any, function: str, name: str) -> None:
    original = getattr(module, function, None)  # not every system and version has all
    if original is None or hasattr(original, _MARKED):
        return
    phases, activities = probe.process.phases, probe.process.activities

    @around(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if probe.off or activities.is_saving or not probe.on_training_thread:
            return original(*args, **kwargs)
        phase = phases.begin(name, SOURCE)
        try:
            return original(*args, **kwargs)
        finally:
            phases.end(phase)

    setattr(call, _MARKED, True)
    setattr(module, function, call)
