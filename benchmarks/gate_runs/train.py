"""What `benchmarks/gate.py` trains: a small CNN under DistributedDataParallel, with slowdowns to plant.

    torchrun --standalone --nproc-per-node 2 train.py --plant layer --amount 6

What is planted is real work: `layer` gives one block more convolutions, forward and backward; `loader`
makes the data loader filter each batch some more times; `allreduce` sums a further tensor over the ranks
after the backward pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

SIZE, CLASSES, BATCH = 32, 10, 16


class Images(IterableDataset):
    """Endless made-up images; every one is filtered `filters` times more before it is handed out."""

    def __init__(self, length: int, seed: int, filters: int) -> None:
        self.length, self.filters = length, filters
        self.generator = torch.Generator().manual_seed(seed)
        self.kernel = torch.full((1, 1, 3, 3), 1 / 9)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        for index in range(self.length):
            image = torch.randn(3, SIZE, SIZE, generator=self.generator)
            for _ in range(self.filters if index % BATCH == 0 else 0):  # once per batch is fine enough
                image = functional.conv2d(image[:, None], self.kernel, padding=1)[:, 0]
            yield image, index % CLASSES


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, more: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.more = more

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.conv(x))
        if self.more:  # the planted work: some channels go through a part of the filter again and again
            part = y[:, :4]
            for _ in range(self.more):
                part = part + 1e-3 * functional.conv2d(part, self.conv.weight[:4, :4], padding=1)
            y = torch.cat((part, y[:, 4:]), dim=1)
        return functional.relu(y)


class Net(nn.Module):
    def __init__(self, more: int) -> None:
        super().__init__()
        self.stem = Block(3, 32)
        self.block1 = Block(32, 32)
        self.block2 = Block(32, 64, more)
        self.block3 = Block(64, 64)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.block1(self.stem(x)))
        x = self.pool(self.block3(self.block2(x)))
        y: torch.Tensor = self.head(x.mean((2, 3)))
        return y


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--plant", choices=["nothing", "layer", "loader", "allreduce"], default="nothing")
    parser.add_argument("--amount", type=int, default=0, help="convolutions, filters, or KiB to sum")
    args = parser.parse_args()

    def planted(what: str) -> int:
        return int(args.amount) if args.plant == what else 0

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Images(args.steps * BATCH, dist.get_rank(), planted("loader"))
    model = DistributedDataParallel(Net(planted("layer")))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    extra = torch.ones(planted("allreduce") * 256)
    for images, labels in DataLoader(data, batch_size=BATCH):
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        if len(extra):
            dist.all_reduce(extra)
            extra.fill_(1.0)
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
