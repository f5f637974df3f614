"""A training on one GPU with one planted cause of lost time, or the same one without it.

    python tests/gpu/train_planted.py --cause item
    python tests/gpu/train_planted.py --cause item --without

Prints one line of JSON at the end: the median time of a step by its own clock, in nanoseconds, without the
first steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

CAUSES = (
    "clean", "launch", "item", "copy", "allocator", "input", "python", "checkpoint", "graphs", "compile",
    "vocabulary", "layout",
)  # fmt: skip
WARM_UP = 20
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):  # type: ignore[misc,unused-ignore]
    """A layer of a transformer without attention's mask: the same work in each step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, max(1, width // 64), batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(x)


class Items(torch.utils.data.Dataset[Tensor]):  # type: ignore[misc,unused-ignore]
    def __init__(self, length: int, width: int, delay_s: float) -> None:
        self.length, self.width, self.delay_s = length, width, delay_s

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.delay_s)
        return torch.full((self.length, self.width), 0.01 * (index % 7))


class Predicts(nn.Module):  # type: ignore[misc,unused-ignore]
    """A language model's last layers, with its loss."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.block, self.head = Block(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(self.block(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), torch.zeros_like(x[..., 0]).flatten().long())


class Convolves(nn.Module):  # type: ignore[misc,unused-ignore]
    """Convolutions over images that are made from the sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(8):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def model_of(cause: str, planted: bool) -> tuple[nn.Module, int, int]:
    """The network, its width, and the length of a sequence."""
    if cause == "launch" and planted:
        return nn.Sequential(*[Block(64) for _ in range(24)]), 64, 16
    if cause == "vocabulary":
        return nn.Sequential(Predicts(768, 50257 if planted else 50304)), 768, 128
    if cause == "layout":
        network = nn.Sequential(Convolves(128))
        return network if planted else network.to(memory_format=torch.channels_last), 128 * 56, 56
    return nn.Sequential(*[Block(1024) for _ in range(6)]), 1024, 256


def batches(cause: str, planted: bool, batch: int, length: int, width: int) -> Iterator[Tensor]:
    if cause == "input":
        items = Items(length, width, 0.004 if planted else 0.0)
        loader = torch.utils.data.DataLoader(items, batch_size=batch, num_workers=2, pin_memory=True)
        for tensor in loader:
            yield tensor.to(DEVICE, non_blocking=True)
    elif cause == "copy":
        # Pageable memory of 512 MiB: the copy waits for the device and holds the thread. The same in pinned
        # memory does neither.
        large = torch.ones(128 << 20)
        large = large if planted or DEVICE == "cpu" else large.pin_memory()
        while True:
            sent = large.to(DEVICE, non_blocking=not planted)
            yield sent[: batch * length * width].view(batch, length, width)
    else:
        kept = torch.randn(batch, length, width, device=DEVICE)
        if cause == "layout":
            kept = kept.view(batch, width // length, length, length)
            kept = kept if planted else kept.to(memory_format=torch.channels_last)
        while True:
            yield kept


def logged(network: nn.Module, x: Tensor) -> Tensor:
    """The output, with a statistic of each layer read back."""
    total = 0.0
    for layer in network:
        x = layer(x)
        total += x.float().mean().item()
        spin(400_000)
    return x


def after_step(cause: str, step: int, network: nn.Module, folder: Path) -> None:
    if cause == "python":
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        spin(25_000_000)  # bookkeeping between two steps, for which the device has nothing queued
    if cause == "checkpoint" and step % 20 == 10:
        torch.save(network.state_dict(), folder / "checkpoint.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cause", choices=CAUSES, default="clean")
    parser.add_argument("--without", action="store_true", help="the same training without the cause")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--profile", action="store_true", help="steps 10 and 11 under torch.profiler")
    options = parser.parse_args()
    cause, planted = options.cause, not options.without
    if cause == "allocator" and planted:
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    torch.manual_seed(0)
    network, width, length = model_of(cause, planted)
    network = network.to(DEVICE)
    if (cause == "graphs" and planted) or cause == "compile":
        network = torch.compile(network, mode="reduce-overhead" if cause == "graphs" else None)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    batch = 16 if cause == "launch" else 64
    data = batches(cause, planted, batch, length, width)
    began = []
    with tempfile.TemporaryDirectory() as folder:
        for step in range(options.steps):
            began.append(time.perf_counter_ns())
            if options.profile and step == 10:
                profiler = torch.profiler.profile(record_shapes=True)
                profiler.start()
            if options.profile and step == 12:
                profiler.stop()
            x = next(data)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = logged(network, x) if cause == "item" and planted else network(x)
                loss = loss.float().square().mean()
            loss.backward()
            optimizer.step()
            if planted:
                after_step(cause, step, network, Path(folder))
            if step % 10 == 9:
                loss.item()  # keeps the host from running ahead without bound, as logging does
    steps = [after - before for before, after in zip(began[WARM_UP:], began[WARM_UP + 1 :], strict=False)]
    # the host runs ahead: the mean over many steps is the device's, the median only the host's
    print(json.dumps({"cause": cause, "planted": planted, "mean_ns": statistics.fmean(steps),
                      "median_ns": statistics.median(steps)}), flush=True)  # fmt: skip


def spin(ns: int) -> None:
    end = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < end:
        pass


if __name__ == "__main__":
    main()
