"""Marks what FSDP1 gathers and reduces with the module whose parameters it is. In traced windows only.

The ranges of FSDP2 name its module; those of `FullyShardedDataParallel` do not.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Optional
from urllib.parse import urlencode

from ...rundir import layout
from .layers import unwrap
from .wrapped_calls import WrappedCalls

_HANDLES = "torch.distributed.fsdp._flat_param"
_RUNTIME = "torch.distributed.fsdp._runtime_utils"
_REDUCTIONS = ("_reduce_grad", "_reduce_grad_no_shard")  # (state, handle)


class UnitMarks:
    """Wraps the calls of FSDP1, and takes the wraps off.

    Args:
        calls: of its own.
        name_of: module -> layer.
    """

    def __init__(self, calls: WrappedCalls, name_of: Callable[[Any], Optional[str]]) -> None:
        self._calls = calls
        self._name_of = name_of

    def install(self) -> None:
        """From now on mark calls. Does nothing in a training without FSDP1."""
        handles, runtime = sys.modules.get(_HANDLES), sys.modules.get(_RUNTIME)
        kind = getattr(handles, "FlatParamHandle", None)
        if kind is None or runtime is None or self._calls.broken or self._calls.active:
            return
        self._calls.wrap(kind, "_all_gather_flat_param", lambda args, kwargs: self._text(args[0]))
        for name in _REDUCTIONS:
            self._calls.wrap(runtime, name, lambda args, kwargs: self._text(args[1]))

    def _text(self, handle: Any) -> Optional[str]:
        name = self._name_of(unwrap(handle._fully_sharded_module))
        return None if name is None else layout.MARK_SERVES + urlencode({name: 1})

    def remove(self) -> None:
        """Everything as it was before."""
        self._calls.remove()
