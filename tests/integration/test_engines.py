"""Real workers read the ranks: the report is byte for byte that of one process, also if one is killed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

import psutil
import pytest

from perfscope.analysis.run import analyze_run
from perfscope.engines.opening import open_executor
from perfscope.errors import PerfscopeError
from perfscope.reports.document import build_document, render_json
from perfscope.rundir.reader import RunReader

SCALE = Path(__file__).parents[2] / "benchmarks" / "scale.py"
RANKS = 64
BESIDE = Path(sys.executable).parent / "mpiexec"  # as the mpich wheel puts it
MPIEXEC = str(BESIDE) if BESIDE.exists() else shutil.which("mpiexec")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 ranks on four axes."""
    path = tmp_path_factory.mktemp("scale") / "run"
    options = ["--ranks", str(RANKS), "--axes", "4", "--layers", "30", "--keep", str(path)]
    subprocess.run([sys.executable, str(SCALE), *options], check=True, capture_output=True, timeout=120)
    return path


@pytest.fixture(scope="module")
def serial(run: Path) -> str:
    return document(run, None)


def document(run: Path, executor: Executor | None, on_progress: Callable[[], None] | None = None) -> str:
    def progress(done: int, total: int) -> None:
        assert 0 < done <= total == RANKS
        if on_progress is not None:
            on_progress()

    analysis = analyze_run(RunReader(run), executor=executor, progress=progress)
    assert len(analysis.ranks) == RANKS
    return render_json(build_document(analysis))


def report(run: Path, *options: str, launcher: tuple[str, ...] = ()) -> str:
    command = [*launcher, sys.executable, "-m", "perfscope", "report", str(run), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=with_mpi(), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_mpi() -> dict[str, str]:
    """The environment, with the MPI library of the mpich wheel, wherever that is installed."""
    for file in importlib.metadata.files("mpich") or () if importlib.util.find_spec("mpi4py") else ():
        if file.name == "libmpi.so.12":
            return {**os.environ, "MPI4PY_LIBMPI": str(Path(str(file.locate())).resolve())}
    return dict(os.environ)


class KillOnce:
    """Sends SIGKILL to a process once."""

    def __init__(self, pid_of: Callable[[], int]) -> None:
        self.pid_of, self.killed = pid_of, 0

    def __call__(self) -> None:
        if not self.killed:
            self.killed = self.pid_of()
            os.kill(self.killed, signal.SIGKILL)


def a_worker() -> int:
    children = psutil.Process().children()
    return next(int(child.pid) for child in children if "spawn_main" in " ".join(child.cmdline()))


def test_local_workers_give_the_same_report_and_one_may_be_killed(run: Path, serial: str) -> None:
    with open_executor(jobs=2) as executor:
        kill = KillOnce(a_worker)
        assert document(run, executor, kill) == serial
        assert kill.killed


def test_the_command_gives_the_same_report_with_workers_of_its_own(run: Path, serial: str) -> None:
    assert report(run, "--jobs", "2") == report(run) == f"{serial.rstrip()}\n"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs Dask")
def test_dask_gives_the_same_report_and_one_worker_may_be_killed(run: Path, serial: str) -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        assert report(run, "--engine", "dask", "--scheduler", cluster.scheduler_address) == report(run)
        with open_executor("dask", scheduler=cluster.scheduler_address) as executor:
            kill = KillOnce(lambda: int(cluster.workers[0].pid))
            assert document(run, executor, kill) == serial
            assert kill.killed
    assert report(run, "--engine", "dask", "--jobs", "2") == report(run)


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs Dask")
def test_a_scheduler_that_is_not_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfscope.engines.dask.CONNECT_S", 0.5)
    with (
        pytest.raises(PerfscopeError, match=r"tcp://127\.0\.0\.1:9 does not answer"),
        open_executor("dask", scheduler="tcp://127.0.0.1:9"),
    ):
        pass


@pytest.mark.slow
@pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpiexec"
)
def test_ranks_of_mpi_give_the_same_report(run: Path) -> None:
    launcher = (str(MPIEXEC), "-n", "3")
    assert report(run, "--engine", "mpi", launcher=launcher) == report(run)
