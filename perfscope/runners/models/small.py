"""Small networks for tests and quick comparisons."""

from __future__ import annotations

from perfscope.runners.models.stack import Stack


def smallcnn(stack: Stack, num_classes: int, dropout: float) -> None:
    """Three 3x3 convolutions (16, 32, 64 maps), each with a 2x2 pool, and two fully connected layers."""
    for index, channels in enumerate((16, 32, 64), start=1):
        stack.conv(f"conv{index}", channels, 3, padding=1)
        stack.relu(f"relu{index}")
        stack.max_pool(f"pool{index}", 2, 2)
    stack.spread("spread", 2)
    stack.flatten("flatten")
    stack.linear("fc4", 128)
    stack.relu("relu4")
    stack.dropout("drop4", dropout)
    stack.linear("fc5", num_classes)


def lenet(stack: Stack, num_classes: int, dropout: float) -> None:
    """LeNet-5 (LeCun et al. 1998) as it is built today: full connections, max pools, ReLU."""
    stack.conv("conv1", 6, 5)
    stack.relu("relu1")
    stack.max_pool("pool1", 2, 2)
    stack.conv("conv2", 16, 5)
    stack.relu("relu2")
    stack.max_pool("pool2", 2, 2)
    stack.spread("spread", 5)
    stack.flatten("flatten")
    stack.linear("fc3", 120)
    stack.relu("relu3")
    stack.linear("fc4", 84)
    stack.relu("relu4")
    stack.dropout("drop4", dropout)
    stack.linear("fc5", num_classes)


def table_mlp(stack: Stack, num_classes: int, dropout: float) -> None:
    """Two hidden layers (256, 128) on a row of features."""
    _layers(stack, num_classes, dropout)


def mlp(stack: Stack, num_classes: int, dropout: float) -> None:
    """Two hidden layers (256, 128) on the flattened sample; the first layer follows the input's size."""
    stack.flatten("flatten")
    _layers(stack, num_classes, dropout)


def _layers(stack: Stack, num_classes: int, dropout: float) -> None:
    for index, features in enumerate((256, 128), start=1):
        stack.linear(f"fc{index}", features)
        stack.relu(f"relu{index}")
        stack.dropout(f"drop{index}", dropout)
    stack.linear("fc3", num_classes)
