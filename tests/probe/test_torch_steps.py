"""Steps of real training loops: what counts as one, how many samples, who is promoted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.probe.conftest import Recorded, Train, environment

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HEAD = """
import os, sys, time, torch, torch.nn as nn
torch.manual_seed(0); torch.set_num_threads(1)
"""

GAN = """
g, d = nn.Linear(2, 3), nn.Linear(3, 1)
og, od = torch.optim.SGD(g.parameters(), 0.01), torch.optim.Adam(d.parameters())
for _ in range(10):
    od.zero_grad(); fake = g(torch.randn(8, 2)).detach()
    (d(torch.randn(8, 3)).mean() - d(fake).mean()).backward(); od.step()
    og.zero_grad(); d(g(torch.randn(8, 2))).mean().backward(); og.step()
"""
ACCUMULATION = """
m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.01)
for i in range(40):
    (m(torch.randn(8 if i % 4 else 5, 4)).mean() / 4).backward()
    if i % 4 == 3: o.step(); o.zero_grad()
"""
KEYWORDS = """
class Net(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(4, 1)
    def forward(self, *, batch=None, scale=1.0): return self.l(batch["x"]) * scale
m = Net(); o = torch.optim.SGD(m.parameters(), 0.01)
for _ in range(10): m(batch={"x": torch.randn(6, 4)}, scale=2.0).mean().backward(); o.step()
"""
TRIAL_FORWARD = """
m = nn.Linear(4, 1); m(torch.randn(2, 4))  # a look at the shapes before the model is wrapped
w = nn.DataParallel(m); o = torch.optim.SGD(w.parameters(), 0.01)
for _ in range(10): w(torch.randn(8, 4)).mean().backward(); o.step()
"""
CLOSURE = """
m = nn.Linear(4, 1); o = torch.optim.LBFGS(m.parameters(), max_iter=3); x = torch.randn(8, 4)
def closure():
    o.zero_grad(); loss = m(x).pow(2).mean(); loss.backward(); return loss
for _ in range(10): o.step(closure)
"""
FUNCTIONAL = """
w = torch.randn(4, 1, requires_grad=True); o = torch.optim.SGD([w], 0.01)
for _ in range(10): (torch.randn(8, 4) @ w).mean().backward(); o.step(); o.zero_grad()
"""

SCALED = """
m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.01); s = torch.amp.GradScaler("cpu")
for i in range(10):
    o.zero_grad(); loss = m(torch.randn(8, 4)).mean()
    s.scale(loss * float("inf") if i in (0, 1, 5, 9) else loss).backward(); s.step(o); s.update()
assert s.get_scale() == 2.0 ** 12
"""
SCALED_GAN = """
g, d = nn.Linear(2, 3), nn.Linear(3, 1); s = torch.amp.GradScaler("cpu")
og, od = torch.optim.SGD(g.parameters(), 0.01), torch.optim.Adam(d.parameters())
for i in range(10):
    od.zero_grad(); fake = g(torch.randn(8, 2)).detach()
    s.scale((d(torch.randn(8, 3)).mean() - d(fake).mean()) / (i % 3)).backward(); s.step(od)
    og.zero_grad(); s.scale(d(g(torch.randn(8, 2))).mean() / (i % 4)).backward(); s.step(og); s.update()
"""


@pytest.mark.parametrize(
    ("loop", "samples"),
    [
        (GAN, 16), (SCALED, 8), (SCALED_GAN, 16),
        (ACCUMULATION, 29), (KEYWORDS, 6), (TRIAL_FORWARD, 8), (CLOSURE, None), (FUNCTIONAL, None),
    ],
    ids=["gan", "skipped updates", "skipped updates of two",
         "accumulation", "keyword input", "trial forward", "closure", "functional"],
)  # fmt: skip
def test_ten_updates_are_ten_steps(train: Train, loop: str, samples: int | None) -> None:
    recorded = train(HEAD + loop)
    steps = recorded.steps()
    assert len(steps) == 10
    assert recorded.errors() == []
    if samples is not None:
        assert [step["samples"] for step in steps[2:]] == [samples] * 8


def test_input_wait_and_backward_are_measured_where_they_are(train: Train) -> None:
    loop = """
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i): time.sleep(0.01); return torch.randn(4)
class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): time.sleep(0.03); return g
m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.01)
for x in torch.utils.data.DataLoader(Slow(), batch_size=4):
    SlowBackward.apply(m(x)).mean().backward(); o.step(); o.zero_grad()
"""
    steps = train(HEAD + loop).steps()
    assert len(steps) == 10
    for step in steps[1:-1]:
        assert step["input_ns"] >= 4 * 10_000_000  # sleeps are lower bounds, however busy the machine
        assert step["backward_ns"] >= 30_000_000
        assert step["input_ns"] + step["backward_ns"] + step["optimizer_ns"] <= step["dur_ns"]


def test_evaluation_is_no_step_and_stays_out_of_windows(train: Train) -> None:
    loop = """
