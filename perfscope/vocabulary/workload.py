"""What the program of a run does."""

from __future__ import annotations

from enum import Enum


class Workload(str, Enum):
    """The value is the code in the JSON report."""

    TRAINING = "training"
    INFERENCE = "inference"  # an imported trace with operators, and without a backward pass or an optimizer

    __str__ = str.__str__
