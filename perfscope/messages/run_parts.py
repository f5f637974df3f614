"""Names of the parts of a run."""

from __future__ import annotations

from perfscope.vocabulary.run_parts import RunPart

TITLES = {
    RunPart.LAUNCH: "Launch",
    RunPart.START_UP: "Start-up",
    RunPart.WARM_UP: "Warm-up",
    RunPart.STEPS: "Training steps",
    RunPart.INPUT: "Waiting for input",
    RunPart.EVALUATION: "Evaluation",
    RunPart.ROLLOUT: "Rollouts",
    RunPart.INFERENCE: "Evaluation or rollouts",
    RunPart.CHECKPOINT: "Checkpoints",
    RunPart.GARBAGE_COLLECTION: "Garbage collection",
    RunPart.OTHER_RANKS: "Waiting for other ranks",
    RunPart.CPU_WAIT: "Waiting for a CPU",
    RunPart.PROFILING: "Profiling",
    RunPart.SHUTDOWN: "Shutdown",
    RunPart.OTHER: "Other",
}
HINTS = {
    RunPart.LAUNCH: "until the process of the rank starts",
    RunPart.START_UP: "from there to the first step: imports, data, the model, process groups",
    RunPart.WARM_UP: "what the first steps take beyond the median: compilation, first allocations",
    RunPart.STEPS: "forward, backward, communication and update",
    RunPart.INPUT: "in the data loader",
    RunPart.EVALUATION: "forward passes without gradients between updates",
    RunPart.ROLLOUT: "forward passes of a policy without gradients, and its environment",
    RunPart.INFERENCE: "forward passes without gradients between updates",
    RunPart.CHECKPOINT: "in functions that write checkpoints, or in long steps that write files",
    RunPart.GARBAGE_COLLECTION: "Python's, before the first step (imports), in steps and after them",
    RunPart.OTHER_RANKS: "for ranks that evaluate, write checkpoints or end later",
    RunPart.CPU_WAIT: "in long steps: the training thread was ready and had no CPU",
    RunPart.PROFILING: "perfscope's windows, and what traced steps take beyond the median",
    RunPart.SHUTDOWN: "from the last step to the end of the command",
    RunPart.OTHER: "not known: what long steps take beyond the median, and what is not recorded",
}
