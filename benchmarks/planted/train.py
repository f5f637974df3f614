"""Trains a small network on two or more ranks, with one cause of slowness planted on request.

torchrun --standalone --nproc-per-node 2 benchmarks/planted/train.py
torchrun --standalone --nproc-per-node 2 benchmarks/planted/train.py --plant straggler:4
torchrun --standalone --nproc-per-node 2 benchmarks/planted/train.py --deep --plant small_collectives
torchrun --standalone --nproc-per-node 2 benchmarks/planted/train.py --pipeline --plant model_split:6

    straggler[:TIMES]          the last rank computes layer SLOW_LAYER so many times more (12)
    input_bound[:MS]           every batch takes the loader so long (200)
    small_collectives[:KB]     gradients are all-reduced in buckets of so many kB (1)
    model_split[:BLOCKS]       with --pipeline: rank 0 holds so many of the 8 blocks (7)
    imbalance[:TIMES]          a rank, another one in each step, computes layer SLOW_LAYER so often more (12)
    lock[:MS]                  a thread holds a lock for so long per step that the training thread needs (30)
    gil[:THREADS]              so many threads compute in Python (1)
    even[:TIMES]               every rank computes layer SLOW_LAYER so often more in each step (6)
    logging[:LINES]            so many lines are written and synchronized to disk in each step (100)
    garbage[:OBJECTS]          the garbage of each step is collected, beside so many thousand objects (300)
    allocation[:MB]            so much memory is allocated from the kernel and given back in each step (96)
    checkpoint[:MB]            a checkpoint of so much is written every 10 steps (400)
    evaluation[:BATCHES]       so many batches are evaluated every 10 steps (60)
    major_faults[:MB]          so much of a file is mapped and read in each step after it was dropped (48)

A slow link and a busy neighbor are planted from outside: see benchmarks/planted.py. Nothing here knows of
perfscope.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import mmap
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

NUM_CLASSES = 10
SIZE = 24
BATCH = 32
MICRO = 4
DEPTH = 32
SLOW_LAYER = "body.5"  # of the network that is trained data parallel
DEFAULTS = {
    "straggler": 12.0,
    "input_bound": 200.0,
    "small_collectives": 1.0,
    "model_split": 7.0,
    "imbalance": 12.0,
    "lock": 30.0,
    "gil": 1.0,
    "even": 6.0,
    "logging": 100.0,
    "garbage": 300.0,
    "allocation": 96.0,
    "checkpoint": 400.0,
    "evaluation": 60.0,
    "major_faults": 48.0,
}


class Noise(Dataset[tuple[torch.Tensor, int]]):  # type: ignore[misc]
    """Images from memory; `wait_s` makes the store slow."""

    def __init__(self, length: int, wait_s: float) -> None:
        self.images = torch.randn(256, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
        self.length, self.wait_s = length, wait_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.wait_s:
            time.sleep(self.wait_s)
        return self.images[index % 256], index % NUM_CLASSES


class Block(nn.Module):  # type: ignore[misc]
    """Convolution, norm, ReLU. `times`: how often the convolution is done again, for nothing."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.times = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.relu(self.norm(self.conv(x)))
        with torch.no_grad():
            for _ in range(self.times):
                self.relu(nn.functional.conv2d(x, self.conv.weight, padding=1))
        return y


class Network(nn.Module):  # type: ignore[misc]
    """Layers of several sizes: most compute in the convolutions, most weights in the first linear layer."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 16, 24, 24, 32, 32, 48)
        self.body = nn.Sequential(*(Block(a, b) for a, b in itertools.pairwise(widths)))
        self.pool = nn.AvgPool2d(4)
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(48 * (SIZE // 4) ** 2, 256), nn.ReLU(), nn.Linear(256, NUM_CLASSES)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.pool(self.body(x)))
        return y


class Deep(nn.Module):  # type: ignore[misc]
    """Many layers with little to compute in each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 128))
        blocks = (nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU()) for _ in range(DEPTH))
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(128, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.body(self.stem(x)))
        return y


class Stage(nn.Module):  # type: ignore[misc]
    """Some of the 8 equal blocks of a network that is cut in two; the last stage classifies."""

    def __init__(self, first: int, count: int, is_last: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 1) if first == 0 else nn.Identity()
        self.blocks = nn.ModuleDict({f"b{first + k}": Block(32, 32) for k in range(count)})
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, NUM_CLASSES))
        if not is_last:
            self.head = nn.Sequential()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks.values():
            x = block(x)
        y: torch.Tensor = self.head(x)
        return y


def batches(steps: int, size: int, wait_s: float) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    data = Noise(steps * size, wait_s / size)
    yield from DataLoader(data, batch_size=size, num_workers=1 if wait_s else 0)


