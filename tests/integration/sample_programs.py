"""Trainings that count their own samples: of every step of this rank, and of all ranks together.

Run as a program: `sample_programs.py NAME OUT`; every rank leaves `OUT/<rank>.json` with `steps` (samples of
each of its steps) and `width` (ranks that have batches of their own; 0: perfscope cannot tell).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler

STEPS = 8
WIDTH = 8
Told = tuple[
    Sequence[int | None], int
]  # samples of this rank's steps; ranks with batches of their own, 0: cannot be told


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.b(torch.relu(self.a(x)))
        return result


class Tagger(nn.Module):  # type: ignore[misc]
    """Tokens [seq, batch] or, with `batch_first`, [batch, seq] -> a score of each token's class."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, WIDTH), nn.Linear(WIDTH, 11)
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.rnn(self.embed(x))[0])
        return result


def fit(model: nn.Module, batch: int = 6, feed: Any = None) -> list[int]:
    """Plain steps on random batches, or on what `feed` gives; the samples of each."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    told = []
    for x in feed if feed is not None else (torch.randn(batch, WIDTH) for _ in range(STEPS)):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        told.append(len(x))
    return told


# Over ranks


def mesh_of(*axes: tuple[str, int]) -> Any:
    return torch.distributed.device_mesh.init_device_mesh(
        "cpu", tuple(size for _, size in axes), mesh_dim_names=tuple(name for name, _ in axes)
    )


def divided(model: nn.Module, tensor: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    result: nn.Module = parallelize_module(model, tensor, {"a": ColwiseParallel(), "b": RowwiseParallel()})
    return result


def sharded(*axes: tuple[str, int], over: tuple[str, ...], tensor: bool = False) -> Told:
    """FSDP2 over some axes of a mesh, tensor parallel over another."""
    from torch.distributed.fsdp import fully_shard

    mesh, model = mesh_of(*axes), Net()
    if tensor:
        divided(model, mesh["tp"])
    data = mesh[over] if len(axes) > 1 else mesh
    for layer in (model.a, model.b):
        fully_shard(layer, mesh=data)
    fully_shard(model, mesh=data)
    sizes = dict(axes)
    torch.manual_seed(data.get_rank() if len(over) == 1 else 0)
    width = 1
    for name in over:
        width *= sizes[name]
    return fit(model), width


def tensor_only() -> Told:
    return fit(divided(Net(), mesh_of(("tp", dist.get_world_size())))), 1


def tensor_and_ddp() -> Told:
    mesh = mesh_of(("dp", 2), ("tp", 2))
    model = divided(Net(), mesh["tp"])
    group = mesh["dp"].get_group()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        model(torch.randn(6, WIDTH)).square().mean().backward()
        for parameter in model.parameters():
            gradient: Any = parameter.grad
            dist.all_reduce(gradient.to_local(), group=group)
        optimizer.step()
        optimizer.zero_grad()
    return [6] * STEPS, 2


def ddp() -> Told:
    model = nn.parallel.DistributedDataParallel(Net())
    data = torch.randn(50, WIDTH)  # 25 for each of two: 6 times 4 and 1
    sampler: Any = DistributedSampler(data, shuffle=False)
    return fit(model, feed=DataLoader(data, batch_size=4, sampler=sampler)), dist.get_world_size()


def pipeline(stages: int, schedule: str) -> Told:
    """A pipeline of two stages; where there are more ranks, several of them side by side."""
    from torch.distributed import pipelining

    world, rank = dist.get_world_size(), dist.get_rank()
    mesh = mesh_of(("dp", world // stages), ("pp", stages)) if world > stages else mesh_of(("pp", stages))
    group = mesh.get_group("pp")
    stage_number = rank % stages
    module: nn.Module = nn.Linear(WIDTH, WIDTH)
    stage = pipelining.PipelineStage(module, stage_number, stages, torch.device("cpu"), group=group)
    kind = getattr(pipelining, schedule)
    run = kind(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    for _ in range(STEPS):
        x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
        if stage_number == 0:
            run.step(x)
        elif stage_number == stages - 1:
            run.step(target=y)
        else:
            run.step()
        if world > stages:
            for parameter in module.parameters():
                dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))
        optimizer.step()
        optimizer.zero_grad()
    return [8] * STEPS, world // stages


def own_groups() -> Told:
    """Tensor parallel by hand: nothing tells which ranks share a batch."""
    half = [dist.new_group([0, 1]), dist.new_group([2, 3])][dist.get_rank() // 2]
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        loss = model(torch.randn(6, WIDTH)).square().mean()
        dist.all_reduce(loss.detach(), group=half)
        loss.backward()
        optimizer.step()
    return [6] * STEPS, 0


# One process


class Stream(IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter(torch.randn(30, WIDTH))


def loader(**options: Any) -> Told:
    """Two epochs with an evaluation after each, on batches of another size."""
    data, held_out, model = torch.randn(30, WIDTH), torch.randn(40, WIDTH), Net()
    told: list[int] = []
    feed, tests = DataLoader(data, batch_size=8, **options), DataLoader(held_out, batch_size=20)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(2):
        for x in feed:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            told.append(len(x))
        with torch.no_grad():
            for x in tests:
                model(x)
    return told, 1


def uneven_batches() -> Told:
    class Growing(BatchSampler):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter([[0], [1, 2], [3, 4, 5], [6, 7, 8, 9]] * 2)

    data = torch.randn(10, WIDTH)
    sampler = Growing(SequentialSampler(data), 2, False)
    return fit(Net(), feed=DataLoader(data, batch_sampler=sampler)), 1


def stream() -> Told:
    return fit(Net(), feed=DataLoader(Stream(), batch_size=8)), 1


def slices() -> Told:
    """Micro-batches cut from a loader's batch: one step each four slices."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    told = []
    for x in DataLoader(torch.randn(60, WIDTH), batch_size=8):
        for part in x.chunk(4):
            model(part).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        told.append(len(x))
    return told, 1


