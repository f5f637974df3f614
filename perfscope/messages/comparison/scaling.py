"""How runs scale: which runs make a series, speedup, what grew, POP's factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfscope.messages.lists import plural
from perfscope.messages.sentences import capital
from perfscope.messages.study import PART_TITLES, named, percent, ranks, times
from perfscope.units import format_ns
from perfscope.vocabulary.efficiency import PopFactor

SAME_BATCHES = "strong scaling: the same batches were run on every number of ranks"
SAME_SAMPLES_PER_RANK = "weak scaling: the same samples per rank were run on every number of ranks"
REFERENCE_STATED = "stated with --reference"
REFERENCE_SERIAL = "the runs of serial: this scheme has none on one rank"
REFERENCE_FEWEST = "the fewest ranks of the series"
IS_REFERENCE = "it is the reference itself"
REFERENCE_IS_LARGEST = "the reference has the most ranks: nothing is larger than it"
NO_STEP_TRACED = "no step was traced"
FACTORS_NOT_IN_TRACE = "the traced steps do not tell them"
FACTOR_NOT_IN_TRACE = "the traced steps do not tell it"
_NEEDS_REPLAY = "needs the ideal-network replay of the traced steps"
FACTOR_MISSING = {
    PopFactor.LB_IN: "one host: all of the load balance is inside it",
    PopFactor.LB_OUT: "one host: there is nothing between nodes",
    PopFactor.SERIALISATION: _NEEDS_REPLAY,
    PopFactor.TRANSFER: _NEEDS_REPLAY,
}
_SERIAL_LEFT_OUT = "; the runs of serial have other batches and are left out"


def without_serial(mode_reason: str) -> str:
    """`mode_reason`, and that the runs of serial are not in the series."""
    return mode_reason + _SERIAL_LEFT_OUT


def samples_kept(samples: float, *, per_rank: bool) -> str:
    """What a series holds constant."""
    return f"{samples:g} {plural('sample', samples)} per {'rank' if per_rank else 'step'}"


def mode_of(mode_reason: str, kept: str) -> str:
    """The mode of one of several series; `kept`: of samples_kept."""
    return f"{mode_reason} ({kept})"


def batch_not_known(labels: Sequence[str], mode: str) -> str:
    return f"the samples per step of {named(labels)} are not known: {mode} scaling cannot be checked"


def nothing_kept(mode: str, runs: Sequence[tuple[int | None, int | None]], *, per_rank: bool) -> str:
    """No two numbers of ranks have what the mode keeps; `runs`: (samples per step, number of ranks)."""
    kept = "samples per rank" if per_rank else "samples per step"
    had = ", ".join(f"{batch} on {ranks(size)}" for batch, size in runs)
    return f"{mode} scaling means equal {kept}, but no two numbers of ranks have them ({had} per step)"


def neither_mode(batches: Mapping[int | None, Sequence[int | None]]) -> str:
    """`batches`: number of ranks -> samples per step of its runs."""
    listed = "; ".join(f"{ranks(size)}: {', '.join(map(str, of))}" for size, of in batches.items())
    return f"neither strong nor weak: samples per step are {listed}; give --mode"


def not_repeats(size: int, settings: Sequence[str]) -> str:
    """Runs of one number of ranks of several settings, by what is not in all of them."""
    differ = " against ".join(text or "nothing of the kind" for text in settings)
    return (
        f"the runs on {ranks(size)} are not repeats of one setting ({differ}): compare fewer, or put "
        "them apart with --by label:KEY or --by scheme"
    )


def one_size(size: int | None) -> str:
    """`size`: the only number of ranks, None where none is known."""
    only = ranks(size) if size is not None else "no known number of ranks"
    return f"all its usable runs have {only}: scaling needs two numbers of ranks of one kind"


def reference_elsewhere(label: str) -> str:
    return f"the reference {label} is not of this series: no speedup against it is formed"


def runs_not_traced(size: int) -> str:
    return f"the runs on {ranks(size)} have no traced step"


def growth(part: str, times_ns: tuple[float, float], ideal_ns: float, share: float | None, size: int) -> str:
    """A part of the step at the reference and at `size` ranks; `share`: of that step, beyond the ideal."""
    text = (
        f"{capital(PART_TITLES[part])}: {format_ns(times_ns[0])} → {format_ns(times_ns[1])} a step, "
        f"ideal would be {format_ns(ideal_ns)}"
    )
    if share is not None and abs(share) >= 0.005:
        text += f"; {'costs' if share > 0 else 'saves'} {percent(abs(share))} of the step on {ranks(size)}"
    return f"{text}."


def at_ranks(size: int) -> str:
    """ "At 4 ranks", as report_verdict begins."""
    return f"At {ranks(size)}"


def fewer_ranks(size: int, *, after_action: bool) -> str:
    """`size` ranks are faster than more; `after_action`: another action comes first."""
    train = "trains" if size == 1 else "train"
    start = "Until then" if after_action else "Use fewer ranks:"
    return f"{start} {ranks(size)} {train} fastest of those measured."


def speedup(
    size: int,
    reference: int,
    ratio: float,
    *,
    ideal: float,
    efficiency: float,
    grew: tuple[str, float] | None,
) -> str:
    """What `size` ranks bring; `grew`: the part that grew most, and its share of the step."""
    if ratio < 1 and size > reference:
        whose = "its" if reference == 1 else "their"
        text = f"{ranks(size)} are slower than {ranks(reference)}: {percent(ratio)} of {whose} speed "
    else:
        train = "trains" if size == 1 else "train"
        text = f"{ranks(size)} {train} {times(ratio)} as fast as {ranks(reference)} "
    text += f"(ideal {ideal:g}, efficiency {percent(efficiency)})"
    if grew is not None:
        part, share = grew
        text += f"; against ideal scaling {PART_TITLES[part]} grew most: {percent(share)} of the step"
    return f"{text}."


def no_single_rank(series: str, size: int, *, stated: bool) -> str:
    """The reference has more than one rank; `stated` with --reference."""
    if stated:
        text = (
            f"the reference has {ranks(size)}: what these lose against 1 rank is not counted, and "
            "Karp–Flatt is missing."
        )
    else:
        text = (
            "there is no run on 1 rank to compare with: speedup and efficiency are "
            f"against {ranks(size)}, whose own losses are not counted, and Karp–Flatt is missing."
        )
    return _of_series(series, text)


def superlinear(series: str, sizes: Sequence[int]) -> str:
    text = (
        f"efficiency above 100 % on {', '.join(map(str, sizes))} ranks: more than the ranks helped (caches "
        "that now fit, other threads per rank, or a slow reference)."
    )
    return _of_series(series, text)


def _of_series(series: str, text: str) -> str:
    """A sentence that begins with the series' name keeps it as it is written."""
    return f"{series}: {text}" if series else capital(text)


def not_shown(series: str, reason: str) -> str:
    return f"Scaling{of_series(series)} is not shown: {reason}."


def of_series(series: str) -> str:
    """ " of dp.ddp"; "" for the only series."""
    return f" of {series}" if series else ""


def needs_useful_time(reference: int, size: int) -> str:
    """Why computation scaling is missing."""
    return f"needs the useful time of {ranks(reference)} and of {ranks(size)}"
