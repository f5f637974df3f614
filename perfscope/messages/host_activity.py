"""Names of what a host does while a device idles."""

from __future__ import annotations

from perfscope.vocabulary.host_activity import HostActivity

TITLES = {
    HostActivity.COPY: "Copy call",
    HostActivity.SYNCHRONIZE: "Synchronization",
    HostActivity.ALLOCATION: "Memory allocation",
    HostActivity.LAUNCH: "Kernel launch",
    HostActivity.OPERATOR: "Operator",
    HostActivity.COLLECTIVE: "Collective on the host",
    HostActivity.DATA_LOADING: "Data loading",
    HostActivity.PYTHON: "Python",
    HostActivity.GARBAGE_COLLECTION: "Garbage collection",
    HostActivity.CHECKPOINT: "Checkpoint",
    HostActivity.PREEMPTED: "Waiting for a CPU",
    HostActivity.LOCK: "Waiting for a lock or another thread",
    HostActivity.FILES: "Waiting for a file system",
    HostActivity.PIPES: "Waiting for a pipe or socket",
    HostActivity.SLEEP: "Sleeping",
    HostActivity.BLOCKED: "Blocked in a system call",
    HostActivity.UNTRACED: "Not traced",
}
