"""Phases by name: what is recorded of `perfscope.phase`, `record_function` and NVTX in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfscope.analysis.phases import RankPhase, rank_phases
from perfscope.rundir.reader import RunReader
from tests.probe.conftest import Recorded, Train, environment

MS = 1_000_000
MODEL = """
import asyncio, os, sys, threading, time
import torch, perfscope
from torch.profiler import record_function
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update():
    loss = model(torch.randn(2, 4)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""


def phases_of(run: Path, rank: int = 0) -> dict[str, RankPhase]:
    """By path; of other threads with a star."""
    (run / "run.json").write_text(json.dumps({"schema_version": 1, "perfscope_version": "0"}))
    reader = RunReader(run)
    found = rank_phases(rank, reader.phases(rank), reader.steps(rank))
    assert not [note for note in reader.notes if "phases" in note.path]
    return {
        "/".join(name for name, _ in path) + ("" if trains else "*"): phase
        for (path, trains), phase in found.items()
    }


def recorded_phases(train: Train, code: str, **config: object) -> tuple[Recorded, dict[str, RankPhase]]:
    recorded = train(MODEL + code, **config)
    assert recorded.errors() == []
    return recorded, phases_of(recorded.run)


def test_time_is_divided_among_set_up_steps_and_what_follows(train: Train) -> None:
    recorded, phases = recorded_phases(
        train,
        """
with perfscope.phase("set-up"):
    time.sleep(0.02)
with perfscope.phase("epoch"):
    for _ in range(6):
        update()
        with perfscope.phase("rollout"):
            time.sleep(0.01)
            with perfscope.phase("reset"):
                time.sleep(0.005)
with perfscope.phase("after"):
    time.sleep(0.01)
""",
        trace=False,
    )
    assert set(phases) == {"set-up", "epoch", "epoch/rollout", "epoch/rollout/reset", "after"}
    steps = recorded.steps()
    before, epoch, rollout = phases["set-up"], phases["epoch"], phases["epoch/rollout"]
    assert before.before_ns == before.ns >= 20 * MS and before.in_steps_ns == 0
    assert (epoch.count, epoch.is_open, epoch.num_steps) == (1, False, len(steps))
    # The last rollout follows the last update: its step has ended.
    assert rollout.count == 6 and rollout.num_steps == 5
    assert 5 * 15 * MS <= rollout.in_steps_ns < rollout.ns
    reset = phases["epoch/rollout/reset"]
    assert rollout.own_ns == rollout.ns - reset.ns and reset.ns >= 6 * 5 * MS
    assert sum(step["dur_ns"] for step in steps) >= epoch.in_steps_ns >= rollout.in_steps_ns
    assert phases["after"].in_steps_ns == phases["after"].before_ns == 0


def test_an_exception_passes_and_ends_its_phases(train: Train) -> None:
    recorded, phases = recorded_phases(
        train,
        """
@perfscope.phase("decorated")
def fails():
    with perfscope.phase("inner"):
        raise KeyError("mine")
for _ in range(4):
    update()
    try:
        fails()
    except KeyError as error:
        print(error)
    with perfscope.phase("next"):
        pass
""",
    )
    assert set(phases) == {"decorated", "decorated/inner", "next"}
    assert not any(phase.is_open for phase in phases.values())
    assert recorded.process.stdout.count("mine") == 4


def test_threads_and_tasks_nest_by_themselves(train: Train) -> None:
    _, phases = recorded_phases(
        train,
        """
def work():
    with perfscope.phase("loads"):
        time.sleep(0.004)
@perfscope.phase("task")
async def task():
    with perfscope.phase("awaits"):
        await asyncio.sleep(0.004)
async def both():
    await asyncio.gather(task(), task())
for _ in range(4):
    update()
    with perfscope.phase("outer"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    asyncio.run(both())
""",
    )
    assert set(phases) == {"outer", "loads*", "task", "task/awaits"}
    assert phases["task"].count == 8 and phases["task/awaits"].ns >= 8 * 4 * MS
    assert phases["outer"].own_ns == phases["outer"].ns > phases["loads*"].ns


def test_a_decorated_generator_is_timed_while_it_runs_itself(train: Train) -> None:
    recorded, phases = recorded_phases(
        train,
        """
@perfscope.phase("batches")
def batches():
    got = []
    for number in range(3):
        time.sleep(0.002)
        got.append((yield number))
    return got
@perfscope.phase("async batches")
async def streamed():
    for number in range(3):
        await asyncio.sleep(0.002)
        try:
            yield number
        except ValueError:
            print("thrown in")
def consume():
    got = yield from batches()
    print(got)
async def consume_streamed():
    stream = streamed()
    print(await stream.__anext__(), await stream.athrow(ValueError()), [each async for each in stream])
update()
for _ in range(4):
    generator = consume()
    next(generator)
    time.sleep(0.02)  # the consumer's
    generator.send("a")
    try:
        generator.send("b"); generator.send("c")
    except StopIteration:
        pass
    asyncio.run(consume_streamed())
    update()
""",
    )
    assert recorded.process.stdout.count("['a', 'b', 'c']") == 4
    assert recorded.process.stdout.count("thrown in\n0 1 [2]") == 4
    assert 4 * 3 * 2 * MS <= phases["batches"].ns < 4 * 20 * MS
    assert phases["async batches"].ns >= 4 * 3 * 2 * MS
    assert not any(phase.is_open for phase in phases.values())


def test_record_function_of_the_program_is_a_phase_and_torchs_own_is_not(train: Train) -> None:
    _, phases = recorded_phases(
        train,
        """
@record_function("decorated")
def decorated():
    time.sleep(0.001)
data = torch.utils.data.DataLoader(torch.randn(8, 4))
for _ in range(4):
    for _ in data:
        pass
    with record_function("marked"):
        update()
    decorated()
""",
    )
    assert set(phases) == {"marked", "decorated"}
    assert phases["marked"].count == phases["decorated"].count == 4


def test_nvtx_ranges_that_do_not_balance_end_nothing(train: Train) -> None:
    """torch without CUDA raises on each call. The stand-in follows NVTX: a pop of nothing is no error."""
    _, phases = recorded_phases(
        train,
        """
import torch.cuda.nvtx as nvtx
try:
    nvtx.range_push("refused")
except RuntimeError:
    pass
class Stub:
    rangePushA = staticmethod(lambda message: 0)
    rangePop = staticmethod(lambda: -2)
nvtx._nvtx = Stub
for _ in range(4):
    update()
    nvtx.range_pop()
    nvtx.range_push("pushed")
    with nvtx.range("scope {}", "x"):
        time.sleep(0.001)
    nvtx.range_pop()
    nvtx.range_pop()
nvtx.range_push("left open")
""",
    )
    refused = phases.pop("refused", None)  # where torch has CUDA
    assert refused is None or refused.count == 1
    assert {path.rpartition("/")[2] for path in phases} == {"pushed", "scope x", "left open"}
    assert phases["left open"].is_open and not phases["pushed"].is_open
    assert phases["pushed"].count == phases["pushed/scope x"].count == 4


def test_traced_steps_have_the_phases_of_the_training_thread(train: Train) -> None:
    recorded, _ = recorded_phases(
        train,
        """
with perfscope.phase("epoch"):
    for _ in range(8):
        with perfscope.phase("update"):
            update()
        threading.Thread(target=perfscope.phase("elsewhere")(time.sleep), args=(0,)).start()
""",
        overhead=0.5,
    )
    marks = recorded.marks("phase")
    assert marks[0] == "epoch" and set(marks) == {"epoch", "update"} and marks.count("update") >= 3


def test_a_phase_that_is_open_when_the_process_is_killed_is_known(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        MODEL
        + """
for _ in range(5):
    with perfscope.phase("quick"):
        update()
    time.sleep(0.06)
with perfscope.phase("rollout"):
    print("rolling out", flush=True)
    time.sleep(60)
"""
    )
    run = tmp_path / "run"
    run.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script)], env=environment(run, trace=False), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "rolling out" in line:
            break
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    phases = phases_of(run)
    assert phases["rollout"].is_open and phases["rollout"].count == 1
    assert phases["quick"].count == 5 and not phases["quick"].is_open


