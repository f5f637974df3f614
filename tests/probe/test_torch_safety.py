"""The probe never changes what training prints, returns, saves or computes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.probe.conftest import BOOTSTRAP, Recorded, Train, environment

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAINING = """
import sys, torch, torch.nn as nn
torch.manual_seed(0); torch.set_num_threads(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.Dropout(0.2))
        self.head = nn.Linear(8, 4)
    def forward(self, x): return self.head(self.body(x).mean((2, 3)))
m = Net(); o = torch.optim.SGD(m.parameters(), 0.05, momentum=0.9)
x, y = torch.randn(64, 3, 12, 12), torch.randint(0, 4, (64,))
losses = []
for i in range(20):
    loss = nn.functional.cross_entropy(m(x), y); loss.backward(); o.step(); o.zero_grad()
    losses.append(loss.item())
print([value.hex() for value in losses])
print("to stderr", file=sys.stderr)
"""


def plain(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "plain.py"
    script.write_text(code)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PERFSCOPE", "PYTHONPATH"))}
    return subprocess.run(
        [sys.executable, str(script)], env={**clean, "OMP_NUM_THREADS": "1"}, cwd=folder,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_losses_stdout_and_stderr_are_bitwise_the_same(train: Train, tmp_path: Path) -> None:
    with_probe: Recorded = train(TRAINING)
    without = plain(TRAINING, tmp_path)
    assert without.stdout.startswith("['0x1.")
    assert with_probe.process.stdout == without.stdout
    assert with_probe.process.stderr == without.stderr
    assert with_probe.marks("step") == ["3", "4", "5"]


def test_exit_code_and_traceback_of_a_failing_training_are_its_own(train: Train, tmp_path: Path) -> None:
    code = TRAINING + "\nraise SystemExit(7)\n"
    assert train(code, check=False).process.returncode == plain(code, tmp_path).returncode == 7


def test_whole_models_saved_inside_a_window_load_without_perfscope(train: Train, tmp_path: Path) -> None:
    code = TRAINING.replace(
        "losses.append(loss.item())",
        "losses.append(loss.item()); i == 4 and (torch.save(m, 'whole.pt'), __import__('copy').deepcopy(m))",
    )
    train(code)
    loaded = plain(
        TRAINING.split("m = Net()")[0]
        + "m = torch.load('whole.pt', weights_only=False); print(m(torch.randn(2, 3, 12, 12)).shape)\n",
        tmp_path,
    )
    assert loaded.stdout == "torch.Size([2, 4])\n", loaded.stderr


def test_a_training_that_profiles_itself_keeps_its_profiler(train: Train, tmp_path: Path) -> None:
    code = TRAINING.replace(
        "for i in range(20):", "p = torch.profiler.profile(); p.start()\nfor i in range(20):"
    )
    code += "p.stop(); print(len(p.events()) > 100)\n"
    recorded = train(code)
    assert recorded.process.stdout.endswith("True\n")
    assert recorded.process.stdout == plain(code, tmp_path).stdout
    assert any("using the profiler" in note for note in recorded.meta()["notes"])


def test_a_probe_that_keeps_failing_takes_itself_out(train: Train, tmp_path: Path) -> None:
    sabotage = "import _perfscope.probes.torch.probe as p, os\n" + (
        "p.Batches.forward = lambda *a: 1 / 0\n"  # a fault in a hook that runs at every step
    )
    code = TRAINING.replace(
        "losses = []",
        "losses = []\nif 'PERFSCOPE_RUN_DIR' in __import__('os').environ:\n    "
        + "; ".join(sabotage.splitlines()),
    )
    recorded = train(code)
    assert recorded.process.stdout == plain(code, tmp_path).stdout
    faults = recorded.errors()
    assert len(faults) == 3
    assert '"disabled": true' in faults[-1]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with no room left for steps."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mount = tmp_path / "full"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mount is not permitted here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_does_not_reach_the_training(full_disk: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    (full_disk / "filler").write_bytes(b"x" * 44_000)
    for _ in ("some room", "no room at all"):
        process = subprocess.run(
            [sys.executable, str(script)], env=environment(full_disk), cwd=tmp_path,
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        expected = plain(TRAINING, tmp_path)
        assert (process.returncode, process.stdout) == (0, expected.stdout), process.stderr
        own = [line for line in process.stderr.splitlines(True) if line.startswith("perfscope: ")]
        assert process.stderr.replace("".join(own), "") == expected.stderr and len(own) <= 1
        with (full_disk / "rest").open("wb") as rest:
            try:
                rest.write(b"x" * 64_000)
                rest.flush()
            except OSError:
                assert (full_disk / "rest").exists()


def test_boot_costs_a_process_without_torch_next_to_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; print(sorted(m for m in sys.modules if m.startswith(('torch', '_perfscope.', 'json'))))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert process.stdout == "[]\n"
    assert list(tmp_path.iterdir()) == []


def test_a_broken_agent_leaves_one_line_and_the_training_alone(tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text("raise RuntimeError('broken')\n")
    env = {**environment(tmp_path), "PERFSCOPE_AGENT": str(agent), "PYTHONPATH": str(BOOTSTRAP / "site")}
    process = subprocess.run(
        [sys.executable, "-c", "print('fine')"], env=env, capture_output=True, text=True, check=True
    )
    assert (process.stdout, process.stderr) == ("fine\n", "")
    assert "broken" in (tmp_path / "boot-errors.txt").read_text()


SCRIPTED = TRAINING.replace("m = Net();", "m = torch.jit.script(Net());")
TRACED = TRAINING.replace(
    "losses.append(loss.item())",
    "losses.append(loss.item()); torch.jit.trace(Net().eval(), torch.randn(2, 3, 12, 12))",
)
OWN_SESSION = TRAINING.replace(
    "    losses.append(loss.item())",
    "    losses.append(loss.item())\n    if i == 4:\n"
    "        with torch.autograd.profiler.profile() as p: m(x)\n        print(len(p.function_events) > 10)",
)
LEAK = TRAINING + (
    "import gc, weakref\nkept = weakref.ref(m.body)\ndel m, o, loss\ngc.collect()\nprint(kept() is None)\n"
)
WRAPPED_FINDERS = (
    "import sys\nclass W:\n    def __init__(self, f): self.f = f\n"
    "    def __getattr__(self, n): return getattr(self.f, n)\n"
    "sys.meta_path[:] = [W(f) for f in sys.meta_path]\n" + TRAINING
)
ASKS_FIRST = "import importlib.util\nassert importlib.util.find_spec('torch')\n" + TRAINING


@pytest.mark.parametrize(
    "code",
    [SCRIPTED, TRACED, OWN_SESSION, LEAK, WRAPPED_FINDERS, ASKS_FIRST],
    ids=["scripted", "traced", "own profiler session", "freed model", "wrapped finders", "find_spec"],
)
def test_unusual_programs_run_as_they_do_alone(train: Train, tmp_path: Path, code: str) -> None:
    recorded = train(code, check=False)
    expected = plain(code, tmp_path)
    assert recorded.process.returncode == expected.returncode == 0, recorded.process.stderr
    assert recorded.process.stdout == expected.stdout
    # Kineto announces the training's own sessions too; docs/attaching.md says that these lines go missing.
    announced = [line for line in expected.stderr.splitlines() if not line.startswith("USDT:")]
    assert recorded.process.stderr.splitlines() == announced
    assert len(recorded.steps()) == 20
    assert recorded.errors() == []


@pytest.mark.parametrize("steps", [0, 8])
def test_a_child_forked_after_a_window_ends_with_its_own_code(train: Train, steps: int) -> None:
    code = f"""
import os, sys, torch
from torch import nn
net = nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def fit(num):
    for _ in range(num):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
fit(15)
child = os.fork()
if child == 0:
    fit({steps})
    print("child", end="")
    sys.exit(5)
print("", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    recorded = train(code)
    assert recorded.process.stdout == "child 5\n"
    assert recorded.process.stderr == ""
    assert (recorded.rank() / "windows" / "0.json").exists()
