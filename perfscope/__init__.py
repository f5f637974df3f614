"""perfscope: where a distributed training step goes, and why it does not scale.

Importing this package is cheap: neither torch nor numpy, pyarrow or matplotlib is loaded
until a command needs it (tests/unit/test_import_cost.py).
"""

from __future__ import annotations

import sys

__version__ = "0.1.0"
__all__ = ["__version__", "step"]


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
