"""What the ranks of tests/runners/test_compression.py do: every codec on real gloo, in one start."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.compression.registry import make_exchange
from perfscope.runners.compression.state import Residuals
from perfscope.runners.config import BenchConfig, parse_scheme
from perfscope.runners.exchange import Exchange
from perfscope.runners.world import World

SIZES = {"first": 5000, "second": 1031}


def config_for(codec: str, seed: int = 0) -> BenchConfig:
    """A run with that modifier; "" is dense."""
    name, modifiers = parse_scheme(f"dp.packed+{codec}" if codec else "dp.packed")
    return BenchConfig(scheme=name, modifiers=modifiers, seed=seed)


def gradient(rank: int, step: int, numel: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A rank's gradient: a part that all share, and the rank's own noise; six decades of magnitudes."""
    shared = torch.Generator().manual_seed(1000 + step)
    own = torch.Generator().manual_seed(7000 + 100 * step + rank)
    scale = torch.logspace(-5, 1, numel, dtype=torch.float64)[torch.randperm(numel, generator=shared)]
    mixed = torch.randn(numel, generator=shared, dtype=torch.float64)
    mixed += 0.3 * torch.randn(numel, generator=own, dtype=torch.float64)
    return (mixed * scale).to(dtype)


def exchange_all(world: World, codecs: list[str], steps: int, dtypes: list[str]) -> dict[Any, Any]:
    """Every codec on two buffers in flight at once: means, residuals, calls made and calls foretold."""
    group = world.groups("data", [tuple(range(world.size))])
    found: dict[Any, Any] = {}
    for codec in codecs:
        for name in dtypes:
            dtype = getattr(torch, name)
            exchange = make_exchange(config_for(codec))
            world.ledger.clear()
            applied: dict[str, list[torch.Tensor]] = {key: [] for key in SIZES}
            foretold: Counter[Any] = Counter()
            for step in range(steps):
                pending = {}
                for key, numel in SIZES.items():
                    flat = gradient(world.rank, step, numel, dtype)
                    pending[key] = exchange.start(key, flat, group)
                    for sent in exchange.sends(numel, flat.element_size(), group.size, key):
                        foretold[sent.collective, "data", group.size, sent.bytes] += 1
                for key, one in pending.items():
                    applied[key].append(one.wait().clone())
            found[codec, name] = {
                "applied": applied,
                "residual": {key: residual_of(exchange, key, group) for key in SIZES},
                "calls": Counter({tuple(call): count for call, count in world.ledger.calls.items()}),
                "foretold": foretold,
            }
    return found


def residual_of(exchange: Exchange, key: str, group: Group) -> torch.Tensor | None:
    """What the codec keeps back; None for one that keeps nothing."""
    residuals = getattr(exchange, "residuals", None)
    return residuals.kept(key, group) if isinstance(residuals, Residuals) else None


def train_all(world: World, codecs: list[str], steps: int) -> dict[str, tuple[list[float], list[float]]]:
    """Codec -> (own loss by step, final weights) of packed data-parallel SGD."""
    group = world.groups("data", [tuple(range(world.size))])
    draw = torch.Generator().manual_seed(5)
    centers = torch.randn(8, 64, generator=draw)
    found = {}
    for codec in codecs:
        torch.manual_seed(11)
        model = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, foreach=False)
        exchange = make_exchange(config_for(codec))
        flat = torch.empty(sum(one.numel() for one in model.parameters()))
        samples = torch.Generator().manual_seed(100 + world.rank)
        losses = []
        for _ in range(steps):
            targets = torch.randint(8, (16,), generator=samples)
            inputs = centers[targets] + 1.5 * torch.randn(16, 64, generator=samples)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            grads = [one.grad for one in model.parameters() if one.grad is not None]
            mean = exchange.start("all", comm.flatten(grads, flat), group).wait()
            comm.unflatten(mean, grads)
            optimizer.step()
            losses.append(float(loss.detach()))
        weights = torch.cat([one.detach().flatten() for one in model.parameters()])
        found[codec] = (losses, weights.tolist())
    return found


def everything(world: World, codecs: list[str], steps: int, train_steps: int) -> dict[str, Any]:
    """All cases of one start."""
    torch.set_num_threads(1)
    return {
        "exchanged": exchange_all(world, codecs, steps, ["float64", "float32"]),
        "again": exchange_all(world, ["mstopk(0.05)", "powersgd(2)"], 2, ["float32"]),
        "trained": train_all(world, ["", *codecs], train_steps),
    }
