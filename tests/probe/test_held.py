"""What the training's tensors take, counted on real ones."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.probes.torch.models import Models

torch = pytest.importorskip("torch")
FLOAT = 4


def trained(updates: int, make_optimizer: Any) -> tuple[Models, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 1))
    optimizer, models = make_optimizer(model), Models()
    models._roots = [lambda: model]
    for _ in range(updates):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).sum().backward()
        models.serial(optimizer)
        optimizer.step()
    return models, model


def test_each_category_has_the_bytes_of_its_tensors() -> None:
    models, model = trained(3, lambda model: torch.optim.Adam(model.parameters()))
    numbers = [parameter.numel() for parameter in model.parameters()]
    held = models.held.bytes
    assert held["parameter_bytes"] == FLOAT * sum(numbers)
    assert held["gradient_bytes"] == FLOAT * sum(numbers)
    assert held["optimizer_bytes"] == FLOAT * (2 * sum(numbers) + len(numbers))  # two moments, and a step
    assert held["buffer_bytes"] == FLOAT * 2 * 20 + 8  # means and variances, and a counter of 64 bits
    assert models.held.problem == ""


def test_frozen_parameters_count_and_have_no_gradient() -> None:
    def freeze(model: Any) -> Any:
        model[0].requires_grad_(False)
        return torch.optim.SGD(model[2].parameters(), lr=0.1)

    models, model = trained(3, freeze)
    numbers = [parameter.numel() for parameter in model.parameters()]
    assert models.held.bytes["parameter_bytes"] == FLOAT * sum(numbers)
    assert models.held.bytes["gradient_bytes"] == FLOAT * (sum(numbers) - 220)
    assert models.held.bytes["optimizer_bytes"] == 0


def test_memory_that_tensors_share_counts_once() -> None:
    def tie(model: Any) -> Any:
        flat = torch.nn.Parameter(torch.zeros(220))
        model[0].weight = torch.nn.Parameter(flat.data[:200].view(20, 10))
        model[0].bias = torch.nn.Parameter(flat.data[200:])
        return torch.optim.SGD(model.parameters(), lr=0.1)

    models, model = trained(3, tie)
    assert models.held.bytes["parameter_bytes"] == FLOAT * sum(p.numel() for p in model.parameters())


def test_before_the_third_update_nothing_is_claimed() -> None:
    models, _ = trained(2, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    assert set(models.held.bytes.values()) == {None}
