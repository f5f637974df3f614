"""Trains a small CNN with Horovod and PyTorch on images it makes itself.

horovodrun -np 2 --gloo --network-interfaces lo python examples/train_horovod.py
python examples/train_horovod.py                # one process
"""

import argparse

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_CLASSES = 4
SIZE = 32


def stripes(length: int, seed: int) -> TensorDataset:
    """Images of stripes, and the direction of the stripes."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    patterns = torch.stack([torch.sin(phase * 0.8) for phase in (x, y, x + y, x - y)])
    labels = torch.randint(0, NUM_CLASSES, (length,), generator=generator)
    noise = torch.randn(length, 3, SIZE, SIZE, generator=generator)
    return TensorDataset(patterns[labels][:, None] + noise, labels)


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 64),
        nn.ReLU(),
        nn.Linear(64, NUM_CLASSES),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16, help="per process")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(0)
    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    criterion = nn.CrossEntropyLoss()

    for step, (images, labels) in enumerate(
        DataLoader(stripes(args.steps * args.batch_size, hvd.rank()), batch_size=args.batch_size)
    ):
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            print(f"rank {hvd.rank()} step {step:3d} loss {loss.item():.6f}", flush=True)
    print(f"rank {hvd.rank()} final loss {loss.item():.6f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
