"""Trainings of every form, plain and under `perfscope run`: what they print, return and write is the same."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.run_support import PERFSCOPE, attached, num_steps, run, user_environment

QUIET = ("--ceilings", "off")
TRAINING = """
import os, signal, sys, threading, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
def build():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
def train(model, batches, middle=lambda step: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(batches):
        loss = model(batch).square().mean()
        middle(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item().hex(), flush=True)
def batches(count):
    return (torch.randn(4, 8) for _ in range(count))
"""
FORMS = {
    "own profiler": """
from torch.profiler import ProfilerActivity, profile, schedule
when = schedule(wait=2, warmup=1, active=3, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=when) as mine:
    train(build(), batches(12), lambda step: mine.step())
print(sorted((one.key, one.count) for one in mine.key_averages() if one.key.startswith("aten::addmm")))
""",
    "jit script": "train(torch.jit.script(build()), batches(12))\n",
    "jit trace": "train(torch.jit.trace(build(), torch.ones(4, 8)), batches(12))\n",
    "loader workers": """
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        return torch.full((8,), float(index))
loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2)
for epoch in range(2):
    train(build(), loader)
""",
    "threads": """
threads = [threading.Thread(target=train, args=(build(), [torch.ones(4, 8)] * 8)) for _ in range(1)]
for one in threads:
    one.start()
train_alone = [one.join() for one in threads]
train(build(), batches(8))
""",
    "fork": """
child = os.fork()
if child == 0:
    sys.stdout = open("own-child", "w")  # the order in which two processes print is not theirs to choose
train(build(), batches(6))
if child == 0:
    sys.stdout.flush()
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "fork in a window": """
def middle(step):
    if step == 3 and os.fork() == 0:
        os._exit(0)
train(build(), batches(12), middle)
print(os.waitstatus_to_exitcode(os.wait()[1]))
""",
    "execv": """
train(build(), batches(6))
sys.stdout.flush()
if sys.argv[1:] != ["again"]:
    os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
""",
    "execv in a window": """
def middle(step):
    if step == 3 and sys.argv[1:] != ["again"]:
        os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
train(build(), batches(12), middle)
""",
    "SIGKILL in a window": """
train(build(), batches(12), lambda step: os.kill(os.getpid(), signal.SIGKILL) if step == 3 else None)
""",
    "SIGTERM in a window": """
train(build(), batches(12), lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == 3 else None)
""",
    "os._exit in a window": """
train(build(), batches(12), lambda step: os._exit(11) if step == 3 else None)
""",
    "error in a window": """
train(build(), batches(12), lambda step: 1 / (3 - step))
""",
    "address space": """
import resource
def middle(step):
    if step == 6:
        with open("/proc/self/statm") as file:
            room = int(file.read().split()[0]) * 4096 + (32 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
    if step == 8:
        bytearray(1 << 30)
train(build(), batches(12), middle)
""",
}
ALWAYS = ("fork",)  # the others are slow
COMPILED = "train(torch.compile(build()), batches(12))\n"
RANK_KILLED = """
import multiprocessing, torch.distributed as dist
def rank(number):
    store = "file://" + os.path.abspath("store")
    dist.init_process_group("gloo", init_method=store, rank=number, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(build())
    how = getattr(signal, sys.argv[1])
    try:
        train(model, batches(12), lambda at: os.kill(os.getpid(), how) if (at, number) == (3, 1) else None)
    except RuntimeError as error:
        print("the other one is gone", type(error).__name__)
        os._exit(9)
if __name__ == "__main__":
    other = multiprocessing.get_context("fork").Process(target=rank, args=(1,))
    other.start()
    sys.stdout = sys.stdout
    rank(0)
"""
MANY_RANKS = """
import os, subprocess, sys, time
if "RANK" in os.environ:
    import perfscope
    for _ in range(20):
        perfscope.step(1)
        time.sleep(0.01)
    with open("own-" + os.environ["RANK"], "w") as file:
        file.write("done")
else:
    def variables(rank):
        return {**os.environ, "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "16", "RANK": rank, "LOCAL_RANK": rank}
    command = [sys.executable, *sys.argv]
    ranks = [subprocess.Popen(command, env=variables(str(number))) for number in range(16)]
    sys.exit(max(one.wait() for one in ranks))
"""
OUT_OF_MEMORY = """
import os, perfscope
for _ in range(50):
    perfscope.step()
print("now", flush=True)
with open(os.environ["GROUP"] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
kept = []
while True:
    kept.append(b"x" * (1 << 20))
"""
INTERRUPTED = """
import perfscope, time
for step in range(8):
    perfscope.step()
    if step == 3:
        print("ready", flush=True)
        time.sleep(60)
"""
SOAK = """
import perfscope
def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4
for step in range(1_000_000):
    perfscope.step(1)
    if step in (499_999, 999_999):
        print(resident_kib())
"""


