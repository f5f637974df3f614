"""Do two trainings compute the same? Their loss curves, held against each other step by step.

Two frameworks that start from the same weights and see the same samples in the same order do the same sums in
another order, no more. In float32 (rounding 6e-8) a loss then differs by some 1e-7 at the first step, and by
more at each further step, as updates carry the difference on: docs/frameworks.md has what was measured.
Anything else is a mistake of the comparison (another padding, another momentum, a batch in another order) and
shows at once, above TOLERANCE: at the first step where weights, samples or the network differ, later where
only the update does. The first PARITY_STEPS steps are compared: later ones drift apart by rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PARITY_STEPS = 20
MIN_STEPS = 3  # with fewer no update with momentum has shown in a loss yet
TOLERANCE = 1e-3  # over PARITY_STEPS steps
FIRST_TOLERANCE = 1e-5  # at the first step, before any update
_SMALLEST = 1e-3  # a loss below is compared as if it were this: near 0 only rounding is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """What came of comparing two loss curves.

    Attributes:
        agrees: within tolerance at every compared step; None: too little to compare.
        num_steps: compared.
        first_difference: relative difference at the first step; None: not compared.
        max_difference: largest relative difference; None: not compared, or a loss is no number.
        max_at_step: step of the largest, counted from 1; of the first loss that is no number, where one is.
        tolerance: that max_difference was held against.
        reason: why they do not agree, or were not compared; "" where they agree.
    """

    agrees: bool | None
    num_steps: int
    first_difference: float | None
    max_difference: float | None
    max_at_step: int | None
    tolerance: float
    reason: str

    @property
    def verdict(self) -> str:
        """`same`, `different` or `not compared`."""
        return {True: "same", False: "different", None: "not compared"}[self.agrees]


def parity(
    reference: Sequence[float | None],
    other: Sequence[float | None],
    *,
    num_steps: int = PARITY_STEPS,
    tolerance: float = TOLERANCE,
    first_tolerance: float = FIRST_TOLERANCE,
) -> Parity:
    """Whether `other` follows `reference`.

    Args:
        reference: loss by step, mean over the ranks; None: not a number, or not known.
        other: the same of the run that is checked.
        num_steps: compared at most, from the first on.
        tolerance: largest |other - reference| / |reference| at any of them.
        first_tolerance: largest at the first, before any update.
    """
    compared = min(num_steps, len(reference), len(other))
    if compared < MIN_STEPS:
        steps = f"{compared} step{'' if compared == 1 else 's'}"
        return _result(None, compared, [], tolerance, f"only {steps} can be compared, {MIN_STEPS} are needed")
    differences: list[float] = []
    for step in range(compared):
        one, two = reference[step], other[step]
        if one is None or two is None or not math.isfinite(one) or not math.isfinite(two):
            whose = "the reference" if one is None or not math.isfinite(one) else "the run"
            reason = f"a loss of {whose} is no number at step {step + 1}"
            return Parity(
                agrees=False,
                num_steps=compared,
                first_difference=differences[0] if differences else None,
                max_difference=None,
                max_at_step=step + 1,
                tolerance=tolerance,
                reason=reason,
            )
        differences.append(abs(two - one) / max(abs(one), _SMALLEST))
    if differences[0] > first_tolerance:
        reason = (
            f"the first losses differ by {differences[0]:.1e}, before any update: weights, samples or the "
            "network are not the same"
        )
        return _result(False, compared, differences, tolerance, reason)
    largest = max(differences)
    if largest > tolerance:
        at = next(step for step, one in enumerate(differences, 1) if one > tolerance)
        reason = f"losses differ by more than {tolerance:g} from step {at} on: the updates are not the same"
        return _result(False, compared, differences, tolerance, reason)
    return _result(True, compared, differences, tolerance, "")


def mean_losses(by_rank: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Loss of the whole batch by step: the mean over ranks with equal shares; None where one knows none."""
    length = min((len(one) for one in by_rank), default=0)
    means: list[float | None] = []
    for step in range(length):
        known = [value for one in by_rank if (value := one[step]) is not None]
        means.append(math.fsum(known) / len(known) if len(known) == len(by_rank) else None)
    return means


def _result(
    agrees: bool | None, num_steps: int, differences: Sequence[float], tolerance: float, reason: str
) -> Parity:
    largest = max(differences, default=None)
    return Parity(
        agrees=agrees,
        num_steps=num_steps,
        first_difference=differences[0] if differences else None,
        max_difference=largest,
        max_at_step=None if largest is None else differences.index(largest) + 1,
        tolerance=tolerance,
        reason=reason,
    )
