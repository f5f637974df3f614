"""What the ranks of test_mp.py do: many cases in one start."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.config import BenchConfig
from perfscope.runners.model_parallel import operators as operators_of_runners
from perfscope.runners.model_parallel.halo import ExchangeHalo, gather_rows
from perfscope.runners.model_parallel.rows import Halo, RowExtent, split_rows
from perfscope.runners.models import registry as models
from perfscope.runners.models.blocks import Branches, Residual
from perfscope.runners.models.catalogue import MODELS, ModelInfo
from perfscope.runners.models.registry import find_model
from perfscope.runners.models.stack import Stack
from perfscope.runners.models.transformer import GptSize, gpt
from perfscope.runners.models.vit import VitSize
from perfscope.runners.models.vit import vit as vision
from perfscope.runners.planning import plan
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.train import train
from perfscope.runners.world import Alone, World
from tests.runners.training import expected_calls, train_here


def _way(stack: Stack, *layers: tuple[str, int, int]) -> Stack:
    """A way through a container, of (kind, channels, kernel) padded to keep its size."""
    way = stack.branch()
    for index, (kind, channels, kernel) in enumerate(layers, start=1):
        if kind == "pool":
            way.max_pool(f"pool{index}", kernel, 1, padding=kernel // 2)
        elif kind == "norm":
            way.norm(f"bn{index}")
        elif kind == "relu":
            way.relu(f"relu{index}")
        else:
            way.conv(f"conv{index}", channels, kernel, padding=kernel // 2)
    return way


def _branches(stack: Stack, name: str, **ways: Stack) -> None:
    module = Branches(**{key: way.sequential() for key, way in ways.items()})
    num_maps = sum(way.shape[0] for way in ways.values())
    stack.add(name, module, (num_maps, *stack.shape[1:]), within=list(ways.values()))


def branchy(stack: Stack, num_classes: int, dropout: float) -> None:
    """All that can happen: branches after branches and into an identity, residuals with both shortcuts."""
    stack.conv("conv1", 8, 3, padding=1)
    stack.norm("bn1")
    stack.relu("relu1")
    relu, norm = ("relu", 0, 0), ("norm", 0, 0)
    for index in (1, 2):
        one = _way(stack, ("conv", 4, 1), relu)
        two = _way(stack, ("conv", 8, 1), relu, ("conv", 8, 3), norm, relu)
        _branches(
            stack, f"branches{index}", one=one, two=two, three=_way(stack, ("pool", 0, 3), ("conv", 4, 1))
        )
    body = _way(stack, ("conv", 8, 1), norm, relu, ("conv", 16, 3))
    stack.add("res1", Residual(body.sequential(), nn.Identity()), within=[body])
    stack.max_pool("pool1", 3, 2, padding=1)
    body, shortcut = stack.branch(), stack.branch()
    body.conv("conv1", 8, 3, stride=2, padding=1, bias=False)
    body.norm("bn1")
    body.relu("relu1")
    body.conv("conv2", 24, 3, padding=1)
    shortcut.conv("conv", 24, 1, stride=2, bias=False)
    shortcut.norm("bn")
    residual = Residual(body.sequential(), shortcut.sequential())
    stack.add("res2", residual, body.shape, within=[body, shortcut])
    _branches(stack, "branches3", one=_way(stack, ("conv", 8, 5), relu), two=_way(stack, ("pool", 0, 3)))
    stack.norm("bn3")
    stack.dropout("drop0", dropout)
    stack.add("pool2", nn.AvgPool2d(3, 1, padding=1))
    stack.spread("spread", 2)
    stack.flatten("flatten")
    stack.linear("fc1", 12)
    stack.relu("relu3")
    stack.dropout("drop1", dropout)
    stack.linear("fc2", 8)
    stack.linear("fc3", num_classes)


TIED = GptSize(width=12, num_blocks=2, num_heads=2, tied=True)


def add_branchy() -> None:
    """Makes the tests' own models known in this process, one of the ranks."""
    info = ModelInfo(name="branchy", summary="", classic_input=(3, 16, 16), learning_rate=0.02, fill=branchy)
    tied = replace(find_model("gpt-nano"), name="tied", fill=gpt(TIED))
    vit = replace(
        find_model("vit-tiny"), name="vit", fill=vision(VitSize(width=12, num_blocks=2, num_heads=2))
    )
    vars(models)["MODELS"] = (*MODELS, info, tied, vit)


