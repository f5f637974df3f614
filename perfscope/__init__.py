"""perfscope: where a distributed training step goes, and why it does not scale.

`perfscope.step` and `perfscope.phase` are for a training; `perfscope.open`, `perfscope.compare` and
`perfscope.load_traces` read what was recorded (docs/api.md).

Importing this package is cheap: neither torch nor numpy, pyarrow or matplotlib is loaded
until a command needs it (tests/unit/test_architecture.py).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .phase_marks import phase  # relative: probes load this file under another name

if TYPE_CHECKING:
    from perfscope.api import Run, Study, compare, load_traces
    from perfscope.api import open_run as open

__version__ = "0.1.0"
__all__ = ["Run", "Study", "__version__", "compare", "load_traces", "open", "phase", "step"]


def __getattr__(name: str) -> Any:
    """Loads `perfscope.api` on first use: `import perfscope` in a training stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module 'perfscope' has no attribute {name!r}")
    from perfscope import api

    return getattr(api, "open_run" if name == "open" else name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext perfscope`: the magic `%%perfscope` records a cell as a training (docs/api.md)."""
    from perfscope.api.magic import record_cell

    shell.register_magic_function(record_cell, magic_kind="cell", magic_name="perfscope")


def step(samples: int | None = None) -> None:
    """A training step begins here; the one before it ends. For loops that perfscope cannot see by itself.

    Call it at the top of the training loop, and once after the loop to end the last step. Outside
    `perfscope run` it does nothing, at the cost of a dictionary look-up. The first framework, or `step`, that
    marks a step in a process cuts all its steps: calls after the first update of a torch training have no
    effect. The framework that the program computes with traces the steps and names their layers.

    Args:
        samples: how many samples this process works on in the step that begins; None = unknown.
    """
    agent = sys.modules.get("_perfscope_agent")
    if agent is not None:
        agent.step(samples)
