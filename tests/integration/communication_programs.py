"""Trainings under the libraries that communicate, with a structure that says what each call is for.

Run as a program under torchrun: `communication_programs.py NAME`. `PROGRAMS` gives for each program the pairs
of axis and layer that may communicate; nothing here is read from perfscope.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS = 12
WIDTH = 64


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return result


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.blocks(self.stem(x)))
        return result


def fit(model: nn.Module, *shape: int) -> None:
    """Trains on inputs of a shape, (32, WIDTH) if none is given."""
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for _ in range(STEPS):
        model(torch.randn(*(shape or (32, WIDTH)))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def mesh_of(**axes: int) -> Any:
    return dist.device_mesh.init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


def ddp(**options: Any) -> None:
    fit(nn.parallel.DistributedDataParallel(Net(), **options))


def fsdp2(*, reshard: bool = True, hybrid: bool = False) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = mesh_of(dp_replicate=2, fsdp=2) if hybrid else mesh_of(fsdp=dist.get_world_size())
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fit(fully_shard(model, mesh=mesh, reshard_after_forward=reshard))


def fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({Block})
    fit(FullyShardedDataParallel(Net(), auto_wrap_policy=policy, device_id=torch.device("cpu")))


def divided(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def tensor_parallel() -> None:
    fit(divided(Net(), mesh_of(tp=2)))


class NormedBlock(Block):
    """(sequences, part of the positions, WIDTH) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return result


def sequence_parallel() -> None:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh, model = mesh_of(tp=2), nn.Sequential(NormedBlock(), NormedBlock())
    for block in model:
        up, down = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
        parallelize_module(block, mesh, {"norm": SequenceParallel(), "up": up, "down": down})
    fit(model, 4, 8, WIDTH)


def loss_parallel() -> None:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    from torch.distributed.tensor.parallel import loss_parallel as divided_loss

    model = Net()
    layout = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh_of(tp=2), {"head": layout})
    loss_of, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.001)
    for _ in range(STEPS):
        with divided_loss():
            loss_of(model(torch.randn(32, WIDTH)), torch.randint(WIDTH, (32,))).backward()
        optimizer.step()
        optimizer.zero_grad()


def fsdp2_nested() -> None:
    """Units in units; the outer one has what the inner ones leave."""
    from torch.distributed.fsdp import fully_shard

    mesh, model = mesh_of(fsdp=dist.get_world_size()), Net()
    for block in model.blocks:
        fully_shard(block.down, mesh=mesh)
        fully_shard(block, mesh=mesh)
    fit(fully_shard(model, mesh=mesh, reshard_after_forward=False))


def from_a_thread() -> None:
    """A helper thread averages gradients, packed, after each backward pass."""
    from concurrent.futures import ThreadPoolExecutor

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)

    def average() -> None:
        for value in model.parameters():
            dist.all_reduce(value.grad)

    with ThreadPoolExecutor(1) as helper:
        for _ in range(STEPS):
            model(torch.randn(32, WIDTH)).square().mean().backward()
            helper.submit(average).result()
            optimizer.step()
            optimizer.zero_grad()