def config_of(num_ranks: int, **settings: Any) -> BenchConfig:
    """A small run in float64 with momentum."""
    base: dict[str, Any] = {
        "num_ranks": num_ranks,
        "dtype": "float64",
        "momentum": 0.9,
        "steps": 5,
        "batch": 8,
        "input_shape": (3, 16, 16),
        "num_classes": 8,
        "device": "cpu",
    }
    return BenchConfig(**{**base, **settings})


def against_serial(world: World, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trains every case; then, on rank 0, also serially. What the test asks about, by case."""
    add_branchy()
    found, states = [], []
    for settings in cases:
        config = config_of(world.size, **settings)
        job = plan(config)
        outcome = train(job, world)
        expected = expected_calls(find_scheme(config.scheme).traffic(job, world.rank), config.steps)
        answer: dict[str, Any] = {
            "case": settings,
            "calls": {tuple(call): count for call, count in outcome.calls.items()},
            "expected": dict(expected),
            "losses": outcome.losses,
        }
        found.append(answer)
        states.append(outcome.state)
    if world.rank == 0:  # last, so that nobody waits for it
        known: dict[BenchConfig, dict[str, torch.Tensor]] = {}
        for answer, state in zip(found, states, strict=True):
            config = config_of(1, **{**answer["case"], "scheme": "serial", "mesh": None, "modifiers": ()})
            if config not in known:
                known[config] = _trained_serially(config)
            start = models.build_model(config).state_dict()
            answer["difference"] = _apart(state, known[config])
            weights = {name: value for name, value in known[config].items() if name.endswith("weight")}
            answer["moved"] = _apart({name: start[name] for name in weights}, weights)
    return found


def _trained_serially(config: BenchConfig) -> dict[str, torch.Tensor]:
    state = train_here(World(Alone(), 0, torch.device("cpu")), config).state
    assert state is not None
    return state


def _apart(one: dict[str, torch.Tensor] | None, other: dict[str, torch.Tensor]) -> float:
    """The largest difference between two states of one model."""
    assert one is not None
    assert one.keys() == other.keys()
    return max(float((one[name].double() - value.double()).abs().max()) for name, value in other.items())


def operators(world: World, seed: int) -> list[str]:
    """Every operator against autograd of the undivided, along every dim, in groups of 2 to all ranks.

    Returns:
        What was wrong.
    """
    problems: list[str] = []
    for num_ranks in range(2, world.size + 1):
        group = world.groups("model", [tuple(range(num_ranks))])
        for dim in range(4):
            if group.index >= 0:
                problems += _operators_along(group, dim, seed + dim)
    return problems


def _operators_along(group: Group, dim: int, seed: int) -> list[str]:
    """The loss of rank r is <A_r, what the operator gave>; a replicated result has one A for all."""
    generator = torch.Generator().manual_seed(seed)
    size, me = group.size, group.index
    shape = [2, 3, 2, 5]
    shape[dim] = 3 * size
    draws = torch.randn(2 * size + 1, *shape, generator=generator, dtype=torch.float64)
    whole, by_rank, same = draws[:size], draws[size : 2 * size], draws[-1]
    first, total = whole[0], whole.sum(0)

    def part(x: torch.Tensor, rank: int = me) -> torch.Tensor:
        return x.chunk(size, dim)[rank]

    wanted = {
        "gather_partial": (part(first), by_rank[me], first, part(by_rank.sum(0))),
        "gather_replicated": (part(first), same, first, part(same)),
        "scatter_sum": (whole[me], part(same), part(total), same),
        "take_part": (first, part(same), part(first), same),
        "sum_forward": (whole[me], same, total, same),
        "sum_backward": (first, by_rank[me], first, by_rank.sum(0)),
    }
    problems = []
    for name, (given, against, result, gradient) in wanted.items():
        x = given.clone().requires_grad_()
        call = getattr(operators_of_runners, name)
        y = call(x, group) if name.startswith("sum") else call(x, dim, group)
        (y * against).sum().backward()
        for what, found, right in (("result", y, result), ("gradient", x.grad, gradient)):
            if found.shape != right.shape or not torch.allclose(found, right, rtol=0, atol=1e-12):
                problems.append(f"{name} along {dim} in a group of {size}: wrong {what} on {me}")
    return problems


def windows(world: World, seed: int, num_cases: int) -> list[str]:
    """Random convolutions and pools with rows split over 2 to all ranks, against the undivided ones.

    Returns:
        What was wrong.
    """
    groups = {num: world.groups("model", [tuple(range(num))]) for num in range(2, world.size + 1)}
    random = Random(seed)
    problems = []
    for _ in range(num_cases):
        case = _draw_window(random, world.size)
        group = groups[case.num_ranks]
        if group.index >= 0:
            problems += _one_window(group, case, random.randrange(10**9))
        else:
            random.randrange(10**9)
    return problems


class _Case(NamedTuple):
    kind: str
    window: RowExtent
    height: int
    num_ranks: int


def _draw_window(random: Random, most_ranks: int) -> _Case:
    while True:
        kernel, num_ranks = random.randint(1, 7), random.randint(2, most_ranks)
        kind = random.choice(["conv", "conv", "max", "mean"])
        padding = random.randint(0, kernel if kind == "conv" else kernel // 2)
        dilation = 1 if kind == "mean" else random.choice([1, 1, 2])
        window = RowExtent(kernel, random.randint(1, 4), padding, dilation)
        height = random.randint(num_ranks, 24)
        if height + 2 * padding >= window.reach and window.out_rows(height) >= num_ranks:
            return _Case(kind, window, height, num_ranks)


def _one_window(group: Group, case: _Case, seed: int) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    kind, window, height, me = case.kind, case.window, case.height, group.index
    kernel, stride, padding, dilation = window
    width = 2 * dilation * kernel
    x = torch.randn(2, 3, height, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(2, 3, kernel, kernel, generator=generator, dtype=torch.float64)

    def layer(x: torch.Tensor, weight: torch.Tensor, vertical: int) -> torch.Tensor:
        pads = (vertical, padding)
        if kind == "conv":
            return functional.conv2d(x, weight, stride=stride, padding=pads, dilation=dilation)
        if kind == "max":
            return functional.max_pool2d(x, kernel, stride, pads, dilation)
        return functional.avg_pool2d(x, kernel, stride, pads)

    whole, whole_weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    right = layer(whole, whole_weight, padding)
    against = torch.randn(right.shape, generator=generator, dtype=torch.float64)
    (right * against).sum().backward()

    owned, made = split_rows(height, group.size)[me], split_rows(window.out_rows(height), group.size)[me]
    halo = Halo.of(height, window, group.size)
    own = x[:, :, owned.first : owned.end].clone().requires_grad_()
    own_weight = weight.clone().requires_grad_()
    seen = ExchangeHalo(group, halo, float("-inf") if kind == "max" else 0.0)(own)
    found = layer(seen, own_weight, 0)
    (found * against[:, :, made.first : made.end]).sum().backward()
    everything = gather_rows(found, split_rows(window.out_rows(height), group.size), group)
    checks = [
        ("output", everything, right),
        ("gradient of the input", own.grad, whole.grad[:, :, owned.first : owned.end]),
    ]
    if kind == "conv":
        comm.all_reduce(own_weight.grad, group)
        checks.append(("gradient of the weight", own_weight.grad, whole_weight.grad))
    return [
        f"{case} on {me}: wrong {what}"
        for what, one, two in checks
        if one is None or one.shape != two.shape or not torch.allclose(one, two, rtol=0, atol=1e-9)
    ]


def everything(world: World, cases: list[dict[str, Any]], num_windows: int) -> dict[str, Any]:
    """All of the above in one start."""
    by_operators, by_windows = operators(world, 1), windows(world, 2, num_windows)
    return {
        "operators": by_operators,
        "windows": by_windows,
        "cases": against_serial(world, cases),
    }
