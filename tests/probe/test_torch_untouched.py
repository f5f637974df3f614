"""What the torch probe looks at leaves the training's own computation and communication as they are."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def test_gradients_that_are_kept_elsewhere_make_no_steps_of_micro_batches(train: Any) -> None:
    """FSDP2 and ZeRO take `.grad` away as soon as it is there."""
    recorded = train(
        """
        import torch
        model = torch.nn.Linear(8, 4)
        kept = {}
        def take(parameter):
            kept[parameter] = kept.get(parameter, 0) + parameter.grad
            parameter.grad = None
        for parameter in model.parameters(): parameter.register_post_accumulate_grad_hook(take)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            for _ in range(16): model(torch.randn(2, 8)).sum().backward()
            for parameter, gradient in kept.items(): parameter.grad = gradient
            optimizer.step()
            kept.clear()
        """
    )
    steps = recorded.steps()
    assert [step["num_micro"] for step in steps] == [16] * 4
    assert "step_source" not in recorded.meta()


def test_a_checkpointed_loss_is_computed_as_often_as_without_the_probe(train: Any) -> None:
    recorded = train(
        """
        import torch
        from torch.utils.checkpoint import checkpoint
        model, calls = torch.nn.Linear(8, 4), []
        def loss_of(logits, target):
            calls.append(1)
            return torch.nn.functional.cross_entropy(logits, target)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            logits = model(torch.randn(6, 8))
            checkpoint(loss_of, logits, torch.zeros(6, dtype=torch.long), use_reentrant=False).backward()
            optimizer.step()
        print(len(calls))
        """
    )
    assert recorded.process.stdout == "10\n"


def test_sparse_gradients_are_no_faults_of_the_probe(train: Any) -> None:
    recorded = train(
        """
        import torch
        model = torch.nn.Embedding(10, 4, sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            for _ in range(4): model(torch.tensor([1, 2])).sum().backward()
            optimizer.step(); optimizer.zero_grad()
        """
    )
    assert [step["num_micro"] for step in recorded.steps()] == [4] * 5
    assert not recorded.errors()
