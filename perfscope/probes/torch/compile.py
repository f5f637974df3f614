"""Living with torch.compile without disturbing it.

A module-wide forward hook that is present when Dynamo traces makes it compile again, and
`OptimizedModule` warns about it (torch 2.13: both seen). So no global hook is ever in place while
compiled code runs: the probe learns of calls by wrapping the eager entry to compiled modules and
functions, takes its hooks out for the duration, and reports what was compiled as one layer.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

from ..frames import around, hidden


class CompileWatch:
    """Wraps torch.compile and nn.Module.compile.

    Args:
        entered: called with (module or function, args, kwargs) before compiled code runs.
        left: called with (module or function) afterwards, also after an exception.
    """

    def __init__(self, entered: Callable[[Any, tuple, dict], None], left: Callable[[Any], None]) -> None:
        self._entered = entered
        self._left = left
        self._class_wrapped = False

    def install(self, torch: Any) -> None:
        self._wrap_torch_compile(torch)
        self._wrap_module_compile(torch)

    def _wrap_torch_compile(self, torch: Any) -> None:
        original = torch.compile
        watch = self

        @around(original)
        def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            if model is None:
                return result  # decorator form: torch calls itself again with the function
            if isinstance(model, torch.nn.Module):
                watch._wrap_class()
                return result
            if str(getattr(model, "__module__", "")).startswith("torch."):
                return result  # torch compiling its own pieces
            return watch._wrap_function(result)

        torch.compile = compile

    def _wrap_function(self, function: Any) -> Any:
        @around(function)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            return self._call(compiled, function, args, kwargs)

        return compiled

    def _wrap_class(self) -> None:
        frame = sys.modules.get("torch._dynamo.eval_frame")
        kind = getattr(frame, "OptimizedModule", None)
        if self._class_wrapped or kind is None:
            return
        self._class_wrapped = True
        original = kind.__call__

        @around(original)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            return self._call(module, functools.partial(original, module), args, kwargs)

        kind.__call__ = __call__

    def _wrap_module_compile(self, torch: Any) -> None:
        original = torch.nn.Module.compile
        watch = self

        @around(original)
        def compile(module: Any, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            inner = module._compiled_call_impl
            module._compiled_call_impl = hidden(lambda *a, **k: watch._call(module, inner, a, k))

        torch.nn.Module.compile = compile

    def _call(self, called: Any, run: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        if sys.modules["torch"].compiler.is_compiling():
            return run(*args, **kwargs)
        self._entered(called, args, kwargs)
        try:
            return run(*args, **kwargs)
        finally:
            self._left(called)
