"""Hugging Face's Trainer: its own methods for the parts of a training are phases."""

from __future__ import annotations

import sys

from ..process import current
from .ranges import time_method

SOURCE = "transformers"
_METHODS = {
    "training_step": "training_step",
    "evaluate": "evaluate",
    "predict": "predict",
    "_save_checkpoint": "save_checkpoint",
    "_load_from_checkpoint": "load_checkpoint",
    "log": "log",
}


def arm(module: str) -> None:
    """`module`, which has the Trainer, has just been imported. What a subclass replaces is not seen."""
    phases, kind = current().phases, sys.modules[module].Trainer
    for method, name in _METHODS.items():
        time_method(phases, kind, method, name, SOURCE)
