"""Quantities of scaling studies."""

from __future__ import annotations

from enum import Enum


class Fitted(str, Enum):
    """What a scaling law is fitted to, with its unit."""

    THROUGHPUT = "throughput (samples/s)"
    STEP_TIME = "time per step (s)"
    SAMPLE_TIME = "time per sample (s)"
