"""What must hold before anything is measured: overhead ratios, parameter servers, pipeline bubbles.

Lemmas of Zou et al., "Distributed Training Large-Scale Deep Architectures", arXiv 1709.06622 (HTC),
re-derived: G workers divide the compute T_C of one worker and not its overhead T_O; R = T_O / T_C.
"""

from __future__ import annotations

from math import ceil, floor, inf, isfinite


def _checked(what: str, value: float, *, above: float | None = None, least: float | None = None) -> float:
    if not isfinite(value) or (above is not None and value <= above) or (least is not None and value < least):
        bound = f"above {above:g}" if above is not None else f"at least {least:g}"
        raise ValueError(f"{what} must be a finite number {bound}, not {value}")
    return value


def _target(efficiency: float) -> float:
    if not 0 < efficiency <= 1:
        raise ValueError(f"a target efficiency lies above 0 and is at most 1, not {efficiency}")
    return efficiency


def efficiency_with_overhead(num_workers: int, overhead_ratio: float) -> float:
    """(1 + R) / (1 + G R): efficiency of G workers against one.

    Raises:
        ValueError: G < 1 or R < 0.
    """
    _checked("the number of workers", num_workers, least=1)
    _checked("the overhead ratio", overhead_ratio, least=0)
    return (1 + overhead_ratio) / (1 + num_workers * overhead_ratio)


def largest_overhead_ratio(num_workers: int, efficiency: float) -> float:
    """R <= (1-a) / (a G - 1): the overhead ratio that still reaches a; inf where any does (a <= 1/G).

    Raises:
        ValueError: G < 1, or a outside (0, 1].
    """
    _checked("the number of workers", num_workers, least=1)
    spare = _target(efficiency) * num_workers - 1
    return (1 - efficiency) / spare if spare > 0 else inf


def most_workers(overhead_ratio: float, efficiency: float) -> float:
    """G <= (1 + R - a) / (a R), rounded down: how many workers still reach a; inf without overhead.

    Raises:
        ValueError: R < 0, or a outside (0, 1].
    """
    _checked("the overhead ratio", overhead_ratio, least=0)
    _target(efficiency)
    if overhead_ratio == 0:
        return inf
    # A whole number that rounding left a hair below itself must not lose a worker.
    return floor((1 + overhead_ratio - efficiency) / (efficiency * overhead_ratio) * (1 + 1e-12))


def parameter_servers_needed(
    parameter_bytes: float, num_workers: int, server_bytes_per_s: float, round_compute_s: float
) -> int:
    """N_ps >= ceil(2 S N_w / (B_ps T_C)): servers that hide push and pull behind the compute of a round.

    Args:
        parameter_bytes: S. num_workers: N_w. server_bytes_per_s: B_ps of one server. round_compute_s: T_C.

    Raises:
        ValueError: anything not above 0.
    """
    _checked("the size of the parameters", parameter_bytes, above=0)
    _checked("the number of workers", num_workers, least=1)
    _checked("a server's bandwidth", server_bytes_per_s, above=0)
    _checked("the compute time of a round", round_compute_s, above=0)
    exact = 2 * parameter_bytes * num_workers / (server_bytes_per_s * round_compute_s)
    return max(1, ceil(exact * (1 - 1e-12)))


def pipeline_bubble(num_stages: int, num_microbatches: int) -> float:
    """(S-1) / (m+S-1): share of a pipeline step in which a stage has nothing to do (GPipe, equal stages).

    Raises:
        ValueError: S < 1 or m < 1.
    """
    _checked("the number of stages", num_stages, least=1)
    _checked("the number of microbatches", num_microbatches, least=1)
    return (num_stages - 1) / (num_microbatches + num_stages - 1)


def microbatches_for(num_stages: int, bubble: float) -> int:
    """The fewest microbatches whose bubble is at most `bubble`: m >= (S-1)(1-b)/b.

    Raises:
        ValueError: S < 1, or b outside (0, 1).
    """
    _checked("the number of stages", num_stages, least=1)
    if not 0 < bubble < 1:
        raise ValueError(f"a bubble lies above 0 and below 1, not {bubble}")
    return max(1, ceil((num_stages - 1) * (1 - bubble) / bubble * (1 - 1e-12)))
