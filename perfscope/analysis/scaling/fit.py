"""A fitted scaling law: its parameters with intervals, and what it says about an N not measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.scaling.speedup import Interval
from perfscope.vocabulary.scaling import FitRefusal, FitRemark, Fitted, RefusedFit

Floats = NDArray[np.float64]

EXTRAPOLATION_LIMIT = 4
GUARD_RATIO = 1.3


class FittedValue(NamedTuple):
    """Value with its 95 % interval, in the unit of what was fitted; three times None where refused."""

    value: float | None
    low: float | None
    high: float | None


class Term(Struct, frozen=True, kw_only=True):
    """One term p^i log2(p)^j of a PMNF model."""

    power: float
    log_power: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One law fitted to one series.

    Attributes:
        name: constant, amdahl, gustafson, usl, pmnf.
        what: of what.
        parameters: name -> value, None where the parameter does not exist here (N* without a peak).
        intervals: name -> 95 % bootstrap interval, None with its parameter.
        smape: of the fit on the points, ratio 0 to 2; None where refused.
        constant_smape: of a constant on the same points.
        measured_ranks: the N it was fitted on.
        refused: why there is no fit, None if there is one.
        notes: what else to know.
        formula: for reading, with the fitted figures; "" where refused.
        term: the term of a pmnf model.
    """

    name: str
    what: Fitted
    parameters: dict[str, float | None]
    intervals: dict[str, Interval | None]
    smape: float | None
    constant_smape: float | None
    measured_ranks: tuple[int, ...]
    refused: RefusedFit | None = None
    notes: tuple[FitRemark, ...] = ()
    formula: str = ""
    term: Term | None = None
    coefficients: Floats | None = field(default=None, repr=False, compare=False)
    draws: tuple[tuple[Term | None, Floats], ...] = field(default=(), repr=False, compare=False)

    def refusal_at(self, num_ranks: float, *, beyond: bool = False) -> RefusedFit | None:
        """Why `predict` gives nothing for this N; None if it does."""
        if self.refused is not None:
            return self.refused
        if not num_ranks >= 1:
            return RefusedFit(FitRefusal.NOT_A_SIZE, num_ranks=num_ranks)
        largest = max(self.measured_ranks)
        if num_ranks > EXTRAPOLATION_LIMIT * largest and not beyond:
            return RefusedFit(
                FitRefusal.TOO_FAR, needed=EXTRAPOLATION_LIMIT, available=largest, num_ranks=num_ranks
            )
        return None

    def predict(self, num_ranks: float, *, beyond: bool = False) -> FittedValue:
        """Value and 95 % interval at N; None three times where `refusal_at` says why.

        Args:
            num_ranks: N, at least 1.
            beyond: the user asked for it: go past 4 times the largest measured N.
        """
        if self.coefficients is None or self.refusal_at(num_ranks, beyond=beyond) is not None:
            return FittedValue(None, None, None)
        value = float(evaluate(self.name, self.term, self.coefficients[None, :], num_ranks)[0])
        # Which term holds is not known with a probability: the interval spans those of all plausible ones.
        spans = [
            _span(evaluate("pmnf" if term is not None else self.name, term, each, num_ranks))
            for term, each in self._drawn(num_ranks)
        ]
        low, high = min(span[0] for span in spans), max(span[1] for span in spans)
        return FittedValue(value, min(float(low), value), max(float(high), value))

    def _drawn(self, num_ranks: float) -> tuple[tuple[Term | None, Floats], ...]:
        """A constant keeps its own draws on the measured range and admits a drift outside of it."""
        inside = min(self.measured_ranks) <= num_ranks <= max(self.measured_ranks)
        return self.draws[:1] if self.name == "constant" and inside else self.draws


def _span(draws: Floats) -> Floats:
    """2.5 and 97.5 %; a draw without a finite value at this N (its denominator is 0 there) does not count."""
    finite = draws[np.isfinite(draws)]
    return np.asarray(np.percentile(finite, (2.5, 97.5)) if finite.size else (np.nan, np.nan))


def basis(name: str, term: Term | None, num_ranks: Floats) -> Floats:
    """Columns of the law's linear form at each N, (points, coefficients).

    amdahl: 1/X = a + b/N. gustafson: X = a N + b. usl: N/X = c (1) + d (N-1) + e N(N-1). pmnf: c0 + c1 term.
    """
    num = np.asarray(num_ranks, dtype=np.float64)
    ones = np.ones_like(num)
    columns: tuple[Floats, ...]
    if name == "constant":
        columns = (ones,)
    elif name == "amdahl":
        columns = (ones, 1 / num)
    elif name == "gustafson":
        columns = (num, ones)
    elif name == "usl":
        columns = (ones, num - 1, num * (num - 1))
    else:
        assert term is not None
        columns = (ones, num**term.power * np.log2(num) ** term.log_power)
    return np.stack(columns, axis=-1)


def evaluate(name: str, term: Term | None, coefficients: Floats, num_ranks: float) -> Floats:
    """The law at one N for many sets of coefficients, (many, k) -> (many,), in the unit fitted."""
    linear = coefficients @ basis(name, term, np.asarray([float(num_ranks)]))[0]
    if name not in ("amdahl", "usl"):
        return np.asarray(linear)
    above = num_ranks if name == "usl" else 1.0
    return np.asarray(np.divide(above, linear, out=np.full_like(linear, np.inf), where=linear > 0))


def refused_fit(name: str, what: Fitted, measured: tuple[int, ...], why: RefusedFit) -> Fit:
    """A law that could not be fitted, or that says no more than a constant."""
    as_good = why.kind is FitRefusal.CONSTANT_AS_GOOD
    return Fit(
        name=name,
        what=what,
        parameters={},
        intervals={},
        smape=why.error if as_good else None,
        constant_smape=why.constant_error if as_good else None,
        measured_ranks=measured,
        refused=why,
    )


def percentiles(draws: Floats) -> Interval:
    """95 % interval of bootstrap draws."""
    low, high = np.percentile(draws, (2.5, 97.5))
    return Interval(low=float(low), high=float(high))
