"""Puts phases around functions and context managers of libraries."""

from __future__ import annotations

from typing import Any, Callable

from ..frames import around
from ..phases import Phases

SOURCE = "nvtx"


class Within:
    """A context manager inside of a phase."""

    def __init__(self, manager: Any, phases: Phases, name: str, source: str) -> None:
        self._manager = manager
        self._phases = phases
        self._name = name
        self._source = source
        self._phase: Any = None

    def __enter__(self) -> Any:
        self._phase = self._phases.begin(self._name, self._source)
        try:
            return self._manager.__enter__()
        except BaseException:
            self._phases.end(self._phase)
            raise

    def __exit__(self, *exc_info: Any) -> Any:
        try:
            return self._manager.__exit__(*exc_info)
        finally:
            self._phases.end(self._phase)


def time_method(phases: Phases, kind: Any, method: str, name: str, source: str) -> None:
    """Each call of `kind.method` is a phase; nothing where there is no such method."""
    original = getattr(kind, method, None)
    if original is not None:
        setattr(kind, method, timed(phases, original, original, name, source))


def timed(phases: Phases, run: Callable[..., Any], function: Any, name: str, source: str) -> Any:
    """`run`, each call of which is a phase, with the name and signature of `function`."""

    @around(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        phase = phases.begin(name, source)
        try:
            return run(*args, **kwargs)
        finally:
            phases.end(phase)

    return call


def watch_ranges(phases: Phases, module: Any, push: str, pop: str, name_of: Callable[..., Any]) -> None:
    """`push` and `pop` of `module` begin and end NVTX ranges of the calling thread.

    Args:
        name_of: takes the arguments of `push` and gives the name.
    """
    begin, end = getattr(module, push, None), getattr(module, pop, None)
    if begin is None or end is None:
        return

    @around(begin)
    def range_push(*args: Any, **kwargs: Any) -> Any:
        result = begin(*args, **kwargs)  # it may raise: then there is no range
        phases.push(_name(name_of, args, kwargs), SOURCE)
        return result

    @around(end)
    def range_pop(*args: Any, **kwargs: Any) -> Any:
        phases.pop()
        return end(*args, **kwargs)

    setattr(module, push, range_push)
    setattr(module, pop, range_pop)


def _name(name_of: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return name_of(*args, **kwargs)
    except Exception:  # noqa: BLE001 - another version's signature: the range has no name we know
        return "range"
