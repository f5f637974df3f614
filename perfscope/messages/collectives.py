"""Why calls of a collective are not matched across ranks, or not given to layers."""

from __future__ import annotations

from perfscope.messages.lists import counted
from perfscope.vocabulary.communication import Unattributed

OTHER_END = "the other end was not traced, or the trace does not name the peers"
ONE_SIDED = "one rank makes these calls alone: no other rank enters them"
SIZE_NOT_KNOWN = "the trace does not say how many ranks the job has"
GROUP_NOT_KNOWN = "the trace does not say which of several process groups they are on"
# Of calls that belong to no layer.
UNATTRIBUTED = {
    Unattributed.NO_LAYER_TENSORS: "they carry no layer's tensors",
    Unattributed.OUTSIDE_STEPS: "they begin outside the traced steps",
    Unattributed.OUTSIDE_LAYERS: "they are made while no layer runs, and are no gradient buckets",
    Unattributed.NOT_QUEUED_IN_TRACE: "the trace does not show which operator queued them",
    Unattributed.NO_SIZES: "the trace does not give the sizes of the all-reduces",
    Unattributed.NO_PARAMETERS: "neither the model's parameters nor their gradients are recorded",
    Unattributed.NO_LAYERS: "the trace names no layers (with_stack=True or with_modules=True records them)",
    Unattributed.NO_BUCKETS: "the sizes of the all-reduces do not add up to the parameters of consecutive "
    "layers",
    Unattributed.BESIDE_DEVICES: "they run on the host; the step breakdown counts those of the devices",
    Unattributed.NO_STAGES: "they are sends and receives that are not known to be between pipeline stages",
}


def single_devices(num_devices: int, num_processes: int) -> str:
    """A group of several devices per process."""
    whose = "one process" if num_processes == 1 else counted(num_processes, "process", "processes")
    return f"its {num_devices} devices are of {whose}: the calls of single devices are not matched"


def ranks_traced(num: int, size: int) -> str:
    return f"{num} of the group's {size} ranks were traced"


def no_common_window(size: int) -> str:
    return f"no window was traced by all {size} ranks of the group"
