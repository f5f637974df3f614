"""mpi4py's requests, with the call that started them: waiting and completion.

`MPI.Request.Waitall(requests)` is a method of the class, which is C code's own and takes no attributes. So
`MPI.Request` and `MPI.Prequest` are replaced by subclasses that pass for them: whatever is a request for
mpi4py is one for them. Requests started in a window, and persistent ones, are made anew with a place for what
they are of.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Iterable, List, Optional, Tuple

from .calls import PendingRequest, Timing, _like

_clock = time.monotonic_ns


class StandIn(type):
    """Metaclass of a class that passes for the one it stands for: isinstance and issubclass ask that."""

    def __instancecheck__(cls, value: Any) -> bool:
        original = cls.__dict__.get("_perfscope_for")
        return isinstance(value, original) if original is not None else super().__instancecheck__(value)

    def __subclasscheck__(cls, kind: type) -> bool:
        original = cls.__dict__.get("_perfscope_for")
        return issubclass(kind, original) if original is not None else super().__subclasscheck__(kind)


def stand_in(original: type, methods: Dict[str, Any]) -> Any:
    """A subclass that shows itself as `original`; no bigger than it, as C code that imports it checks."""
    body = dict(
        methods,
        __slots__=(),
        __module__=original.__module__,
        __qualname__=original.__qualname__,
        __doc__=original.__doc__,
        _perfscope_for=original,
    )
    return StandIn(original.__name__, (original,), body)


def install(timing: Timing) -> None:
    """Replace MPI.Request and MPI.Prequest, and have started calls return requests that are followed."""
    mpi = timing.mpi
    request, persistent = mpi.Request, mpi.Prequest
    methods = _of_class(timing, request)
    starts = dict(methods, Startall=_startall(timing, persistent))
    new_request, new_persistent = stand_in(request, methods), stand_in(persistent, starts)
    followed = _followed(timing, request, new_request, {})
    restarted = _followed(timing, persistent, new_persistent, {"Start": _start(timing, persistent)})

    def tracked(made: Any, pending: PendingRequest) -> Any:
        mine = (restarted if isinstance(made, persistent) else followed)(made)
        mine._perfscope = pending
        return mine

    timing.tracked = tracked  # type: ignore[method-assign,assignment]
    mpi.Request, mpi.Prequest = new_request, new_persistent


def _followed(timing: Timing, original: type, base: type, more: Dict[str, Any]) -> Any:
    """Class of the requests that are followed: with a place for what they are of."""
    body = dict(
        _of_instance(timing, original),
        **more,
        __slots__=("_perfscope",),
        __module__=original.__module__,
        __qualname__=original.__qualname__,
        __doc__=original.__doc__,
    )
    return type(base)(original.__name__, (base,), body)


# -- one request ------------------------------------------------------------------------------------------


def _of_instance(timing: Timing, original: Any) -> Dict[str, Any]:
    def wait(self: Any, status: Any = None) -> Any:
        return _one(timing, "Wait", original.Wait, self, status)

    def test(self: Any, status: Any = None) -> Any:
        return _one(timing, "Test", original.Test, self, status)

    def wait_object(self: Any, status: Any = None) -> Any:
        return _one(timing, "wait", original.wait, self, status)

    def test_object(self: Any, status: Any = None) -> Any:
        return _one(timing, "test", original.test, self, status)

    made = {"Wait": wait, "Test": test, "wait": wait_object, "test": test_object}
    return {name: _like(made[name], name, getattr(original, name)) for name in made}


def _one(timing: Timing, name: str, original: Any, request: Any, status: Any) -> Any:
    if not timing.log.active or timing.off:
        return original(request, status)
    mine = status if status is not None else timing.mpi.Status()
    start = _clock()
    result = original(request, mine)
    end = _clock()
    done = result if name in ("Wait", "Test") else name == "wait" or result[0]
    if done:
        timing.add(start, end, "host", name)
        message = result if name == "wait" else result[1] if name == "test" else None
        timing.completed(request, end, mine, message)
    return result


def _start(timing: Timing, original: Any) -> Any:
    def start(self: Any) -> None:
        began = _clock()
        original.Start(self)
        _restarted(timing, [self], began, "Start")

    return _like(start, "Start", original.Start)


def _startall(timing: Timing, original: Any) -> Any:
    def startall(cls: type, requests: Any) -> None:
        began = _clock()
        original.Startall(requests)
        _restarted(timing, requests, began, "Startall")

    return classmethod(_like(startall, "Startall", original.Startall))


def _restarted(timing: Timing, requests: Iterable[Any], began: int, name: str) -> None:
    active = timing.log.active and not timing.off
    if active:
        timing.add(began, _clock(), "host", name)
    for request in requests:
        pending = getattr(request, "_perfscope", None)
        if pending is not None:
            pending.start_ns = began if active else -1


# -- several requests -------------------------------------------------------------------------------------

_SEVERAL = (
    *("Waitany", "Testany", "Waitall", "Testall", "Waitsome", "Testsome"),
    *("waitany", "testany", "waitall", "testall", "waitsome", "testsome"),
)


def _of_class(timing: Timing, original: Any) -> Dict[str, Any]:
    return {
        name: _several(timing, name, getattr(original, name)) for name in _SEVERAL if hasattr(original, name)
    }


def _several(timing: Timing, name: str, original: Any) -> Any:
    log, is_any = timing.log, name.endswith("any")

    def call(cls: type, requests: Any, *args: Any, **kwargs: Any) -> Any:
        if not log.active or timing.off:
            return original(requests, *args, **kwargs)
        key = "status" if is_any else "statuses"
        statuses = args[0] if args else kwargs.get(key)
        if statuses is None:
            statuses = timing.mpi.Status() if is_any else []
        start = _clock()
        result = original(requests, statuses)
        end = _clock()
        try:
            done = _done(name, result, requests)
            if done is not None:
                timing.add(start, end, "host", name)
            for position, (index, message) in enumerate(done or ()):
                status = statuses if is_any else statuses[position] if position < len(statuses) else None
                timing.completed(requests[index], end, status, message)
        except Exception as error:  # noqa: BLE001 - the boundary
            timing.fault(name, error)
        return result

    return classmethod(_like(call, name, original))


def _done(name: str, result: Any, requests: Any) -> Optional[List[Tuple[int, Any]]]:
    """(index, message) of the requests that a call found done, in the order of its statuses; None: none."""
    kind = name.lower()
    pickled = name[0].islower()
    if kind == "waitall":
        return [(index, result[index] if pickled else None) for index in range(len(requests))]
    if kind == "testall":
        flag, messages = result if pickled else (result, None)
        return (
            [(index, messages[index] if messages else None) for index in range(len(requests))]
            if flag
            else None
        )
    if kind in ("waitany", "testany"):
        index = result if kind == "waitany" and not pickled else result[0]
        if (kind == "testany" and not result[1]) or not 0 <= index < len(requests):
            return None
        return [(index, result[-1] if pickled else None)]
    indices, messages = result if pickled else (result, None)
    if not indices:
        return None
    return [(index, messages[position] if messages else None) for position, index in enumerate(indices)]
