"""VGG-16 and VGG-19."""

from __future__ import annotations

from perfscope.runners.models.stack import Stack

_MAPS = (64, 128, 256, 512, 512)


def vgg16(stack: Stack, num_classes: int, dropout: float) -> None:
    """Configuration D of Simonyan and Zisserman 2015 (arXiv 1409.1556): 138,357,544 at 1000 classes."""
    _fill(stack, (2, 2, 3, 3, 3), num_classes, dropout)


def vgg19(stack: Stack, num_classes: int, dropout: float) -> None:
    """Configuration E of the same paper: 143,667,240 at 1000 classes."""
    _fill(stack, (2, 2, 4, 4, 4), num_classes, dropout)


def _fill(stack: Stack, depths: tuple[int, ...], num_classes: int, dropout: float) -> None:
    """Stages of so many convolutions, each with a pool; then three fully connected layers."""
    for stage, (channels, depth) in enumerate(zip(_MAPS, depths, strict=True), start=1):
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
