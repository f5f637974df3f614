"""Whether what the ranks of this machine surely hold fits into its memory, before any is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.collectors.ceilings.host import read_host
from perfscope.collectors.context import Context
from perfscope.messages.lists import counted
from perfscope.runners.config import BenchError
from perfscope.units import format_bytes
from perfscope.vocabulary.taxonomy import Parallelism, StatePlacement

if TYPE_CHECKING:
    from perfscope.runners.job import Job

_WHOLE = (StatePlacement.LOCAL, StatePlacement.REPLICATED)
_STATE = {"adamw": 2, "lamb": 2}  # copies of the weights that an optimizer keeps


def require_memory(job: Job, num_here: int) -> None:
    """Refuses a run on CPUs whose ranks cannot fit into the free memory of this machine.

    Args:
        job: checked.
        num_here: ranks on this machine.

    Raises:
        BenchError: they need more than there is, by a bound from below; one line.
    """
    free = read_host(Context()).free_bytes
    if not free or _may_use_gpus(job, num_here):
        return
    needed: float = num_here * _kept_bytes(job)
    what = "weights alone" if not _is_whole(job) else "weights, gradients and optimizer state alone"
    if needed <= free and _is_whole(job):
        rough = num_here * job.shape.activations * _at_once(job) * job.element_size
        if needed + rough > free / 2:  # else nothing is near, and the exact bytes take seconds
            needed, what = max(needed, num_here * _traced_bytes(job)), "weights, gradients and activations"
    if needed > free:
        raise BenchError(
            f"the {what} of {job.config.model} take {format_bytes(needed)} for "
            f"{counted(num_here, 'rank')} on this machine, which has {format_bytes(free)} free; use a "
            f"smaller model, batch or input, or fewer ranks"
        )


def _may_use_gpus(job: Job, num_here: int) -> bool:
    from perfscope.runners.world import choose_device

    device_type: str = choose_device(job.config, num_here - 1, num_here).type
    return device_type != "cpu"


def _scheme_axes(job: Job) -> tuple[tuple[Parallelism, ...], StatePlacement]:
    from perfscope.runners.schemes.registry import find_scheme

    axes = find_scheme(job.config.scheme).axes
    return axes.parallelism, axes.state


def _is_whole(job: Job) -> bool:
    """Whether each rank trains the whole model, so that the undivided step says what it holds."""
    parallelism, state = _scheme_axes(job)
    return state in _WHOLE and set(parallelism) <= {Parallelism.DATA, Parallelism.NONE}


def _kept_bytes(job: Job) -> int:
    """Of one rank: the weights that it trains and those that it evaluates with, else gradients and state."""
    copies = 2
    if _is_whole(job):
        momentum = 1 if job.config.momentum else 0
        copies += 1 + _STATE.get(job.config.optimizer, momentum)
    return copies * job.model_bytes


def _at_once(job: Job) -> int:
    return job.group_batch // max(job.config.accumulate, 1)


def _traced_bytes(job: Job) -> float:
    """Of one rank at the peak of its step, and the weights that it evaluates with."""
    from perfscope.runners.memory.footprint import footprint
    from perfscope.runners.memory.tape import record_tape

    try:
        return footprint(record_tape(job.config), job).peak + job.model_bytes
    except BenchError:  # the model cannot be traced; what it keeps is known
        return 0.0
