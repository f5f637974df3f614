"""What a host does while a device idles, and which runtime calls block it."""

from __future__ import annotations

from enum import Enum


class HostActivity(str, Enum):
    """What the idle time of a device is attributed to. The value is the code in the JSON report.

    In order of precedence: an instant counts for the first activity that a thread of the rank was in.
    """

    COPY = "copy"  # a runtime call that copies or sets memory
    SYNCHRONIZE = "synchronize"  # a runtime call that waits for the device
    ALLOCATION = "allocation"  # a runtime call that allocates, frees or maps memory
    LAUNCH = "launch"  # a runtime call that launches kernels or graphs
    OPERATOR = "operator"  # an operator, outside of these calls
    COLLECTIVE = "collective"  # a communication library on the host
    DATA_LOADING = "data_loading"  # the main thread in the data loader
    PYTHON = "python"  # a Python function, outside of all above
    GARBAGE_COLLECTION = "garbage_collection"  # Python's
    CHECKPOINT = "checkpoint"  # a function that writes a checkpoint
    PREEMPTED = "preempted"  # the thread was ready to run and had no CPU
    LOCK = "lock"  # the thread waited for a lock
    UNTRACED = "untraced"  # nothing was traced

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum


# Runtime calls that return only when the device is done, or its memory is theirs.
BLOCKING = frozenset({HostActivity.COPY, HostActivity.SYNCHRONIZE, HostActivity.ALLOCATION})

# What the host is in while it prepares and launches the next work of the device.
LAUNCHING = frozenset({HostActivity.LAUNCH, HostActivity.OPERATOR})

# Names of runtime calls (CUDA, HIP, Level Zero, Unified Runtime), by regular expression; the first that is
# found in the name counts. Others (queries, events, attributes) neither block nor put work on a device.
RUNTIME_CALLS = (
    (r"Mem(?:cpy|set|oryCopy|oryFill)", HostActivity.COPY),
    (r"Synchronize|EventWait|QueueFinish", HostActivity.SYNCHRONIZE),
    (r"Malloc|Free|Alloc|Mem(?:Create|Map|Unmap|Release|SetAccess|Address|Pool)", HostActivity.ALLOCATION),
    (r"HostRegister|HostUnregister", HostActivity.ALLOCATION),
    (r"Launch|Enqueue|Append", HostActivity.LAUNCH),
)
