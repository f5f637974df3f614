"""Deep learning recommendation models: embedding tables, two MLPs and dot products between features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from perfscope.runners.models.stack import Fill, Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class DlrmSize:
    """A model in the layout of Naumov et al. 2019 (arXiv 1906.00091).

    Attributes:
        rows: of each embedding table, one table per categorical feature.
        width: of an embedding, and of what the bottom MLP gives out.
        bottom: hidden features of the MLP on the dense features.
        top: hidden features of the MLP on the products; its last layer has one output.
    """

    rows: tuple[int, ...]
    width: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]


class Tables(nn.ModuleList):
    """One embedding table per categorical feature: categories (b, T) int64 to (b, T, width)."""

    def forward(self, categories: torch.Tensor) -> torch.Tensor:
        """Looks each category up in the table of its feature."""
        return torch.stack([table(categories[:, index]) for index, table in enumerate(self)], dim=1)


class ClickFeatures(nn.Module):
    """Dense features through the bottom MLP, categories through the tables.

    Takes rows (b, dense + T) whose last T columns are numbers of categories, and gives (b, 1 + T, width).
    """

    def __init__(self, size: DlrmSize, num_dense: int) -> None:
        super().__init__()
        self.num_dense = num_dense
        self.bottom = nn.Sequential()
        for index, (before, after) in enumerate(pairwise((num_dense, *size.bottom, size.width)), start=1):
            self.bottom.add_module(f"fc{index}", nn.Linear(before, after))
            self.bottom.add_module(f"relu{index}", nn.ReLU())
        self.tables: nn.Module = Tables(nn.Embedding(rows, size.width) for rows in size.rows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One vector per feature; the first is that of all dense ones."""
        dense = self.bottom(x[:, : self.num_dense])
        embedded = self.tables(x[:, self.num_dense :].long())
        return torch.cat((dense[:, None], embedded.to(dense.dtype)), dim=1)


class DotInteraction(nn.Module):
    """Products of all pairs of vectors, behind the first vector itself.

    (b, F, width) to (b, width + F (F - 1) / 2).
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The products of i < j, row by row."""
        first, second = torch.triu_indices(x.shape[1], x.shape[1], offset=1, device=x.device)
        products = torch.bmm(x, x.transpose(1, 2))
        return torch.cat((x[:, 0], products[:, first, second]), dim=1)


class TwoScores(nn.Module):
    """One logit as scores of two classes, no and yes: their cross entropy is that of the logit.

    (b, 1) to (b, 2).
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(0, logit)."""
        return torch.cat((torch.zeros_like(x), x), dim=-1)


def dlrm(size: DlrmSize) -> Fill:
    """What fills a Stack with a model of that size; it tells two classes apart."""
    return partial(_fill, size)


def _fill(size: DlrmSize, stack: Stack, num_classes: int, dropout: float) -> None:
    """Interaction and top MLP are top-level children, so that pipelines can be cut between them."""
    (num_features,), num_vectors = stack.shape, 1 + len(size.rows)
    features = ClickFeatures(size, num_features - len(size.rows))
    stack.add("features", features, (num_vectors, size.width))
    stack.fan_ins |= _fan_ins(features.bottom)
    stack.fan_ins |= dict.fromkeys(features.tables.children(), float(size.width))
    stack.add("interact", DotInteraction(), (size.width + num_vectors * (num_vectors - 1) // 2,))
    for index, hidden in enumerate(size.top, start=1):
        stack.linear(f"fc{index}", hidden)
        stack.relu(f"relu{index}")
        stack.dropout(f"drop{index}", dropout)
    stack.linear(f"fc{len(size.top) + 1}", num_classes - 1)
    stack.add("scores", TwoScores(), (num_classes,))


def _fan_ins(layers: Sequence[nn.Module]) -> dict[nn.Module, float]:
    return {layer: float(layer.in_features) for layer in layers if isinstance(layer, nn.Linear)}
