"""What moved between the two sides of a check, and what was around the runs."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.messages.lists import counted
from perfscope.messages.sentences import clause
from perfscope.messages.step_parts import TITLES
from perfscope.units import format_bytes, format_change, format_count, format_ns, format_ratio, with_sign

PARTS = {
    **TITLES,
    "compute": "Computation",  # as sentences begin with it
    "copy": "Copies",
    "backward": "Backward pass",
    "rest": "Forward pass and the rest",
}
MEDIAN_STEP = "median step"
P10_STEP = "step (p10)"
TRACED_STEP = "traced step"
MAKE_RUNS = "Make more runs, for example with `--pairs 8`."
MAKE_ALIKE = "Make both sides alike in this, or run them interleaved (`--pairs`), and check again."
IN_NO_LAYER = "in no layer more than in the others"
SAME_MESSAGES = "with the same calls and bytes: waiting for other ranks, or a slower link"
AS_BEFORE = "calls and bytes as before"
NOT_IN_BASE = "not in the base"
GONE = "no longer there"
UNSET = "unset"
CHANGED_CODE = "the changed code"
NOTHING = "nothing"  # of a command
# What to do about the part of the step that moved.
_NEXT = {
    "compute": "Look at what changed in {where}.",
    "exposed_comm": "Look at what changed around {where}: calls, sizes, and what they can overlap with.",
    "copy": "Look for new transfers between host and device (`.to`, `.item`, `.cpu`, pinned memory).",
    "input_wait": "Look at what changed in the data loader: transforms, workers, prefetching, storage.",
    "optimizer": "Look at what changed in the optimizer: its kind, `foreach` or `fused`, parameter groups.",
    "idle": "Look at what changed in Python code between operators: logging, synchronizing, small operators.",
}
# What is measured around runs, by its name in the result.
QUANTITIES = {
    "clock": "CPU clock",
    "gpu clock": "GPU clock",
    "throttling": "Time throttled",
    "steal": "CPU steal",
    "neighbours": "CPUs taken by other processes",
    "pressure": "CPU pressure",
    "page faults": "Page faults' share of the step (at most)",
}
SETTINGS = {
    "hosts": "Hosts",
    "kernel": "Kernel",
    "command": "Command",
    "commit": "Commit",
    "uncommitted changes": "Uncommitted changes",
}
KINDS = {"package": "Package", "environment": "Environment", "option": "Option of perfscope"}


def too_few_runs(needed: int) -> str:
    return f"Too few runs to say what moved: {needed} or more a side with a step time are needed."


def signed(ns: float) -> str:
    """``+1.10 ms``, ``−340 µs``."""
    return with_sign(format_ns(ns), ns)


def share_of(change: float, base: float) -> str:
    """``+4.2 %``."""
    return format_change(change / base)


def change_of(change: float, base: float) -> str:
    """``+1.10 ms (+4.2 %)``."""
    return f"{signed(change)} ({share_of(change, base)})"


def difference(title: str, base: str, head: str) -> str:
    """Something around the runs that differs."""
    return f"{title}: {base} → {head}."


def moved(title: str, change_ns: float) -> str:
    return f"{title} {signed(change_ns)}"


def noted(title: str, note: str) -> str:
    """A collective with what is known of it besides its time."""
    return f"{title}: {note}"


def in_brackets(title: str, note: str) -> str:
    return f"{title} ({note})"


def takes(part: str, title: str, change_ns: float) -> str:
    """``Copies take 3 ms longer``."""
    verb = "take" if part == "copy" else "takes"
    return f"{title} {verb} {format_ns(abs(change_ns))} {'longer' if change_ns > 0 else 'less'}"


def part_headline(
    part: str, title: str, change_ns: float, step_ns: float, details: str, waiting_ns: float | None
) -> str:
    """The part that moved; `details`: where in it; `waiting_ns`: in communication, for late ranks."""
    clauses = [
        f"{takes(part, title, change_ns)} per step ({share_of(change_ns, step_ns)} of a step)",
        details,
    ]
    if waiting_ns is not None:
        clauses.append(f"and late ranks make others wait in communication ({signed(waiting_ns)})")
    return f"{', '.join(filter(None, clauses))}."


def nothing_moved(step: str, change: str) -> str:
    """`step`: its name; `change`: of `change_of`."""
    return f"Nothing moved beyond the noise: the {step} changed by {change}."


def let_pass(step: str, change: str) -> str:
    return f"The {step} changed by {change}, which the check lets pass."


def moved_within(step: str, change: str, moves: Sequence[str], *, is_certain: bool) -> str:
    """The step changed by no more than is allowed; `moves`: what changed in it."""
    judged = "which the check lets pass" if is_certain else "no more than the noise"
    return f"The {step} changed by {change}, {judged}; what moved in it: {'; '.join(moves)}."


def surroundings_headline(step: str, change: str, differences: Sequence[str]) -> str:
    """`differences`: of `difference`."""
    listed = "; ".join(clause(difference) for difference in differences)
    return (
        f"The {step} takes {change}, and the surroundings differ: {listed}. "
        "Look at these before blaming code."
    )


def not_known_where(step: str, change: str) -> str:
    return f"The {step} moved by {change}; the runs do not say where in the step."


def not_traced(step: str, change: str, seen: Sequence[str]) -> str:
    """`seen`: parts that moved."""
    return (
        f"The {step} moved by {change}: {' and '.join(seen)}. No window was traced, so compute and "
        "communication cannot be distinguished."
    )


def most_likely(step: str, change: str, seen: Sequence[str]) -> str:
    return f"The {step} moved by {change}; which part did is not certain (most likely {' and '.join(seen)})."


def in_layers(layers: Sequence[str], num_more: int, *, share: str) -> str:
    """ "nearly all of it in layer4 (+3 ms) and 2 more layers"; `share`: of SHARES."""
    more = f" and {counted(num_more, 'more layer')}" if num_more else ""
    return f"{share} in {', '.join(layers)}{more}"


NEARLY_ALL, MOST, SOME = "nearly all of it", "most of it", "some of it"


def look_at(cause: str, where: str, also: str) -> str:
    """What to do next; `also`: a difference around the runs, "" = none."""
    return _NEXT[cause].format(where=where) + mind(also)


def check_again(also: str, *, traced: bool) -> str:
    more = "more windows (`--windows 8`)" if traced else "tracing (without `--no-trace`)"
    return f"Check again with {more} and more pairs (`--pairs 12`).{mind(also)}"


def mind(difference: str) -> str:
    """ " Mind also: ..."; "" for none."""
    return f" Mind also: {difference}" if difference else ""


def more_faults(base: float, head: float, share: float, slower: float) -> str:
    """Minor page faults per step of both sides; what they can cost and the slow-down, shares of the step."""
    return (
        f"Page faults per step went from {format_count(round(base))} to {format_count(round(head))}, which "
        f"can explain up to {format_ratio(min(share, slower))} of the {format_ratio(slower)}. If the code "
        "does not allocate more, it is the C library's heap: `--pin-heap` keeps it still on both sides."
    )


def traced_slower(ratio: float) -> str:
    return (
        "Layers and collectives are timed in traced steps, which took "
        f"{ratio:.2f} times as long as the others; their times here are divided by that."
    )


def layers_alike(change: float) -> str:
    """The pace of all layers, as a share."""
    return (
        f"In traced steps all layers ran {format_ratio(abs(change), 0)} "
        f"{'slower' if change > 0 else 'faster'} alike; single layers are reported only beyond that."
    )


def moved_besides(moves: Sequence[str]) -> str:
    return f"Beside the surroundings this moved by itself: {'; '.join(moves)}."


def untraced_parts(moves: Sequence[str]) -> str:
    return f"Median untraced step: {', '.join(moves)}."


def lacking_runs(num: int, num_runs: int) -> str:
    """``2 of 8 runs``, ``the runs`` where all do."""
    return f"{num} of {num_runs} runs" if num < num_runs else "the runs"


def no_window(runs: str) -> str:
    """`runs`: of `lacking_runs`."""
    return f"{runs} have no traced window: compute and communication cannot be distinguished"


def no_layers(runs: str) -> str:
    return f"{runs} do not name layers"


def no_backward(runs: str) -> str:
    return f"{runs} do not time the backward pass"


def stalls(worse: str) -> str:
    return f"Stalls are worse by {worse}: single slow steps, which the median step does not show."


def calls_changed(base: float, head: float) -> str:
    return f"calls per step {base:g} → {head:g}"


def bytes_changed(base: float, head: float) -> str:
    return f"bytes per step {format_bytes(base)} → {format_bytes(head)}"
