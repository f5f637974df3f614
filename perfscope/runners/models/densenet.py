"""DenseNet-121."""

from __future__ import annotations

from torch import nn

from perfscope.runners.models.blocks import Branches
from perfscope.runners.models.stack import Stack

_GROWTH, _BOTTLENECK, _FIRST = 32, 4, 64
_DEPTHS = (6, 12, 24, 16)


def densenet121(stack: Stack, num_classes: int, dropout: float) -> None:
    """Huang et al. 2017 (arXiv 1608.06993), growth 32: 7,978,856 parameters at 1000 classes."""
    stack.conv("conv0", _FIRST, 7, stride=2, padding=3, bias=False)
    stack.norm("bn0")
    stack.relu("relu0")
    stack.max_pool("pool0", 3, 2, padding=1)
    for number, depth in enumerate(_DEPTHS, start=1):
        for index in range(1, depth + 1):
            _dense(stack, f"dense{number}_{index}")
        stack.norm(f"bn{number}")
        stack.relu(f"relu{number}")
        if number < len(_DEPTHS):
            stack.conv(f"conv{number}", stack.shape[0] // 2, 1, bias=False)
            stack.mean_pool(f"pool{number}", 2, 2)
    stack.spread("spread", 1)
    stack.flatten("flatten")
    stack.dropout("drop", dropout)
    stack.linear("fc", num_classes)


def _dense(stack: Stack, name: str) -> None:
    """The maps so far, and _GROWTH more that follow from them."""
    kept, more = stack.branch(), stack.branch()
    kept.add("same", nn.Identity())
    for index, (channels, kernel) in enumerate(((_BOTTLENECK * _GROWTH, 1), (_GROWTH, 3)), start=1):
        more.norm(f"bn{index}")
        more.relu(f"relu{index}")
        more.conv(f"conv{index}", channels, kernel, padding=kernel // 2, bias=False)
    module = Branches(kept=kept.sequential(), more=more.sequential())
    stack.add(name, module, (stack.shape[0] + _GROWTH, *stack.shape[1:]), within=(kept, more))
