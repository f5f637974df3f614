"""A bench run that goes wrong: one clear line on every rank, a code that says what kind, and no hang."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from perfscope.rundir import layout
from perfscope.rundir.reader import RunReader
from perfscope.runners.config import BenchConfig, Modifier
from perfscope.runners.mesh import Mesh
from perfscope.runners.rank import EXIT_FAILED, EXIT_IMPOSSIBLE, main
from perfscope.runners.starting.endings import EXIT_LOST_PEER

pytestmark = pytest.mark.torch

TINY = BenchConfig(scheme="dp.packed", num_ranks=2, batch=8, input_shape=(3, 16, 16), steps=2)
ENDLESS = replace(TINY, steps=1_000_000, timeout_s=10.0)
RECORDING = ["--ceilings", "off", "--sample-interval", "off", "--no-trace"]
PATIENCE_S = 120.0  # of the test, for a loaded machine; ranks have their own, shorter one


def command_of(config: BenchConfig | dict[str, Any] | str) -> list[str]:
    """A rank's command, as launchers start it."""
    if isinstance(config, BenchConfig):
        config = json.loads(config.to_json())
    text = config if isinstance(config, str) else json.dumps(config)
    return [sys.executable, "-m", "perfscope.runners.rank", text]


def environment_of(rank: int, num_ranks: int, port: int, **more: str) -> dict[str, str]:
    """What torchrun would tell the rank."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PERFSCOPE_")},
        **{name: str(value) for name, value in told.items()},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        **more,
    }


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def ranks(config: BenchConfig, num_ranks: int, **more: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Ranks without a launcher that would end the others for them. None of them survives the test."""
    port = free_port()
    with ExitStack() as stack:
        started = []
        for rank in range(num_ranks):
            environment = environment_of(rank, num_ranks, port, **more)
            one = subprocess.Popen(command_of(config), env=environment, stderr=subprocess.PIPE, text=True)
            stack.enter_context(one)
            stack.callback(one.kill)
            started.append(one)
        yield started