def test_phases_too_frequent_to_be_timed_are_named_as_missing(train: Train) -> None:
    recorded, phases = recorded_phases(
        train,
        """
for _ in range(3):
    update()
with perfscope.phase("loop"):
    for _ in range(60000):
        with perfscope.phase("tiny"):
            pass
update()
""",
    )
    missing = [entry for entry in recorded.meta().get("missing", []) if entry["figure"] == "phases"]
    assert [entry["what"] for entry in missing] == ["time of phase tiny from some moment on"]
    assert phases["loop/tiny"].count < 60000 and phases["loop"].count == 1


def test_a_forked_child_leaves_the_phases_of_its_parent_alone(train: Train) -> None:
    _, phases = recorded_phases(
        train,
        """
for _ in range(3):
    update()
    with perfscope.phase("parent"):
        child = os.fork()
        if child == 0:
            with perfscope.phase("child"):
                time.sleep(0.01)
            os._exit(0)
        os.waitpid(child, 0)
""",
    )
    assert set(phases) == {"parent"} and phases["parent"].count == 3


@pytest.mark.parametrize("is_recorded", [False, True])
def test_what_marked_functions_are_and_return_stays(tmp_path: Path, is_recorded: bool) -> None:
    """Scripted and compiled functions included; an own class of phases may be entered again while open."""
    code = """
import inspect, torch, perfscope
from torch.profiler import record_function
@torch.jit.script
def scripted(x):
    with torch.autograd.profiler.record_function("scripted"):
        return x * 2
@torch.compile(backend="eager")
def compiled(x):
    with perfscope.phase("inside"):
        return x * 3
@perfscope.phase("documented")
def documented(a, b=2):
    "What it does."
    return a + b
@perfscope.phase("coroutine")
async def coroutine(): ...
again = perfscope.phase("again")
with again, again:
    pass
print(scripted(torch.ones(2)).tolist(), compiled(torch.ones(2)).tolist(), documented(1))
print(documented.__doc__, documented.__name__, inspect.signature(documented))
print(inspect.iscoroutinefunction(coroutine))
"""
    script = tmp_path / "program.py"
    script.write_text(code)
    (tmp_path / "run").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env=environment(tmp_path / "run") if is_recorded else None,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "[2.0, 2.0] [3.0, 3.0] 3",
        "What it does. documented (a, b=2)",
        "True",
    ]
    assert not list((tmp_path / "run").iterdir())


