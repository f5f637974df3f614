"""Pixels to the range that networks are trained on."""

from __future__ import annotations

import numpy as np
import torch


def scaled_bytes(pixels: np.ndarray) -> torch.Tensor:
    """uint8 0 .. 255 as float32 -2 .. 2: photographs then have about mean 0 and deviation 1."""
    return torch.from_numpy(np.ascontiguousarray(pixels)).to(torch.float32).sub_(127.5).div_(63.75)
