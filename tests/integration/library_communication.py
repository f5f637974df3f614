"""Tiny trainings whose communication is known by hand: ``python train.py NAME`` on each rank.

Every training prints, before it starts, one line on rank 0 per kind of call that a step makes:
``truth LAYER AXIS BYTES``, where BYTES follows METRICS section 2 (all_gather and reduce_scatter: of the whole
tensor). The lines are computed from shapes alone. Layers have distinct sizes, so that no two can be confused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

BATCH, STEPS = 16, 40
WIDTHS = {"stem": (32, 64), "middle": (64, 128), "wide": (128, 256), "head": (256, 8)}
FLOAT = 4
Truth = dict[tuple[str, str], int]
Step = Callable[[], object]


class Net(nn.Module):  # type: ignore[misc]
    """Linear layers with the names and sizes of WIDTHS."""

    def __init__(self) -> None:
        super().__init__()
        for name, (inputs, outputs) in WIDTHS.items():
            self.add_module(name, nn.Linear(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        for name in WIDTHS:
            x = torch.relu(getattr(self, name)(x))
        return x


def size_of(layer: str) -> int:
    """Bytes of its weight and bias."""
    inputs, outputs = WIDTHS[layer]
    return (inputs + 1) * outputs * FLOAT


def training(model: nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(BATCH, 32)).square().mean().backward()
        optimizer.step()

    return step


def ddp() -> tuple[Step, Truth]:
    return training(nn.parallel.DistributedDataParallel(Net())), {
        (name, "dp"): size_of(name) for name in WIDTHS
    }


def fsdp2() -> tuple[Step, Truth]:
    """One unit per layer; what is in no layer's unit has no parameters."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    model = Net()
    for name in WIDTHS:
        fully_shard(getattr(model, name), mesh=mesh)
    fully_shard(model, mesh=mesh)
    # gathered in forward and, because it was freed, again in backward; gradients are scattered
    return training(model), {(name, "fsdp"): 3 * size_of(name) for name in WIDTHS}


def tensor_parallel() -> tuple[Step, Truth]:
    """`stem` and `wide` are split by columns, `middle` and `head` by rows."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    columns, rows = ColwiseParallel(), RowwiseParallel()
    model = parallelize_module(Net(), mesh, {"stem": columns, "middle": rows, "wide": columns, "head": rows})
    # rows are summed up in forward, the gradient of the input of columns in backward; stem's input has none
    return training(model), {
        ("middle", "tp"): BATCH * 128 * FLOAT,
        ("wide", "tp"): BATCH * 128 * FLOAT,
        ("head", "tp"): BATCH * 8 * FLOAT,
    }


PROGRAMS: dict[str, Callable[[], tuple[Step, Truth]]] = {"ddp": ddp, "fsdp2": fsdp2, "tp": tensor_parallel}


def lines(truth: Truth) -> Iterator[str]:
    for (layer, axis), size in truth.items():
        yield f"truth {layer} {axis} {size}"


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    step, truth = PROGRAMS[sys.argv[1]]()
    if dist.get_rank() == 0:
        print("\n".join(lines(truth)), flush=True)
    for _ in range(STEPS):
        step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
