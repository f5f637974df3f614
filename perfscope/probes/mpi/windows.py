"""One-sided communication: MPI.Win replaced by a subclass that passes for it (see mpi_requests)."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from .calls import Timing, _like, wrap
from .groups import Communicator
from .requests import stand_in
from .table import ActiveCall, Method, Rule, TimelineRow

_PUT = ("origin", "target_rank", "target")
_GET_PUT = ("origin", "result", "target_rank", "target", "op")


def install(timing: Timing) -> None:
    """Replace MPI.Win."""
    original = timing.mpi.Win
    window_places = WindowPlaces(timing)
    timing.window_place = window_places.of  # type: ignore[method-assign]
    body: Dict[str, Any] = {
        name: wrap(timing, name, method, getattr(original, name))
        for name, method in METHODS.items()
        if hasattr(original, name)
    }
    for name, at in (("Create", 3), ("Allocate", 3), ("Allocate_shared", 3), ("Create_dynamic", 1)):
        body[name] = _maker(timing, window_places, name, at, original)
    body["Free"] = _free(window_places, original)
    timing.mpi.Win = stand_in(original, body)


class WindowPlaces:
    """Which communicator a window was made on, by its handle: the object itself has no room for it."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._handle = getattr(timing.mpi, "_handleof", id)
        self._known: Dict[int, Communicator] = {}

    def note(self, window: Any, comm: Any) -> None:
        self._known[self._handle(window)] = self._timing.place_of(comm)

    def of(self, window: Any) -> Communicator:
        """Of a window; asked for the first time, its ranks are found out."""
        window_place = self._known.get(self._handle(window))
        if window_place is None:
            window_place = self._known[self._handle(window)] = self._timing.places.stranger(window)
        return window_place

    def forget(self, window: Any) -> None:
        self._known.pop(self._handle(window), None)


def _maker(timing: Timing, window_places: WindowPlaces, name: str, at: int, original: Any) -> Any:
    plain = vars(original)[name]

    def call(cls: type, *args: Any, **kwargs: Any) -> Any:
        made = plain.__get__(None, cls)(*args, **kwargs)
        try:
            if type(made) is original:  # mpi4py 3 takes no notice of the class
                made = cls(made)
            comm = args[at] if len(args) > at else kwargs.get("comm", timing.mpi.COMM_SELF)
            if not timing.off and hasattr(comm, "_perfscope"):
                window_places.note(made, comm)
        except Exception as error:  # noqa: BLE001 - the boundary
            timing.fault("Win." + name, error)
        return made

    return classmethod(_like(call, name, getattr(original, name)))


def _free(window_places: WindowPlaces, original: Any) -> Any:
    def call(window: Any) -> None:
        window_places.forget(window)
        original.Free(window)

    return _like(call, "Free", original.Free)


# -- rules ------------------------------------------------------------------------------------------------


def _moved(call: ActiveCall, name: str, given: str, taken: str) -> List[TimelineRow]:
    rank = call.given.get("target_rank")
    if rank == call.constants.proc_null:
        return []
    sizes = [call.buffers.simple(call.given[argument]) if argument else None for argument in (given, taken)]
    dtype = next((size.dtype for size in sizes if size is not None), None)
    in_bytes, out_bytes = (size.num_bytes if size is not None else None for size in sizes)
    return [TimelineRow(name, in_bytes, out_bytes, dtype, call.place.global_rank(rank))]


def _put(name: str) -> Rule:
    return lambda call: _moved(call, name, "origin", "")


def _get(call: ActiveCall) -> List[TimelineRow]:
    return _moved(call, "get", "", "origin")


def _both(call: ActiveCall) -> List[TimelineRow]:
    return _moved(call, "accumulate", "origin", "result")


def _fence(call: ActiveCall) -> List[TimelineRow]:
    return [TimelineRow("fence", None, None, None, None)]


def _epoch(call: ActiveCall) -> List[TimelineRow]:
    """Locks and flushes: waiting for what was put and got; `rank` is the target's, if it is one."""
    return [TimelineRow("epoch", None, None, None, call.place.global_rank(call.given.get("rank")))]


def _methods() -> Dict[str, Method]:
    methods = {
        "Get": Method(_PUT, _get),
        "Rget": Method(_PUT, _get, starts=True),
        "Get_accumulate": Method(_GET_PUT, _both),
        "Rget_accumulate": Method(_GET_PUT, _both, starts=True),
        "Fetch_and_op": Method(("origin", "result", "target_rank", "target_disp", "op"), _both),
        "Compare_and_swap": Method(("origin", "compare", "result", "target_rank", "target_disp"), _both),
        "Fence": Method(("assertion",), _fence, shared=True),
    }
    for name in ("put", "accumulate"):
        methods[name.title()] = Method((*_PUT, "op"), _put(name))
        methods["R" + name] = Method((*_PUT, "op"), _put(name), starts=True)
    ranked: Tuple[str, ...] = ("Lock", "Unlock", "Flush", "Flush_local")
    for name in ranked:
        methods[name] = Method(("rank",), _epoch)
    for name in (
        "Lock_all",
        "Unlock_all",
        "Flush_all",
        "Flush_local_all",
        "Start",
        "Complete",
        "Post",
        "Wait",
    ):
        methods[name] = Method((), _epoch)
    return methods


METHODS = _methods()
