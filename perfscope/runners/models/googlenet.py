"""GoogLeNet, the first Inception network."""

from __future__ import annotations

from perfscope.runners.models.blocks import Branches
from perfscope.runners.models.stack import Stack

# Table 1 of Szegedy et al.: 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; pool projection. None: a pool of stride 2.
_MODULES: tuple[tuple[str, tuple[int, int, int, int, int, int] | None], ...] = (
    ("inception3a", (64, 96, 128, 16, 32, 32)),
    ("inception3b", (128, 128, 192, 32, 96, 64)),
    ("pool3", None),
    ("inception4a", (192, 96, 208, 16, 48, 64)),
    ("inception4b", (160, 112, 224, 24, 64, 64)),
    ("inception4c", (128, 128, 256, 24, 64, 64)),
    ("inception4d", (112, 144, 288, 32, 64, 64)),
    ("inception4e", (256, 160, 320, 32, 128, 128)),
    ("pool4", None),
    ("inception5a", (256, 160, 320, 32, 128, 128)),
    ("inception5b", (384, 192, 384, 48, 128, 128)),
)


def googlenet(stack: Stack, num_classes: int, dropout: float) -> None:
    """Inception v1 (Szegedy et al. 2015, arXiv 1409.4842) without auxiliary classifiers and normalization.

    Pools of stride 2 are padded by one where the paper's round up: the same map sizes at 224 x 224.
    """
    stack.conv("conv1", 64, 7, stride=2, padding=3)
    stack.relu("relu1")
    stack.max_pool("pool1", 3, 2, padding=1)
    stack.conv("conv2_reduce", 64, 1)
    stack.relu("relu2_reduce")
    stack.conv("conv2", 192, 3, padding=1)
    stack.relu("relu2")
    stack.max_pool("pool2", 3, 2, padding=1)
    for name, widths in _MODULES:
        if widths is None:
            stack.max_pool(name, 3, 2, padding=1)
        else:
            _inception(stack, name, widths)
    stack.spread("spread", 1)
    stack.flatten("flatten")
    stack.dropout("drop", dropout)
    stack.linear("fc", num_classes)


def _inception(stack: Stack, name: str, widths: tuple[int, int, int, int, int, int]) -> None:
    reduce1, reduce3, three, reduce5, five, projection = widths
    branches = {f"branch{index}": stack.branch() for index in range(1, 5)}
    branches["branch4"].max_pool("pool", 3, 1, padding=1)
    layers_of = (((reduce1, 1),), ((reduce3, 1), (three, 3)), ((reduce5, 1), (five, 5)), ((projection, 1),))
    for branch, layers in zip(branches.values(), layers_of, strict=True):
        for index, (channels, kernel) in enumerate(layers, start=1):
            branch.conv(f"conv{index}", channels, kernel, padding=kernel // 2)
            branch.relu(f"relu{index}")
    module = Branches(**{key: branch.sequential() for key, branch in branches.items()})
    shape = (reduce1 + three + five + projection, *stack.shape[1:])
    stack.add(name, module, shape, within=tuple(branches.values()))
