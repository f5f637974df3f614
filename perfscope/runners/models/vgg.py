"""VGG-16."""

from __future__ import annotations

from perfscope.runners.models.stack import Stack

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # maps, convolutions before the pool


def vgg16(stack: Stack, num_classes: int, dropout: float) -> None:
    """Configuration D of Simonyan and Zisserman 2015 (arXiv 1409.1556): 138,357,544 at 1000 classes."""
    for stage, (channels, depth) in enumerate(_STAGES, start=1):
        for index in range(1, depth + 1):
            stack.conv(f"conv{stage}_{index}", channels, 3, padding=1)
            stack.relu(f"relu{stage}_{index}")
        stack.max_pool(f"pool{stage}", 2, 2)
    stack.spread("spread", 7)
    stack.flatten("flatten")
    for index in (6, 7):
        stack.linear(f"fc{index}", 4096)
        stack.relu(f"relu{index}")
        stack.dropout(f"drop{index}", dropout)
    stack.linear("fc8", num_classes)
