"""Steps, roots and layer names of small programs against the truth that each program states itself.

One program per record of PROGRAMS; it is run for real with the probe inside. To add one, append a record.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.probe.conftest import Recorded, environment

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HEAD = """
import os, sys, threading, time, torch, torch.nn as nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0); torch.set_num_threads(1)
"""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program and what is true of it.

    Attributes:
        code: goes on after HEAD.
        steps: in all, of every rank.
        root: class of the first model.
        layers: names that layers.json must have.
        strangers: names that may be neither in layers.json nor marked in a window.
        samples: of each step but the first two on a rank; None: not checked.
        parameters: of all layers; None: not checked.
        elsewhere: steps made in other threads, named as missing.
        nproc: ranks, started by torchrun; 0: one process without it.
        source: `step_source` of rank.json.
        slow: left to `make test-slow`.
    """

    name: str
    code: str
    steps: int
    root: str
    layers: tuple[str, ...]
    strangers: tuple[str, ...] = ()
    samples: int | None = None
    parameters: int | None = None
    elsewhere: int = 0
    nproc: int = 0
    source: str | None = None
    slow: bool = True


_TRANSFORMS = """
class Normalize(nn.Module):
    def forward(self, x): return (x - 0.13) / 0.31
norm = Normalize()
class Digits(Dataset):
    def __len__(self): return 128
    def __getitem__(self, i): return norm(torch.randn(1, 4, 4)), i % 10
class Net(nn.Module):
    def __init__(self): super().__init__(); self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    def forward(self, x): return self.body(x)
net, criterion = Net(), nn.CrossEntropyLoss()
o = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(2):
    for x, y in DataLoader(Digits(), batch_size=16, num_workers={workers}):
        criterion(net(norm(x)), y).backward(); o.step(); o.zero_grad()
"""
_GAN = """
def mlp(size, out): return nn.Sequential(nn.Linear(size, 8), nn.ReLU(), nn.Linear(8, out))
class Generator(nn.Module):
    def __init__(self): super().__init__(); self.main = mlp(2, 3)
    def forward(self, x): return self.main(x)
class Discriminator(nn.Module):
    def __init__(self): super().__init__(); self.main = mlp(3, 1)
    def forward(self, x): return self.main(x)
g, d = Generator(), Discriminator()
og, od = torch.optim.SGD(g.parameters(), 0.01), torch.optim.Adam(d.parameters())
for _ in range(12):
    od.zero_grad(); d(torch.randn(8, 3)).mean().backward()
    fake = g(torch.randn(8, 2)); d(fake.detach()).mean().neg().backward(); od.step()
    og.zero_grad(); d(fake).mean().backward(); og.step()
"""
_AGENT = """
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    def both(self, x): return self.actor(x), self.critic(x)
agent = Agent(); o = torch.optim.Adam(agent.parameters())
for _ in range(10):
    with torch.no_grad():
        for _ in range(5): agent.both(torch.randn(1, 4))
    action, value = agent.both(torch.randn(16, 4))
    (action.mean() + value.mean()).backward(); o.step(); o.zero_grad()
"""
_SIX_MODELS = """
for trial in range(6):
    n = nn.Linear(64, 4); o = torch.optim.Adam(n.parameters())
    for _ in range(16): n(torch.randn(32, 64)).square().mean().backward(); o.step(); o.zero_grad()
"""
_BY_HAND = """
class Net(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(4, 1)
    def forward(self, x): return self.l(x)
m = Net()
for _ in range(45):
    m.zero_grad(); m(torch.randn(8, 4)).mean().backward()
    for p in m.parameters(): p.data.add_(p.grad, alpha=-0.1)
"""
_RETURNED = """
net = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 2))
def loss_of(samples): return net(torch.randn(samples, 16)).square().mean()
for i in range(45):
    gradients = torch.autograd.grad(loss_of(8), list(net.parameters()))
    for p, g in zip(net.parameters(), gradients): p.data.sub_(0.1 * g)
"""
_RETURNED_ACCUMULATING = """
net = nn.Linear(16, 4)
for i in range(12):
    total = [torch.zeros_like(p) for p in net.parameters()]
    for micro in range(4):
        x = torch.randn(8, 16, requires_grad=True)
        torch.autograd.grad(net(x).square().mean(), x)  # of the inputs: no backward pass of a step
        for t, g in zip(total, torch.autograd.grad(net(x).square().mean(), tuple(net.parameters()))): t += g
    with torch.no_grad():
        for p, t in zip(net.parameters(), total): p -= 0.1 * t
"""
_OLD_STYLE = """
m = nn.Linear(4, 1)
for _ in range(20):
    m(torch.randn(8, 4)).mean().backward()
    for p in m.parameters(): p.data.sub_(0.1 * p.grad.data); p.grad.data.zero_()
"""
_BY_HAND_ACCUMULATING = """
m = nn.Linear(4, 1)
for i in range(40):
    m(torch.randn(8, 4)).mean().backward()
    if i % 4 == 3:
        with torch.no_grad():
            for p in m.parameters(): p -= 0.1 * p.grad; p.grad = None
"""
_BY_HAND_FIRST = """
m = nn.Linear(4, 1)
for _ in range(12):
    m.zero_grad(); m(torch.randn(8, 4)).mean().backward()
    for p in m.parameters(): p.data.add_(p.grad, alpha=-0.1)
o = torch.optim.SGD(m.parameters(), 0.1)
for _ in range(10): o.zero_grad(); m(torch.randn(8, 4)).mean().backward(); o.step()
"""
_THREAD = """
def work():
    n = nn.Linear(64, 4); o = torch.optim.SGD(n.parameters(), 0.1)
    for _ in range(30): n(torch.randn(32, 64)).sum().backward(); o.step(); o.zero_grad()
thread = threading.Thread(target=work); thread.start(); thread.join()
"""
_TWO_THREADS = """
first = threading.Event()
def work(batch, num_steps):
    n = nn.Linear(64, 4); o = torch.optim.SGD(n.parameters(), 0.1)
    for i in range(num_steps):
        n(torch.randn(batch, 64)).sum().backward(); o.step(); o.zero_grad(); time.sleep(0.005)
        first.set()
threads = [threading.Thread(target=work, args=sizes) for sizes in ((32, 60), (7, 20))]
threads[0].start(); first.wait(); threads[1].start()
for thread in threads: thread.join()
"""
_MAIN_AND_THREAD = """
def work(num_steps):
    n = nn.Linear(64, 4); o = torch.optim.SGD(n.parameters(), 0.1)
    for i in range(num_steps): n(torch.randn(32, 64)).sum().backward(); o.step(); o.zero_grad()
work(10)
other = threading.Thread(target=work, args=(20,)); other.start(); other.join()
work(5)
"""
_POOL = """
from concurrent.futures import ThreadPoolExecutor
n = nn.Linear(64, 4); o = torch.optim.SGD(n.parameters(), 0.1)
pool, ready = ThreadPoolExecutor(4), threading.Barrier(4)
list(pool.map(lambda _: ready.wait(), range(4)))  # all four workers are there, and take turns
def step(): n(torch.randn(32, 64)).sum().backward(); o.step(); o.zero_grad()
for _ in range(40): pool.submit(step).result()
"""
_HOGWILD = """
shared, first = nn.Linear(64, 4), threading.Event()
def work(num_steps):
    n = nn.Linear(64, 4)  # gradients of its own, the weights of all
    for mine, all_s in zip(n.parameters(), shared.parameters()): mine.data = all_s.data
    o = torch.optim.SGD(n.parameters(), 0.1)
    for i in range(num_steps):
        n(torch.randn(16, 64)).sum().backward(); o.step(); o.zero_grad(); time.sleep(0.005)
        first.set()
other = threading.Thread(target=lambda: (first.wait(), work(15))); other.start()
work(50)
other.join()
"""
_CLOSURE = """
    model = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 3, bias=False), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    def closure():
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        return loss
    for _ in range(10): optimizer.step(closure)
"""

