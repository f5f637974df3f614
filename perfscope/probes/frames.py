"""Keeps perfscope's own frames out of the tracebacks and the warnings of the training.

Whatever is put in the place of a function of the training's is made by `around`, or by `hidden` where the
name and signature of the original do not matter.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable, Optional

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# File name of the code objects that stand between the training's frames. `warnings` passes over frames whose
# file name holds both of these words, so `stacklevel` counts as if perfscope were not there.
FILE = "<perfscope importlib._bootstrap>"


def hide_frames(error: BaseException) -> None:
    """Take every frame of the probes out of the traceback of `error`. Call it in the `except` clause, in the
    function that catches it, and `raise` after it: from then on the traceback is as if that were not there.
    """
    head, last, at = None, None, error.__traceback__
    while at is not None:
        following = at.tb_next
        name = at.tb_frame.f_code.co_filename
        if name != FILE and not name.startswith(_HERE):
            if last is None:
                head = at
            elif last.tb_next is not at:
                last.tb_next = at
            last = at
        at = following
    if last is not None and last.tb_next is not None:
        last.tb_next = None
    error.__traceback__ = head
    if sys.version_info < (3, 11):
        _handle_with(error, head)


def _handle_with(error: BaseException, traceback: Optional[Any]) -> None:
    """Up to Python 3.10 a bare `raise` takes the traceback from the interpreter's own note of what is being
    handled, not from the exception. This changes the note.
    """
    try:
        import ctypes
    except ImportError:  # a Python without it: our frame shows
        return
    handled = (type(error), error, traceback)
    for value in handled:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))  # the call below takes a reference to each
    set_handled = ctypes.pythonapi.PyErr_SetExcInfo
    set_handled.restype = None
    set_handled(*map(ctypes.py_object, handled))


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, a Python function of ours that the training calls, without its frame in any traceback."""
    _disguise(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise

    _disguise(call)
    return call


def around(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of the function that is put in the place of `original`, and looks like it."""

    def decorate(function: Callable[..., Any]) -> Any:
        return functools.wraps(original)(hidden(function))

    return decorate


def _disguise(function: Any) -> None:
    code = getattr(function, "__code__", None)
    if code is not None:  # else it was not made in Python: it has no frame
        function.__code__ = code.replace(co_filename=FILE)
