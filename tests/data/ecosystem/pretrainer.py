"""A trainer in the manner of torchtitan: a decoder over pipeline, data (FSDP2) and tensor parallelism.

Usage: torchrun --nproc-per-node PP*DP*TP pretrainer.py PP DP TP
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS, BATCH, MICRO, LENGTH, VOCABULARY, WIDTH, BLOCKS = 16, 8, 4, 16, 64, 64, 4


class FeedForward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.w2 = torch.nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(torch.nn.functional.silu(self.w1(x)))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.RMSNorm(WIDTH)
        self.feed_forward = FeedForward()

    def forward(self, x):
        return x + self.feed_forward(self.norm(x))


class Transformer(torch.nn.Module):
    """The blocks of one stage; the first embeds, the last projects to the vocabulary."""

    def __init__(self, blocks, first, last):
        super().__init__()
        self.tok_embeddings = torch.nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.layers = torch.nn.ModuleDict({str(i): Block() for i in blocks})
        self.output = torch.nn.Linear(WIDTH, VOCABULARY, bias=False) if last else None

    def forward(self, x):
        h = self.tok_embeddings(x) if self.tok_embeddings is not None else x
        for layer in self.layers.values():
            h = layer(h)
        return self.output(h) if self.output is not None else h


def loss_of(predicted, target):
    return torch.nn.functional.cross_entropy(predicted.flatten(0, 1), target.flatten())


def build(mesh, pp):
    stage = mesh.get_local_rank("pp")
    torch.manual_seed(stage)
    each = BLOCKS // pp
    model = Transformer(range(stage * each, (stage + 1) * each), stage == 0, stage == pp - 1)
    for block in model.layers.values():
        if mesh["tp"].size() > 1:
            plan = {"feed_forward.w1": ColwiseParallel(), "feed_forward.w2": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def clip(model):
    """By mesh: norms on different ones (tensor parallel or not) cannot be stacked."""
    by_mesh = {}
    for parameter in model.parameters():
        by_mesh.setdefault(parameter.device_mesh, []).append(parameter)
    for parameters in by_mesh.values():
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)


def main():
    pp, dp, tp = (int(number) for number in sys.argv[1:4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (pp, dp, tp), mesh_dim_names=("pp", "dp", "tp"))
    model = build(mesh, pp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stage = mesh.get_local_rank("pp")
    if pp > 1:
        piped = PipelineStage(model, stage, pp, torch.device("cpu"), group=mesh.get_group("pp"))
        schedule = Schedule1F1B(piped, n_microbatches=MICRO, loss_fn=loss_of)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step * dp + mesh.get_local_rank("dp"))
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        optimizer.zero_grad()
        losses = []
        if pp > 1:
            schedule.step(
                *((inputs,) if stage == 0 else ()),
                target=targets if stage == pp - 1 else None,
                losses=losses,
            )
        else:
            losses.append(loss_of(model(inputs), targets))
            losses[0].backward()
        clip(model)
        optimizer.step()
        if losses and mesh.get_local_rank("dp") == 0 and mesh.get_local_rank("tp") == 0:
            print(f"step {step} loss {torch.stack(losses).mean().item():.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
