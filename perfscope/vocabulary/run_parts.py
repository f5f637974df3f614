"""Parts of a whole run's wall time."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class RunPart(str, Enum):
    """What a rank's time of the run is attributed to. The value is the code in the JSON report."""

    LAUNCH = "launch"  # from the start of the run to that of the rank's process
    START_UP = "start_up"  # from there to the first step: imports, data, the model, process groups
    WARM_UP = "warm_up"  # what the first steps take beyond the median: compilation, first allocations
    STEPS = "steps"  # training steps, without what is below
    INPUT = "input"  # the training thread waits for batches
    EVALUATION = "evaluation"  # forward passes without gradients between updates
    ROLLOUT = "rollout"  # likewise, of a policy in an environment
    INFERENCE = "inference"  # likewise, one of both: no data loader, evaluation mode or environment is seen
    CHECKPOINT = "checkpoint"  # in functions that write checkpoints, or in long steps that write files
    GARBAGE_COLLECTION = "garbage_collection"  # Python's
    OTHER_RANKS = "other_ranks"  # waiting for ranks that do one of these, or that end later
    CPU_WAIT = "cpu_wait"  # of long steps: the training thread was ready to run and had no CPU
    PROFILING = "profiling"  # perfscope's windows, and what traced steps take beyond the median
    SHUTDOWN = "shutdown"  # from the last step to the end of the run
    OTHER = "other"  # cannot be determined: what long steps take beyond the median, and what is not recorded

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum


# Work of the training thread that is timed in every step -> its column of schema.STEPS. All but the input
# are fields of the same names of a rank's life, too.
STEP_COLUMNS: Mapping[RunPart, str] = {
    RunPart.CHECKPOINT: "checkpoint_ns",
    RunPart.GARBAGE_COLLECTION: "gc_ns",
    RunPart.EVALUATION: "evaluation_ns",
    RunPart.ROLLOUT: "rollout_ns",
    RunPart.INFERENCE: "inference_ns",
    RunPart.INPUT: "input_ns",
}
TIMED = tuple(STEP_COLUMNS)


class GrowingPart(str, Enum):
    """What of a step may grow over the run; what may be waiting for other ranks comes last."""

    INPUT = "input"
    GARBAGE_COLLECTION = "garbage_collection"
    OUTSIDE = "outside"
    PASSES = "passes"