def small_steps() -> Told:
    """Several steps on slices of one loader's batch."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    told = []
    for x in DataLoader(torch.randn(64, WIDTH), batch_size=32):
        for part in x.split(8):
            model(part).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            told.append(len(part))
    return told, 1


def ahead() -> Told:
    """The loader is one batch ahead, and what the model is given is a copy (as on a GPU)."""
    feed: Any = iter(DataLoader(torch.randn(64, WIDTH), batch_size=8))

    def prefetched() -> Any:
        following = next(feed).clone()
        while following is not None:
            now, following = following, next(feed, None)
            following = following if following is None else following.clone()
            yield now

    return fit(Net(), feed=prefetched()), 1


def teacher() -> Told:
    data: Any = torch.randn(56, WIDTH)
    model, frozen = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    told = []
    for x in DataLoader(data, batch_size=8):
        with torch.no_grad():
            wanted = frozen(x)
        (model(x) - wanted).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        told.append(len(x))
    return told, 1


def transposed() -> Told:
    """Batches [seq, batch] from a loader's collate function."""

    def collate(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(rows, 1)

    model = Tagger(batch_first=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    told = []
    data: Any = torch.randint(0, 11, (30, 13))
    for x in DataLoader(data, batch_size=8, collate_fn=collate):
        nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
        told.append(x.shape[1])
    return told, 1


def sequences(*, batch_first: bool, flat: bool) -> Told:
    """Without a loader: 13 tokens of 5 samples, laid out either way; targets of each token or each sample."""
    model = Tagger(batch_first=batch_first)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    shape = (5, 13) if batch_first else (13, 5)
    for _ in range(STEPS):
        x, scores = torch.randint(0, 11, shape), None
        scores = model(x)
        if flat:
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), x.flatten())
        else:
            loss = nn.functional.cross_entropy(scores.mean(1 if batch_first else 0), torch.ones(5).long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [5] * STEPS, 1


def recurrent(*, batch_first: bool) -> Told:
    """The model is the recurrent layer itself; nothing tells its targets."""
    model = nn.GRU(WIDTH, 4, batch_first=batch_first)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    shape = (5, 13, WIDTH) if batch_first else (13, 5, WIDTH)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(shape))[0].square().mean().backward()
        optimizer.step()
    return [5] * STEPS, 1