class Net(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(4, 1)
    def forward(self, x): return self.l(x)
m = Net(); o = torch.optim.SGD(m.parameters(), 0.01)
for i in range(10):
    m.train(); m(torch.randn(8, 4)).mean().backward(); o.step(); o.zero_grad()
    if i == 4:
        m.eval()
        with torch.no_grad():
            for _ in range(50): m(torch.randn(8, 4))
"""
    recorded = train(HEAD + loop)
    assert len(recorded.steps()) == 10
    assert recorded.marks("step") == ["3", "4"]  # the window ends where the evaluation begins
    assert recorded.marks() == ["Net", "l"] * 2


def test_data_loader_workers_and_helpers_stay_silent(train: Train) -> None:
    loop = """
import subprocess
subprocess.run([sys.executable, "-c", "import torch; torch.nn.Linear(1, 1)(torch.randn(1, 1))"], check=True)
m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.01)
for x in torch.utils.data.DataLoader(torch.randn(80, 4), batch_size=8, num_workers=2):
    m(x).mean().backward(); o.step(); o.zero_grad()
"""
    recorded = train(HEAD + loop)
    assert [path.name for path in (recorded.run / "ranks").iterdir()] == ["0"]
    assert len(recorded.steps()) == 10


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_child_processes_that_train_are_ranks_of_their_own(train: Train, method: str) -> None:
    loop = f"""
def work(rank):
    m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.01)
    for _ in range(10): m(torch.randn(8, 4)).mean().backward(); o.step()
if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, nprocs=2, start_method="{method}")
"""
    recorded = train(HEAD + loop)
    for rank in (0, 1):
        assert len(recorded.steps(rank)) == 10
        assert recorded.meta(rank)["finished"] is True
    assert not (recorded.run / "ranks" / "2").exists()


def test_spawned_ranks_take_the_number_of_their_process_group(train: Train) -> None:
    loop = """
import torch.distributed as dist
def work(rank, folder):
    dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=1 - rank, world_size=2)
    m = nn.parallel.DistributedDataParallel(nn.Linear(4 , 1)); o = torch.optim.SGD(m.parameters(), 0.01)
    for _ in range(8): m(torch.randn(8, 4)).mean().backward(); o.step()
    dist.barrier(); dist.destroy_process_group()
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (os.getcwd(),), nprocs=2)
"""
    recorded = train(HEAD + loop)
    assert recorded.meta(0)["rank_source"] == recorded.meta(1)["rank_source"] == "torch.distributed"
    assert len(recorded.steps(0)) == len(recorded.steps(1)) == 8
    assert recorded.marks("step", 0) == recorded.marks("step", 1) == ["3", "4", "5"]


def test_a_process_that_infers_leaves_nothing(train: Train) -> None:
    recorded = train(HEAD + "m = nn.Linear(4, 1)\nfor _ in range(5): m(torch.randn(8, 4))\n")
    assert list(recorded.run.iterdir()) == []


def test_later_windows_are_planned_by_rank_0_for_the_same_steps(train: Train) -> None:
    loop = """
import torch.distributed as dist
dist.init_process_group("gloo")
m = nn.parallel.DistributedDataParallel(nn.Linear(4 , 1)); o = torch.optim.SGD(m.parameters(), 0.01)
for _ in range(150): time.sleep(0.01); m(torch.randn(8, 4)).mean().backward(); o.step()
dist.barrier(); dist.destroy_process_group()
"""
    recorded = train(HEAD + loop, nproc=2, windows=2, overhead=0.5, steps_per_window=2)

    def windows(rank: int) -> list[tuple[int, int, int]]:
        lines = (recorded.rank(rank) / "windows.jsonl").read_text().splitlines()
        return [(w["window"], w["first_step"], w["num_steps"]) for w in map(json.loads, lines)]

    assert windows(0) == windows(1)
    assert [(window, count) for window, _, count in windows(0)] == [(0, 2), (1, 2)]


def test_a_rank_killed_mid_run_leaves_whole_lines(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        HEAD
        + "m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.01)\n"
        + "while True: time.sleep(0.005); m(torch.randn(8, 4)).mean().backward(); o.step()\n"
    )
    run = tmp_path / "run"
    run.mkdir()
    process = subprocess.Popen([sys.executable, str(script)], env=environment(run), cwd=tmp_path)
    steps = run / "ranks" / "0" / "steps.jsonl"
    deadline = time.monotonic() + 120
    while not (steps.exists() and steps.read_bytes().count(b"\n") > 50) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    recorded = Recorded(run, subprocess.CompletedProcess([], -9, "", ""))
    assert len(recorded.steps()) >= 50
    assert steps.read_bytes().endswith(b"\n")
    assert recorded.meta()["finished"] is False


def test_without_windows_the_model_is_described_all_the_same(train: Train) -> None:
    loop = """
