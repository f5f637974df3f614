"""What a ledger knows of the layers of calls."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from perfscope.runners import comm  # noqa: E402
from perfscope.runners.comm import Group, Ledger, name_groups  # noqa: E402

pytestmark = pytest.mark.torch


class Exchange(nn.Module):
    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 1, bias=False)))


def test_a_flat_buffer_is_shared_by_the_layers_that_fill_it() -> None:
    ledger = Ledger()
    flat = ledger.flat(model())
    assert flat.shape == (3 * 2 + 2 + 2,) and not flat.requires_grad
    assert ledger.layers_of(flat) == "0=32&1.0=8"
    assert ledger.layers_of(flat[7:9]) == "0=4&1.0=4"
    assert ledger.layers_of(flat[2:4].view(2, 1)) == "0=8"
    assert ledger.layers_of(flat.clone()) == ""


def test_a_flat_buffer_of_some_parameters() -> None:
    ledger, net = Ledger(), model()
    assert ledger.layers_of(ledger.flat(net, [*net.parameters()][1:])) == "0=8&1.0=8"


def test_calls_of_a_group_serve_the_layer_of_the_module_that_holds_it() -> None:
    ledger = Ledger()
    group = Group("tp", (0, 1), 0, None, ledger)
    net = nn.Sequential(Exchange(group), nn.Sequential(Exchange(group)))
    name_groups(net)
    inner = net[1][0].group
    inner.note("all_reduce", 8)
    inner.carrying(torch.zeros(2)).note("all_reduce", 8)
    group.note("all_reduce", 8)
    call = comm.Call("all_reduce", "tp", 2, 8)
    assert ledger.served == {(call, "1.0=1"): 2, (call, ""): 1}
    assert ledger.calls == {call: 3}


def test_what_becomes_of_a_buffer_serves_its_layers() -> None:
    ledger = Ledger()
    flat = ledger.flat(model())
    group = Group("dp", (0, 1), 0, None, ledger).carrying(flat[8:])
    assert group.carrying(flat.half()).layers == "1.0=8"