_ONE_STEP = """
def main():
    n = nn.Sequential(nn.Linear(20, 4), nn.ReLU()); o = torch.optim.SGD(n.parameters(), 0.1)
    n(torch.randn(20, 20)).sum().backward(); o.step()
main()
"""
_FROZEN = """
class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).requires_grad_(False)
        self.head = nn.Linear(8, 2)
    def forward(self, x): return self.head(self.backbone(x))
class Augment(nn.Module):
    def forward(self, x): return x + 0.1
augment, m = Augment(), Wrapper(); o = torch.optim.SGD(m.head.parameters(), 0.1)
for i in range(12):
    if i == 6: m.backbone.requires_grad_(True); o.add_param_group({"params": m.backbone.parameters()})
    m(augment(torch.randn(8, 8))).sum().backward(); o.step(); o.zero_grad()
"""
_LIGHTNING = """
class Lit(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)); self.loss = nn.MSELoss()
    def training_step(self, batch): return self.loss(self.model(batch), torch.zeros(len(batch), 1))
lit = Lit(); o = torch.optim.SGD(lit.parameters(), 0.1)
for _ in range(10): lit.training_step(torch.randn(8, 4)).backward(); o.step(); o.zero_grad()
"""
_DDP = """
import torch.distributed as dist
dist.init_process_group("gloo")
class Net(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(4, 1)
    def forward(self, x): return self.l(x)
net = Net(); net(torch.randn(2, 4))
m = nn.parallel.DistributedDataParallel(net); o = torch.optim.SGD(m.parameters(), 0.1)
for _ in range(10): m(torch.randn(8, 4)).mean().backward(); o.step(); o.zero_grad()
dist.barrier(); dist.destroy_process_group()
"""
_NAMES_OF_TRIALS = ("linear", *(f"linear_{number}" for number in range(2, 7)))

