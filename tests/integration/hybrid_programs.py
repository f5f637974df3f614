"""Hybrid trainings that do by hand what libraries do: packed gradients, gradient buffers, experts.

Run as a program under torchrun: `hybrid_programs.py NAME`. `PROGRAMS` gives for each program the pairs
of axis and layer that may communicate; nothing here is read from perfscope.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.integration.communication_programs import LINEAR, STEPS, UNITS, WIDTH, Block, Net, mesh_of

Parameters = list[nn.Parameter]
LOADING_SECONDS = 0.01  # of each microbatch of `pipeline`
MICROBATCHES = 4


def backward_of(model: nn.Module, rows: int = 32) -> None:
    model(torch.randn(rows, WIDTH)).square().mean().backward()


def spread(flat: torch.Tensor, tensors: list[Any]) -> None:
    """Copies the parts of a packed tensor back."""
    for tensor, part in zip(tensors, _unflatten_dense_tensors(flat, tensors), strict=True):
        tensor.copy_(part)


def sharded_packed() -> None:
    """Gradients are packed, padded and scattered; each rank updates its part of the packed parameters."""
    model, num = Net(), dist.get_world_size()
    parameters = list(model.parameters())
    for _ in range(STEPS):
        backward_of(model)
        packed = [
            _flatten_dense_tensors(list(part))
            for part in ([p.grad for p in parameters], [p.data for p in parameters])
        ]
        gradients, values = (nn.functional.pad(flat, (0, -len(flat) % num)) for flat in packed)
        part = torch.empty(len(gradients) // num)
        dist.reduce_scatter_tensor(part, gradients)
        updated = values.chunk(num)[dist.get_rank()].sub(part, alpha=1e-3)
        dist.all_gather_into_tensor(values, updated)
        spread(values[: len(packed[1])], [p.data for p in parameters])
        for parameter in parameters:
            parameter.grad = None


def gradient_buffer(parameters: Parameters) -> torch.Tensor:
    """`main_grad` of each parameter is a part of it; gradients are added to them as they become ready."""
    buffer, begin = torch.zeros(sum(p.numel() for p in parameters)), 0

    def add(parameter: Any) -> None:
        parameter.main_grad.add_(parameter.grad)
        parameter.grad = None

    for parameter in parameters:
        parameter.main_grad = buffer[begin : begin + parameter.numel()].view_as(parameter)
        begin += parameter.numel()
        parameter.register_post_accumulate_grad_hook(add)
    return buffer


def buffered() -> None:
    """Two parts of a buffer of gradients are reduced at once; the update is written by hand."""
    model = Net()
    parameters = list(model.parameters())
    buffer = gradient_buffer(parameters)
    for _ in range(STEPS):
        buffer.zero_()
        backward_of(model)
        for work in [dist.all_reduce(part, async_op=True) for part in buffer.chunk(2)]:
            work.wait()
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(parameter.main_grad, alpha=1e-3)


def buckets_by_hand() -> None:
    """Hooks pack gradients of several layers and reduce them while the backward pass goes on."""
    model = Net()
    ready: list[Any] = []
    works: list[Any] = []
    optimizer = torch.optim.SGD(model.parameters(), 0.001)

    def reduce() -> None:
        gradients = [parameter.grad for parameter in ready]
        flat = _flatten_dense_tensors(gradients)
        works.append((dist.all_reduce(flat, async_op=True), flat, gradients))
        ready.clear()

    def note(parameter: Any) -> None:
        ready.append(parameter)
        if len(ready) == 5:
            reduce()

    for value in model.parameters():
        value.register_post_accumulate_grad_hook(note)
    for _ in range(STEPS):
        backward_of(model)
        if ready:
            reduce()
        for work, flat, gradients in works:
            work.wait()
            spread(flat / dist.get_world_size(), gradients)
        works.clear()
        optimizer.step()
        optimizer.zero_grad()


class _Copy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Reduce(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class Divided(nn.Module):  # type: ignore[misc]
    """Half of a block's columns and rows, between a copy and a reduction, as Megatron-LM has them."""

    def __init__(self, group: Any = None) -> None:
        super().__init__()
        self.group = group
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(_Copy.apply(self.norm(x), self.group)))
        result: torch.Tensor = x + _Reduce.apply(self.down(hidden), self.group)
        return result


def divided_with_norms() -> None:
    """Gradients of norms are packed over tp, all others lie in a buffer that is reduced over dp."""
    mesh = mesh_of(dp=2, tp=2)
    tp, dp = mesh["tp"].get_group(), mesh["dp"].get_group()
    model = nn.Sequential(Divided(tp), Divided(tp))
    parameters = list(model.parameters())
    buffer = gradient_buffer(parameters)
    copies = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    optimizer = torch.optim.AdamW(copies, 0.001)
    of_norms = [value.main_grad for name, value in model.named_parameters() if "norm" in name]
    for _ in range(STEPS):
        buffer.zero_()
        backward_of(model, 64)
        flat = _flatten_dense_tensors(of_norms)
        dist.all_reduce(flat, group=tp)
        spread(flat, of_norms)
        dist.all_reduce(buffer, group=dp)
        for copy, parameter in zip(copies, parameters, strict=True):
            copy.grad = parameter.main_grad
        optimizer.step()
        with torch.no_grad():
            for copy, parameter in zip(copies, parameters, strict=True):
                parameter.copy_(copy)


