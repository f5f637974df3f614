"""Scaling modes and laws in English."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.messages.study import ranks
from perfscope.units import three_digits
from perfscope.vocabulary.scaling import FitNote, FitRefusal, FitRemark, ModeReason, RefusedFit

TITLES = {
    "amdahl": "Amdahl's law",
    "gustafson": "Gustafson's law",
    "usl": "Universal Scalability Law",
    "pmnf": "Performance model normal form",
    "constant": "Performance model normal form: a constant",
}
FORMULAS = {
    "amdahl": "S = 1 / (f + (1 - f) / N)",
    "gustafson": "S = N - f (N - 1)",
    "usl": "X = gamma N / (1 + alpha (N - 1) + beta N (N - 1))",
    "pmnf": "t = c0 + c1 N^i log2(N)^j",
    "constant": "t = c0",
}
PARAMETERS = {
    ("amdahl", "f"): "serial part: what more ranks do not shorten",
    ("gustafson", "f"): "part of the work that does not grow with N",
    ("usl", "alpha"): "contention: waiting for one another",
    ("usl", "beta"): "coherency: what every pair of ranks costs",
    ("usl", "gamma"): "samples/s of one rank",
    ("usl", "N_peak"): "ranks beyond which more are slower",
}
_IN_SENTENCES = {
    "amdahl": "Amdahl's law",
    "gustafson": "Gustafson's law",
    "usl": "the USL",
    "pmnf": "a PMNF model",
}
_REFUSALS = {
    FitRefusal.TOO_FEW_SIZES: "{law} needs at least {refused.needed} different numbers of ranks; there are "
    "{refused.available}",
    FitRefusal.ONE_RANK_NOT_KNOWN: "the points do not say what one rank does: throughput falls with N from "
    "the start; add N = 1",
    FitRefusal.CONSTANT_AS_GOOD: "a constant {refused.level:.4g} samples/s fits nearly as well as {law} "
    "(mean error {constant:.1f} % against {error:.1f} %): throughput does not follow N here",
    FitRefusal.NOT_A_SIZE: "{refused.num_ranks} is not a number of ranks",
    FitRefusal.TOO_FAR: "N = {refused.num_ranks:g} is more than {refused.needed} times the largest measured "
    "N = {refused.available}: the points do not carry that far",
}
_NOTES = {
    FitNote.LEFT_OUT: "{count} figures that are no measurement (a number above 0) are left out",
    FitNote.ONE_REPEAT: "one repeat per N: intervals rest on what the {model} misses, not on how runs vary",
    FitNote.NO_SERIAL_PART: "f is at its bound, 0: throughput grows as fast as N or faster",
    FitNote.NO_PEAK: "no peak: beta is 0, the points show no loss that grows with N squared",
    FitNote.NO_TERM: "no term explains the points better than a constant does beyond chance",
}
_MODES = {
    ModeReason.STATED: "stated: {mode} scaling",
    ModeReason.ONE_SIZE: "the mode cannot be inferred from one number of ranks",
    ModeReason.NOT_RECORDED: "no mode can be inferred: samples per rank are not recorded for N = {unknown}",
    ModeReason.SAME_PER_RANK: "weak scaling: samples per rank stay the same ({listed})",
    ModeReason.DIVIDED: "strong scaling: {total:g} samples per step are divided over the ranks ({listed})",
    ModeReason.NEITHER: "neither strong nor weak: samples per rank are {listed}",
}
_REMEDIES = {
    ModeReason.ONE_SIZE: "give --mode strong or --mode weak",
    ModeReason.NOT_RECORDED: "give --mode",
    ModeReason.NEITHER: "give --mode to state what is meant",
}


def mode_text(reason: ModeReason, samples_per_rank: Mapping[int, float | None], mode: str | None) -> str:
    """Why scaling counts as `mode`; `samples_per_rank`: N -> samples of a step, None where not recorded."""
    positive = {
        num: value for num, value in sorted(samples_per_rank.items()) if value is not None and value > 0
    }
    return _MODES[reason].format(
        mode=mode,
        unknown=", ".join(str(num) for num in sorted(set(samples_per_rank) - set(positive))),
        listed=", ".join(f"{value:g} at N={num}" for num, value in positive.items()),
        total=next((num * value for num, value in positive.items()), 0.0),
    )


def mode_problem(reason: ModeReason, samples_per_rank: Mapping[int, float | None]) -> str:
    """As mode_text, with what to do where the mode is not known."""
    text, remedy = mode_text(reason, samples_per_rank, None), _REMEDIES.get(reason)
    return f"{text}; {remedy}" if remedy else text


def refusal_text(refused: RefusedFit, law: str) -> str:
    """Why the law is not shown."""
    return _REFUSALS[refused.kind].format(
        refused=refused,
        law=_IN_SENTENCES.get(law, law),
        constant=100 * refused.constant_error,
        error=100 * refused.error,
    )


def throughput_falls(first: tuple[int, float], last: tuple[int, float]) -> str:
    """Why a law of growth does not hold; (number of ranks, samples/s)."""
    return (
        f"throughput falls as ranks are added ({three_digits(first[1])} samples/s on {ranks(first[0])}, "
        f"{three_digits(last[1])} on {last[0]:,}): this law knows growth alone"
    )


def note_text(remark: FitRemark, law: str) -> str:
    """A remark on a fitted law, as a clause."""
    model = "model" if law in ("pmnf", "constant") else "law"
    return _NOTES[remark.note].format(count=remark.count, model=model)
