"""AlexNet."""

from __future__ import annotations

from perfscope.runners.models.stack import Stack


def alexnet(stack: Stack, num_classes: int, dropout: float) -> None:
    """One tower (Krizhevsky 2014, arXiv 1404.5997), widths as in torchvision.

    61,100,840 parameters at 1000 classes.
    """
    stack.conv("conv1", 64, 11, stride=4, padding=2)
    stack.relu("relu1")
    stack.max_pool("pool1", 3, 2)
    stack.conv("conv2", 192, 5, padding=2)
    stack.relu("relu2")
    stack.max_pool("pool2", 3, 2)
    for index, channels in ((3, 384), (4, 256), (5, 256)):
        stack.conv(f"conv{index}", channels, 3, padding=1)
        stack.relu(f"relu{index}")
    stack.max_pool("pool5", 3, 2)
    stack.spread("spread", 6)
    stack.flatten("flatten")
    for index in (6, 7):
        stack.dropout(f"drop{index}", dropout)
        stack.linear(f"fc{index}", 4096)
        stack.relu(f"relu{index}")
    stack.linear("fc8", num_classes)
