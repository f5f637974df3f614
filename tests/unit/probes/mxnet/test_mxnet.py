"""The MXNet probe beside stand-ins of MXNet: versions that lack something, and what is no training.

Real MXNet: tests/frameworks/test_mxnet.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import perfscope
from perfscope.probes.steps import Step

BOOTSTRAP = Path(perfscope.__file__).parent / "probes" / "bootstrap"
# As little of MXNet as a training can do with.
SCOPE = """
class _RecordingStateScope:
    _enter_is_record = True
    def __enter__(self): pass
    def __exit__(self, *exc): pass
def record(): return _RecordingStateScope()
"""
TRAINER = """
class Trainer:
    def step(self, batch_size, ignore_stale_grad=False): return "stepped"
    def update(self, batch_size, ignore_stale_grad=False): return "updated"
"""
LOOP = """
import mxnet as mx
trainer = mx.gluon.Trainer()
for _ in range(6):
    with mx.autograd.record(): pass
    assert trainer.step(32) == "stepped"
print("trained")
"""


def trained(folder: Path, modules: dict[str, str], loop: str = LOOP, **more: str) -> tuple[Path, str]:
    """Runs `loop` with a package mxnet of these modules; the run directory, and what was printed."""
    package = folder / "mxnet"
    package.mkdir()
    names = "".join(f"from . import {name}\n" for name in modules)
    (package / "__init__.py").write_text(names + "__version__ = '0.1'\n")
    for name, content in modules.items():
        (package / f"{name}.py").write_text(content)
    (folder / "train.py").write_text(loop)
    run = folder / "run"
    run.mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "PERFSCOPE_"))},
        "PERFSCOPE_RUN_DIR": str(run),
        "PERFSCOPE_AGENT": str(BOOTSTRAP / "agent.py"),
        "PERFSCOPE_CONFIG": json.dumps({"steps_per_window": 1}),
        "PYTHONPATH": str(BOOTSTRAP / "site"),
        **more,
    }
    ended = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return run, ended.stdout


def samples_of(line: str) -> object:
    return json.loads(line)[Step._fields.index("samples")]


def meta(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "ranks" / "0" / "rank.json").read_bytes())
    return found


def test_an_unknown_mxnet_trains_on_and_one_line_says_what_is_not_recorded(tmp_path: Path) -> None:
    run, output = trained(tmp_path, {"autograd": SCOPE, "gluon": TRAINER})
    assert output == "trained\n"
    assert not (run / "boot-errors.txt").exists()
    assert not list(run.glob("ranks/*/errors.jsonl"))
    steps = (run / "ranks" / "0" / "steps.jsonl").read_text().splitlines()[1:]
    assert [samples_of(line) for line in steps] == [32] * 6
    lines = [note for note in meta(run)["notes"] if "this MXNet has no" in note]
    assert len(lines) == 1
    for lacking in ("profiler", "module", "gluon.data.DataLoader", "kvstore"):
        assert lacking in lines[0]


def test_without_any_trainer_nothing_is_recorded_and_nothing_breaks(tmp_path: Path) -> None:
    loop = "import mxnet as mx\nfor _ in range(4):\n    with mx.autograd.record(): pass\nprint('done')\n"
    run, output = trained(tmp_path, {"autograd": SCOPE}, loop)
    assert output == "done\n"
    assert list(run.iterdir()) == []


def test_updates_whose_forward_passes_cannot_be_seen_are_steps_all_the_same(tmp_path: Path) -> None:
    run, _ = trained(tmp_path, {"autograd": "def record(): raise SystemExit", "gluon": TRAINER}, LOOP_BLIND)
    steps = (run / "ranks" / "0" / "steps.jsonl").read_text().splitlines()[1:]
    assert [json.loads(line)[0] for line in steps] == list(range(5))  # from update to update


LOOP_BLIND = """
import mxnet as mx
trainer = mx.gluon.Trainer()
for _ in range(6):
    trainer.update(batch_size=8)
