"""Trains a network under several kinds of parallelism, with one cause of slowness planted on request.

torchrun --standalone --nproc-per-node 2 benchmarks/planted/hybrid.py tensor --heavy 2
torchrun --standalone --nproc-per-node 4 benchmarks/planted/hybrid.py tensor --tp 2 --depth 10 --bucket-kb 1
torchrun --standalone --nproc-per-node 4 benchmarks/planted/hybrid.py tensor --tp 2 --outer tp
torchrun --standalone --nproc-per-node 2 benchmarks/planted/hybrid.py stages --layers 6,2
torchrun --standalone --nproc-per-node 2 benchmarks/planted/hybrid.py experts --hot 0.9

    tensor    tensor parallel blocks (all-reduces of activations) in data parallel replicas
    stages    a pipeline of torch.distributed.pipelining, a stage of so many layers on each rank
    experts   mixture of experts, one expert on each rank; so much of the tokens goes to the last one

Links are made slow from outside: see benchmarks/planted.py. Nothing here knows of perfscope.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

NUM_BLOCKS = 5
HEAVY_BLOCK = 2
NUM_EXPERT_LAYERS = 2


class _Sum(torch.autograd.Function):  # type: ignore[misc]
    """Adds up over a group, in the forward or in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup, backward: bool) -> torch.Tensor:
        ctx.group, ctx.backward = group, backward
        if backward:
            return x
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if ctx.backward:
            grad = grad.clone()
            dist.all_reduce(grad, group=ctx.group)
        return grad, None, None


class TensorBlock(nn.Module):  # type: ignore[misc]
    """Two linear layers divided among a group, as in Megatron. `times`: what it sends, of what others do."""

    def __init__(self, width: int, group: dist.ProcessGroup, times: int, depth: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.whole = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))  # not divided
        self.group, self.times = group, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inputs = _Sum.apply(x.repeat(self.times, 1), self.group, True)[: len(x)]
        parts = self.down(torch.relu(self.up(self.whole(inputs))))
        y: torch.Tensor = x + _Sum.apply(parts.repeat(self.times, 1), self.group, False)[: len(x)]
        return y


def train_tensor(args: argparse.Namespace, mesh: DeviceMesh) -> None:
    group = mesh["tp"].get_group()
    blocks = (
        TensorBlock(args.width, group, args.heavy if number == HEAVY_BLOCK else 1, args.depth)
        for number in range(NUM_BLOCKS)
    )
    model: nn.Module = nn.Sequential(*blocks)
    if mesh["dp"].size() > 1:
        model = DistributedDataParallel(
            model, process_group=mesh["dp"].get_group(), bucket_cap_mb=args.bucket_kb / 1024
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(args.steps):
        model(torch.randn(args.batch, args.width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return y


def train_stages(args: argparse.Namespace) -> None:
    from torch.distributed import pipelining

    rank, size = dist.get_rank(), dist.get_world_size()
    counts = [int(word) for word in args.layers.split(",")]
    part = nn.Sequential(*(Layer(args.width) for _ in range(counts[rank])))
    stage = pipelining.PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=1e-3)
    for _ in range(args.steps):
        first = (torch.randn(args.batch, args.width),) if rank == 0 else ()
        last = {"target": torch.randn(args.batch, args.width), "losses": []} if rank == size - 1 else {}
        schedule.step(*first, **last)
        optimizer.step()
        optimizer.zero_grad()


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """Rows to other ranks: `sent[k]` of them to rank k, `got[k]` from it; gradients go back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sent: list[int], got: list[int]) -> torch.Tensor:
        ctx.sent, ctx.got = sent, got
        out = x.new_empty(sum(got), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), got, sent)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        out = grad.new_empty(sum(ctx.sent), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.sent, ctx.got)
        return out, None, None


class ExpertLayer(nn.Module):  # type: ignore[misc]
    """One expert on each rank; a fixed share of each rank's tokens goes to the last one."""

    def __init__(self, width: int, hot: float) -> None:
        super().__init__()
        self.expert, self.hot = Layer(width), hot

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, rank = dist.get_world_size(), dist.get_rank()
        rest = round(len(x) * (1 - self.hot) / (size - 1)) if size > 1 else 0
        sent = [rest] * (size - 1) + [len(x) - rest * (size - 1)]
        got = [sent[rank]] * size
        y: torch.Tensor = _Exchange.apply(self.expert(_Exchange.apply(x, sent, got)), got, sent)
        return x + y


def train_experts(args: argparse.Namespace) -> None:
    model = nn.Sequential(*(ExpertLayer(args.width, args.hot) for _ in range(NUM_EXPERT_LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(args.steps):
        model(torch.randn(args.batch, args.width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("tensor", "stages", "experts"))
    parser.add_argument("--tp", type=int, default=0, help="ranks of a tensor parallel group (all)")
    parser.add_argument("--outer", choices=("dp", "tp"), default="dp", help="whose groups are apart")
    parser.add_argument("--heavy", type=int, default=1, help="one block sends so many times as much")
    parser.add_argument("--depth", type=int, default=0, help="linear layers of a block that are not divided")
    parser.add_argument("--bucket-kb", type=float, default=25 * 1024)
    parser.add_argument("--layers", default="4,4", help="of each stage")
    parser.add_argument(
        "--hot", type=float, default=0.5, help="share of the tokens of the last rank's expert"
    )
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pin", action="store_true", help="keep each rank on a CPU of its own")
    args = parser.parse_args()
    if args.pin:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[int(os.environ["LOCAL_RANK"]) % len(cpus)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    if args.kind == "tensor":
        tp = args.tp or dist.get_world_size()
        sizes = {"dp": dist.get_world_size() // tp, "tp": tp}
        names = (args.outer, "tp" if args.outer == "dp" else "dp")
        mesh = init_device_mesh("cpu", tuple(sizes[name] for name in names), mesh_dim_names=names)
        train_tensor(args, mesh)
    elif args.kind == "stages":
        train_stages(args)
    else:
        train_experts(args)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
