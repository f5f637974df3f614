"""Why a figure of what a run learned is missing, and sentences about targets."""

from __future__ import annotations

from perfscope.messages.lists import counted

NO_BEST = "the data is not synthetic, or its classes overlap"
NO_SIGNAL = "the gradients measured hold more noise than signal; measure more often (--noise-every)"
NO_ENERGY = "the energy of all hosts was not read (see what was not collected)"
BYTES_NOT_RECORDED = "the bytes of a step are not known"
NO_PRICE = "no --price-per-hour was given"


def target_not_reached(target: str, steps: int) -> str:
    """Why there is no time to a target."""
    return f"{target} was not reached in {counted(steps, 'step')}"
