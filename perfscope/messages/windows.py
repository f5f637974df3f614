"""Why no step was traced, and what would give a traced one, in English."""

from __future__ import annotations

from perfscope.messages.advice import training_advice
from perfscope.messages.lists import counted
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.defaults import FIRST_WINDOW_STEP, WARM_UP_STEPS

# Where windows were traced, or could not be expected.
_REASONS = {
    Cause.TRACING_OFF: "tracing was switched off (`--no-trace`)",
    Cause.TRACES_GONE: "windows were traced, but their trace files are not there any more",
    Cause.NOT_INGESTED: "the traced windows have not been read in; `perfscope report` does that",
    Cause.NO_USABLE_WINDOW: "no traced window can be used; each is named here with its reason",
    Cause.STRUCTURE_ONLY: "the files state which operators ran, not when and for how long",
    Cause.NO_DEVICE_EVENTS: "the traces have no device events, although the host used a device",
    Cause.FILE_ENDS_EARLY: "the trace files end early and hold no step whole",
    Cause.NO_PROFILER: "no profiler looks into this program, and its traced steps made no call that "
    "perfscope records",
}
# Where none was traced, and no words were recorded of why.
_NONE_TRACED = {
    Cause.FORWARD_NOT_SEEN: "the model's forward was never seen in the thread that trains, and windows begin "
    "with it (a model run by another thread or process, or one that is no torch.nn.Module)",
    Cause.NO_WINDOW_REACHED: "the run ended before the first one, or its trace could not be written",
    Cause.RUN_TOO_SHORT: "the run ended before the first one ({steps}; windows begin after {first} steps)",
}
_CURES = {
    Cause.TRACING_OFF: "Run again without `--no-trace`, and for long enough to reach a traced window.",
    Cause.TRACES_GONE: "Bring the trace files back, or run again.",
    Cause.NOT_INGESTED: "Run `perfscope report` on this run.",
    Cause.NO_USABLE_WINDOW: "See “Not collected”: it lists each window.",
    Cause.STRUCTURE_ONLY: "Import the Kineto trace of the same steps together with the execution trace.",
    Cause.NO_DEVICE_EVENTS: "Record with the device among the profiler's activities.",
    Cause.FILE_ENDS_EARLY: "Record the trace again, or import the whole file.",
    Cause.NO_PROFILER: "Look into it with `perfscope run --stacks`, which samples its Python.",
    Cause.PROBE_ERROR: "See errors.jsonl of that rank; steps are recorded all the same.",
    Cause.FORWARD_NOT_SEEN: "Call the model in the thread that calls the optimizer.",
    Cause.WINDOW_PUT_OFF: "Let the training's own profiler rest, or train for longer: windows are tried "
    "again.",
    Cause.RUN_TOO_SHORT: f"Train for more than {WARM_UP_STEPS} steps, to reach a traced window.",
    Cause.NO_WINDOW_REACHED: "Train for more steps, to reach a traced window.",
}


def no_window_reason(cause: Cause, num_steps: int, recorded: str) -> str:
    """A clause.

    Args:
        num_steps: that were recorded.
        recorded: words of a probe, where it left some; they replace those of the cause.
    """
    if cause in _REASONS:
        return _REASONS[cause]
    steps = f"{counted(num_steps, 'step')} {'was' if num_steps == 1 else 'were'} recorded"
    why = recorded or _NONE_TRACED[cause].format(steps=steps, first=FIRST_WINDOW_STEP)
    return f"no window was traced: {why}"


def no_window_cure(cause: Cause, framework: str) -> str:
    """A sentence; what a probe cannot trace depends on the framework."""
    return training_advice(framework).trace_anyway if cause is Cause.PROBE_LIMIT else _CURES[cause]


def probe_error(rank: int, where: str, error: str, *, disabled: bool) -> str:
    """What a probe met, as a clause. `error`: in its own words; `disabled`: it switched itself off there."""
    off = ", and switched that part of itself off" if disabled else ""
    return f"the probe of rank {rank} met an error in {where!r}: {error}{off} (see errors.jsonl)"