def test_syncs_of_files_and_collectives_of_objects_are_phases_but_in_checkpoints(train: Train) -> None:
    code = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
class Slow:
    def __reduce__(self):
        time.sleep(0.01)
        return (Slow, ())
class Syncs:
    def __reduce__(self):
        os.fdatasync(log.fileno())
        return (Slow, ())
with open("log", "w") as log:
    for _ in range(4):
        update()
        os.fsync(log.fileno())
        objects = [None]
        dist.all_gather_object(objects, Slow())
        assert isinstance(objects[0], Slow)
        synced = threading.Thread(target=os.fsync, args=(log.fileno(),))
        synced.start(); synced.join()
    torch.save(Syncs(), "checkpoint")
try:
    os.fsync(1 << 20)
except OSError as error:
    print(error.__traceback__.tb_next)
dist.destroy_process_group()
"""
    recorded, phases = recorded_phases(train, code)
    assert phases["os.fsync"].count == 5 and "os.fdatasync" not in phases
    gather = phases["all_gather_object"]
    assert gather.count == 4 and gather.ns >= phases["all_gather_object/pickle"].ns >= 4 * 10 * MS
    assert phases["all_gather_object/unpickle"].count == 4
    assert recorded.process.stdout.splitlines()[-1] == "None"  # no frame of perfscope's
