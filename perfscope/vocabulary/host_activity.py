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
    LOCK = "lock"  # the thread slept until another thread woke it: a lock, the GIL, a condition variable
    FILES = "files"  # the thread slept until a file system or a disk was done
    PIPES = "pipes"  # the thread slept until a pipe, a socket or one of several had data
    SLEEP = "sleep"  # the thread slept for a time it had asked for
    BLOCKED = "blocked"  # the thread slept in the kernel, in what is not known
    UNTRACED = "untraced"  # nothing was traced

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum


# Runtime calls that return only when the device is done, or its memory is theirs.
BLOCKING = frozenset({HostActivity.COPY, HostActivity.SYNCHRONIZE, HostActivity.ALLOCATION})

# Of them, the ones that return when the work before them is done.
WAITING = frozenset({HostActivity.COPY, HostActivity.SYNCHRONIZE})

# What the host is in while it prepares and launches the next work of the device.
LAUNCHING = frozenset({HostActivity.LAUNCH, HostActivity.OPERATOR})

# What a thread that is not running sleeps in.
ASLEEP = (
    HostActivity.LOCK,
    HostActivity.FILES,
    HostActivity.PIPES,
    HostActivity.SLEEP,
    HostActivity.BLOCKED,
)
# Functions of the Linux kernel that a thread sleeps in (/proc/PID/wchan), by regular expression; the first
# one that is found in the name counts.
WAIT_CHANNELS = (
    (r"futex", HostActivity.LOCK),
    (r"nanosleep", HostActivity.SLEEP),
    (r"pipe|poll|select|sock|sk_wait|skb|unix_|inet_|wait_woken|eventfd", HostActivity.PIPES),
    (r"folio|page|buffer|bio|blk|jbd2|ext4|xfs|btrfs|nfs|rpc_|fuse|request_wait|inode|io_schedule|fsync|fdatasync",
     HostActivity.FILES),
    (r"cl_|ll_|lu_|ptlrpc|beegfs|gpfs|mmfs|ceph|cifs|9p_|virtio_fs|loop_", HostActivity.FILES),
)  # fmt: skip

# Names of runtime calls (CUDA, HIP, Level Zero, Unified Runtime), by regular expression; the first that is
# found in the name counts. Others (queries, events, attributes) neither block nor put work on a device.
RUNTIME_CALLS = (
    (r"Mem(?:cpy|set|oryCopy|oryFill)", HostActivity.COPY),
    (r"Synchronize|EventWait|QueueFinish", HostActivity.SYNCHRONIZE),
    (r"Malloc|Free|Alloc|Mem(?:Create|Map|Unmap|Release|SetAccess|Address|Pool)", HostActivity.ALLOCATION),
    (r"HostRegister|HostUnregister", HostActivity.ALLOCATION),
    (r"Launch|Enqueue|Append", HostActivity.LAUNCH),
)
