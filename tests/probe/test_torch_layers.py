"""Layers get the names their authors gave them, whatever wraps the model."""

from __future__ import annotations

import json

import pytest

from tests.probe.conftest import Train

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

NET = """
import torch, torch.nn as nn
torch.manual_seed(0); torch.set_num_threads(1)
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
    def forward(self, x): return self.act(self.conv(x))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        shared = Block(4)
        self.stem = nn.Conv2d(3, 4, 1)
        self.features = nn.Sequential(shared, nn.Sequential(Block(4), shared), nn.Dropout(0.0))
        self.head = nn.Linear(4, 2)
    def forward(self, x): return self.head(self.features(self.stem(x)).mean((2, 3)))
def fit(model, steps=9, **kwargs):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        loss = model(torch.randn(4, 3, 8, 8)).sum(); loss.backward(); optimizer.step(); optimizer.zero_grad()
"""
LAYERS_OF_A_STEP = [
    "Net", "stem", "features", "features.0", "features.0.conv", "features.0.act", "features.1",
    "features.1.0", "features.1.0.conv", "features.1.0.act", "features.0", "features.0.conv",
    "features.0.act", "features.2", "head",
]  # fmt: skip
DIST = "import torch.distributed as dist; dist.init_process_group('gloo')\n"
END = "\ndist.barrier(); dist.destroy_process_group()\n"


def test_nested_sequential_and_shared_modules_keep_their_paths(train: Train) -> None:
    recorded = train(NET + "fit(Net())")
    assert recorded.marks() == LAYERS_OF_A_STEP * 3
    assert recorded.marks("step") == ["3", "4", "5"]
    layers = {
        row["layer"]: row for row in json.loads((recorded.rank() / "layers.json").read_text())["layers"]
    }
    assert layers["features.0.conv"]["param_shapes"] == [[4, 4, 3, 3], [4]]
    assert sum(row["params"] for row in layers.values()) == 3 * 4 + 4 + 2 * (4 * 4 * 9 + 4) + 4 * 2 + 2
    assert recorded.errors() == []


def test_ddp_adds_nothing_to_the_names(train: Train) -> None:
    recorded = train(NET + DIST + "fit(nn.parallel.DistributedDataParallel(Net()))" + END, nproc=2)
    for rank in (0, 1):
        assert recorded.marks(rank=rank) == LAYERS_OF_A_STEP * 3
        assert recorded.meta(rank)["root"] == {
            "name": "Net", "type": "DistributedDataParallel",
            "data_parallel": True, "dp_size": 2, "compiled": False,
        }  # fmt: skip
    assert recorded.meta(1)["groups"][0]["ranks"] == [0, 1]
    assert recorded.errors() == []


def test_fsdp2_adds_nothing_to_the_names(train: Train) -> None:
    code = """
from torch.distributed.fsdp import fully_shard
model = Net()
for block in (model.features[0], model.features[1][0]): fully_shard(block)
fully_shard(model)
fit(model)
"""
    recorded = train(NET + DIST + code + END, nproc=2)
    assert recorded.marks() == LAYERS_OF_A_STEP * 3
    assert recorded.meta()["root"]["data_parallel"] is True
    assert recorded.meta()["root"]["dp_size"] == 2
    assert recorded.errors() == []


@pytest.mark.parametrize(
    ("how", "layers"),
    [
        ("model = torch.compile(Net(), backend='aot_eager')", ["Net"]),
        ("model = Net(); model.compile(backend='aot_eager')", ["Net"]),
        (
            "model = Net(); model.features = torch.compile(model.features, backend='aot_eager')",
            ["Net", "stem", "features", "head"],
        ),
        ("model = nn.DataParallel(torch.compile(Net(), backend='aot_eager'))", ["Net"]),
    ],
    ids=["torch.compile", "module.compile", "compiled part", "compiled inside a wrapper"],
)
def test_compiled_code_is_one_layer_and_compiles_no_more_often(
    train: Train,
    how: str,
    layers: list[str],
) -> None:
    code = f"""
import warnings; warnings.filterwarnings("error", message=".*global hooks.*")
from torch._dynamo.utils import counters
{how}
fit(model, 10)
model.eval()
with torch.no_grad(): model(torch.randn(4, 3, 8, 8))
model.train()
fit(model, 3)
print(dict(counters["frames"]), dict(counters["graph_break"]), dict(counters["stats"]))
"""
    with_probe = train(NET + code)
    assert with_probe.marks() == layers * 3
    without = train(NET + code, windows=0)
    assert with_probe.process.stdout == without.process.stdout
    assert "'ok': 2" in without.process.stdout  # training and evaluation, once each
    assert with_probe.errors() == []


def test_a_compiled_function_is_one_layer_and_marks_the_steps(train: Train) -> None:
    code = """
model = Net()
@torch.compile(backend="aot_eager")
def forward(x): return model(x).sum()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
from torch._dynamo.utils import counters
for _ in range(9): forward(torch.randn(4, 3, 8, 8)).backward(); optimizer.step(); optimizer.zero_grad()
print(dict(counters["frames"]))
"""
    recorded = train(NET + code)
    assert recorded.marks() == ["forward"] * 3
    assert recorded.marks("step") == ["3", "4", "5"]
    assert recorded.process.stdout.strip() == "{'total': 1, 'ok': 1}"
    assert [step["samples"] for step in recorded.steps()] == [4] * 9
    assert recorded.errors() == []


def test_activation_checkpointing_leaves_marks_balanced(train: Train) -> None:
    code = """
from torch.utils.checkpoint import checkpoint
class Saved(Net):
    def forward(self, x):
        x = checkpoint(self.features, self.stem(x), use_reentrant=False)
        return self.head(x.mean((2, 3)))
fit(Saved())
"""
    recorded = train(NET + code)
    marks = recorded.marks()
    assert marks.count("features") == 2 * 3  # forward, and again in backward
    assert marks.count("Saved") == marks.count("head") == 3
    assert recorded.marks("step") == ["3", "4", "5"]
    assert recorded.errors() == []