m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.01)
for _ in range(4): m(torch.randn(8, 4)).mean().backward(); o.step()
"""
    recorded = train(HEAD + loop, trace=False)
    assert recorded.meta()["root"]["dp_size"] == 1
    assert json.loads((recorded.rank() / "layers.json").read_text())["layers"][0]["params"] == 5
    assert not (recorded.rank() / "windows").exists()


TEACHER = """
class Net(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(4, 1)
    def forward(self, x): return self.l(x)
teacher, m = Net().eval(), Net(); o = torch.optim.SGD(m.parameters(), 0.01)
for _ in range(10):
    x = torch.randn(8, 4)
    with torch.no_grad(): t = teacher(x)
    (m(x) - t).pow(2).mean().backward(); o.step(); o.zero_grad()
"""
THREAD = """
import threading
class Net(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(4, 1)
    def forward(self, x): return self.l(x)
def work():
    m = Net(); o = torch.optim.SGD(m.parameters(), 0.01)
    for x in torch.utils.data.DataLoader(torch.randn(80, 4), batch_size=8):
        torch.autograd.backward([m(x).mean()]); o.step(); o.zero_grad()
thread = threading.Thread(target=work); thread.start(); thread.join()
"""


def test_a_teacher_of_the_models_class_has_layers_of_its_own(train: Train) -> None:
    marks = train(HEAD + TEACHER).marks()
    names = ["Net", "l", "Net (not trained)", "Net (not trained).l"]
    assert len(marks) > 8 and marks == (names * len(marks))[: len(marks)]


@pytest.mark.parametrize("loop", [TEACHER, THREAD], ids=["teacher without gradients", "training in a thread"])
def test_the_model_is_found_past_other_forwards_and_threads(train: Train, loop: str) -> None:
    recorded = train(HEAD + loop)
    steps = recorded.steps()
    assert [step["samples"] for step in steps] == [8] * 10
    assert all(step["backward_ns"] > 0 for step in steps)
    assert recorded.marks("step") == ["3", "4", "5"]
    assert recorded.marks().count("l") >= 3
    assert recorded.errors() == []


def test_figures_that_were_not_measured_are_null(train: Train) -> None:
    steps = train(HEAD + FUNCTIONAL).steps()
    assert {step["input_ns"] for step in steps} == {None}  # no data loader
    assert {step["samples"] for step in steps} == {None}  # no module


def test_a_closure_is_inside_its_step(train: Train) -> None:
    recorded = train(HEAD + CLOSURE)
    steps = recorded.steps()
    assert [step["samples"] for step in steps] == [8] * 10  # one batch, however often it is evaluated
    for step in steps:
        assert step["backward_ns"] + step["optimizer_ns"] <= step["dur_ns"]  # one is no part of the other
    assert recorded.marks("step") != []
    closures = [
        event
        for event in json.loads((recorded.rank() / "windows" / "0.json").read_text())["traceEvents"]
        if event.get("name") == "perfscope.closure"
    ]
    assert len(closures) == 9  # LBFGS calls it three times in each of three steps


def test_trainings_one_after_the_other_are_attempts_of_one_rank(train: Train) -> None:
    loop = """
import subprocess
code = "import torch; m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.01)\\n"
code += "for _ in range(4): m(torch.randn(8, 4)).mean().backward(); o.step()"
for _ in range(2): subprocess.run([sys.executable, "-c", code], check=True)
"""
    recorded = train(HEAD + loop)
    assert sorted(path.name for path in (recorded.run / "ranks").iterdir()) == ["0", "0.1"]


GRADIENTS_ASSIGNED = """
m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.01)
for _ in range(6):
    gradients = torch.autograd.grad(m(torch.randn(8, 4)).mean(), list(m.parameters()))
    for parameter, gradient in zip(m.parameters(), gradients): parameter.grad = gradient
    o.step()
"""
IMAGES = """
class Detector(nn.Module):
    def __init__(self): super().__init__(); self.c = nn.Conv2d(%(channels)d, 2, 3)
    def forward(self, images, targets=None): return sum(self.c(image[None]).mean() for image in images)
m = Detector(); o = torch.optim.SGD(m.parameters(), 0.01)
for _ in range(6):
    m([torch.randn(%(channels)d, 8 + i, 9) for i in range(5)]).backward(); o.step()
"""
PACKED = """
m = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 1)); o = torch.optim.SGD(m.parameters(), 0.01)
for _ in range(6): m(torch.randint(11, (40,))).mean().backward(); o.step()
"""


@pytest.mark.parametrize(
    ("loop", "samples"),
    [
        pytest.param(GRADIENTS_ASSIGNED, 8, id="autograd.grad"),
        pytest.param(IMAGES % {"channels": 3}, 5, id="list of images"),
        pytest.param(IMAGES % {"channels": 7}, None, id="list of 3-d tensors", marks=pytest.mark.slow),
        pytest.param(PACKED, None, id="packed tokens", marks=pytest.mark.slow),
    ],
)
def test_samples_of_each_step_are_right_or_unknown(train: Train, loop: str, samples: int | None) -> None:
    steps = train(HEAD + loop).steps()
    assert [step["samples"] for step in steps] == [samples] * 6
    assert [step["num_micro"] for step in steps] == [1] * 6
