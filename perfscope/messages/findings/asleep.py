"""What a training thread sleeps in, and what helps."""

from __future__ import annotations

from perfscope.vocabulary.host_activity import HostActivity

ASLEEP_IN = {
    HostActivity.LOCK: "it waits for another thread of its process",
    HostActivity.FILES: "it waits for a file system or a disk",
    HostActivity.PIPES: "it waits for another process (a pipe, a socket)",
    HostActivity.SLEEP: "it sleeps for a set time",
    HostActivity.BLOCKED: "what it waits for is not known",
}
ASLEEP_ADVICE = {
    HostActivity.LOCK: "Look at what other threads of the process do during a step: move Python code that "
    "computes (logging, metrics, augmentation) from threads into processes, and do not hold locks that the "
    "training thread needs.",
    HostActivity.FILES: "Write logs, metrics and samples from another thread or process, without "
    "`flush` and `fsync` in every step, or only every so many steps.",
    HostActivity.PIPES: "Look at what the training thread asks other processes for during a step (a logger, "
    "a simulator, a remote store), and ask earlier or less often.",
    HostActivity.SLEEP: "Remove `time.sleep` and polling loops from the training loop.",
    HostActivity.BLOCKED: "Record the run with `--stacks` to see where the training thread waits.",
}