PROGRAMS = (
    Program(
        name="transforms in the loader", code=_TRANSFORMS.format(workers=0), steps=16, samples=16, slow=False,
        root="Net", layers=("Net", "body", "body.1"), strangers=("Normalize",), parameters=170,
    ),
    Program(
        name="transforms in workers", code=_TRANSFORMS.format(workers=2), steps=16, samples=16,
        root="Net", layers=("Net", "body", "body.1"), strangers=("Normalize",), parameters=170,
    ),
    Program(
        name="two optimizers", code=_GAN, steps=12, root="Discriminator", parameters=92, slow=False,
        layers=("discriminator", "discriminator.main.0", "generator.main.2"),
        strangers=("main.0", "Generator.main.0"),
    ),
    Program(
        name="actor and critic", code=_AGENT, steps=10, root="Sequential", samples=16, parameters=107,
        layers=("agent.actor.2", "agent.critic.0"), strangers=("0", "2", "Sequential.2"),
    ),
    Program(
        name="six models", code=_SIX_MODELS, steps=96, root="Linear", samples=32,
        parameters=6 * 260, layers=_NAMES_OF_TRIALS, strangers=("Linear",), slow=False,
    ),
    Program(
        name="written by hand", code=_BY_HAND, steps=45, root="Net", samples=8, layers=("Net", "l"),
        source="backward passes", slow=False,
    ),
    Program(
        name="gradients cleared through data", code=_OLD_STYLE, steps=20, root="Linear", samples=8,
        layers=("Linear",), source="backward passes",
    ),
    Program(
        name="written by hand, accumulating", code=_BY_HAND_ACCUMULATING, steps=10, root="Linear", samples=32,
        layers=("Linear",), source="backward passes",
    ),
    Program(
        name="gradients returned to the training", code=_RETURNED, steps=45, root="Sequential", samples=8,
        layers=("0", "1"), source="backward passes", slow=False,
    ),
    Program(
        name="gradients returned, accumulating", code=_RETURNED_ACCUMULATING, steps=12, root="Linear",
        samples=32, layers=("Linear",), source="backward passes",
    ),
    Program(
        name="by hand, then an optimizer", code=_BY_HAND_FIRST, steps=22, root="Linear", samples=8,
        layers=("Linear",), source="backward passes, then optimizers",
    ),
    Program(name="a thread", code=_THREAD, steps=30, root="Linear", samples=32, layers=("Linear",)),
    Program(name="two threads that train", code=_TWO_THREADS, steps=60, elsewhere=20, root="Linear",
            samples=32, layers=("Linear",), slow=False),
    Program(name="main, then a thread, then main", code=_MAIN_AND_THREAD, steps=35, root="Linear", samples=32,
            layers=("linear", "linear_2")),
    Program(name="a pool of threads", code=_POOL, steps=40, root="Linear", samples=32, layers=("Linear",)),
    Program(name="Hogwild in threads", code=_HOGWILD, steps=50, elsewhere=15, root="Linear", samples=16,
            layers=("Linear",)),
    Program(name="one step", code=_ONE_STEP, steps=1, root="Sequential", layers=("0", "1"), parameters=84,
            slow=False),
    Program(name="closure", code=_CLOSURE, steps=10, root="Sequential", samples=8, layers=("0", "1"),
            parameters=80, slow=False),
    Program(name="frozen backbone", code=_FROZEN, steps=12, root="Wrapper", samples=8, parameters=90,
            layers=("backbone.0", "head")),
    Program(name="model inside a module that is not called", code=_LIGHTNING, steps=10, root="Sequential",
            samples=8, layers=("0", "2"), parameters=49),
    Program(name="trial forward before DDP", code=_DDP, steps=10, root="Net", samples=8, nproc=2,
            layers=("Net", "l"), parameters=5),
)  # fmt: skip