@contextmanager
def wrapped(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """`perfscope ARGUMENTS`, ended with the test."""
    with ExitStack() as stack:
        one = subprocess.Popen(
            [sys.executable, "-m", "perfscope", *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.enter_context(one)
        stack.callback(one.terminate)  # it passes that on to what it has started
        yield one


def kill_in_training(run_dir: Path, rank: int) -> None:
    """SIGKILL for a rank that has made three steps."""
    folder = run_dir / layout.RANKS / str(rank)
    until("three steps", lambda: _lines(folder / layout.STEPS_JSONL) >= 3)
    os.kill(json.loads((folder / layout.RANK_JSON).read_text())["pid"], signal.SIGKILL)


def until(what: str, true: Callable[[], bool]) -> None:
    """Waits for something outside of this process."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)


# --- what cannot be: refused before anything is trained -------------------------------------------------

IMPOSSIBLE: dict[str, tuple[BenchConfig | dict[str, Any] | str, str]] = {
    "scheme": (replace(TINY, scheme="dp.pcked"), "there is no scheme 'dp.pcked'; did you mean dp.packed?"),
    "model": (replace(TINY, model="alexnt"), "there is no model 'alexnt'; did you mean alexnet?"),
    "modifier": (
        replace(TINY, modifiers=(Modifier("tpok", 0.1),)),
        "there is no modifier +tpok; did you mean +topk?",
    ),
    "number of a modifier": (
        replace(TINY, modifiers=(Modifier("topk", 1.5),)),
        "+topk(1.5): the share of elements that is sent must be above 0 and at most 1",
    ),
    "modifier of another scheme": (
        replace(TINY, scheme="dp.ddp", modifiers=(Modifier("prio"),)),
        "dp.ddp cannot take +prio (it takes: ",
    ),
    "batch": (
        replace(TINY, batch=7),
        "a batch of 7 cannot be cut into 2 equal parts, one per trainer; use 6, or other ranks",
    ),
    "two codecs": (
        replace(TINY, modifiers=(Modifier("fp16"), Modifier("int8"))),
        "+fp16 and +int8 cannot both squeeze the same gradients; take one",
    ),
    "mesh": (
        replace(TINY, mesh=Mesh.positional(2, 2, 1)),
        "mesh dp=2,tp=2 has 4 places, but there are 2 ranks; make the product of its axes equal",
    ),
    "axis": (replace(TINY, mesh=Mesh.positional(1, 2, 1)), "dp.packed splits dp; tp must be 1 in mesh tp=2"),
    "layer": (
        replace(TINY, scheme="mp.filter", num_ranks=5, mesh=Mesh.positional(1, 5, 1)),
        "conv1 has 16 output maps, which 5 ranks cannot share",
    ),
    "moving rate": (
        replace(TINY, scheme="easgd.sync_ar", moving_rate=0.9),
        "must be above 0 and below 2/(N+1)",
    ),
    "more ranks than planned": (
        replace(TINY, num_ranks=4),
        "the launcher started 2 ranks, but the run is for 4; start as many, or change --ranks or --mesh",
    ),
    "rubbish": ("rubbish", "this is no configuration of a bench run"),
    "one value to normalize": (
        replace(TINY, model="resnet50", batch=2, input_shape=(3, 8, 8)),
        "use a batch of at least 4",
    ),
    "type": ({"scheme": "serial", "period": "x"}, "run: period: must be a whole number from"),
    "unknown setting": ({"scheme": "serial", "color": 1}, 'run: has no key "color"; it knows'),
}


@pytest.mark.parametrize("fault", IMPOSSIBLE)
def test_what_cannot_be_is_one_line_and_code_2(
    fault: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rank 1 of 2: it must not even look for rank 0, which is not there."""
    for name, value in environment_of(1, 2, free_port()).items():
        monkeypatch.setenv(name, value)
    config, part = IMPOSSIBLE[fault]
    assert main(command_of(config)[-1:]) == EXIT_IMPOSSIBLE
    out, told = capfd.readouterr()
    [line] = told.splitlines()
    assert not out and line.startswith("perfscope bench: rank 1: ") and part in line


@pytest.mark.parametrize("kind", ["no archive", "empty folder"])
def test_data_without_samples_is_one_line_and_code_2(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "data.npz"
    if kind == "no archive":
        where.write_bytes(b"these are no samples")
    else:
        where.mkdir()
    alone = replace(TINY, scheme="serial", num_ranks=1, data=str(where))
    assert main(command_of(alone)[-1:]) == EXIT_IMPOSSIBLE
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("perfscope bench: rank 0: ") and str(where) in line


def test_data_that_is_not_there_is_one_line_on_every_rank(tmp_path: Path) -> None:
    where = str(tmp_path / "data.npz")
    with ranks(replace(TINY, data=where), 2) as started:
        for rank, one in enumerate(started):
            _, told = one.communicate(timeout=PATIENCE_S)
            assert one.returncode == EXIT_IMPOSSIBLE, told
            [line] = told.splitlines()
            assert line.startswith(f"perfscope bench: rank {rank}: there is no data at {where}; ")


def test_weights_that_cannot_be_written_at_the_end_fail_the_writing_rank_alone(tmp_path: Path) -> None:
    """The plan was fine; then something else is where the file was to be made."""
    file = tmp_path / "weights.pt"
    (tmp_path / "weights.pt.part").mkdir()
    with ranks(replace(TINY, save_weights=str(file)), 2) as started:
        told = [one.communicate(timeout=PATIENCE_S)[1] for one in started]
    assert [one.returncode for one in started] == [EXIT_FAILED, 0], told
    assert told[0] == f"perfscope bench: rank 0: cannot write the weights to {file}: Is a directory\n"
    assert told[1] == ""
    assert not file.exists()


def test_a_full_disk_leaves_no_half_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    alone = replace(TINY, scheme="serial", num_ranks=1, save_weights=str(tmp_path / "weights.pt"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limits[1]))
    try:
        assert main(command_of(alone)[-1:]) == EXIT_FAILED
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"perfscope bench: rank 0: cannot write the weights to {tmp_path}/weights.pt: ")
    assert not list(tmp_path.iterdir())
    assert main(command_of(alone)[-1:]) == 0
    [file] = tmp_path.iterdir()
    assert "conv1.weight" in torch.load(file)


@pytest.mark.parametrize("place", ["", "nowhere/weights.pt"])
def test_an_impossible_place_for_weights_is_one_line_before_training(
    place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = replace(TINY, scheme="serial", num_ranks=1, save_weights=str(tmp_path / place))
    assert main(command_of(alone)[-1:]) == EXIT_IMPOSSIBLE
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"perfscope bench: rank 0: --save-weights {tmp_path}")


# --- a rank that dies or stops answering ----------------------------------------------------------------


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_ranks_that_lose_another_say_so_and_end(fault: signal.Signals, tmp_path: Path) -> None:
    """Without a launcher: nothing but the lost connection, or its silence, tells them."""
    config = replace(ENDLESS, num_ranks=3, batch=9)
    with ranks(config, 3, **{layout.ENV_RUN_DIR: str(tmp_path)}) as started:
        until("training", lambda: (tmp_path / layout.SCHEME_JSON).exists() or started[0].poll() is not None)
        time.sleep(1.0)
        early = [one.stderr.read() for one in started if one.poll() is not None and one.stderr]
        assert not early, early
        started[1].send_signal(fault)
        for rank in (0, 2):
            _, told = started[rank].communicate(timeout=PATIENCE_S)
            assert started[rank].returncode == EXIT_LOST_PEER, told
            [line] = told.splitlines()
            assert line.startswith(
                f"perfscope bench: rank {rank}: lost contact with another rank, stopping ("
            )
        if fault == signal.SIGSTOP:
            assert started[1].poll() is None, "the stopped rank was to be the reason"


def test_a_rank_that_never_comes_does_not_hold_the_others() -> None:
    """Rank 0 of 2 alone."""
    ended = subprocess.run(
        command_of(replace(TINY, timeout_s=3.0)),
        env=environment_of(0, 2, free_port()),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == EXIT_LOST_PEER, ended.stderr
    assert "perfscope bench: rank 0: lost contact with another rank" in ended.stderr


def test_a_run_with_a_killed_rank_ends_and_can_be_reported(tmp_path: Path) -> None:
    """Under plain torchrun and `perfscope run`: a failure, whole steps of both ranks, a report."""
    run_dir = tmp_path / "run"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    training = [sys.executable, *torchrun, *command_of(ENDLESS)[1:]]
    with wrapped(["run", *RECORDING, "-o", str(run_dir), "--", *training]) as one:
        kill_in_training(run_dir, 1)
        out, told = one.communicate(timeout=PATIENCE_S)
    assert one.returncode != 0 and not out
    assert sum(line.startswith("perfscope bench: rank 0: ") for line in told.splitlines()) <= 1
    assert "attached 2 of expected 2 ranks" in told

    run = RunReader(run_dir)
    assert [run.steps(rank).num_rows >= 3 for rank in (0, 1)] == [True, True]
    with wrapped(["report", str(run_dir), "--json"]) as report:
        out, told = report.communicate(timeout=PATIENCE_S)
    assert report.returncode == 0, told
    assert json.loads(out)["schema_version"]


def test_bench_run_names_the_rank_that_was_killed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    options = ["--ranks", "2", "--batch", "8", "--input", "3x16x16", "--steps", "1000000", "--timeout", "10"]
    with wrapped(["bench", "run", "dp.packed", *options, *RECORDING, "-o", str(run_dir)]) as one:
        kill_in_training(run_dir, 1)
        out, told = one.communicate(timeout=PATIENCE_S)
    assert one.returncode == 128 + signal.SIGKILL, told
    assert not out, "a run that failed has no figures"
    said = [line for line in told.splitlines() if line.startswith("perfscope bench: ")]
    assert "perfscope bench: rank 1 was killed by signal 9 (SIGKILL); all ranks have ended" in said
    assert len(said) <= 2, "rank 0 may say once that it lost contact"


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0