def fsdp2_tensor() -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = mesh_of(fsdp=2, tp=2)
    model = divided(Net(), mesh["tp"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["fsdp"])
    fit(fully_shard(model, mesh=mesh["fsdp"]))


def pipeline(schedule: str, *, replicas: int = 1, rounds: int = 1) -> None:
    """`rounds`: stages of each rank."""
    from torch.distributed import pipelining

    mesh = mesh_of(dp=replicas, pp=dist.get_world_size() // replicas)
    rank, size, group = mesh["pp"].get_local_rank(), mesh["pp"].size(), mesh["pp"].get_group()
    parts: list[nn.Module] = [nn.Sequential(Block(), Block()) for _ in range(rounds)]
    if replicas > 1:
        parts = [
            nn.parallel.DistributedDataParallel(part, process_group=mesh["dp"].get_group()) for part in parts
        ]
    cpu = torch.device("cpu")
    stages = [
        pipelining.PipelineStage(part, rank + number * size, rounds * size, cpu, group=group)
        for number, part in enumerate(parts)
    ]
    kind = getattr(pipelining, schedule)
    run = kind(
        stages if rounds > 1 else stages[0], n_microbatches=4, loss_fn=lambda y, t: (y - t).square().mean()
    )
    optimizer = torch.optim.SGD([value for part in parts for value in part.parameters()], 0.001)
    for _ in range(STEPS):
        first = (torch.randn(32, WIDTH),) if rank == 0 else ()
        last = {"target": torch.randn(32, WIDTH), "losses": []} if rank == size - 1 else {}
        run.step(*first, **last)
        optimizer.step()
        optimizer.zero_grad()


def gradients_by_hand() -> None:
    """Each gradient alone, over one of two groups."""
    model, second = Net(), dist.new_group()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for _ in range(STEPS):
        model(torch.randn(32, WIDTH)).square().mean().backward()
        for name, value in model.named_parameters():
            dist.all_reduce(value.grad, group=second if ".up." in name else None)
        optimizer.step()
        optimizer.zero_grad()


def sharded_updates() -> None:
    """Gradients are scattered as they become ready; each rank updates its part, and gathers the others."""
    model, num = Net(), dist.get_world_size()
    shards: dict[Any, torch.Tensor] = {}
    works: list[Any] = []

    def scatter(value: Any) -> None:
        shards[value] = torch.empty(value.numel() // num)
        works.append(dist.reduce_scatter_tensor(shards[value], value.grad.flatten(), async_op=True))

    for value in model.parameters():
        value.register_post_accumulate_grad_hook(scatter)
    parts = [value.detach().flatten().chunk(num)[dist.get_rank()].clone() for value in model.parameters()]
    optimizer = torch.optim.SGD(parts, 0.001)
    for _ in range(STEPS):
        model(torch.randn(32, WIDTH)).square().mean().backward()
        while works:
            works.pop().wait()
        for value, part in zip(model.parameters(), parts, strict=True):
            part.grad, value.grad = shards[value], None
        optimizer.step()
        for value, part in zip(model.parameters(), parts, strict=True):
            updated = torch.empty(value.numel())
            dist.all_gather_into_tensor(updated, part)
            value.data.copy_(updated.view_as(value))


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """Sends a third of the tokens to the next rank and the rest to itself; gradients go back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        rank, size = dist.get_rank(), dist.get_world_size()
        away = len(x) // 3
        ctx.splits = [away if other != rank else len(x) - away * (size - 1) for other in range(size)]
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), ctx.splits, ctx.splits)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous(), ctx.splits, ctx.splits)
        return out


class Experts(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.expert = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Exchange.apply(self.expert(_Exchange.apply(x)))
        return result


def experts() -> None:
    model = Net()
    model.blocks[1] = Experts()
    fit(model)


class _SumGrad(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        dist.all_reduce(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        out = grad.clone()
        dist.all_reduce(out)
        return out


class Summed(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _SumGrad.apply(x)
        return result


def by_hand() -> None:
    model = Net()
    model.blocks.append(Summed())
    fit(model)


def checkpointed() -> None:
    from torch.utils.checkpoint import checkpoint

    class Again(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(Block(), Summed())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return result

    model = Net()
    model.blocks[1] = Again()
    fit(model)


def compiled() -> None:
    model = nn.parallel.DistributedDataParallel(Net())
    fit(torch.compile(model, backend="eager"))


LINEAR = {"stem", "head", *(f"blocks.{i}.{name}" for i in (0, 1) for name in ("up", "down"))}
DIVIDED = {layer for layer in LINEAR if layer.startswith("blocks")}
UNITS = {"Net", "blocks.0", "blocks.1"}


def boundaries(num_stages: int) -> set[str]:
    """Of a pipeline, in both directions."""
    pairs = [(stage, stage + 1) for stage in range(num_stages - 1)]
    return {f"stage {a} → {b}" for pair in pairs for a, b in (pair, pair[::-1])}


# name -> (ranks, what trains, axis -> layers that communicate along it)
PROGRAMS: dict[str, tuple[int, Callable[[], None], dict[str, set[str]]]] = {
    "ddp": (2, ddp, {"dp": LINEAR}),
    "ddp_buckets": (2, lambda: ddp(bucket_cap_mb=0.05), {"dp": LINEAR}),
    "ddp_static": (2, lambda: ddp(static_graph=True), {"dp": LINEAR}),
    "ddp_unused": (2, lambda: ddp(find_unused_parameters=True, bucket_cap_mb=0.05), {"dp": LINEAR}),
    "ddp_static_unused": (
        2,
        lambda: ddp(static_graph=True, find_unused_parameters=True, bucket_cap_mb=0.05),
        {"dp": LINEAR},
    ),
    "fsdp1": (2, fsdp1, {"fsdp": UNITS}),
    "fsdp2": (2, fsdp2, {"fsdp": UNITS}),
    "fsdp2_kept": (2, lambda: fsdp2(reshard=False), {"fsdp": UNITS}),
    "hsdp": (4, lambda: fsdp2(hybrid=True), {"fsdp": UNITS, "dp_replicate": UNITS}),
    "fsdp2_nested": (2, fsdp2_nested, {"fsdp": UNITS | {"blocks.0.down", "blocks.1.down"}}),
    "tp": (2, tensor_parallel, {"tp": DIVIDED}),
    "sp": (2, sequence_parallel, {"tp": {f"{i}.{name}" for i in (0, 1) for name in ("up", "down")}}),
    "loss_parallel": (2, loss_parallel, {"tp": {"head", "CrossEntropyLoss"}}),
    "fsdp2_tp": (4, fsdp2_tensor, {"fsdp": UNITS, "tp": DIVIDED}),
    "gpipe": (2, lambda: pipeline("ScheduleGPipe"), {"pp": boundaries(2)}),
    "1f1b": (2, lambda: pipeline("Schedule1F1B"), {"pp": boundaries(2)}),
    "1f1b_4": (4, lambda: pipeline("Schedule1F1B"), {"pp": boundaries(4)}),
    "interleaved": (2, lambda: pipeline("ScheduleInterleaved1F1B", rounds=2), {"pp": boundaries(4)}),
    "interleaved_3": (3, lambda: pipeline("ScheduleInterleaved1F1B", rounds=2), {"pp": boundaries(6)}),
    "pp_dp": (
        4,
        lambda: pipeline("Schedule1F1B", replicas=2),
        {
            "pp": boundaries(2),
            "dp": {f"{i}.{name}" for i in (0, 1) for name in ("up", "down")},
        },
    ),
    "gradients": (2, gradients_by_hand, {"dp": LINEAR}),
    "sharded_updates": (2, sharded_updates, {"dp": LINEAR}),
    "experts": (2, experts, {"ep": {"blocks.1"}}),
    "by_hand": (2, by_hand, {"tp": {"blocks.2"}}),
    "checkpointed": (2, checkpointed, {"tp": {"blocks.1.inner.1"}}),
    "compiled": (2, compiled, {"dp": LINEAR}),
    "thread": (2, from_a_thread, {"dp": LINEAR}),
}

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    PROGRAMS[sys.argv[1]][1]()
    dist.barrier()
    dist.destroy_process_group()
    os.write(1, b"")
