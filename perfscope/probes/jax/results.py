"""What the last step made: when the program reads an array of it, the step is known to be done.

A call returns when its work is queued. Most programs then read a loss (`float`, `print`, `item`) or wait
(`jax.block_until_ready`, an array's own method). After each of these it is asked, without waiting,
whether the last step's results are there.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Callable, Optional

from ..frames import hidden
from .describe import Argument
from .steps import is_array, is_ready, weight


class Results:
    """Follows the newest results of the step function.

    Args:
        flatten: tree -> [(path, leaf)].
        ready: called once for each step, when the program has waited and its results are there.
    """

    def __init__(self, flatten: Callable[[Any], Any], ready: Callable[[], None]) -> None:
        self._flatten = flatten
        self._ready = ready
        self.forget()

    def forget(self) -> None:
        """The step is another function from now on, or this is another process."""
        self._argument: Optional[Argument] = None
        self._newest: Callable[[], Any] = lambda: None
        self.pending = False

    def made(self, outputs: Any) -> None:
        """The step function has returned."""
        if self._argument is None:
            arrays = [(path, leaf) for path, leaf in self._flatten((outputs, None)) if is_array(leaf)]
            if not arrays:
                return
            self._argument = Argument(max(arrays, key=lambda array: weight(array[1]))[0])
        leaf = self._argument.of(outputs, None)
        self.pending = hasattr(leaf, "is_ready") and not is_ready(
            leaf
        )  # small work is done by the call itself
        if self.pending:
            self._newest = weakref.ref(leaf)

    def ask(self) -> None:
        """The program has waited for something."""
        leaf = self._newest()
        if leaf is not None and not leaf.is_deleted() and leaf.is_ready():
            self.pending = False
            self._ready()

    def watch_reads(self, guarded: Callable[..., Any]) -> None:
        """Ask after each read of an array. What this version of JAX does not have is left alone."""
        kind: Any = getattr(sys.modules.get("jax._src.array"), "ArrayImpl", None)
        value = vars(kind).get("_value") if kind is not None else None
        if isinstance(value, property) and value.fget is not None:
            kind._value = property(self._asking(value.fget, guarded), doc=value.__doc__)
        for name in ("block_until_ready", "item"):  # numpy.asarray reads the memory and cannot be seen
            original = getattr(kind, name, None)
            if callable(original):
                setattr(kind, name, self._asking(original, guarded))

    def _asking(self, original: Callable[..., Any], guarded: Callable[..., Any]) -> Callable[..., Any]:
        @hidden
        def read(array: Any, *args: Any) -> Any:
            result = original(array, *args)
            if self.pending:
                guarded("read", self.ask)
            return result

        for name in ("__name__", "__qualname__", "__doc__"):
            attribute = getattr(original, name, None)
            if isinstance(attribute, str):  # a method made in C++ has no text for some
                setattr(read, name, attribute)
        return read