def clipped() -> None:
    """The norm of the gradients is added up, and the loss averaged, over the ranks that divide the layers."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Divided(), Divided())
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for _ in range(STEPS):
        loss = model(torch.randn(256, WIDTH)).square().mean()
        loss.backward()
        squares = sum(parameter.grad.square().sum() for parameter in model.parameters())
        dist.all_reduce(squares)
        dist.all_reduce(loss.detach().clone())
        optimizer.step()
        optimizer.zero_grad()


def with_objects() -> None:
    """Each step gathers its metrics as objects and broadcasts a flag."""
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for step in range(STEPS):
        backward_of(model)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_gather_object([None] * dist.get_world_size(), {"step": step})
        dist.broadcast_object_list([step], 0)


def sharded_and_clipped() -> None:
    """HSDP that accumulates two passes and clips by the norm, whose parts are of all parameters."""
    from torch.distributed.fsdp import fully_shard

    mesh, model = mesh_of(dp_replicate=2, fsdp=2), Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 0.001)
    for _ in range(STEPS):
        for last in (False, True):
            model.set_requires_gradient_sync(last)
            backward_of(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sent: list[int], got: list[int], group: Any) -> torch.Tensor:
        ctx.splits, ctx.group = (sent, got), group
        out = torch.empty(sum(got), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), got, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        sent, got = ctx.splits
        out = torch.empty(sum(sent), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), sent, got, group=ctx.group)
        return out, None, None, None


class Mixture(nn.Module):  # type: ignore[misc]
    """Two experts on each of two ranks; how many tokens go where is exchanged first."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        self.gate, self.experts = nn.Linear(WIDTH, 4), nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.gate(x).argmax(1)
        order, counts = chosen.argsort(), torch.bincount(chosen, minlength=4)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent, got = (numbers.view(2, 2).sum(1).tolist() for numbers in (counts, arriving))
        tokens = _Exchange.apply(x[order], sent, got, self.group).split(arriving.tolist())
        done = torch.cat([self.experts[index % 2](part) for index, part in enumerate(tokens)])
        back = _Exchange.apply(done, got, sent, self.group)
        result: torch.Tensor = x + torch.empty_like(back).index_copy(0, order, back)
        return result


def experts_by_hand() -> None:
    """Gradients of experts are averaged among the ranks that have the same ones, all others among all."""
    mesh = mesh_of(dp=2, ep=2)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.moe = nn.Linear(WIDTH, WIDTH), Mixture(mesh["ep"].get_group())
            self.head = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.head(self.moe(self.stem(x)))
            return result

    model = Model()
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for _ in range(STEPS):
        backward_of(model, 64)
        for name, value in model.named_parameters():
            value.grad = torch.zeros_like(value) if value.grad is None else value.grad
            dist.all_reduce(value.grad, group=mesh["dp"].get_group() if "experts" in name else None)
        optimizer.step()
        optimizer.zero_grad()


class Loading(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(LOADING_SECONDS)
            yield torch.randn(32, WIDTH)


def pipeline() -> None:
    """Two stages. The first reads each microbatch while the messages of those before are under way."""
    rank, model = dist.get_rank(), nn.Sequential(Block(), Block())
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    data = iter(torch.utils.data.DataLoader(Loading(), batch_size=None)) if rank == 0 else None
    for _ in range(STEPS):
        works, results = [], []
        for _ in range(MICROBATCHES):
            if data is not None:
                results.append(model(next(data)))
                works.append(dist.isend(results[-1].detach(), 1))
            else:
                x = torch.empty(32, WIDTH)
                dist.recv(x, 0)
                results.append((x.requires_grad_(), model(x).square().mean()))
        for result in results:
            if data is not None:
                grad = torch.empty_like(result)
                dist.recv(grad, 1)
                result.backward(grad)
            else:
                result[1].backward()
                works.append(dist.isend(result[0].grad, 0))
        for work in works:
            work.wait()
        optimizer.step()
        optimizer.zero_grad()


DIVIDED = {f"{index}.{name}" for index in (0, 1) for name in ("up", "down", "norm")}
OF_EXPERTS = {f"moe.experts.{index}.{name}" for index in (0, 1) for name in ("up", "down")}
# name -> (ranks, what trains, axis -> layers that communicate along it)
PROGRAMS: dict[str, tuple[int, Callable[[], None], dict[str, set[str]]]] = {
    "sharded_packed": (2, sharded_packed, {"dp": LINEAR}),
    "buffered": (2, buffered, {"dp": LINEAR}),
    "buckets_by_hand": (2, buckets_by_hand, {"dp": LINEAR}),
    "divided_with_norms": (4, divided_with_norms, {"tp": DIVIDED | {"0", "1"}, "dp": DIVIDED}),
    "clipped": (2, clipped, {"tp": {"1", "2"}}),
    "with_objects": (2, with_objects, {"dp": LINEAR}),
    "sharded_and_clipped": (4, sharded_and_clipped, {"fsdp": UNITS, "dp_replicate": UNITS}),
    "experts_by_hand": (
        4,
        experts_by_hand,
        {"ep": {"moe"}, "dp": OF_EXPERTS, "world": {"stem", "head", "moe.gate"}},
    ),
    "pipeline": (2, pipeline, {"pp": {"stage 0 → 1", "stage 1 → 0"}}),
}

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    PROGRAMS[sys.argv[1]][1]()
    dist.barrier()
    dist.destroy_process_group()