class Beside:
    """What a training does beside training, by the cause that is planted."""

    def __init__(self, cause: str, strength: float, model: nn.Module) -> None:
        self.cause, self.strength, self.model, self.step = cause, strength, model, 0
        self.folder = Path(tempfile.mkdtemp(prefix="planted-"))
        self.lock, self.wanted = threading.Lock(), threading.Semaphore(0)
        self.kept: list[object] = []
        if cause == "lock":
            threading.Thread(target=self._hold, daemon=True).start()
        elif cause == "gil":
            for _ in range(round(strength)):
                threading.Thread(target=self._compute, daemon=True).start()
        elif cause == "garbage":
            self.kept = [{"number": number} for number in range(round(strength * 1000))]
        elif cause == "checkpoint":
            self.kept = [torch.randn(round(strength * 2**18))]
        elif cause == "logging":
            self.log = (self.folder / "log").open("w")
        elif cause == "major_faults":
            (self.folder / "data").write_bytes(os.urandom(2**20) * round(strength))

    def _hold(self) -> None:
        while True:
            with self.lock:
                self.wanted.acquire()
                time.sleep(self.strength / 1e3)
            time.sleep(1e-3)

    def _compute(self) -> None:
        while True:
            sum(range(1000))

    def between(self, images: torch.Tensor) -> None:
        """After an update."""
        self.step += 1
        getattr(self, f"_{self.cause}", lambda _: None)(images)

    def _lock(self, _: torch.Tensor) -> None:
        self.wanted.release()
        with self.lock:
            pass

    def _logging(self, _: torch.Tensor) -> None:
        for line in range(round(self.strength)):
            self.log.write(f"step {self.step}, line {line}\n")
            self.log.flush()
            os.fsync(self.log.fileno())

    def _garbage(self, _: torch.Tensor) -> None:
        gc.collect()

    def _allocation(self, _: torch.Tensor) -> None:
        area = mmap.mmap(-1, round(self.strength * 2**20))
        area.madvise(mmap.MADV_NOHUGEPAGE)
        torch.frombuffer(area, dtype=torch.uint8).fill_(1)

    def _checkpoint(self, _: torch.Tensor) -> None:
        if self.step % 10 == 0 and dist.get_rank() == 0:
            torch.save(
                {"model": self.model.state_dict(), "buffers": self.kept}, self.folder / "checkpoint.pt"
            )

    def _evaluation(self, images: torch.Tensor) -> None:
        if self.step % 10:
            return
        self.model.eval()
        with torch.no_grad():
            for _ in range(round(self.strength)):
                self.model(images)
        self.model.train()

    def _major_faults(self, _: torch.Tensor) -> None:
        with (self.folder / "data").open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as area:
                area.madvise(mmap.MADV_RANDOM)
                sum(area[at] for at in range(0, len(area), mmap.PAGESIZE * 8))

    def close(self) -> None:
        shutil.rmtree(self.folder)


def train_replicas(args: argparse.Namespace, cause: str, strength: float) -> None:
    """Data parallel: every rank has the whole network."""
    model: nn.Module = Deep() if args.deep else Network()
    if cause == "straggler" and dist.get_rank() == dist.get_world_size() - 1:
        block = model.get_submodule(SLOW_LAYER)
        assert isinstance(block, Block)
        block.times = round(strength)
    beside, block = Beside(cause, strength, model), model.body[5] if not args.deep else None
    bucket_mb = strength / 1024 if cause == "small_collectives" else 25
    replica = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.01, momentum=0.9)
    wait_s = strength / 1e3 if cause == "input_bound" else 0.0
    for step, (images, labels) in enumerate(batches(args.steps, BATCH, wait_s)):
        if cause == "imbalance" and isinstance(block, Block):
            block.times = round(strength) if step % dist.get_world_size() == dist.get_rank() else 0
        elif cause == "even" and isinstance(block, Block):
            block.times = round(strength)
        loss = nn.functional.cross_entropy(replica(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        beside.between(images)
    beside.close()


def train_pipeline(args: argparse.Namespace, cause: str, strength: float) -> None:
    """Two stages; a batch goes through in MICRO parts, forward all of them, then backward."""
    rank, first = dist.get_rank(), round(strength) if cause == "model_split" else 4
    stage = Stage(0, first, False) if rank == 0 else Stage(first, 8 - first, True)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01, momentum=0.9)
    for images, labels in batches(args.steps, BATCH, 0.0):
        optimizer.zero_grad()
        results, inputs = [], []
        for part in images.split(BATCH // MICRO):
            x = part
            if rank == 1:
                x = torch.empty(BATCH // MICRO, 32, SIZE, SIZE)
                dist.recv(x, 0)
                x.requires_grad_()
            y = stage(x)
            if rank == 0:
                dist.send(y.detach(), 1)
            inputs.append(x)
            results.append(y)
        for x, y, label in zip(inputs, results, labels.split(BATCH // MICRO), strict=True):
            if rank == 1:
                nn.functional.cross_entropy(y, label).backward()
                assert x.grad is not None
                dist.send(x.grad, 0)
            else:
                grad = torch.empty_like(y)
                dist.recv(grad, 1)
                y.backward(grad)
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plant", default="", metavar="CAUSE[:STRENGTH]")
    parser.add_argument("--pipeline", action="store_true", help="cut the model instead of the batch")
    parser.add_argument("--deep", action="store_true", help="many small layers")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--pin", action="store_true", help="keep each rank on a CPU of its own")
    args = parser.parse_args()
    cause, _, strength = args.plant.partition(":")
    if cause and cause not in DEFAULTS:
        parser.error(f"cannot plant {cause!r} here; choose from {', '.join(DEFAULTS)}")
    if args.pin:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[int(os.environ["LOCAL_RANK"]) % len(cpus)]})
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train = train_pipeline if args.pipeline else train_replicas
    train(args, cause, float(strength) if strength else DEFAULTS.get(cause, 0.0))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