"""


STORE = """
class KVStore:
    type = "local"
    def __init__(self): self.given = []
    def push(self, key, value, priority=0): self.given.append(key)
    def pull(self, key, out=None, priority=0): pass
    def pushpull(self, key, value, out=None): pass
"""
LOOP_STORE = """
import mxnet as mx
store = mx.kvstore.KVStore()
for _ in range(6):
    with mx.autograd.record(): pass
    for key in range(3):
        store.push(key, 1)
        store.pull(key, out=None)
print(len(store.given))
"""


def test_gradients_given_to_a_store_without_a_trainer_are_an_update(tmp_path: Path) -> None:
    run, output = trained(tmp_path, {"autograd": SCOPE, "gluon": TRAINER, "kvstore": STORE}, LOOP_STORE)
    assert output == "18\n"
    assert not list(run.glob("**/*errors*"))
    assert meta(run)["num_steps"] == 6


LOOP_EXCHANGE = """
import mxnet as mx
trainer, store = mx.gluon.Trainer(), mx.kvstore.KVStore()
mx.gluon.STORE = store
for _ in range(6):
    with mx.autograd.record(): pass
    trainer.allreduce_grads()
    assert trainer.update(32) == "updated"
"""
EXCHANGING = (
    TRAINER
    + """
    def allreduce_grads(self):
        for key in range(3): STORE.push(key, 1)
"""
)


def test_an_exchange_of_gradients_before_the_update_is_no_update(tmp_path: Path) -> None:
    modules = {"autograd": SCOPE, "gluon": EXCHANGING, "kvstore": STORE}
    run, _ = trained(tmp_path, modules, LOOP_EXCHANGE)
    assert not list(run.glob("**/*errors*"))
    steps = (run / "ranks" / "0" / "steps.jsonl").read_text().splitlines()[1:]
    assert [samples_of(line) for line in steps] == [32] * 6


def test_a_server_or_scheduler_is_left_alone(tmp_path: Path) -> None:
    run, output = trained(tmp_path, {"autograd": SCOPE, "gluon": TRAINER}, DMLC_ROLE="server")
    assert output == "trained\n"
    assert list(run.iterdir()) == []


HOROVOD = """
def init(): pass
def is_initialized(): return True
def rank(): return 1
def local_rank(): return 1
def size(): return 2
def gloo_enabled(): return True
"""
OPERATIONS = "def allreduce_(tensor, average=True, name=None): return tensor"
LOOP_HOROVOD = """
import mxnet as mx, numpy, horovod.mxnet as hvd
class Array: size, dtype = 10, "float32"
gradient, trainer = Array(), mx.gluon.Trainer()
for _ in range(6):
    with mx.autograd.record(): pass
    assert hvd.allreduce_(gradient) is gradient
    trainer.step(32)
"""


def test_horovod_tells_which_rank_a_training_with_mxnet_is(tmp_path: Path) -> None:
    (tmp_path / "horovod" / "mxnet").mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").touch()
    (tmp_path / "horovod" / "mxnet" / "mpi_ops.py").write_text(OPERATIONS)
    (tmp_path / "horovod" / "mxnet" / "__init__.py").write_text(
        "from horovod.mxnet.mpi_ops import allreduce_\n" + HOROVOD
    )
    run, _ = trained(tmp_path, {"autograd": SCOPE, "gluon": TRAINER}, LOOP_HOROVOD)
    assert not list(run.glob("**/*errors*"))
    found = json.loads((run / "ranks" / "1" / "rank.json").read_bytes())
    assert (found["rank_source"], found["world_size"], found["backend"]) == ("horovod", 2, "horovod gloo")
    assert found["groups"][0]["ranks"] == [0, 1]
    assert found["root"]["dp_size"] == 2
    assert found["framework"]["name"] == "mxnet"
    assert found["num_steps"] == 6
