"""The local engine: processes that may die, and that do not stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from perfscope.engines.local import LocalExecutor, WorkerDied
from perfscope.engines.opening import open_executor
from perfscope.errors import UnreadableFileError, UsageError
from perfscope.tasks import Failure, completed


def die_once(marker: Path) -> int:
    """Ends its process by SIGKILL where `marker` is not there yet."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1


def die(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse(path: str) -> None:
    raise UnreadableFileError(path, "it is torn")


def unpicklable(number: int) -> object:
    return lambda: number


def long_and_unpicklable(length: int) -> object:
    """What comes first is sent before it is known that the last cannot be."""
    return [bytes(length), lambda: length]


def test_a_call_gives_its_result_and_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    with open_executor(jobs=2) as executor:
        assert executor is not None
        assert executor.submit(pow, 2, 10).result() == 1024
        markers = [tmp_path / str(number) for number in range(3)]
        assert dict(completed(executor, die_once, markers)) == {0: 1, 1: 1, 2: 1}


def test_a_call_that_kills_every_worker_fails_alone() -> None:
    with open_executor(jobs=2) as executor:
        assert executor is not None
        done = dict(completed(executor, die, [0, 1, 2, 3]))
        assert done == {0: 0, 1: Failure("WorkerDied: the worker process ended with signal 9"), 2: 2, 3: 3}


def test_errors_come_back_as_they_were_raised() -> None:
    with LocalExecutor(1) as executor:
        with pytest.raises(UnreadableFileError, match=r"a.json cannot be read: it is torn") as caught:
            executor.submit(refuse, "a.json").result()
        assert caught.value.reason == "it is torn"
        with pytest.raises(RuntimeError, match="pickle"):
            executor.submit(unpicklable, 1).result()
        assert executor.submit(abs, -1).result() == 1


def test_values_of_any_length_come_back_also_after_one_that_was_sent_in_part() -> None:
    lengths = [0, (1 << 20) - 1, 1 << 20, 5 << 20]
    with LocalExecutor(1) as executor:
        assert [len(executor.submit(bytes, length).result()) for length in lengths] == lengths
        numbers = np.arange(1 << 18)
        assert (executor.submit(np.negative, numbers).result() == -numbers).all()
        with pytest.raises(RuntimeError, match="pickle"):
            executor.submit(long_and_unpicklable, 5 << 20).result()
        with pytest.raises(Exception, match=r"pickle|local object"):
            executor.submit(len, [bytes(5 << 20), lambda: 1]).result()
        assert executor.submit(pow, 2, 10).result() == 1024


def test_no_worker_outlives_the_context_even_where_calls_are_running() -> None:
    with open_executor(jobs=2) as executor:
        assert executor is not None
        futures = [executor.submit(time.sleep, 600) for _ in range(4)]
        pids = wait_for_children(os.getpid(), 2)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert futures[-1].cancelled()
    with pytest.raises(WorkerDied):
        futures[0].result()


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, name: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import time\n"
        "from perfscope.engines.opening import open_executor\n"
        "if __name__ == '__main__':\n"
        "    with open_executor(jobs=2) as executor:\n"
        "        for future in [executor.submit(time.sleep, 3) for _ in range(4)]:\n"
        "            future.result()\n"
    )
    with subprocess.Popen([sys.executable, str(program)], stderr=subprocess.DEVNULL) as process:
        pids = wait_for_children(process.pid, 2)
        process.send_signal(signal.Signals[name])
    deadline = time.monotonic() + 20  # after SIGKILL, they end with the call that they are at
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "local", "scheduler": "tcp://a:1"}, "--scheduler is for --engine dask"),
        ({"engine": "mpi", "jobs": 2}, "--jobs is for workers started here"),
        ({"engine": "dask", "jobs": 2, "scheduler": "tcp://a:1"}, "--jobs is for workers started here"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message), open_executor(**options):  # type: ignore[arg-type]
        pass


def wait_for_children(pid: int, number: int) -> list[int]:
    """Worker processes of a process: those that have been started by multiprocessing."""
    deadline = time.monotonic() + 30
    while True:
        workers = [
            child.pid
            for child in psutil.Process(pid).children()
            if any("spawn_main" in word for word in child.cmdline())
        ]
        if len(workers) >= number:
            return workers
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
