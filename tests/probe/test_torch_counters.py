"""Counters of layers in a real training: each layer has what it did, and the training is untouched."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from typing import Any

import pytest

from perfscope.rundir.documents import read_document
from tests.probe.conftest import Recorded, Train

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PAGES, SLEEPS = 400, 4


@pytest.fixture
def train(train: Train) -> Train:
    """Counters are read only where they are asked for."""
    return functools.partial(train, layer_counters=True)


NET = f"""
import mmap, os, sys, time, torch, torch.nn as nn
probe = next(module for name, module in sys.modules.items() if name.endswith("probes.layer_counters"))
probe.MAX_SHARE = 1  # these steps are so short that only one would be read
torch.manual_seed(0); torch.set_num_threads(1)
class Touch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); touch(); return x.clone()
    @staticmethod
    def backward(ctx, g): ctx.saved_tensors; touch(); touch(); return g
def touch(pages={PAGES}):
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as area:
        area.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, len(area), mmap.PAGESIZE): area[at] = 1
class Pages(nn.Module):
    def forward(self, x): return Touch.apply(x)
class Sleeps(nn.Module):
    def forward(self, x):
        for _ in range({SLEEPS}): time.sleep(0.001)
        return x * 2
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.pages, self.sleeps = nn.Linear(8, 8), Pages(), Sleeps()
        self.last = nn.Linear(8, 2)
    def forward(self, x):
        return self.last(torch.relu(self.sleeps(self.pages(self.first(x)))))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.01)
def step(loss_of=lambda: net(torch.randn(4, 8)).sum()):
    optimizer.zero_grad(); loss = loss_of(); loss.backward(); optimizer.step()
    return loss.item()
"""


def sums(recorded: Recorded, window: int = 0) -> tuple[dict[tuple[str, str], dict[str, float]], Any]:
    """By phase and layer, per step."""
    document: Any = read_document(recorded.rank() / "windows" / f"{window}.counters.json")
    columns = document["columns"][4:]
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: dict.fromkeys(columns, 0))
    for _, _, phase, layer, *values in document["rows"]:
        row = found[phase, layer]
        for name, value in zip(columns, values, strict=True):
            row[name] += value / len(document["steps"])
    return found, document


def test_faults_and_switches_are_those_of_the_layer_that_causes_them(train: Train) -> None:
    recorded = train(NET + "for _ in range(9): step()")
    assert recorded.errors() == []
    found, document = sums(recorded)
    assert [step for step, _, _ in document["steps"]] == [3, 4, 5]
    assert document["ended"] is None
    faults = {key: row["minor_faults"] for key, row in found.items()}
    assert faults["forward", "pages"] == pytest.approx(PAGES, abs=20)
    assert faults["backward", "pages"] == pytest.approx(2 * PAGES, abs=20)
    others = {key: count for key, count in faults.items() if key[1] != "pages"}
    assert max(others.values()) < PAGES / 4, others
    switches = {key: row["context_switches"] for key, row in found.items()}
    assert switches["forward", "sleeps"] >= SLEEPS
    assert {("forward", "Net"), ("backward", "Net"), ("backward", "first")} <= set(found)


def test_the_backward_pass_of_a_model_with_branches_is_that_of_its_layers(train: Train) -> None:
    """Operators of the layer around two others, between them, and a layer whose result is used twice."""
    recorded = train(
        NET
        + """
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x):
        x = self.a(x)
        return x + Touch.apply(self.b(x))
net.first = Branches()
for _ in range(9): step()
"""
    )
    assert recorded.errors() == []
    faults = {key: row["minor_faults"] for key, row in sums(recorded)[0].items()}
    assert faults["backward", "first"] == pytest.approx(2 * PAGES, abs=20)
    assert faults["forward", "first"] == pytest.approx(PAGES, abs=20)
    assert max(faults.get(("backward", name), 0) for name in ("first.a", "first.b")) < PAGES / 4


def test_a_layer_that_is_computed_again_in_the_backward_pass_counts_there(train: Train) -> None:
    recorded = train(
        NET
        + """
from torch.utils.checkpoint import checkpoint
class Again(nn.Module):
    def __init__(self): super().__init__(); self.inner = Pages()
    def forward(self, x): return checkpoint(self.inner, x, use_reentrant=False)
net.pages = Again()
for _ in range(9): step()
"""
    )
    assert recorded.errors() == []
    faults = {key: row["minor_faults"] for key, row in sums(recorded)[0].items()}
    assert faults["forward", "pages.inner"] == pytest.approx(PAGES, abs=20)
    assert faults["backward", "pages.inner"] == pytest.approx(3 * PAGES, abs=20)


LOSSES = "print([step() for _ in range(9)])"


def test_losses_are_those_without_counters(train: Train) -> None:
    with_windows = train(NET + LOSSES)
    assert (with_windows.rank() / "windows" / "0.counters.json").exists()
    without = train(NET + LOSSES, trace=False)
    assert with_windows.process.stdout == without.process.stdout


def test_a_training_that_closes_all_descriptors_goes_on(train: Train) -> None:
    recorded = train(
        NET
        + """
def closing():
    os.closerange(3, 1000)
    return net(torch.randn(4, 8)).sum()
print([*[step() for _ in range(5)], step(closing), *[step() for _ in range(4)]])
"""
    )
    assert recorded.process.stderr == ""
    assert recorded.errors() == []
    document = sums(recorded)[1]
    assert document["ended"][0] == "descriptors_closed"
    assert [step for step, _, _ in document["steps"]] == [
        3
    ]  # a step begins with the model's call: the fifth had not ended
    plain = train(NET + "print([step() for _ in range(10)])", trace=False)
    assert recorded.process.stdout == plain.process.stdout


def test_a_child_forked_in_a_window_holds_none_of_the_counters(train: Train) -> None:
    recorded = train(
        NET
        + """
def forking():
    pid = os.fork()
    if not pid:
        held = [os.readlink("/proc/self/fd/" + n) for n in os.listdir("/proc/self/fd")
                if os.path.lexists("/proc/self/fd/" + n)]
        os.write(1, repr([name for name in held if "perf_event" in name or "schedstat" in name]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return net(torch.randn(4, 8)).sum()
for i in range(9): step(forking) if i == 4 else step()
"""
    )
    assert recorded.process.stdout == "[]"
    assert recorded.errors() == []
    document = sums(recorded)[1]
    assert document["ended"] is None and len(document["steps"]) == 3


def test_nothing_is_open_outside_windows(train: Train) -> None:
    recorded = train(
        NET
        + """
def held():
    paths = ["/proc/self/fd/" + n for n in os.listdir("/proc/self/fd")]
    names = [os.readlink(p) for p in paths if os.path.lexists(p)]
    return sum("perf_event" in name or "schedstat" in name for name in names)
counts = []
for i in range(12):
    step(); counts.append(held())
import json; print(json.dumps(counts))
"""
    )
    counts = json.loads(recorded.process.stdout)
    assert counts[0] == counts[-1] == 1 < max(counts)  # the one is read at every step: waits for a CPU
