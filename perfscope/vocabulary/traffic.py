"""What the bytes of a training's calls depend on."""

from __future__ import annotations

from enum import Enum


class ScalesWith(str, Enum):
    """What the size of a call grows with."""

    SAMPLES = "samples"  # activations and their gradients, halo rows: with the batch
    WEIGHTS = "weights"  # gradients, weights, buckets, running statistics: whatever the batch
