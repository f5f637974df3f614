"""What a prediction yields. Times are integer nanoseconds; None = missing."""

from __future__ import annotations

from msgspec import Struct

from perfscope.analysis.predict.costs import LinkCost
from perfscope.analysis.predict.records import Refusal
from perfscope.analysis.scaling.speedup import Interval


class LinkUsed(Struct, frozen=True, kw_only=True):
    """What one message over one class of links costs here.

    Attributes:
        link_class: BETWEEN_HOSTS or INSIDE_HOST.
        cost: the point.
        alpha_s, beta_s_per_byte: intervals; None for a network that was given.
        given: its name where it was given, None where it was fitted.
        is_from_doctor: fitted to what `perfscope doctor --links` measured, not to calls of the runs.
        num_calls: fitted on so many.
        residual_ratio: median |measured - fitted| / fitted of those; None: given.
        separable: latency and bandwidth could be distinguished (two sizes or group sizes at least).
    """

    link_class: str
    cost: LinkCost
    alpha_s: Interval | None = None
    beta_s_per_byte: Interval | None = None
    given: str | None = None
    is_from_doctor: bool = False
    num_calls: int = 0
    residual_ratio: float | None = None
    separable: bool = True


class Prediction(Struct, frozen=True, kw_only=True):
    """One scheme on one number of ranks. compute + stragglers + exposed_comm = step exactly."""

    scheme: str
    num_ranks: int
    mesh: str
    batch: float | None
    step_ns: int
    step_interval_ns: Interval
    samples_per_s: float | None
    samples_interval: Interval | None
    efficiency: (
        float | None
    )  # against the scheme's own smallest run (`references`); None: no batch, or no run
    efficiency_interval: Interval | None
    compute_ns: int  # all that a rank does itself: layers, optimizer, loading, gaps
    straggler_ns: int  # more waiting for the last of N ranks than in the runs measured
    exposed_comm_ns: int
    hidden_comm_ns: int  # under compute
    links_ns: tuple[tuple[str, int], ...]  # exposed and hidden communication by link class
    bytes_by_link: tuple[tuple[str, float], ...]  # S summed over the busiest rank's calls of a step
    layers_ns: tuple[tuple[str, int], ...]  # part of compute, in the order of execution
    measured: bool  # the scheme itself was among the runs
    times_best: float | None  # samples/s over those of the report's best run
    measured_step_ns: int | None  # of runs that were just this; None: none was
    misfit: float | None  # step_ns / measured_step_ns - 1
    warnings: tuple[str, ...]


class Reference(Struct, frozen=True, kw_only=True):
    """What a scheme's efficiency is relative to: its own smallest run, or serial's if it did not run."""

    scheme: str
    num_ranks: int
    batch: float
    samples_per_s: float
    measured: bool  # False: predicted, as no run had this batch


class BestRun(Struct, frozen=True, kw_only=True):
    """The measured run with most samples/s."""

    scheme: str
    num_ranks: int
    batch: float
    samples_per_s: float


class FittedRun(Struct, frozen=True, kw_only=True):
    """A run that the fit is made from, and what the model says of it."""

    name: str
    scheme: str
    num_ranks: int
    batch: float | None
    measured_step_ns: int
    modelled_step_ns: int

    @property
    def misfit(self) -> float:
        """modeled / measured - 1."""
        return self.modelled_step_ns / self.measured_step_ns - 1


class PredictionReport(Struct, frozen=True, kw_only=True):
    """Everything `perfscope predict` prints."""

    model: str
    mode: str  # strong or weak
    num_runs: int
    max_measured_ranks: int
    cores_per_rank: float | None  # of the target, asked for or the runs'; None: not recorded
    references: tuple[Reference, ...]  # one per scheme and batch
    best_run: BestRun | None
    fitted: tuple[FittedRun, ...]  # whose links are all known
    not_comparable: str | None  # why compute and efficiency are from some of the runs only
    links: tuple[LinkUsed, ...]
    predictions: tuple[Prediction, ...]  # by N, then the fastest first
    refusals: tuple[Refusal, ...]
    best: tuple[tuple[int, str], ...]  # (N, a sentence)
    warnings: tuple[str, ...]
