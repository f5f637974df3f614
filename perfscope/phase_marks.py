"""`perfscope.phase`: a part of the program by name. Standard library only; a training imports it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_SOURCE = "perfscope"


class _Nothing:
    """A phase outside `perfscope run`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc_info: object) -> None:
        return None

    def __call__(self, function: Any) -> Any:
        return function


_NOTHING = _Nothing()


class Phase:
    """A phase of a process that is recorded; may be entered again, also while it is open.

    Args:
        name: of the phase.
        phases: of the process (probes.phases.Phases).
    """

    def __init__(self, name: str, phases: Any) -> None:
        self._name = name
        self._phases = phases
        self._open: list[Any] = []

    def __enter__(self) -> None:
        self._open.append(self._phases.begin(self._name, _SOURCE))

    def __exit__(self, *exc_info: object) -> None:
        if self._open:
            self._phases.end(self._open.pop())

    def __call__(self, function: Any) -> Any:
        """`function`, each call of it in this phase.

        Of a coroutine function until its coroutine has ended; of a generator, sync or async, while it runs,
        not while its consumer does.
        """
        import inspect  # not at the top: most programs decorate nothing

        inner = functools.partial(Phase, self._name, self._phases)
        for is_such, wrap in _WRAPPERS:
            if getattr(inspect, is_such)(function):
                return functools.wraps(function)(wrap(function, inner))
        return functools.wraps(function)(_call(function, inner))


Inner = Callable[[], Phase]


def _call(function: Any, phase: Inner) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with phase():
            return function(*args, **kwargs)

    return call


def _coroutine(function: Any, phase: Inner) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with phase():
            return await function(*args, **kwargs)

    return call


def _generator(function: Any, phase: Inner) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        resume, value = generator.send, None
        while True:
            try:
                with phase():
                    item = resume(value)
            except StopIteration as stop:
                return stop.value
            try:
                resume, value = generator.send, (yield item)
            except GeneratorExit:
                generator.close()
                raise
            except BaseException as error:  # noqa: BLE001 - what is thrown in is the generator's to handle
                resume, value = generator.throw, error

    return call


def _async_generator(function: Any, phase: Inner) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        resume, value = generator.asend, None
        while True:
            try:
                with phase():
                    item = await resume(value)
            except StopAsyncIteration:
                return
            try:
                resume, value = generator.asend, (yield item)
            except GeneratorExit:
                await generator.aclose()
                raise
            except BaseException as error:  # noqa: BLE001 - what is thrown in is the generator's to handle
                resume, value = generator.athrow, error

    return call


_WRAPPERS = (
    ("iscoroutinefunction", _coroutine),
    ("isasyncgenfunction", _async_generator),
    ("isgeneratorfunction", _generator),
)


def phase(name: str) -> Phase | _Nothing:
    """A part of the program whose time is recorded under `name`, on every rank.

    A context manager (``with perfscope.phase("rollout"):``) and a decorator
    (``@perfscope.phase("rollout")``). Phases may nest, in any thread. Outside `perfscope run` it does
    nothing: a decorated function is returned as it is. Put it around calls of compiled functions, not
    into them.

    Args:
        name: of the phase. Times of the same name within the same outer phases are added up.
    """
    agent = sys.modules.get("_perfscope_agent")
    if agent is None:
        return _NOTHING
    phases = getattr(agent, "phases", None)  # the agent of another version may know none
    process_phases = None if phases is None else phases()
    return _NOTHING if process_phases is None else Phase(name, process_phases)
