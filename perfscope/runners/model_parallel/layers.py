"""Modules that the surgery puts between layers: each is one exchange, and shows under a name of its own."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from perfscope.runners.comm import Group
from perfscope.runners.model_parallel import operators


class Gather(nn.Module):
    """Parts of channels to all channels in order; what follows makes a partial gradient on each rank.

    (b, C / M, ...) to (b, C, ...). all_gather forward, reduce_scatter backward.
    """

    def __init__(self, group: Group, order: torch.Tensor | None) -> None:
        """`order`: where channel c is found among the gathered; None: already in order."""
        super().__init__()
        self.group = group
        self.register_buffer("order", order, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All channels."""
        full = operators.gather_partial(x, 1, self.group)
        return full if self.order is None else full.index_select(1, self.order)


class GatherOutput(nn.Module):
    """The model's output from its parts; the loss is the same on all ranks. all_gather forward only."""

    def __init__(self, group: Group, order: torch.Tensor | None) -> None:
        super().__init__()
        self.group = group
        self.register_buffer("order", order, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All channels."""
        full = operators.gather_replicated(x, 1, self.group)
        return full if self.order is None else full.index_select(1, self.order)


class Keep(nn.Module):
    """Own channels of a whole whose gradient is partial anyway: nothing is sent in either direction."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, C, ...) to (b, C / M, ...)."""
        length = x.shape[1] // self.group.size
        return x.narrow(1, self.group.index * length, length)


class ScatterSum(nn.Module):
    """Partial sums of all maps to whole sums of own maps, and their bias.

    reduce_scatter forward, all_gather backward.
    """

    def __init__(self, group: Group, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.group = group
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, K, ...) to (b, K / M, ...)."""
        return _plus(operators.scatter_sum(x, 1, self.group), self.bias)


class SumParts(nn.Module):
    """Partial sums to whole sums on every rank, and the bias. all_reduce forward, nothing backward."""

    def __init__(self, group: Group, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.group = group
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same shape."""
        return _plus(operators.sum_forward(x, self.group), self.bias)


class SumGradients(nn.Module):
    """In front of layers that split what all ranks hold: nothing forward, all_reduce backward."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x."""
        return operators.sum_backward(x, self.group)


class TakePart(nn.Module):
    """Own features of what all ranks hold: nothing forward, all_gather backward."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, F) to (b, F / M), or (b, T, F) to (b, T, F / M)."""
        return operators.take_part(x, x.dim() - 1, self.group)


def _plus(x: torch.Tensor, bias: nn.Parameter | None) -> torch.Tensor:
    if bias is None:
        return x
    if x.dim() == 3:  # a sequence: features are last
        return x + bias
    return x + bias.view(1, -1, *([1] * (x.dim() - 2)))


class GroupBatchNorm(nn.Module):
    """BatchNorm2d of maps whose rows lie on several ranks: the statistics are those of the whole maps.

    One all_reduce of 2 * C values forward (sum and sum of squares about the running mean, which keeps
    float32 from canceling) and one backward.
    """

    def __init__(self, group: Group, norm: nn.BatchNorm2d, num_rows: int) -> None:
        """`norm` keeps parameters and running statistics; `num_rows`: H of the whole maps."""
        super().__init__()
        self.group = group
        self.num_rows = num_rows
        self.weight, self.bias = norm.weight, norm.bias
        self.eps, self.momentum = norm.eps, norm.momentum
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, C, own rows, W), normalized."""
        if not self.training:
            return functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        num = x.shape[0] * self.num_rows * x.shape[3]
        shift = self.running_mean.clone().view(1, -1, 1, 1)
        centerd = x - shift
        sums = torch.stack([centerd.sum((0, 2, 3)), (centerd * centerd).sum((0, 2, 3))])
        sums = operators.sum_backward(operators.sum_forward(sums, self.group), self.group)
        mean = sums[0] / num
        variance = (sums[1] / num - mean * mean).clamp_min(0)
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.add_(mean, alpha=self.momentum)
            self.running_var.lerp_(variance * (num / max(1, num - 1)), self.momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centerd - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
