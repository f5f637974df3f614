"""Processes of this machine, each with one call at a time.

A process that dies (killed, out of memory) fails only the call that it was at, where ProcessPoolExecutor
fails all: the next call gets a new process. Workers end with the process that started them, however that
ends.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from perfscope.cycle_collector import in_one_command
from perfscope.lean_imports import lean_process

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_P = ParamSpec("_P")
_T = TypeVar("_T")
_PROTOCOL = 5  # before, each array is copied, and the copies are kept until the whole value is sent
_PIECE_BYTES = 1 << 20
_WHOLE, _CUT = b"1", b"0"
_starting = threading.Lock()  # `without_main` is for one thread at a time


class WorkerDied(RuntimeError):
    """A worker process ended before its call did."""


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


class LocalExecutor(Executor):
    """Runs calls in processes, which start when there are calls.

    Args:
        jobs: most processes at a time; None = one per CPU.
    """

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs or usable_cpus()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._workers: set[_Worker] = set()
        self._is_closed = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """See concurrent.futures.Executor.

        Raises:
            RuntimeError: the executor is closed.
        """
        future: Future[_T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("cannot submit a call: the executor is closed")
            self._calls.put(_Call(future, partial(fn, *args, **kwargs)))
            if len(self._threads) < self.jobs:
                thread = threading.Thread(target=self._serve, name="perfscope-worker", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See concurrent.futures.Executor."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                if cancel_futures:
                    self._cancel_waiting()
                for _ in self._threads:
                    self._calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def stop(self) -> None:
        """Ends the worker processes without waiting for their calls."""
        self.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            workers = list(self._workers)
        for worker in workers:
            worker.end()
        for thread in self._threads:
            thread.join()

    def _cancel_waiting(self) -> None:
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None:
                call.future.cancel()

    def _serve(self) -> None:
        worker: _Worker | None = None
        while (call := self._calls.get()) is not None:
            if not call.future.set_running_or_notify_cancel():
                continue
            try:
                if worker is None:
                    worker = self._new_worker()
                call.future.set_result(worker.do(call.function))
            except WorkerDied as error:
                self._forget(worker)
                worker = None
                call.future.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the caller gets it
                call.future.set_exception(error)
        self._forget(worker)

    def _new_worker(self) -> _Worker:
        worker = _Worker()
        with self._lock:
            self._workers.add(worker)
            is_late = self._is_closed
        if is_late:
            worker.end()
        return worker

    def _forget(self, worker: _Worker | None) -> None:
        if worker is not None:
            worker.end()
            with self._lock:
                self._workers.discard(worker)


class _Call(NamedTuple):
    future: Future[Any]
    function: Callable[[], Any]


class _Worker:
    """One process. Fresh interpreters: this process may have threads, and a fork would copy their locks."""

    def __init__(self) -> None:
        from multiprocessing import get_context  # for few ranks no process is started

        from perfscope.children import without_main

        context = get_context("spawn")
        self._ending = threading.Lock()
        self._has_ended = False
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs,), daemon=True)
        with _starting, without_main():
            self._process.start()
        theirs.close()

    def do(self, function: Callable[[], Any]) -> Any:
        """What `function` gives there. Raises what it raises, or WorkerDied."""
        try:
            _send(self._pipe, function)
            is_result, value = _received(self._pipe)
        except (EOFError, OSError) as error:
            self.end()
            code = self._process.exitcode
            how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            raise WorkerDied(f"the worker process ended with {how}") from error
        if is_result:
            return value
        raise value

    def end(self) -> None:
        """Ends the process, whatever it does. More than one thread may ask for it."""
        with self._ending:
            if not self._has_ended:
                self._process.terminate()
                self._process.join()
                self._has_ended = True


def _work(pipe: Connection) -> None:
    """Runs calls until the other end of the pipe is closed: in a process of its own."""
    # Ctrl-C reaches every process of the terminal; the one that started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lean_process()
    in_one_command()
    while True:
        try:
            function = _received(pipe)
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001 - a call that cannot be read here fails, not the process
            _send(pipe, (False, _portable(error)))
            continue
        try:
            answer = (True, function())
        except Exception as error:  # noqa: BLE001 - it is raised again in the process that called
            answer = (False, error)
        try:
            _send(pipe, answer)
        except (OSError, EOFError):
            return
        except Exception as error:  # noqa: BLE001 - a result that cannot be pickled
            _send(pipe, (False, _portable(error)))


class _Pieces:
    """A file that sends the bytes and buffers that are written to it, in pieces."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._held = bytearray()

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            self._held += view
            written = view.nbytes
        if len(self._held) >= _PIECE_BYTES:
            self.flush()
        return written

    def flush(self) -> None:
        if self._held:
            self._pipe.send_bytes(self._held)
            self._held.clear()


def _send(pipe: Connection, value: object) -> None:
    """As `Connection.send`, which has all bytes in memory at once: of many ranks as much as the ranks.

    Pieces, an empty one, and whether they are all: then a value that cannot be pickled was sent in part.
    """
    from multiprocessing.reduction import ForkingPickler  # as in `_Worker`

    pieces, is_whole = _Pieces(pipe), False
    try:
        ForkingPickler(pieces, _PROTOCOL).dump(value)
        pieces.flush()
        is_whole = True
    finally:
        pipe.send_bytes(b"")
        pipe.send_bytes(_WHOLE if is_whole else _CUT)


def _received(pipe: Connection) -> Any:
    """What `_send` sent. Raises EOFError at the end of the pipe."""
    from multiprocessing.reduction import ForkingPickler

    while True:
        data = bytearray()
        while piece := pipe.recv_bytes():
            data += piece
        if pipe.recv_bytes() == _WHOLE:
            return ForkingPickler.loads(data)


def _portable(error: Exception) -> RuntimeError:
    return RuntimeError(f"{type(error).__name__}: {error}")
