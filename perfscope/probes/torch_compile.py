"""Living with torch.compile without disturbing it.

A module-wide forward hook that is present when Dynamo traces makes it compile again, and
`OptimizedModule` warns about it (torch 2.13: both seen). So no global hook is ever in place while
compiled code runs: the probe learns of a compiled module's calls by wrapping the eager entry to it,
takes its hooks out for the duration, and reports the compiled module as one layer.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable


class CompileWatch:
    """Wraps torch.compile and nn.Module.compile.

    Args:
        entered: called with (module, args, kwargs) before compiled code runs.
        left: called with (module) afterwards, also after an exception.

    Attributes:
        functions: True once the training compiled a plain function. Modules called inside it cannot
            be told from eager ones, so per-layer marks must stay off.
    """

    def __init__(self, entered: Callable[[Any, tuple, dict], None], left: Callable[[Any], None]) -> None:
        self._entered = entered
        self._left = left
        self.functions = False
        self._class_wrapped = False

    def install(self, torch: Any) -> None:
        self._wrap_torch_compile(torch)
        self._wrap_module_compile(torch)

    def _wrap_torch_compile(self, torch: Any) -> None:
        original = torch.compile
        watch = self

        @functools.wraps(original)
        def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            if model is None:
                return result  # decorator form: torch calls itself again with the function
            if isinstance(model, torch.nn.Module):
                watch._wrap_class()
            elif not str(getattr(model, "__module__", "")).startswith("torch."):
                watch.functions = True
            return result

        torch.compile = compile

    def _wrap_class(self) -> None:
        frame = sys.modules.get("torch._dynamo.eval_frame")
        kind = getattr(frame, "OptimizedModule", None)
        if self._class_wrapped or kind is None:
            return
        self._class_wrapped = True
        original = kind.__call__

        @functools.wraps(original)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            return self._call(module, functools.partial(original, module), args, kwargs)

        kind.__call__ = __call__

    def _wrap_module_compile(self, torch: Any) -> None:
        original = torch.nn.Module.compile
        watch = self

        @functools.wraps(original)
        def compile(module: Any, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            inner = module._compiled_call_impl
            module._compiled_call_impl = lambda *a, **k: watch._call(module, inner, a, k)

        torch.nn.Module.compile = compile

    def _call(self, module: Any, run: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        if sys.modules["torch"].compiler.is_compiling():
            return run(*args, **kwargs)
        self._entered(module, args, kwargs)
        try:
            return run(*args, **kwargs)
        finally:
            self._left(module)
