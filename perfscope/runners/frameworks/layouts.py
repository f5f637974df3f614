"""From torch's layout of weights to other frameworks'. numpy only, Python >= 3.8.

torch: images (N, C, H, W); convolutions (out, in, height, width); linear layers (out, in), behind a flatten
with inputs in the order (C, H, W).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def conv_to_hwio(weight: Any) -> Any:
    """(out, in, height, width) to (height, width, in, out)."""
    return np.ascontiguousarray(np.transpose(weight, (2, 3, 1, 0)))


def linear_to_in_out(weight: Any, flattened: Sequence[int] | None = None) -> Any:
    """(out, in) to (in, out).

    Args:
        weight: of a linear layer.
        flattened: (C, H, W) of the maps behind which it stands, where maps are (H, W, C) in the other
            framework: its inputs come in that order there. None: it follows no maps.
    """
    if flattened is not None:
        channels, height, width = flattened
        maps = np.reshape(weight, (len(weight), channels, height, width))
        weight = np.reshape(np.transpose(maps, (0, 2, 3, 1)), (len(weight), -1))
    return np.ascontiguousarray(np.transpose(weight))


def images_to_nhwc(images: Any) -> Any:
    """(N, C, H, W) to (N, H, W, C)."""
    return np.ascontiguousarray(np.transpose(images, (0, 2, 3, 1)))
