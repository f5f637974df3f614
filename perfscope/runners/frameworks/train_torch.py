"""The CNN in PyTorch: `python train_torch.py CONFIG.json`. Several processes: DDP over gloo, on GPUs NCCL."""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, relu

if TYPE_CHECKING:
    from perfscope.runners.frameworks.train_common import CellProcess, main
else:
    from train_common import CellProcess, main  # beside this file, whose folder stands first on sys.path


class Residual(nn.Module):  # torch is Any here
    """relu(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum, rectified."""
        return relu(self.body(x) + self.shortcut(x))


class Branches(nn.Module):
    """Children side by side, concatenated along channels."""

    def __init__(self, branches: dict[str, nn.Module]) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All branches."""
        return torch.cat([branch(x) for branch in self.children()], dim=1)


def build(layers: list[dict[str, Any]]) -> nn.Sequential:
    """The network, its weights named as in structure.py."""
    return nn.Sequential(OrderedDict((layer["name"].rpartition(".")[2], _module(layer)) for layer in layers))


def _module(layer: dict[str, Any]) -> nn.Module:
    op = layer["op"]
    if op == "conv":
        window = {"stride": tuple(layer["stride"]), "padding": tuple(layer["padding"])}
        return nn.Conv2d(layer["in"], layer["out"], tuple(layer["kernel"]), bias=layer["bias"], **window)
    if op == "norm":
        return nn.BatchNorm2d(layer["channels"], eps=layer["eps"], momentum=layer["momentum"])
    if op == "relu":
        return nn.ReLU()
    if op == "max_pool":
        return nn.MaxPool2d(tuple(layer["kernel"]), tuple(layer["stride"]), tuple(layer["padding"]))
    if op == "mean_pool":
        return nn.AvgPool2d(tuple(layer["kernel"]))
    if op == "flatten":
        return nn.Flatten()
    if op == "linear":
        return nn.Linear(layer["in"], layer["out"])
    if op == "residual":
        return Residual(build(layer["body"]), build(layer["shortcut"]))
    assert op == "branches", op
    return Branches(
        {branch["name"].rpartition(".")[2]: build(branch["layers"]) for branch in layer["branches"]}
    )


def load(model: nn.Module, weights: dict[str, Any]) -> None:
    """Every parameter as it is to start."""
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(torch.from_numpy(weights[name]))


def data_parallel(model: nn.Module) -> nn.Module:
    """DistributedDataParallel that exchanges gradients only: running statistics stay where they are."""
    kind = nn.parallel.DistributedDataParallel
    parameters = inspect.signature(kind.__init__).parameters
    option = (
        "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"
    )  # torch < 2.13
    return kind(model, **{option: False})


def backend_of(device: str) -> str:
    """Of torch.distributed, for gradients on this device."""
    return "nccl" if device == "cuda" else "gloo"


def train(cell: CellProcess) -> None:
    """The whole training."""
    torch.set_num_threads(cell.threads)
    model: nn.Module = build(cell.layers)
    load(model, cell.weights())
    model.to(cell.device)
    if cell.size > 1:
        dist.init_process_group(backend_of(cell.device))
        model = data_parallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=cell.learning_rate, momentum=cell.momentum)
    cell.tell(version=torch.__version__)
    cell.begin()
    for inputs, labels in cell.batches():
        optimizer.zero_grad()
        images = torch.from_numpy(inputs).to(cell.device)
        loss = cross_entropy(model(images), torch.from_numpy(labels).long().to(cell.device))
        loss.backward()
        optimizer.step()
        cell.step_done(loss.item())
    if cell.size > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(train))
