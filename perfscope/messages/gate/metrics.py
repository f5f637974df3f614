"""The metrics that a check judges, by their ids."""

from __future__ import annotations

TITLES = {
    "step_p10": "Step time, p10",
    "step_mean": "Step time, mean",
    "stalls": "Stalls",
    "throughput": "Throughput",
    "input_wait": "Input wait",
    "exposed_comm": "Exposed communication",
    "peak_memory": "Peak memory",
    "peak_device_memory": "Peak device memory",
    "energy": "Energy per step",
}
HINTS = {
    "step_p10": "tenth percentile of the untraced steps after warm-up, mean over ranks",
    "step_mean": "mean of the same steps: noisier, sees stalls",
    "stalls": "share of the time by which steps exceed twice the median step",
    "throughput": "samples per second of all ranks, by the median step",
    "input_wait": "median wait for the data loader in a step; the threshold is a share of the step",
    "exposed_comm": "communication that nothing hides, per traced step; the threshold is a share of the step",
    "peak_memory": "largest resident memory of a rank, the profiler's own included",
    "peak_device_memory": "largest memory that torch had allocated on a rank's device",
    "energy": "of all measured domains of all hosts",
}
# Why a run does not have them.
ABSENT = {
    "step_p10": "no step was timed",
    "step_mean": "no step was timed",
    "stalls": "no step was timed",
    "throughput": "the batch size is not known",
    "input_wait": "no data loader was seen",
    "exposed_comm": "no window was traced",
    "peak_memory": "the run does not say (recorded before this was)",
    "peak_device_memory": "no device memory was used",
    "energy": "no energy counter was readable",
}
ONLY_STEP_TIMES = "the file holds step times only"
NOT_RECORDED = "not recorded"
ZEROS = "some of its values are zero, so there is no ratio"


def few_pairs(num: int) -> str:
    return f"known of {num} pairs only"


def few_runs(num_base: int, num_head: int) -> str:
    return f"known of {num_base} and {num_head} runs only"


def of_side(label: str, reason: str) -> str:
    """Why one side alone does not have a metric."""
    return f"{label}: {reason}"
