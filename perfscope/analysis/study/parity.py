"""Do two trainings compute the same? Their loss curves, compared step by step.

Two frameworks that start from the same weights and see the same samples in the same order do the same sums in
another order, no more. In float32 (rounding 6e-8) losses then differ by some 1e-7 at first. Later rounding
alone can part them: where two inputs of a max pool, or one of a ReLU and 0, are as near as that, frameworks
choose otherwise, and the update that follows is another. Measured with the smallest change of the weights
(6e-8, 25 draws each; lenet and smallcnn, momentum 0 and 0.9): at most 2.5e-7 in the first EARLY_STEPS,
1.3e-2 in the first PARITY_STEPS. Mistakes show early: a learning rate 0.5 % off makes 5e-4 by then, momentum
0.01 off 1e-3, a weight decay of 1e-4 1.2e-5. So the first steps must agree closely, later ones roughly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.messages.comparison.frameworks import mismatch, too_few_steps
from perfscope.vocabulary.comparison import LossMismatch

PARITY_STEPS = 20  # later ones drift apart by rounding alone
EARLY_STEPS = 5
MIN_STEPS = 3  # with fewer no update with momentum has shown in a loss yet
TOLERANCE = 5e-2  # over PARITY_STEPS steps: four times what rounding was seen to make
EARLY_TOLERANCE = 1e-5  # over EARLY_STEPS steps: forty times that
_SMALLEST = 1e-3  # a loss below is compared as if it were this: near 0 only rounding is left


class Parity(Struct, frozen=True, kw_only=True):
    """What came of comparing two loss curves. Differences are relative.

    Attributes:
        agrees: within tolerance at every compared step; None: too little to compare.
        num_steps: compared.
        first_difference: at the first step, before any update; None: not compared.
        early_difference: largest of the first EARLY_STEPS; None: not compared, or a loss is no number.
        max_difference: largest of all compared; None: not compared, or a loss is no number.
        max_at_step: step of the largest, counted from 1; of the first loss that is no number, where one is.
        tolerance: the limit of max_difference; early_tolerance: the limit of early_difference.
        parted_at: first step beyond early_tolerance, where the curves agree nevertheless; None: none.
        reason: why they do not agree, or were not compared; "" where they agree.
    """

    agrees: bool | None
    num_steps: int
    first_difference: float | None
    max_difference: float | None
    max_at_step: int | None
    tolerance: float
    reason: str
    early_difference: float | None = None
    early_tolerance: float = EARLY_TOLERANCE
    parted_at: int | None = None

    def because(self, reason: str) -> Parity:
        """The same with what is known of the cause in front of the reason."""
        return replace(self, reason=f"{reason}: {self.reason}")

    @property
    def verdict(self) -> str:
        """`same`, `different` or `not compared`."""
        return {True: "same", False: "different", None: "not compared"}[self.agrees]


def parity(
    reference: Sequence[float | None], other: Sequence[float | None], *, num_steps: int = PARITY_STEPS
) -> Parity:
    """Whether `other` follows `reference`.

    Args:
        reference: loss by step, mean over the ranks; None: not a number, or not known.
        other: the same of the run that is checked.
        num_steps: compared at most, from the first on.
    """
    compared = min(num_steps, len(reference), len(other))
    if compared < MIN_STEPS:
        return _result(None, compared, [], too_few_steps(compared, MIN_STEPS))
    differences: list[float] = []
    for step in range(compared):
        first, two = reference[step], other[step]
        if first is None or two is None or not math.isfinite(first) or not math.isfinite(two):
            of_reference = first is None or not math.isfinite(first)
            kind = LossMismatch.NO_NUMBER_REFERENCE if of_reference else LossMismatch.NO_NUMBER_RUN
            differing = _result(False, compared, [], mismatch(kind, step + 1, math.nan))
            return replace(differing, first_difference=next(iter(differences), None), max_at_step=step + 1)
        differences.append(abs(two - first) / max(abs(first), _SMALLEST))
    reason = _reason(differences)
    return _result(not reason, compared, differences, reason)


def _reason(differences: Sequence[float]) -> str:
    """Why curves with these differences do not agree; "" where they do."""
    if differences[0] > EARLY_TOLERANCE:
        return mismatch(LossMismatch.FIRST, 1, differences[0])
    for step, difference in enumerate(differences, 1):
        if step <= EARLY_STEPS and difference > EARLY_TOLERANCE:
            return mismatch(LossMismatch.EARLY, step, difference)
        if difference > TOLERANCE:
            return mismatch(LossMismatch.LATER, step, difference)
    return ""


def worst(parities: Sequence[Parity]) -> Parity:
    """Of several repeats the one that counts: a difference before what was not compared, then the largest.

    Raises ValueError for none.
    """
    order = {False: 2, None: 1, True: 0}
    return max(parities, key=lambda parity: (order[parity.agrees], parity.max_difference or 0.0))


def mean_losses(by_rank: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Loss of the whole batch by step: the mean over ranks with equal shares; None where one knows none."""
    length = min((len(losses) for losses in by_rank), default=0)
    means: list[float | None] = []
    for step in range(length):
        present = [value for losses in by_rank if (value := losses[step]) is not None]
        means.append(math.fsum(present) / len(present) if len(present) == len(by_rank) else None)
    return means


def _result(agrees: bool | None, num_steps: int, differences: Sequence[float], reason: str) -> Parity:
    largest = max(differences, default=None)
    parted = (step for step, difference in enumerate(differences, 1) if difference > EARLY_TOLERANCE)
    return Parity(
        agrees=agrees,
        num_steps=num_steps,
        first_difference=differences[0] if differences else None,
        early_difference=max(differences[:EARLY_STEPS], default=None),
        max_difference=largest,
        max_at_step=None if largest is None else differences.index(largest) + 1,
        tolerance=TOLERANCE,
        reason=reason,
        parted_at=next(parted, None) if agrees else None,
    )
