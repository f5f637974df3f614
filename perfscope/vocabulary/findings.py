"""What a finding may be about."""

from __future__ import annotations

from enum import Enum


class FindingKind(str, Enum):
    """The kinds of findings. The value is the code in the JSON report."""

    COMPUTE_BOUND = "compute_bound"
    COPY_BOUND = "copy_bound"
    INPUT_BOUND = "input_bound"
    DECODE_BOUND = "decode_bound"  # input, and the workers of the loader compute
    STORE_BOUND = "store_bound"  # and they wait for storage
    SLOW_WORKER = "slow_worker"  # and they wait for one of them
    OPTIMIZER_BOUND = "optimizer_bound"
    # Gaps without work.
    LAUNCH_BOUND = "launch_bound"
    HOST_BLOCKED = "host_blocked"
    PREEMPTED = "preempted"
    IDLE_BOUND = "idle_bound"
    HOST_BOUND = "host_bound"
    # Exposed communication, by what would help most.
    COMM_BOUND = "comm_bound"
    SLOW_LINK = "slow_link"
    NO_OVERLAP = "no_overlap"
    SMALL_COLLECTIVES = "small_collectives"
    SERIALIZED = "serialised"
    UNEVEN_COMM = "uneven_comm"  # of one layer, against others of its name
    # Ranks that differ.
    STRAGGLER = "straggler"
    MODEL_SPLIT = "model_split"
    LATE_START = "late_start"
    IMBALANCE = "imbalance"
    SERVER_BOUND = "server_bound"
    # Pipelines.
    STAGE_IMBALANCE = "stage_imbalance"
    PIPELINE_BUBBLE = "pipeline_bubble"
    EXPERT_IMBALANCE = "expert_imbalance"
    # Beside the ordinary step: in long steps, or between updates.
    EVALUATION = "evaluation"
    ROLLOUT = "rollout"
    CHECKPOINT = "checkpoint"
    GARBAGE_COLLECTION = "garbage_collection"
    INPUT_STALLS = "input_stalls"
    LONG_STEPS = "long_steps"
    STEPS_GROW = "steps_grow"  # they take longer as the run goes on
    MEMORY_GROWS = "memory_grows"
    # The machine.
    PAGE_FAULT_CHURN = "page_fault_churn"
    DISTURBED = "disturbed"
    OVERSUBSCRIBED = "oversubscribed"
    NUMA_REMOTE = "numa_remote"
    GPU_REMOTE = "gpu_remote"
    POWER_CAPPED = "power_capped"
    LINK_SATURATED = "link_saturated"
    MEMORY_BOUND = "memory_bound"
    # Kernels that another shape or layout of the tensors would save.
    UNALIGNED_PRODUCTS = "unaligned_products"
    LAYOUT_CONVERSIONS = "layout_conversions"
    # Calls that the training thread waits in.
    FILE_SYNC = "file_sync"
    OBJECT_COLLECTIVES = "object_collectives"
    # The recording.
    OVERHEAD = "overhead"
    RANKS_MISSING = "ranks_missing"
    LOW_HEADROOM = "low_headroom"  # a device's memory is nearly full
    RANKS_KILLED = "ranks_killed"
    NO_STEPS = "no_steps"
    NOT_TRACED = "not_traced"
    NO_DEVICE_EVENTS = "no_device_events"
    SELF_CHECK_FAILED = "self_check_failed"  # figures of the report contradict each other
    NOT_ENOUGH_EVIDENCE = "not_enough_evidence"  # the traced steps cannot carry a verdict


GAPS = frozenset(
    {
        FindingKind.LAUNCH_BOUND,
        FindingKind.HOST_BLOCKED,
        FindingKind.PREEMPTED,
        FindingKind.IDLE_BOUND,
        FindingKind.HOST_BOUND,
    }
)
INPUT = frozenset(
    {
        FindingKind.INPUT_BOUND,
        FindingKind.DECODE_BOUND,
        FindingKind.STORE_BOUND,
        FindingKind.SLOW_WORKER,
    }
)
COMMUNICATION = frozenset(
    {
        FindingKind.COMM_BOUND,
        FindingKind.SLOW_LINK,
        FindingKind.NO_OVERLAP,
        FindingKind.SMALL_COLLECTIVES,
        FindingKind.SERIALIZED,
        FindingKind.UNEVEN_COMM,
    }
)
# About the recording or the machine's state, not about what the training does.
ABOUT_THE_RECORDING = frozenset(
    {
        FindingKind.DISTURBED,
        FindingKind.OVERHEAD,
        FindingKind.RANKS_MISSING,
        FindingKind.RANKS_KILLED,
        FindingKind.NOT_ENOUGH_EVIDENCE,
        FindingKind.SELF_CHECK_FAILED,
    }
)
