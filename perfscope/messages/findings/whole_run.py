"""What takes time beside the ordinary step."""

from __future__ import annotations

from perfscope.messages.advice import training_advice
from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject
from perfscope.messages.lists import counted
from perfscope.units import format_bytes, format_ns, format_rate, format_ratio
from perfscope.vocabulary.run_parts import RunPart

_LEADS = {
    RunPart.EVALUATION: "Evaluation takes",
    RunPart.ROLLOUT: "Rollouts take",
    RunPart.INFERENCE: "Evaluation or rollouts (forward passes without gradients) take",
    RunPart.CHECKPOINT: "Checkpoints take",
    RunPart.GARBAGE_COLLECTION: "Python's garbage collection takes",
    RunPart.INPUT: "Long waits for input take",
    RunPart.OTHER: "Long steps take",
}
_DETAILS = {
    RunPart.EVALUATION: "Counted are forward passes without gradients between updates, with the batches "
    "loaded for them.",
    RunPart.INFERENCE: "Counted is the time from the first to the last of these passes between two updates. "
    "Whether they evaluate the model or collect rollouts of a policy is not known: no data loader gave them "
    "batches, no module was in evaluation mode, and no library of environments is loaded.",
    RunPart.ROLLOUT: "Counted are forward passes without gradients between updates, in training mode and "
    "without a data loader, and the environment between them.",
    RunPart.CHECKPOINT: "Counted are the functions that write checkpoints, and what long steps that write "
    "files take beyond an ordinary step.",
    RunPart.GARBAGE_COLLECTION: "The collector runs in the training thread, and every rank waits for the one "
    "that collects.",
    RunPart.INPUT: "Counted are steps that wait for input longer than an ordinary step takes: the start of "
    "an epoch, when workers are started, or a slow file.",
    RunPart.OTHER: "Counted is what they take beyond an ordinary step. It is none of: evaluation, "
    "checkpoints, garbage collection, input, waiting for a CPU.",
}
_ACTIONS = {
    RunPart.EVALUATION: "Evaluate less often, on fewer batches or with a larger batch, or in a job of its "
    "own; the training waits meanwhile.",
    RunPart.ROLLOUT: "Run more environments at once (vectorized, in processes of their own), or collect the "
    "next rollouts while the policy is updated.",
    RunPart.INFERENCE: "Evaluate less often, on fewer batches, or in a job of its own. For rollouts: run "
    "more environments at once, or collect the next rollouts while the policy is updated.",
    RunPart.CHECKPOINT: "Write checkpoints less often, asynchronously "
    "(`torch.distributed.checkpoint.async_save`, or a thread that writes a copy in memory), or to faster "
    "storage.",
    RunPart.GARBAGE_COLLECTION: "Call `gc.freeze()` after the set-up, raise `gc.set_threshold`, or disable "
    "the collector and collect every few hundred steps, on all ranks in the same step; remove `gc.collect()` "
    "from the loop.",
    RunPart.OTHER: "Look at what the loop does in these steps only: logging, writing files, Python work, "
    "another model. `perfscope run --stacks` shows the functions.",
}


class BesideSteps(FindingFacts, frozen=True, kw_only=True):
    """One part of the training's time, see analysis.whole_run.results.LongSteps; times are sums over it."""

    part: RunPart
    framework: str
    num_long: int  # steps that hold it
    num_steps: int
    every: int | None
    ns: int
    training_ns: int
    longest_ns: int
    longest_step: int
    usual_step_ns: int
    written_bytes: int | None = None  # of checkpoints, by all ranks

    def text(self, subject: Subject) -> FindingText:
        share = format_ratio(min(1.0, self.ns / self.training_ns))
        spaced = f", every {self.every:,} steps" if self.every is not None and self.every > 1 else ""
        title = (
            f"{_LEADS[self.part]} {share} of the training time ({format_ns(self.ns)} of "
            f"{format_ns(self.training_ns)}), in {self.num_long:,} of "
            f"{counted(self.num_steps, 'step')}{spaced}."
        )
        detail = (
            f"{format_ns(self.ns / self.num_long)} in each of them on average, {format_ns(self.longest_ns)} "
            f"at most (step {self.longest_step:,}); an ordinary step takes {format_ns(self.usual_step_ns)}. "
            f"{_DETAILS[self.part]}{self._written()}"
        )
        action = _ACTIONS.get(self.part) or training_advice(self.framework).faster_input
        return FindingText(title, detail, action)

    def _written(self) -> str:
        if not self.written_bytes or not self.ns:
            return ""
        rate = format_rate(self.written_bytes / self.ns * 1e9)
        return f" All ranks together wrote {format_bytes(self.written_bytes)} in these steps: {rate}."