def lbfgs() -> Told:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    told = []
    for x in DataLoader(torch.randn(60, WIDTH), batch_size=8):

        def closure(batch: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        told.append(len(x))
    return told, 1


def closure_after_micro_batches() -> Told:
    """As Lightning accumulates: the last micro-batch runs within the update."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.randn(5, WIDTH)).square().mean().backward()

        def closure() -> torch.Tensor:
            loss: torch.Tensor = model(torch.randn(5, WIDTH)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    return [15] * STEPS, 1


def twice() -> Told:
    """As sharpness-aware minimization: a second forward and backward on the same batch, in a closure."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        x = torch.randn(5, WIDTH)
        model(x).square().mean().backward()

        def closure(batch: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(batch).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    return [5] * STEPS, 1


def evaluations_with_gradients() -> Told:
    """A validation loss now and then, without `no_grad`; in the end the program trains in evaluation mode."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(STEPS):
        model.train(step < STEPS - 4)
        optimizer.zero_grad()
        model(torch.randn(5, WIDTH)).square().mean().backward()
        optimizer.step()
        if step % 3 == 0 and model.training:
            model.eval()
            model(torch.randn(50, WIDTH)).square().mean()
    return [*([5] * (STEPS - 4)), None, *([5] * 3)], 1


def adversaries(take_turns: bool) -> Told:
    """A discriminator and a generator of one loader: both on each batch, or each on every other batch."""
    data: Any = torch.randn(53, WIDTH)
    critic, generator = Net(), torch.nn.Sequential(torch.nn.Linear(3, WIDTH))
    of_critic, of_generator = (torch.optim.SGD(one.parameters(), 0.01) for one in (critic, generator))
    told: list[int] = []
    for x in DataLoader(data, batch_size=8):
        if not take_turns or len(told) % 2 == 0:
            fake = generator(torch.randn(8, 3)).detach()
            (critic(x).mean() - critic(fake).mean()).backward()
            of_critic.step()
        if not take_turns or len(told) % 2:
            critic(generator(torch.randn(8, 3))).mean().backward()
            of_generator.step()
        told.append(len(x))
    return told, 1


def parts_in_turns() -> Told:
    """One model, two optimizers of its parts; each updates on every other batch."""
    data: Any = torch.randn(53, WIDTH)
    model = torch.nn.Sequential(Net(), torch.nn.Linear(WIDTH, 2))
    optimizers = [torch.optim.SGD(part.parameters(), 0.01) for part in model]
    told: list[int] = []
    for x in DataLoader(data, batch_size=8):
        model(x).square().mean().backward()
        optimizers[len(told) % 2].step()
        told.append(len(x))
    return told, 1


def gradients_of_each_sample() -> Told:
    """As differential privacy: vmap over samples, each a batch of one."""
    from torch.func import functional_call, grad, vmap

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = functional_call(model, parameters, (x.unsqueeze(0),))
        return out.square().mean()

    for _ in range(STEPS):
        parameters = {name: value.detach() for name, value in model.named_parameters()}
        each = vmap(grad(loss), in_dims=(None, 0))(parameters, torch.randn(5, WIDTH))
        for name, value in model.named_parameters():
            value.grad = each[name].mean(0)
        optimizer.step()
    return [5] * STEPS, 1


PROGRAMS: dict[str, tuple[int, Callable[[], Told]]] = {
    "fsdp2": (2, lambda: sharded(("dp", 2), over=("dp",))),
    "fsdp2 x tp": (4, lambda: sharded(("dp", 2), ("tp", 2), over=("dp",), tensor=True)),
    "hsdp": (4, lambda: sharded(("replicate", 2), ("shard", 2), over=("replicate", "shard"))),
    "hsdp x tp": (
        8,
        lambda: sharded(("r", 2), ("s", 2), ("tp", 2), over=("r", "s"), tensor=True),
    ),
    "tp": (2, tensor_only),
    "tp x gradients by hand": (4, tensor_and_ddp),
    "ddp": (2, ddp),
    "pipeline": (2, lambda: pipeline(2, "ScheduleGPipe")),
    "pipeline x dp": (4, lambda: pipeline(2, "Schedule1F1B")),
    "own groups": (4, own_groups),
    "loader": (1, loader),
    "loader with workers": (1, lambda: loader(num_workers=2)),
    "loader without the last": (1, lambda: loader(drop_last=True)),
    "batch sampler": (1, uneven_batches),
    "stream": (1, stream),
    "slices": (1, slices),
    "steps on slices": (1, small_steps),
    "ahead": (1, ahead),
    "teacher": (1, teacher),
    "transposed": (1, transposed),
    "sequence first": (1, lambda: sequences(batch_first=False, flat=False)),
    "sequence first, flat targets": (1, lambda: sequences(batch_first=False, flat=True)),
    "batch first": (1, lambda: sequences(batch_first=True, flat=False)),
    "batch first, flat targets": (1, lambda: sequences(batch_first=True, flat=True)),
    "recurrent": (1, lambda: recurrent(batch_first=False)),
    "recurrent, rows are samples": (1, lambda: recurrent(batch_first=True)),
    "lbfgs": (1, lbfgs),
    "closure after micro-batches": (1, closure_after_micro_batches),
    "twice": (1, twice),
    "evaluations with gradients": (1, evaluations_with_gradients),
    "gradients of each sample": (1, gradients_of_each_sample),
    "adversaries": (1, lambda: adversaries(take_turns=False)),
    "adversaries in turns": (1, lambda: adversaries(take_turns=True)),
    "parts in turns": (1, parts_in_turns),
}


def main() -> None:
    name, out = sys.argv[1], Path(sys.argv[2])
    num_ranks, program = PROGRAMS[name]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if num_ranks > 1:
        dist.init_process_group("gloo")
    steps, width = program()
    told = {"steps": steps, "width": width}
    (out / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(told))
    if num_ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
