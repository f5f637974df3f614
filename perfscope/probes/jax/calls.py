"""jax.jit and jax.pmap, so that their functions can be watched.

What they return (a PjitFunction, made in C++) has no place for a hook. `Jitted` wraps it: it
answers to everything the function answers to and passes calls on. A function that is no candidate for the
step costs one look at its role.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from typing import Any, Callable, Dict, Tuple

from ..frames import around, hidden, hide_frames
from .steps import IDLE, WATCHED, Function

_MAKERS = (("jit", False), ("pmap", True))
Watch = Callable[
    [Function, Any, Any, Any], Any
]  # (function, the jitted function, args, kwargs) -> its results


class Jitted:
    # In front of a jitted function; whatever is not here is the function's own, __doc__ included.
    # inner: what jax.jit returned. function: what is known of it, shared by all that wrap the same Python
    # function. calls: the object that is called with its calls.

    __slots__ = ("__weakref__", "_calls", "_function", "_inner")  # no __dict__: functools.wraps would copy it

    def __init__(self, inner: Any, function: Function, calls: "JitCalls") -> None:
        for name, value in (("_inner", inner), ("_function", function), ("_calls", calls)):
            object.__setattr__(self, name, value)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            function = self._function
            if function.role == IDLE and not self._calls.alert:
                return self._inner(*args, **kwargs)
            return self._calls.watch(function, self._inner, args, kwargs)
        except BaseException as error:
            hide_frames(error)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._inner, name)

    def __dir__(self) -> Any:
        return dir(self._inner)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._inner.__reduce_ex__(protocol)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # `isinstance(f, type(jax.jit(g)))` is how some tell what has been jitted
        return type(self._inner)

    @property
    def __module__(self) -> Any:  # type: ignore[override] # what every class has of its own hides the function's
        return self._inner.__module__

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self._inner.__doc__


class JitCalls:
    """Puts `Jitted` in front of what jax.jit and jax.pmap return.

    Args:
        watch: called instead of a function that is watched; calls it and returns its results.

    Attributes:
        alert: calls of every function are to be reported, also of those that are no step.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.alert = False
        self.idle = False  # functions that are made from now on are not watched
        self._known: Dict[int, Tuple[Any, Function]] = {}

    def install(self, jax: Any) -> None:
        """Replace `jit` and `pmap` in the public modules. `from jax import jit` from now on gets ours."""
        for name, mapped in _MAKERS:
            original = getattr(jax, name, None)
            if original is None:
                continue
            setattr(jax, name, self._maker(original, mapped))
        kind = getattr(sys.modules.get("jax._src.stages"), "Compiled", None)
        if hasattr(kind, "__weakref__"):
            self._watch_compiled(kind)

    def _watch_compiled(self, kind: Any) -> None:
        """`jax.jit(f).lower(...).compile()`: its calls go through a method, where we can stand."""
        calls, original = self, kind.__call__

        @around(original)
        def __call__(compiled: Any, /, *args: Any, **kwargs: Any) -> Any:
            function = calls.function_of(compiled, False)
            if function.role == IDLE and not calls.alert:
                return original(compiled, *args, **kwargs)
            return calls.watch(function, functools.partial(original, compiled), args, kwargs)

        kind.__call__ = __call__

    def _maker(self, original: Any, mapped: bool) -> Any:
        calls = self

        @around(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            fun = args[0] if args else kwargs.get("fun")
            if callable(fun):
                return calls.observed(made, fun, mapped)
            if not args and callable(made) and "fun" not in kwargs:  # `@jax.jit(static_argnums=0)`

                def decorate(fun: Any) -> Any:
                    return calls.observed(made(fun), fun, mapped)

                return around(made)(decorate) if hasattr(made, "__name__") else hidden(decorate)
            return made

        return make

    def observed(self, made: Any, fun: Any, mapped: bool) -> Any:
        """`made`, which jax made of `fun`, with us in front; itself if we cannot stand there."""
        if not callable(made) or isinstance(made, type):
            return made
        return Jitted(made, self.function_of(fun, mapped), self)

    def function_of(self, fun: Any, mapped: bool) -> Function:
        """One Function for each Python function: `jax.jit(f)(x)` in a loop is one step function."""
        entry = self._known.get(id(fun))
        if entry is not None and entry[0]() is fun:
            return entry[1]
        function = Function(name_of(fun), mapped)
        if self.idle:
            function.role = IDLE
        try:
            cache, key = self._known, id(fun)
            cache[key] = (weakref.ref(fun, lambda _: cache.pop(key, None)), function)
        except TypeError:  # cannot be referred to weakly: every wrapping of it is separate
            pass
        return function

    def restart(self) -> None:
        """In a forked child: every function is unknown again."""
        self.alert = False
        for _, function in list(self._known.values()):
            function.role = IDLE if self.idle else WATCHED

    def stop(self) -> None:
        """No one looks any more: from now on a call costs one comparison."""
        self.idle, self.alert = True, False
        for _, function in list(self._known.values()):
            function.role = IDLE


def name_of(fun: Any) -> str:
    """What the user calls it: `train_step`, also inside functools.partial."""
    for _ in range(8):
        name = getattr(fun, "__name__", None)
        if isinstance(name, str):
            return name
        if not hasattr(fun, "func"):
            break
        fun = fun.func
    return type(fun).__name__


def top_level(core: Any) -> Callable[[], bool]:
    """A function: True unless JAX is tracing here (inside jit, grad, vmap): such a call is no step.

    Raises:
        AttributeError: this version of JAX does not tell.
    """
    clean: Callable[[], bool] = core.trace_state_clean
    clean()
    return clean


def exclude_frames(path: str) -> None:
    """Keep our frames out of the tracebacks that JAX shows, and out of the source lines it notes."""
    for name in ("jax._src.traceback_util", "jax._src.source_info_util"):
        register = getattr(sys.modules.get(name), "register_exclusion", None)
        if register is not None:
            register(path)
