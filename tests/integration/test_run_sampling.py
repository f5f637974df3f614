"""`perfscope run` and the sampler: one per host, alive as long as the ranks, never in the training's way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

import perfscope
from perfscope.analysis.run import analyze_run
from perfscope.ingest.run import ingest_run
from perfscope.messages.missing import cause_text
from perfscope.rundir.reader import RunReader
from perfscope.rundir.sampler_call import sampler_argv
from perfscope.rundir.samples import HostSamples, read_samples
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from tests.integration.run_support import PERFSCOPE, read_manifest, run, user_environment

pytestmark = pytest.mark.torch
HOST = socket.gethostname().replace("/", "_")
TRAINING = """
import os, sys, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end = time.monotonic() + float(sys.argv[1])
while True:
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    if time.monotonic() > end:
        break
try:
    os.wait()
except ChildProcessError:
    print("no child")
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "training.py"
    path.write_text(TRAINING)
    return str(path)


def samples_of(run_dir: Path) -> HostSamples:
    return read_samples(run_dir / "hosts" / HOST / "samples.jsonl", HOST)


def start(script: str, cwd: Path, seconds: float, *options: str) -> subprocess.Popen[bytes]:
    command = [*PERFSCOPE, "run", "--ceilings", "off", "-o", "run", *options, "--", sys.executable, script]
    return subprocess.Popen(
        [*command, str(seconds)],
        cwd=cwd,
        env=user_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def await_sampler(run_dir: Path) -> int:
    """The pid of the sampler, as soon as it has written."""
    path = run_dir / "hosts" / HOST / "samples.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) > 5:
            return int(json.loads(lines[0])["pid"])
        time.sleep(0.05)
    raise AssertionError("no sampler wrote")


def await_end(pid: int, seconds: float = 15) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_counters_are_sampled_from_the_first_step_to_the_end(script: str, tmp_path: Path) -> None:
    ended = run(sys.executable, script, "2", cwd=tmp_path, options=["--ceilings", "off"])
    assert (ended.returncode, ended.stdout) == (3, b"no child\n")  # the sampler is nobody's child here
    samples = samples_of(tmp_path / "run")
    assert samples.ends[0].end == "every rank has ended" and samples.num_dropped == 0
    metrics = {series.metric for series in samples.series}
    assert {"cpu_busy", "rank_cpu", "net_rx_bytes"} <= metrics
    busy = samples.find("cpu_busy", cpu="all")[0]
    assert (busy.values[1:] >= busy.values[:-1]).all() and len(busy.values) > 4
    host_dir = tmp_path / "run" / "hosts" / HOST
    assert json.loads((host_dir / "topology.json").read_text())["logical_cpus"] == os.cpu_count()
    assert not (host_dir / "pids").exists()


def test_ranks_of_one_host_share_one_sampler(script: str, tmp_path: Path) -> None:
    command = ("torchrun", "--standalone", "--nproc-per-node", "2", script, "2")
    run(*command, cwd=tmp_path, options=["--ceilings", "off"])
    samples = samples_of(tmp_path / "run")
    assert len(samples.ends) == 1
    ranks = {json.loads(p.read_text())["pid"] for p in (tmp_path / "run").glob("ranks/*/rank.json")}
    sampled = {int(series.labels["pid"]) for series in samples.find("rank_cpu")}
    assert sampled == ranks and len(ranks) == 2


def test_the_sampler_ends_with_ranks_that_are_killed(script: str, tmp_path: Path) -> None:
    wrapper = start(script, tmp_path, 60)
    sampler = await_sampler(tmp_path / "run")
    (meta,) = (tmp_path / "run").glob("ranks/*/rank.json")
    os.kill(json.loads(meta.read_text())["pid"], signal.SIGKILL)
    wrapper.communicate(timeout=30)
    assert wrapper.returncode == 128 + signal.SIGKILL
    assert await_end(sampler)
    samples = samples_of(tmp_path / "run")
    assert samples.ends and samples.num_dropped == 0


def test_killing_perfscope_leaves_training_and_sampler_at_work(script: str, tmp_path: Path) -> None:
    wrapper = start(script, tmp_path, 4)
    sampler = await_sampler(tmp_path / "run")
    wrapper.kill()
    out, _ = wrapper.communicate(timeout=30)
    assert out == b"no child\n"  # the pipe closed when the training ended, which it did by itself
    assert await_end(sampler)
    assert samples_of(tmp_path / "run").ends


def test_a_sampler_that_is_killed_is_replaced_and_the_training_goes_on(script: str, tmp_path: Path) -> None:
    wrapper = start(script, tmp_path, 4)
    os.kill(await_sampler(tmp_path / "run"), signal.SIGKILL)
    out, err = wrapper.communicate(timeout=60)
    assert (wrapper.returncode, out) == (3, b"no child\n")
    assert all(line.startswith(b"perfscope: ") for line in err.splitlines())
    samples = samples_of(tmp_path / "run")
    assert set(samples.find("cpu_busy")[0].segment) == {0, 1}  # counters are not differenced across the two
    assert len(samples.ends) == 1 and samples.num_dropped <= 1


def test_killing_sampler_and_perfscope_leaves_the_training_as_it_is(script: str, tmp_path: Path) -> None:
    wrapper = start(script, tmp_path, 3)
    sampler = await_sampler(tmp_path / "run")
    wrapper.kill()
    os.kill(sampler, signal.SIGKILL)
    out, _ = wrapper.communicate(timeout=30)
    assert out == b"no child\n"
    samples = samples_of(tmp_path / "run")
    assert samples.find("cpu_busy") and not samples.ends and samples.num_dropped <= 1


def test_sampling_can_be_left_out(script: str, tmp_path: Path) -> None:
    options = ["--ceilings", "off", "--sample-interval", "off"]
    ended = run(sys.executable, script, "0.3", cwd=tmp_path, options=options)
    assert ended.returncode == 3
    assert not list((tmp_path / "run").rglob("samples.jsonl"))
    assert read_manifest(tmp_path / "run")["options"]["sampling"] is None


def elsewhere(command: str) -> tuple[str, ...]:
    """The command as on a host on which no `perfscope run` lives."""
    return ("sh", "-c", f"rm run/hosts/*/watcher; {command}")


def test_where_no_perfscope_run_lives_a_rank_starts_the_sampler(script: str, tmp_path: Path) -> None:
    ended = run(*elsewhere(f"{sys.executable} {script} 2"), cwd=tmp_path, options=["--ceilings", "off"])
    assert (ended.returncode, ended.stdout) == (3, b"no child\n")  # it is nobody's child there, too
    samples = samples_of(tmp_path / "run")
    assert len(samples.ends) == 1 and samples.find("cpu_busy")


HANDLER = """
import os, signal, subprocess, sys, time, torch
reaped = []
signal.signal(signal.SIGCHLD, lambda *_: reaped.append(os.wait()[0]))
child = subprocess.Popen(["sleep", "2"])
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end = time.monotonic() + 4
while time.monotonic() < end:
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
print(reaped == [child.pid])
"""


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_handler_that_waits_for_children_meets_its_own_only(where: str, tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(HANDLER)
    command: tuple[str, ...] = (sys.executable, "handler.py")
    if where == "elsewhere":
        command = elsewhere(f"{sys.executable} handler.py")
    ended = run(*command, cwd=tmp_path, options=["--ceilings", "off"])
    assert (ended.returncode, ended.stdout) == (0, b"True\n")
    assert samples_of(tmp_path / "run").ends


def test_a_host_without_perfscopes_python_says_so_and_trains(script: str, tmp_path: Path) -> None:
    command = elsewhere(f"PERFSCOPE_PYTHON=/nowhere/python {sys.executable} {script} 0.3")
    ended = run(*command, cwd=tmp_path, options=["--ceilings", "off"])
    assert ended.returncode == 3
    notes = json.loads((tmp_path / "run" / "ranks" / "0" / "rank.json").read_text())["notes"]
    assert any("/nowhere/python" in note for note in notes)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_packages_that_only_pythonpath_names_reach_the_sampler(
    where: str, script: str, tmp_path: Path
) -> None:
    """As on clusters whose modules set PYTHONPATH, and with `pip install --target`."""
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    folders = [path for path in sys.path[1:] if "site-packages" in path]
    packages = os.pathsep.join([str(Path(perfscope.__file__).parents[1]), *folders])
    environment = {**os.environ, "PYTHONPATH": packages}
    command = (
        [sys.executable, script, "0.3"] if where == "here" else elsewhere(f"{sys.executable} {script} 0.3")
    )
    ended = subprocess.run(
        [bare / "bin" / "python", "-m", "perfscope", "run", "-o", "run", "--ceilings", "off", "--", *command],
        env=environment, cwd=tmp_path, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 3, ended.stderr
    assert samples_of(tmp_path / "run").ends


def test_a_sampler_that_cannot_start_says_why_in_the_report(script: str, tmp_path: Path) -> None:
    assert run(sys.executable, script, "0.3", cwd=tmp_path, options=["--ceilings", "off"]).returncode == 3
    folder = tmp_path / "run" / "hosts" / HOST
    for path in folder.glob("s*"):
        path.unlink()
    python = f"{sys.base_prefix}/bin/python3"  # it has no perfscope
    argv = sampler_argv(python, "/nowhere", str(tmp_path / "run"), HOST, os.getpid(), {})
    assert subprocess.run(argv, check=False, timeout=60).returncode == 1
    ingest_run(tmp_path / "run")
    machine = analyze_run(RunReader(tmp_path / "run")).machine
    assert machine is not None
    (missing,) = [entry for entry in machine.missing if entry.figure is Figure.HARDWARE_COUNTERS]
    assert missing.cause is Cause.SAMPLER_NOT_STARTED
    assert "ModuleNotFoundError: No module named 'perfscope'" in cause_text(missing)


@pytest.mark.parametrize("interval", ["fast", "1us", "-1s", "2h"])
def test_an_interval_that_makes_no_sense_is_refused_in_one_line(interval: str, tmp_path: Path) -> None:
    ended = run("true", cwd=tmp_path, options=["--sample-interval", interval])
    assert ended.returncode == 2
    assert interval in ended.stderr.decode().splitlines()[-1]


def test_a_stopped_sampler_does_not_outlive_the_run(tmp_path: Path, script: str) -> None:
    wrapper = start(script, tmp_path, 2)
    sampler = await_sampler(tmp_path / "run")
    os.kill(sampler, signal.SIGSTOP)
    wrapper.communicate(timeout=60)
    assert wrapper.returncode == 3
    assert await_end(sampler)
    # Continued, it has closed its file as ever.
    assert samples_of(tmp_path / "run").ends


def test_a_sampler_that_is_stopped_again_is_killed(tmp_path: Path, script: str) -> None:
    wrapper = start(script, tmp_path, 1)
    sampler = await_sampler(tmp_path / "run")
    stopping = subprocess.Popen(
        [sys.executable, "-c", f"import os, signal\nwhile True: os.kill({sampler}, signal.SIGSTOP)"],
        stderr=subprocess.DEVNULL,  # it ends when there is no such process any more
    )
    wrapper.communicate(timeout=60)
    assert wrapper.returncode == 3
    assert await_end(sampler)
    stopping.wait(10)
