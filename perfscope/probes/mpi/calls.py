"""Times mpi4py's calls while a window is open, and passes them on untouched while none is.

A blocking call is one span on its thread. A call that starts something is two short spans on its thread (the
start and the wait), which say where the program stood, and one on a lane of its own from the start to the
completion, which carries the bytes: what of it lies under computation is hidden.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..calls import CallLog
from ..frames import hidden
from .buffers import Buffers
from .groups import Communicator, Places
from .table import ActiveCall, Constants, Method, TimelineRow

REQUESTS_LANE = 1 << 40  # no thread has such an id
_clock = time.monotonic_ns


class Gate:
    """Whether calls are to be looked at outside windows, too."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


class PendingRequest:
    """What a request will have moved when it completes."""

    __slots__ = ("call", "method", "name", "persistent", "start_ns")

    def __init__(self, name: str, method: Method, call: ActiveCall, start_ns: int) -> None:
        self.name = name
        self.method = method
        self.call = call
        self.persistent = method.persistent
        self.start_ns = -1 if method.persistent else start_ns  # -1: not under way


class Timing:
    """What the wrapped methods share.

    Args:
        mpi: the module mpi4py.MPI.
        log: of the process.
        comm_places: its communicators.
        failed: called with (where, error) for every fault; answers True when nothing is to be recorded any
        more.
        recorded: called before a window's first row.
    """

    def __init__(
        self,
        mpi: Any,
        log: CallLog,
        comm_places: Places,
        failed: Callable[[str, Exception], bool],
        recorded: Callable[[], None],
    ) -> None:
        self.mpi = mpi
        self.log = log
        self.places = comm_places
        self.shared = Gate()  # collectives are looked for a loop
        self.others = Gate()  # other calls are counted for that
        self.watch: Callable[[str, Any, Method, tuple, dict, Any], None] = _watch_nothing
        self.count: Callable[[], None] = _count_nothing
        self.off = False
        self._failed = failed
        self._recorded = recorded
        names = getattr(mpi, "_typedict", None) or getattr(mpi, "__TypeDict__", None) or {}
        self.buffers = Buffers(mpi.IN_PLACE, mpi.Datatype, names)
        self.constants = Constants(mpi.PROC_NULL, mpi.ROOT, mpi.BYTE)

    def fault(self, where: str, error: Exception) -> None:
        if self._failed(where, error):
            self.off = True

    # -- places ---------------------------------------------------------------------------------------

    def place_of(self, comm: Any) -> Communicator:
        """Of a communicator of ours; asked for the first time, its ranks are found out.

        Raises:
            Exception: MPI does not tell.
        """
        if not hasattr(type(comm), "_perfscope"):
            return self.window_place(comm)
        known_place = getattr(comm, "_perfscope", None)
        if known_place is None:
            known_place = comm._perfscope = self.places.stranger(comm)
        elif callable(known_place):  # made before MPI was initialized
            known_place = comm._perfscope = known_place(comm)
        result: Communicator = known_place
        return result

    def window_place(self, window: Any) -> Communicator:
        """Of a window of one-sided communication. Set by mpi_windows."""
        return self.places.stranger(window)

    # -- recording ------------------------------------------------------------------------------------

    def call(
        self, comm: Any, comm_place: Communicator, method: Method, args: tuple, kwargs: dict
    ) -> ActiveCall:
        given = dict(zip(method.params, args))  # noqa: B905 - Python 3.8; a call may give fewer
        given.update(kwargs)
        return ActiveCall(comm, comm_place, given, self.buffers, self.constants)

    def rows(self, name: str, method: Method, call: ActiveCall) -> List[TimelineRow]:
        """What the rule tells; nothing where it fails."""
        try:
            return method.rule(call)
        except Exception as error:  # noqa: BLE001 - the boundary: arguments of a kind we do not know
            self._failed("bytes of " + name, error)  # other calls are still worth having
            return []

    def add(self, start: int, end: int, kind: str, name: str) -> None:
        """A span of this thread that is no communication by itself."""
        try:
            self.log.add(start, end, kind, "MPI." + name)
        except Exception as error:  # noqa: BLE001 - the boundary
            self.fault("record", error)

    def add_rows(
        self, start: int, end: int, name: str, call: ActiveCall, rows: List[TimelineRow], lane: Optional[int]
    ) -> None:
        if rows:
            self._recorded()
            if self.places.list(call.place):
                self.log.tell_groups(
                    self.places.rows()
                )  # each window's file has them: the process may be killed
            if lane is not None:
                self.log.name_lane(lane, "MPI requests")
        for row in rows:
            self.log.add(
                start,
                end,
                "comm",
                "MPI." + name,
                collective=row.collective,
                group=call.place.name,
                group_size=call.place.size or None,
                in_bytes=row.in_bytes,
                out_bytes=row.out_bytes,
                dtype=row.dtype,
                peer=row.peer,
                lane=lane,
            )

    def timed(self, name: str, method: Method, original: Any, comm: Any, args: tuple, kwargs: dict) -> Any:
        """A blocking call in an open window."""
        call, status = None, None
        try:
            call = self.call(comm, self.place_of(comm), method, args, kwargs)
            if method.receives:
                args, kwargs, status = self._with_status(method, call, args, kwargs)
        except Exception as error:  # noqa: BLE001 - the boundary: the call itself goes on
            self.fault(name, error)
        start = _clock()
        result = original(comm, *args, **kwargs)
        end = _clock()
        if call is not None and self.log.active:
            try:
                call.result, call.status = result, status
                self.add_rows(start, end, name, call, self.rows(name, method, call), None)
            except Exception as error:  # noqa: BLE001 - the boundary
                self.fault(name, error)
        return result

    def _with_status(
        self, method: Method, call: ActiveCall, args: tuple, kwargs: dict
    ) -> Tuple[tuple, Dict[str, Any], Any]:
        """The arguments with a status of ours where the program wants none: it tells what really came."""
        status = call.given.get("status")
        if status is not None:
            return args, kwargs, status
        status = self.mpi.Status()
        at = method.params.index("status")
        return args[:at], dict(kwargs, status=status), status

    def started(self, name: str, method: Method, original: Any, comm: Any, args: tuple, kwargs: dict) -> Any:
        """A call in an open window that returns a request."""
        start = _clock()
        request = original(comm, *args, **kwargs)
        end = _clock()
        try:
            if not method.persistent:
                self.add(start, end, "host", name)
            call = self.call(comm, self.place_of(comm), method, args, kwargs)
            return self.tracked(request, PendingRequest(name, method, call, start))
        except Exception as error:  # noqa: BLE001 - the boundary: the program gets its request as it is
            self.fault(name, error)
            return request

    def tracked(self, request: Any, pending: PendingRequest) -> Any:
        """The request as an object that remembers what it is of. Set by mpi_requests."""
        return request

    def completed(self, request: Any, end: int, status: Any, result: Any = None) -> None:
        """A request is done: its row. Called in open windows."""
        pending = getattr(request, "_perfscope", None)
        if pending is None or pending.start_ns < 0:
            return
        start, pending.start_ns = pending.start_ns, -1
        if not pending.persistent:
            request._perfscope = None
        try:
            call: ActiveCall = pending.call
            call.status, call.result = status, result
            rows = self.rows(pending.name, pending.method, call)
            self.add_rows(start, end, pending.name, call, rows, REQUESTS_LANE)
        except Exception as error:  # noqa: BLE001 - the boundary
            self.fault(pending.name, error)


