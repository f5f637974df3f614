"""Marks what `Optimizer.step(closure)` calls of the model, in traced windows only.

The span of an optimizer's step is around its closure too. The mark says which part of it is no update.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

from ...rundir import layout
from ..frames import around

_MARKED = "_perfscope_marked"


def with_marked_closure(
    args: Tuple[Any, ...], kwargs: Dict[str, Any], new_mark: Callable[[str], Any]
) -> Optional[Tuple[Tuple[Any, ...], Dict[str, Any]]]:
    """Arguments of an optimizer's `step` with its closure inside a mark; None where there is none to mark.

    Args:
        args, kwargs: as an optimizer's pre-hook is given them, the optimizer itself first.
        new_mark: name -> context manager that puts a span into the trace.
    """
    if "closure" in kwargs:
        closure = kwargs["closure"]
        if callable(closure) and not hasattr(closure, _MARKED):
            return args, dict(kwargs, closure=_marked(closure, new_mark))
    elif len(args) > 1 and callable(args[1]) and not hasattr(args[1], _MARKED):
        return (args[0], _marked(args[1], new_mark), *args[2:]), kwargs
    return None


def _marked(closure: Callable[..., Any], new_mark: Callable[[str], Any]) -> Callable[..., Any]:
    @around(closure)
    def call(*args: Any, **kwargs: Any) -> Any:
        with new_mark(layout.MARK_CLOSURE):
            return closure(*args, **kwargs)

    setattr(call, _MARKED, True)
    marked: Callable[..., Any] = call
    return marked
