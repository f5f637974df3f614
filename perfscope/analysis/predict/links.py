"""Latency and bandwidth of each class of links, fitted to a run's own calls.

    transfer of a call = alpha * messages + beta * bytes

with messages and bytes of the call's formula (`costs`), the bytes times how many such calls share the
busiest host's link. Non-negative, on relative residuals, with Huber's weights (k = 1.345), so that one call
that met a descheduled process counts little. Intervals: the fit again on resampled calls.

One size on one group size tells a sum, not its parts. Then the sum is taken as bandwidth (as latency below
`_SMALL_BYTES`), which grows with N as 2(N-1)/N and not as 2(N-1), and the draws give the other up to half.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.predict.costs import LinkCost, collective_time_s
from perfscope.analysis.predict.fitting import Floats, interval, non_negative
from perfscope.analysis.predict.records import MeasuredCall, PlannedCall
from perfscope.analysis.predict.results import LinkUsed

NUM_DRAWS = 300
_HUBER = 1.345
_ROUNDS = 30
_SMALL_BYTES = 4096
_APART = 1.5  # bytes per message must differ by this much between calls
_ONE_MESSAGE, _ONE_BYTE = LinkCost(1.0, 0.0), LinkCost(0.0, 1.0)


class FittedLink(Struct, frozen=True, kw_only=True, eq=False):
    """A link and its bootstrap draws: shape (draws, 2), (alpha s, beta s/byte)."""

    used: LinkUsed
    draws: Floats


def terms(call: PlannedCall | MeasuredCall, backend: str | None) -> tuple[float, float]:
    """(messages, bytes) of one call: what alpha and beta are multiplied by.

    Raises:
        ValueError: a collective without a formula.
    """
    messages = collective_time_s(call.collective, call.num_ranks, call.bytes, _ONE_MESSAGE)
    sent = collective_time_s(call.collective, call.num_ranks, call.bytes, _ONE_BYTE, backend=backend)
    return messages, sent * call.sharing


def fit_link(
    link_class: str,
    calls: Sequence[MeasuredCall],
    backend: str | None,
    rng: np.random.Generator,
    *,
    by_size: bool = False,
) -> FittedLink:
    """Fits one class of links.

    Args:
        link_class: of all `calls`.
        calls: at least one.
        backend: what carried them.
        rng: for the draws.
        by_size: the calls are a measurement of many sizes, and each size counts the same, whatever its time:
            latency is that of small calls, bandwidth that of large ones.
    """
    design = np.array([terms(call, backend) for call in calls], dtype=np.float64).reshape(-1, 2)
    seconds = np.array([call.transfer_ns for call in calls], dtype=np.float64) / 1e9
    typical = _typical(design, seconds)
    weight_of = 1 / (typical if by_size else np.sqrt(typical))
    per_message = design[:, 1] / design[:, 0]
    separable = bool(per_message.max() > _APART * max(per_message.min(), 1e-9))
    if separable:
        point = _fit(design, seconds, weight_of)
        draws = np.empty((NUM_DRAWS, 2))
        for row in range(NUM_DRAWS):
            pick = rng.integers(0, len(seconds), len(seconds))
            draws[row] = _fit(design[pick], seconds[pick], weight_of[pick])
    else:
        point, draws = _one_size(design, seconds, float(np.median([call.bytes for call in calls])), rng)
    fitted = design @ point
    residual = float(np.median(np.abs(seconds - fitted) / np.maximum(fitted, 1e-12)))
    used = LinkUsed(
        link_class=link_class,
        cost=LinkCost(float(point[0]), float(point[1])),
        alpha_s=interval(draws[:, 0], float(point[0])),
        beta_s_per_byte=interval(draws[:, 1], float(point[1])),
        num_calls=len(calls),
        residual_ratio=residual,
        separable=separable,
    )
    return FittedLink(used=used, draws=draws)


def given_link(link_class: str, cost: LinkCost, name: str) -> FittedLink:
    """A link that the user named: it has no spread."""
    draws = np.tile([cost.alpha_s, cost.beta_s_per_byte], (NUM_DRAWS, 1)).astype(np.float64)
    return FittedLink(used=LinkUsed(link_class=link_class, cost=cost, given=name), draws=draws)


def _typical(design: Floats, seconds: Floats) -> Floats:
    """Median time of the calls with the same formula, so that lucky calls do not weigh more."""
    _, kind = np.unique(design, axis=0, return_inverse=True)
    kind = kind.ravel()
    medians = np.array([np.median(seconds[kind == index]) for index in range(kind.max() + 1)])
    result: Floats = np.maximum(medians[kind], 1e-9)
    return result


def _fit(design: Floats, seconds: Floats, weight_of: Floats) -> Floats:
    """Non-negative (alpha, beta). Shape (2,)."""
    scaled, target = design * weight_of[:, None], seconds * weight_of
    weights = np.ones(len(target))
    point = np.zeros(2)
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        solution = non_negative(scaled * root[:, None], target * root)
        residual = target - scaled @ solution
        scale = max(1.4826 * float(np.median(np.abs(residual))), 1e-6)
        weights = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(residual), 1e-12))
        if np.allclose(solution, point, rtol=1e-6, atol=0):
            break
        point = solution
    return solution


def _one_size(
    design: Floats, seconds: Floats, num_bytes: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    small = num_bytes < _SMALL_BYTES or not design[:, 1].any()
    total = float(np.median(seconds))
    messages, sent = np.median(design, axis=0)
    point = np.array([total / messages, 0.0]) if small else np.array([0.0, total / sent])
    picks = rng.integers(0, len(seconds), (NUM_DRAWS, len(seconds)))
    totals = np.median(seconds[picks], axis=1)
    other = rng.uniform(0, 0.5, NUM_DRAWS) if sent else np.zeros(NUM_DRAWS)
    late = (1 - other if small else other) * totals / messages
    remainder = (other if small else 1 - other) * totals / max(sent, 1e-12)
    return point, np.stack((late, remainder), axis=1)
