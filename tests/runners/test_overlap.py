"""+overlap: hybrids average gradients during the backward pass, with the weights and bytes of one message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.registry import open_feed
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.schemes.dp_senders import Sender
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.world import World
from perfscope.vocabulary.axes import Axis
from tests.runners.pp_cases import configure, trained_alone
from tests.runners.ranks import run_ranks
from tests.runners.training import expected_calls, train_here

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.xdist_group("overlap")]
BOUND = 1e-12
TOKENS: dict[str, Any] = {"model": "transformer", "input_shape": (12,), "learning_rate": 0.1}
IN_GROUPS = Mesh({Axis.DP: 2, Axis.TP: 2})
CASES: dict[str, BenchConfig] = {
    **{
        name: configure(f"{name}+overlap", 4, mesh=IN_GROUPS)
        for name in ("hy.filter_dp", "hy.channel_dp", "hy.fctp_dp", "hy.owt")
    },
    "hy.fctp_dp transformer": configure("hy.fctp_dp+overlap", 4, mesh=IN_GROUPS, **TOKENS),
    "hy.auto": configure("hy.auto+overlap", 4),
    "hy.auto, first layer model parallel": configure("hy.auto+overlap", 4, model="mlp", mesh=IN_GROUPS),
    "hy.pp_dp": configure("hy.pp_dp+overlap", 4, mesh=Mesh({Axis.DP: 2, Axis.PP: 2})),
    # Everything is sent, so that nothing may be lost.
    "hy.owt topk": configure("hy.owt+topk(1)+overlap", 4, mesh=IN_GROUPS),
    "hy.filter_dp topk": configure("hy.filter_dp+topk(1)+overlap", 4, mesh=IN_GROUPS),
}


def packed(config: BenchConfig) -> BenchConfig:
    others = tuple(modifier for modifier in config.modifiers if modifier.name != "overlap")
    return replace(config, modifiers=others)


def train_all(world: World, cases: dict[str, BenchConfig]) -> dict[str, dict[str, Any]]:
    found = {}
    for name, config in cases.items():
        outcome = train_here(world, config)
        traffic = find_scheme(config.scheme).traffic(plan(config), world.rank)
        found[name] = {
            "state": outcome.state,
            "calls": {tuple(call): count for call, count in outcome.calls.items()},
            "predicted": dict(expected_calls(traffic, config.steps)),
            "events": _events(world, config),
        }
    return found


def _events(world: World, config: BenchConfig) -> list[str]:
    """In the order of one step: layers whose exchange starts, and "end" where a backward pass has ended."""
    events: list[str] = []
    start, backward = Sender.ready, torch.autograd.backward

    def ready(sender: Sender, layer: Any) -> None:
        events.append(layer.name)
        start(sender, layer)

    def ended(*tensors: Any, **options: Any) -> None:
        backward(*tensors, **options)
        events.append("end")

    scheme = find_scheme(config.scheme)(plan(config), world)
    feed = open_feed(config, world.device)
    scheme.build(build_model(config))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Sender, "ready", ready)
        patched.setattr(torch.autograd, "backward", ended)
        scheme.step(feed.batch(0, *scheme.data_part))
    world.peers.barrier()
    return events


@pytest.fixture(scope="module")
def ranks() -> Iterator[list[dict[str, dict[str, Any]]]]:
    yield run_ranks(4, f"{__name__}:train_all", cases=CASES)


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_one_process(name: str, ranks: list[dict[str, Any]]) -> None:
    reference, state = trained_alone(CASES[name]).state, ranks[0][name]["state"]
    assert reference is not None and reference.keys() == state.keys()
    assert max(float((state[key] - value).abs().max()) for key, value in reference.items()) < BOUND


@pytest.mark.parametrize("name", CASES)
def test_calls_are_those_that_were_predicted(name: str, ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found[name]["calls"] == found[name]["predicted"]


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_of_one_message_go_in_several(name: str) -> None:
    config = CASES[name]
    sent = []
    for one in (config, packed(config)):
        job, scheme = plan(one), find_scheme(one.scheme)
        traffic = [call for call in scheme.traffic(job, 0) if call.what == "gradients"]
        calls = [call.calls_in(1) for call in traffic]
        sent.append((sum(call.bytes * count for call, count in zip(traffic, calls, strict=True)), sum(calls)))
    (bytes_apart, calls_apart), (bytes_packed, calls_packed) = sent
    assert bytes_apart == bytes_packed and calls_apart > calls_packed


@pytest.mark.parametrize("name", CASES)
def test_exchanges_start_before_the_backward_pass_has_ended(name: str, ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        events = found[name]["events"]
        assert len(events) == len({*events}) + events.count("end") - 1  # each layer once
        assert events[-1] == "end" and any(event != "end" for event in events)


def test_schemes_that_pack_nothing_cannot_take_it() -> None:
    with pytest.raises(BenchError, match=r"dp.packed cannot take \+overlap"):
        plan(configure("dp.packed+overlap", 2))