def record(program: Program, folder: Path) -> Recorded:
    """Runs a program with the probe inside."""
    script, run = folder / "program.py", folder / "run"
    script.write_text(HEAD + textwrap.dedent(program.code))
    run.mkdir()
    command = [sys.executable, str(script)]
    if program.nproc:
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={program.nproc}"]
    process = subprocess.run(
        command, env=environment(run), cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stderr
    return Recorded(run, process)


def _told(recorded: Recorded, rank: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((recorded.rank(rank) / "layers.json").read_text())
    return told


@pytest.mark.parametrize(
    "program",
    [pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.slow else []) for one in PROGRAMS],
)
def test_steps_roots_and_names_are_the_programs_own(program: Program, tmp_path: Path) -> None:
    recorded = record(program, tmp_path)
    assert recorded.errors() == []
    for rank in range(max(1, program.nproc)):
        steps, meta, told = recorded.steps(rank), recorded.meta(rank), _told(recorded, rank)
        assert len(steps) == meta["num_steps"] == program.steps
        if program.samples is not None:
            samples = [step["samples"] for step in steps[2:]]
            assert samples.count(program.samples) == len(samples)
        assert meta["root"]["name"] == told["root"] == program.root
        assert meta.get("step_source") == program.source
        others = [entry for entry in meta.get("missing", []) if entry["figure"] == "other_threads"]
        assert [int(entry["reason"].split()[0]) for entry in others] == [program.elsewhere] * len(others)
        assert len(others) == bool(program.elsewhere)
        layers = [row["layer"] for row in told["layers"]]
        assert len(layers) == len(set(layers))
        assert set(program.layers) <= set(layers)
        assert not set(program.strangers) & set(layers)
        if program.parameters is not None:
            assert sum(row["params"] for row in told["layers"]) == program.parameters
        renamed = told.get("renamed", {})
        assert set(renamed.values()) <= set(layers)
        for path in sorted((recorded.rank(rank) / "windows").glob("*.json")):
            marks = {renamed.get(name, name) for name in recorded.marks(rank=rank, window=int(path.stem))}
            assert marks & set(layers)