def _watch_nothing(name: str, comm: Any, method: Method, args: tuple, kwargs: dict, frame: Any) -> None:
    """No loop is looked for."""


def _count_nothing() -> None:
    """Nor other calls counted."""


def wrap(timing: Timing, name: str, method: Method, original: Any) -> Any:
    """A method that times `original`; outside windows it costs two looks and two more calls."""
    log, gate = timing.log, timing.shared if method.shared else timing.others
    record = timing.started if method.starts else timing.timed
    if method.persistent:
        return _wrap_persistent(timing, name, method, original)

    def looked_at(comm: Any, args: tuple, kwargs: dict) -> Any:
        if log.active and not timing.off:
            result = record(name, method, original, comm, args, kwargs)
        else:
            result = original(comm, *args, **kwargs)
        if gate.on:
            if method.shared:
                timing.watch(name, comm, method, args, kwargs, sys._getframe(3))
            else:
                timing.count()
        return result

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if gate.on or log.active:
            return looked_at(self, args, kwargs)
        return original(self, *args, **kwargs)

    return _like(call, name, original)


def _wrap_persistent(timing: Timing, name: str, method: Method, original: Any) -> Any:
    """Requests made once and started often: they are remembered wherever they are made."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if timing.off:
            return original(self, *args, **kwargs)
        return timing.started(name, method, original, self, args, kwargs)

    return _like(call, name, original)


def _like(call: Any, name: str, original: Any) -> Any:
    call = hidden(call)
    functools.update_wrapper(call, original, ("__module__", "__doc__"), ())
    del call.__wrapped__  # inspect.signature would follow it to C code without one
    call.__name__ = name
    return call