def is_same(tmp_path: Path, program: str, *arguments: str, environment: dict[str, str] | None = None) -> Path:
    """Run `program` plain and recorded, each in a folder of its own; the latter's run directory.

    Asserts that output, exit code and files are equal.
    """
    # perfscope sets this one where the user has not: Kineto's lines on each profiler session go missing.
    environment = environment or user_environment(KINETO_LOG_LEVEL="99")
    seen = []
    for name in ("plain", "recorded"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(program)
        command = [sys.executable, "train.py", *arguments]
        if name == "recorded":
            ended = run(*command, cwd=folder, options=QUIET, environment=environment)
        else:
            ended = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        code = ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
        stderr = ended.stderr.replace(os.fsencode(folder), b"")  # in tracebacks
        own = [line for line in stderr.splitlines() if not line.startswith(b"perfscope:")]
        files = {path.name: path.read_bytes() for path in folder.glob("own-*")}
        seen.append((code, ended.stdout.decode(), own, files))
    assert seen[1] == seen[0]
    return tmp_path / "recorded" / "run"


def report(run_dir: Path) -> dict[str, object]:
    """The JSON report, which must be had of every run."""
    shown = subprocess.run(
        [*PERFSCOPE, "report", str(run_dir), "--json"],
        env=user_environment(),
        capture_output=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    document: dict[str, object] = json.loads(shown.stdout)
    return document


@pytest.mark.torch
@pytest.mark.parametrize(
    "form", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in FORMS]
)
def test_a_form_of_training_is_the_same(tmp_path: Path, form: str) -> None:
    pytest.importorskip("torch")
    run_dir = is_same(tmp_path, TRAINING + FORMS[form])
    assert 0 in attached(run_dir)
    if "window" in form:
        report(run_dir)  # it may have ended half-way


@pytest.mark.slow
@pytest.mark.torch
def test_a_compiled_training_is_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    run_dir = is_same(tmp_path, TRAINING + COMPILED)
    assert num_steps(run_dir, 0) == 12


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
def test_a_rank_that_dies_in_a_window_under_ddp(tmp_path: Path, number: str) -> None:
    pytest.importorskip("torch")
    program = TRAINING + RANK_KILLED
    # Both ranks print each loss; which comes first is chance.
    program = program.replace("print(step,", "(dist.get_rank() == 0) and print(step,")
    run_dir = is_same(tmp_path, program, number)
    assert attached(run_dir) == [0, 1]
    report(run_dir)


@pytest.mark.slow
def test_sixteen_ranks(tmp_path: Path) -> None:
    run_dir = is_same(tmp_path, MANY_RANKS)
    assert attached(run_dir) == list(range(16))
    # The last one has begun, and no call says where it ends.
    assert [num_steps(run_dir, rank) for rank in range(16)] == [19] * 16


def test_a_training_killed_for_its_memory(tmp_path: Path) -> None:
    group = Path(f"/sys/fs/cgroup/memory/perfscope-test-{os.getpid()}")
    limit = "memory.limit_in_bytes"
    if not group.parent.is_dir():
        group, limit = Path(f"/sys/fs/cgroup/perfscope-test-{os.getpid()}"), "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text(str(64 << 20))
    except OSError as error:
        with suppress(OSError):  # it was not made
            group.rmdir()
        pytest.skip(f"no control group of memory can be made: {error.strerror}")
    try:
        run_dir = is_same(tmp_path, OUT_OF_MEMORY, environment=user_environment(GROUP=str(group)))
        manifest = json.loads((run_dir / "run.json").read_bytes())
        assert manifest["exit"] == {"code": 137, "signal": int(signal.SIGKILL)}
        report(run_dir)
    finally:
        group.rmdir()


def on_a_terminal(cwd: Path, *command: str) -> tuple[int, list[str]]:
    """Run as the foreground of a terminal of its own, press Ctrl-C when it is ready: exit code and lines."""
    pid, master = pty.fork()
    if pid == 0:
        try:
            os.chdir(cwd)
            os.execve(command[0], command, user_environment())
        finally:
            os._exit(127)
    shown = b""
    with suppress(OSError):  # EIO: the last program has closed the terminal
        pressed = False
        while chunk := os.read(master, 4096):
            shown += chunk
            if not pressed and b"ready" in shown:
                pressed = True
                time.sleep(0.2)  # it has gone on from there to its sleep
                os.write(master, b"\x03")
    os.close(master)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    lines = [line for line in shown.decode().splitlines() if not line.startswith("perfscope:")]
    return code if code >= 0 else 128 - code, lines


def test_ctrl_c_on_a_terminal_inside_a_window(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(INTERRUPTED)
    plain = on_a_terminal(tmp_path, sys.executable, "train.py")
    recorded = on_a_terminal(
        tmp_path, *PERFSCOPE, "run", *QUIET, "-o", "run", "--", sys.executable, "train.py"
    )
    assert plain[0] == 130
    assert any("KeyboardInterrupt" in line for line in plain[1])
    assert recorded == plain
    assert attached(tmp_path / "run") == [0]


@pytest.mark.slow
def test_memory_stays_level_over_a_million_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOAK)
    ended = run(sys.executable, "train.py", cwd=tmp_path, options=QUIET)
    middle, last = map(int, ended.stdout.split())
    assert abs(last - middle) < 1024  # KiB
    assert num_steps(tmp_path / "run", 0) == 999_999
