"""Why calls of a collective are not matched across ranks, or not given to layers."""

from __future__ import annotations

from perfscope.messages.lists import counted

OTHER_END = "the other end was not traced, or the trace does not name the peers"
ONE_SIDED = "one rank makes these calls alone: no other rank enters them"
GROUP_NOT_KNOWN = "the trace does not say which of several process groups they are on"
# Of layers.
NO_REDUCE = "gradients are not all-reduced (only the layers of DistributedDataParallel's buckets are known)"
NO_PARAMS = "the run does not list the model's parameters"
NO_SIZES = "the trace does not give the sizes of the all-reduces"
NO_FIT = "the sizes of the all-reduces do not add up to the parameters of consecutive layers"
BEGAN_EARLY = "the layers of calls that begin outside the traced steps are not known"
OTHER_CALLS = "only all-reduces of gradients can be given to layers by their sizes"


def single_devices(num_devices: int, num_processes: int) -> str:
    """A group of several devices per process."""
    whose = "one process" if num_processes == 1 else counted(num_processes, "process", "processes")
    return f"its {num_devices} devices are of {whose}: the calls of single devices are not matched"


def ranks_traced(num: int, size: int) -> str:
    return f"{num} of the group's {size} ranks were traced"


def no_common_window(size: int) -> str:
    return f"no window was traced by all {size} ranks of the group"
