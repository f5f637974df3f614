"""Lightning passes every hook and every part of its loops through `Profiler.profile`: each is a phase."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import Any

from ..frames import around
from ..process import current
from .ranges import Within

SOURCE = "lightning"
_ACTION = re.compile(r"\[(\w+)\](\w+)(\{.*\})?\.(\w+)", re.DOTALL)


def arm(module: str) -> None:
    """`module`, which has the profilers' base class, has just been imported."""
    phases = current().phases
    kind = sys.modules[module].Profiler
    original = kind.profile

    @around(original)
    def profile(profiler: Any, action_name: str, *args: Any, **kwargs: Any) -> Any:
        manager = original(profiler, action_name, *args, **kwargs)
        return Within(manager, phases, phase_of(str(action_name)), SOURCE)

    kind.profile = profile


@lru_cache(maxsize=1024)
def phase_of(action: str) -> str:
    """The name of a phase.

    ``[Strategy]DDPStrategy.training_step`` is training_step; ``[Callback]ModelCheckpoint{...}.on_train_end``
    is ModelCheckpoint.on_train_end, because several callbacks have that hook.
    """
    match = _ACTION.fullmatch(action)
    if match is None:
        return action
    owner, kind, _, hook = match.groups()
    return "%s.%s" % (kind, hook) if owner == "Callback" else hook
