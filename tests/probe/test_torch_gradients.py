"""Which layers a collective on parameters or gradients carries."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from urllib.parse import urlencode

import pytest

from perfscope.probes.torch.gradients import GradientMarks
from perfscope.probes.torch.layers import LayerMarks, qualified_names
from perfscope.probes.torch.wrapped_calls import WrappedCalls
from perfscope.rundir import layout

torch = pytest.importorskip("torch")
dist = torch.distributed
pytestmark = pytest.mark.torch
BYTES = 4  # of an element


class Recorded:
    """The marks of a model while they are installed."""

    def __init__(self, model: Any) -> None:
        self.texts: list[str] = []
        self.faults: list[Exception] = []
        self.layers = LayerMarks(lambda text: nullcontext(), layout.MARK_LAYER)
        for name, module in qualified_names(model):
            self.layers.give(weakref.ref(module), name)
        self.marks = GradientMarks(WrappedCalls(self._new, lambda: False, self.faults.append), self.layers)
        self.marks.install([model])

    @contextmanager
    def _new(self, text: str) -> Iterator[None]:
        self.texts.append(text)
        yield


@pytest.fixture
def model() -> Any:
    """Layers `0` and `1` of 12 and 20 parameters with gradients."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 5))
    net(torch.ones(2, 3)).sum().backward()
    return net


@pytest.fixture
def world() -> Iterator[None]:
    """A process group of one, in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def recorded(world: None, model: Any) -> Iterator[Recorded]:
    marks = Recorded(model)
    yield marks
    marks.marks.remove()
    assert not marks.faults


def served(**layers: int) -> str:
    return layout.MARK_SERVES + urlencode({name[1:]: size for name, size in layers.items()})


def test_gradients_parameters_and_parts_of_them_are_known(recorded: Recorded, model: Any) -> None:
    dist.all_reduce(model[0].weight.grad)
    dist.all_reduce(model[1].bias.grad.view(1, 5)[:, 2:])
    dist.broadcast(model[1].weight.data, 0)
    assert recorded.texts == [served(_0=9 * BYTES), served(_1=3 * BYTES), served(_1=15 * BYTES)]


def test_a_flat_buffer_of_gradients_is_of_all_its_layers(recorded: Recorded, model: Any) -> None:
    buffer, at = torch.zeros(32), 0
    for value in model.parameters():
        value.grad = buffer[at : at + value.numel()].view_as(value)
        at += value.numel()
    dist.all_reduce(buffer)
    assert recorded.texts == [served(_0=12 * BYTES, _1=20 * BYTES)]


def test_gradients_that_are_packed_are_known_by_their_copy(recorded: Recorded, model: Any) -> None:
    flat = torch._utils._flatten_dense_tensors([value.grad for value in model.parameters()])
    dist.all_reduce(flat)
    dist.all_reduce(flat[9:13])  # the bias of the first layer, and one element of the second
    del flat
    dist.all_reduce(torch._utils._flatten_dense_tensors([torch.zeros(3), torch.zeros(4)]))
    assert recorded.texts == [served(_0=12 * BYTES, _1=20 * BYTES), served(_0=3 * BYTES, _1=1 * BYTES)]


def test_gradients_packed_by_a_hook_are_known_while_the_backward_pass_goes_on(
    recorded: Recorded, model: Any
) -> None:
    def reduce(value: Any) -> None:
        dist.all_reduce(torch._utils._flatten_dense_tensors([model[1].weight.grad, value.grad]))
        dist.all_reduce(value.grad)  # alone: the node that computed it has a layer

    model[0].bias.register_post_accumulate_grad_hook(reduce)
    model(torch.ones(2, 3)).sum().backward()
    assert recorded.texts == [served(_1=15 * BYTES, _0=3 * BYTES)]


def test_a_message_of_parameters_is_of_their_layer(recorded: Recorded, model: Any) -> None:
    group = dist.group.WORLD
    with pytest.raises(RuntimeError):
        group.send([model[0].weight.data], 0, 0)  # gloo: not to itself
    with pytest.raises(RuntimeError):
        group.send([torch.zeros(9)], 0, 0)
    assert recorded.texts == [served(_0=9 * BYTES)]


def test_a_main_gradient_is_of_its_parameter(recorded: Recorded, model: Any) -> None:
    model[1].weight.grad, model[1].weight.main_grad = None, torch.zeros(5, 3)
    dist.all_reduce(model[1].weight.main_grad)
    assert recorded.texts == [served(_1=15 * BYTES)]


def test_gradients_of_the_next_step_are_elsewhere(recorded: Recorded, model: Any) -> None:
    dist.all_reduce(model[0].weight.grad)
    kept = [value.grad for value in model.parameters()]
    for value in model.parameters():
        value.grad = torch.ones_like(value)
    dist.all_reduce(model[1].weight.grad)
    dist.all_reduce(kept[0])  # no gradient any more
    assert recorded.texts == [served(_0=9 * BYTES), served(_1=15 * BYTES)]


def test_other_tensors_and_calls_in_layers_are_left_alone(recorded: Recorded, model: Any) -> None:
    dist.all_reduce(torch.zeros(9))
    recorded.layers.enter(model[0])
    dist.all_reduce(model[0].weight.grad)
    recorded.layers.leave(model[0])
    assert recorded.texts == []


def test_the_class_is_afterwards_what_it_was(world: None, model: Any) -> None:
    before = dict(vars(dist.ProcessGroup))
    marks = Recorded(model)
    assert vars(dist.ProcessGroup)["allreduce"] is not before["allreduce"]
    marks.marks.remove()
    assert dict(vars(dist.ProcessGroup)) == before
