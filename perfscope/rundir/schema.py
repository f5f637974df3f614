"""Tables every timeline format becomes. One constant per table, one comment per column.

Schema versions (layout.SCHEMA_VERSION):
    1  2026-11  first released schema.

All times are integer nanoseconds. Times in one rank's timeline share that rank's trace clock
(Unix epoch unless the trace says otherwise); clock differences between hosts are handled by
analysis, never written into the raw table.
"""

from __future__ import annotations

import pyarrow as pa

KINDS = (
    *("compute", "comm", "copy", "input", "optimizer", "host", "annotation", "runtime", "python"),
    "wait",  # of a thread for communication
)
PHASES = ("forward", "backward", "optimizer", "other")

_WORD = pa.dictionary(pa.int32(), pa.string())

TIMELINE = pa.schema(
    [
        ("rank", pa.int32()),  # global rank
        ("window", pa.int32()),  # which traced window of that rank, from 0
        ("step", pa.int32()),  # step in which the span starts; -1 outside every step
        ("device", pa.int16()),  # GPU index; -1 = a host thread
        ("lane", pa.int64()),  # host thread id, or device stream id
        ("start_ns", pa.int64()),
        ("dur_ns", pa.int64()),
        ("depth", pa.int16()),  # number of kept spans of the same lane that enclose this one
        ("kind", _WORD),  # one of KINDS
        ("phase", _WORD),  # one of PHASES
        ("layer", _WORD),  # qualified module path; null = not attributable
        ("name", _WORD),  # operator, kernel or annotation name
        ("correlation", pa.int64()),  # launch <-> device work; null = none
        (
            "launch_ns",
            pa.int64(),
        ),  # device spans: start of the host call that launched it; null = not in file
        (
            "launch_step",
            pa.int32(),
        ),  # device spans: step of that host call; -1 outside steps; null = not in file
        ("launch_dur_ns", pa.int64()),  # device spans: how long that call took; null = not in file
        ("launch_call", _WORD),  # device spans: name of that call, such as cudaGraphLaunch; null likewise
        (
            "operator",
            _WORD,
        ),  # device spans: innermost operator that made the call; null = none, or not in file
        ("grid", _WORD),  # kernels: blocks, such as 32x2x1; null = the trace does not say
        ("block", _WORD),  # kernels: threads of a block, likewise
        ("registers", pa.int32()),  # kernels: per thread; null likewise
        ("occupancy", pa.int16()),  # kernels: achieved, estimated by the profiler, percent; null likewise
        ("flops", pa.int64()),  # modeled from shapes; null = unknown
        ("bytes_read", pa.int64()),  # modeled from shapes; null = unknown
        ("bytes_written", pa.int64()),
        ("collective", _WORD),  # all_reduce, all_gather, reduce_scatter, broadcast, ..., send, recv, barrier
        ("group", _WORD),  # process group name; "default" = none listed; "unknown" = one of several
        ("group_size", pa.int32()),
        ("in_bytes", pa.int64()),  # per-rank input tensor bytes
        ("out_bytes", pa.int64()),  # per-rank output tensor bytes
        ("in_rows", pa.int64()),  # all_to_all: rows (tokens, of experts) that this rank sends
        ("out_rows", pa.int64()),  # and gets; null = the trace does not say
        ("dtype", _WORD),
        ("peer", pa.int32()),  # point to point: the other global rank
        ("seq", pa.int32()),  # k-th collective of this (group, collective) in this rank and window
    ]
)

# What the analysis of the run adds to TIMELINE where timelines are exported. There, communication always has
# `group` and `axis`, and `layer` or `unattributed`.
CALL_COLUMNS = pa.schema(
    [
        ("axis", _WORD),  # of the device mesh, or the group's name; null = no communication
        ("unattributed", _WORD),  # why communication has no layer: a code of vocabulary.communication
    ]
)
EXPORTED = pa.schema([*TIMELINE, *CALL_COLUMNS])

STEPS = pa.schema(
    [
        ("rank", pa.int32()),
        ("step", pa.int32()),
        ("start_ns", pa.int64()),  # monotonic clock of that rank's host (imported runs: trace clock)
        ("dur_ns", pa.int64()),  # to the start of the next step
        ("window", pa.int32()),  # window that traced this step; -1 = untraced
        ("input_ns", pa.int64()),  # main thread blocked in the data loader; null = not measured
        ("forward_ns", pa.int64()),  # from the model's forward pass to the backward pass; null = not timed
        ("backward_ns", pa.int64()),
        ("optimizer_ns", pa.int64()),
        ("num_micro", pa.int32()),  # root forward calls in this step (gradient accumulation)
        ("samples", pa.int64()),  # that this rank was given, of all micro-batches; null = unknown
        ("tokens", pa.int64()),  # likewise; null = unknown, or no model of tokens
        # What the thread that trains did besides; null = not recorded. These times do not overlap.
        (
            "evaluation_ns",
            pa.int64(),
        ),  # forward passes without gradients between updates, their batches included
        ("rollout_ns", pa.int64()),  # likewise, of a policy in an environment
        ("inference_ns", pa.int64()),  # likewise, an evaluation or a rollout
        ("checkpoint_ns", pa.int64()),  # in functions that write checkpoints
        ("gc_ns", pa.int64()),  # in Python's garbage collector
        # What the whole process used; null = not recorded.
        ("minor_faults", pa.int64()),  # page faults without input
        ("major_faults", pa.int64()),  # page faults that read from a disk
        ("user_ns", pa.int64()),  # CPU time of all threads in user mode
        ("system_ns", pa.int64()),  # CPU time of all threads in the kernel
        ("written_bytes", pa.int64()),  # to files; the kernel counts when pages become dirty
        # What the thread that trains used; null = not recorded.
        ("thread_minor_faults", pa.int64()),
        ("thread_user_ns", pa.int64()),
        ("thread_system_ns", pa.int64()),
        ("thread_switches", pa.int64()),  # voluntary context switches
        ("runqueue_ns", pa.int64()),  # it was ready to run and had no CPU
    ]
)
