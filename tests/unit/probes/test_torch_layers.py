"""Where a layer's mark ends."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from perfscope.probes.torch.layers import TailHooks, describe


def hook_of(library: str, calls: list[str]) -> Any:
    def hook(module: Any, args: Any, output: Any) -> None:
        calls.append("hook")

    hook.__module__ = library
    return hook


@pytest.mark.parametrize(
    ("library", "order"), [("torch.distributed.tensor._api", ["hook", "left"]), ("user", ["hook"])]
)
def test_a_layer_ends_after_the_hooks_of_tensor_parallelism(library: str, order: list[str]) -> None:
    calls: list[str] = []
    layer = torch.nn.Linear(2, 2)
    layer.register_forward_hook(hook_of(library, calls))
    tails = TailHooks(lambda module: calls.append("left"))
    tails.add(layer)
    tails.add(layer)
    assert tails.has(layer) == ("left" in order)
    layer(torch.ones(1, 2))
    assert calls == order
    tails.remove()
    assert not tails.has(layer) and len(layer._forward_hooks) == 1
    layer(torch.ones(1, 2))
    assert calls == [*order, "hook"]


def test_a_parameter_that_was_divided_over_the_ranks_is_described_whole() -> None:
    """DeepSpeed's ZeRO 3 leaves an empty tensor, and the shape beside it."""
    layer = torch.nn.Linear(4, 3)
    layer.weight.data = torch.empty(0)
    layer.weight.__dict__["ds_shape"] = torch.Size([3, 4])
    [row] = describe([("layer", layer)])
    assert (row["params"], row["param_bytes"]) == (15, 60)
    assert row["param_shapes"] == [[3, 4], [3]]
