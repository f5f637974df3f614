"""Conducts a prediction: fits once for the point and once per draw, composes every plan, ranks them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis.predict.comparing import (
    best_run,
    comparable_runs,
    measured_step,
    smallest_runs,
)
from perfscope.analysis.predict.compute import ComputeModel, fit_compute, layers_at
from perfscope.analysis.predict.fitting import Floats, expected_maximum, interval
from perfscope.analysis.predict.links import NUM_DRAWS, FittedLink, fit_link, given_link
from perfscope.analysis.predict.measured_links import fit_measured
from perfscope.analysis.predict.networks import Network
from perfscope.analysis.predict.records import (
    BETWEEN_HOSTS,
    INSIDE_HOST,
    MeasuredCall,
    MeasuredRun,
    Plan,
    Refusal,
)
from perfscope.analysis.predict.results import (
    BestRun,
    FittedRun,
    Prediction,
    PredictionReport,
    Reference,
)
from perfscope.analysis.predict.step_model import (
    Link,
    RankTerms,
    StepParts,
    Traits,
    compose,
    rank_terms,
    traits_of,
    transfer_by_link,
)
from perfscope.analysis.predict.warnings import best_sentences, general_warnings, plan_warnings
from perfscope.errors import UsageError
from perfscope.messages import predict as texts
from perfscope.rundir.host_records import LinksRecord

FURTHEST = 4  # times the largest measured N
_BLOCK = 5  # steps that are drawn together: neighbors are alike
_ALL = ""  # the runs of all schemes together
_FITTED = 2  # figures of a curve
_LEAST_APART = 0.03  # standard deviation of equal runs, where no repeats tell
_SAME_WORK = 1.01
_MORE_FIXED = 0.3  # of the layers' time, at most, that draws take as not growing with the samples


class Question(Struct, frozen=True, kw_only=True):
    """What is to be predicted.

    Attributes:
        plans: what is possible.
        refusals: what planning refused.
        mode: strong or weak.
        network: of the links between hosts; None: as measured.
        links: measured by `perfscope doctor --links`, for classes of links that no run's calls measure.
        extrapolate: beyond FURTHEST.
        cores_per_rank: of the target; None: as in the runs.
        backend: of the runs and the target.
        seed: of the draws.
    """

    plans: Sequence[Plan]
    refusals: Sequence[Refusal] = ()
    mode: str = "strong"
    network: Network | None = None
    links: Sequence[LinksRecord] = ()
    extrapolate: bool = False
    cores_per_rank: float | None = None
    backend: str | None = "gloo"
    seed: int = 0


class _Fits(Struct, frozen=True, kw_only=True, eq=False):
    """Everything fitted once, and its draws."""

    runs: Sequence[MeasuredRun]
    alike: Sequence[MeasuredRun]  # whose compute may be put together
    fitted: tuple[FittedRun, ...]
    run_links: Mapping[str, Link]  # links as fitted to the runs
    target: Mapping[str, FittedLink]  # links of the machine asked about
    compute: ComputeModel
    draws: tuple[ComputeModel, ...]
    scatter: Mapping[str, float]  # by scheme, _ALL of all: standard deviation of a run's log ratio
    normal: Floats  # shape (NUM_DRAWS,), standard normal: which run of those that differ so
    chance: Floats  # shape (NUM_DRAWS, 3), uniform in [0, 1): ratio, overlap, growth
    slowdown: float
    misfit: float  # the worst of the links' median residuals, as ratios
    backend: str | None

    def noise(self, scheme: str) -> Floats:
        """Factor of a run of this scheme as such. Shape (NUM_DRAWS,)."""
        result: Floats = np.exp(self.normal * self.scatter.get(scheme, self.scatter[_ALL]))
        return result


def predict(runs: Sequence[MeasuredRun], question: Question) -> PredictionReport:
    """Predicts every plan that the data carry.

    Args:
        runs: usable ones, of one model.
        question: see Question.

    Raises:
        UsageError: no run, or runs of several models.
    """
    _require_one_model(runs)
    chosen = comparable_runs(runs, question.cores_per_rank)
    fits = _fit(runs, chosen.runs, question)
    largest = max(run.plan.num_ranks for run in runs)
    refusals, made = list(question.refusals), []
    for plan in question.plans:
        reason = _why_not(plan, fits, largest, question)
        if reason:
            refusals.append(Refusal(scheme=plan.scheme, num_ranks=plan.num_ranks, reason=reason))
        else:
            made.append((plan, *_steps(plan, fits)))
    best = best_run(chosen.runs)
    bases: dict[tuple[str, float], _Base | None] = {}
    predictions = []
    for plan, parts, draws, traits in made:
        key = plan.scheme, round((plan.batch or 0) / (1 if question.mode == "strong" else plan.num_ranks), 6)
        if key not in bases:
            bases[key] = _base(plan, fits, question.mode)
        step = measured_step(plan, chosen.runs, question.network is not None)
        prediction = _prediction(plan, parts, draws, fits, traits, bases[key], largest)
        predictions.append(_beside(prediction, step, best))
    predictions.sort(
        key=lambda prediction: (prediction.num_ranks, prediction.step_ns / (prediction.batch or 1))
    )
    return PredictionReport(
        model=runs[0].model,
        mode=question.mode,
        num_runs=len(runs),
        max_measured_ranks=largest,
        cores_per_rank=question.cores_per_rank or chosen.cores_per_rank,
        references=tuple(dict.fromkeys(base.reference for base in bases.values() if base is not None)),
        best_run=best,
        fitted=fits.fitted,
        links=tuple(fits.target[name].used for name in sorted(fits.target)),
        predictions=tuple(predictions),
        refusals=tuple(refusals),
        best=best_sentences(predictions, refusals),
        not_comparable=chosen.warning,
        warnings=general_warnings(runs, fits.target, fits.slowdown, question.cores_per_rank),
    )


def _require_one_model(runs: Sequence[MeasuredRun]) -> None:
    if not runs:
        raise UsageError("no run can serve for a prediction; record one with `perfscope bench run` or `run`")
    models = list(dict.fromkeys(run.model for run in runs))
    if len(models) > 1:
        raise UsageError(
            f"these runs are of different models ({' | '.join(models[:3])}); predict from runs of one model"
        )


def _fit(runs: Sequence[MeasuredRun], alike: Sequence[MeasuredRun], question: Question) -> _Fits:
    rng = np.random.default_rng(question.seed)
    by_class: dict[str, list[MeasuredCall]] = defaultdict(list)
    for run in runs:
        for call in run.calls:
            by_class[call.link_class].append(call)
    links = {name: fit_link(name, calls, question.backend, rng) for name, calls in by_class.items()}
    target = dict(links)
    for name in sorted({BETWEEN_HOSTS, INSIDE_HOST} - set(links)):
        measured = fit_measured(question.links, name, question.backend, rng)
        if measured is not None:
            target[name] = measured
    if question.network is not None:
        target[BETWEEN_HOSTS] = given_link(BETWEEN_HOSTS, question.network.link, question.network.name)
    own_links = {
        name: (link.used.cost.alpha_s, link.used.cost.beta_s_per_byte) for name, link in links.items()
    }
    compute = fit_compute(alike)
    misfit = max((fitted_link.used.residual_ratio or 0.0 for fitted_link in links.values()), default=0.0)
    repeats = between_runs(alike) or 0.0
    fitted = in_sample(alike, runs, compute, own_links, question.backend)
    residuals = scatter_of(fitted)
    draws = []
    for _ in range(NUM_DRAWS):
        # what runs differ by moves the slope of a curve here, and its level in `noise`
        apart = max(repeats, _LEAST_APART) * rng.standard_normal(len(alike))
        steps = np.array([run.step_ns * _drawn_pace(run, rng) for run in alike])
        steps *= np.exp(apart - apart.mean())
        draws.append(fit_compute(alike, steps, rng.uniform(0, _MORE_FIXED), rng.uniform()))
    return _Fits(
        runs=runs,
        alike=alike,
        fitted=fitted,
        run_links=own_links,
        target=target,
        compute=compute,
        draws=tuple(draws),
        scatter={scheme: max(spread, residuals[_ALL], repeats) for scheme, spread in residuals.items()},
        normal=rng.standard_normal(NUM_DRAWS),
        chance=rng.uniform(size=(NUM_DRAWS, 3)),
        slowdown=_slowdown(alike, question.cores_per_rank),
        misfit=misfit,
        backend=question.backend,
    )


def _drawn_pace(run: MeasuredRun, rng: np.random.Generator) -> float:
    """Median of resampled blocks of steps over the median of all."""
    steps = np.array(run.steps_ns)
    if len(steps) < 2 * _BLOCK:
        return 1.0
    first = rng.integers(0, len(steps) - _BLOCK + 1, -(-len(steps) // _BLOCK))
    picked = steps[(first[:, None] + np.arange(_BLOCK)).ravel()]
    return float(np.median(picked) / np.median(steps))


def between_runs(runs: Sequence[MeasuredRun]) -> float | None:
    """Relative standard deviation of equal runs' steps, pooled over cells; None without repeats."""
    cells: dict[tuple[str, int, float], list[float]] = defaultdict(list)
    for run in runs:
        cells[run.cell].append(run.step_ns)
    squares, degrees = 0.0, 0
    for steps in cells.values():
        relative = np.array(steps) / np.mean(steps)
        squares += float(np.sum((relative - 1) ** 2))
        degrees += len(steps) - 1
    return float(np.sqrt(squares / degrees)) if degrees else None


def in_sample(
    alike: Sequence[MeasuredRun],
    runs: Sequence[MeasuredRun],
    compute: ComputeModel,
    links: Mapping[str, Link],
    backend: str | None,
) -> tuple[FittedRun, ...]:
    """What the model says of the runs that its compute is fitted to, those over unknown links left out."""
    errors = []
    for run in alike:
        if any(call.link_class not in links for calls in run.plan.ranks for call in calls):
            continue
        traits = traits_of(run.plan.scheme, runs, links, backend)
        transfer = sum(transfer_by_link(rank_terms(run.plan, backend), links).values())
        parts = compose(
            run.plan, transfer, compute, traits, slowdown=1.0, ratio=traits.ratio, hidden=traits.hidden
        )
        errors.append(
            FittedRun(
                name=run.name,
                scheme=run.plan.scheme,
                num_ranks=run.plan.num_ranks,
                batch=run.plan.batch,
                measured_step_ns=round(run.step_ns),
                modelled_step_ns=max(round(parts.step), 1),
            )
        )
    return tuple(errors)


def scatter_of(fitted: Sequence[FittedRun]) -> dict[str, float]:
    """How far another run may lie from what is predicted for it: scheme -> standard deviation of log ratios.

    From how far the runs' own steps lie from theirs; _ALL is of all schemes. Fits to n runs take p figures
    from them, so that their residuals are smaller than those of another run: sqrt((n + p) / (n - p)), with p
    the curve's two.
    """
    logs: dict[str, list[float]] = defaultdict(list)
    for run in fitted:
        for name in (run.scheme, _ALL):
            logs[name].append(float(np.log1p(run.misfit)))
    scatter = {_ALL: 0.0}
    for name, of_runs in logs.items():
        taken = min(_FITTED, len(of_runs) / 2)
        more = (len(of_runs) + taken) / (len(of_runs) - taken)
        scatter[name] = float(np.sqrt(np.mean(np.square(of_runs)) * more))
    return scatter


def _slowdown(runs: Sequence[MeasuredRun], cores_per_rank: float | None) -> float:
    """How much longer arithmetic takes where a rank has fewer cores than threads, against the runs."""
    measured = [
        max(1.0, (run.threads or 1) / run.cores_per_rank) for run in runs if run.cores_per_rank is not None
    ]
    if cores_per_rank is None or not measured:
        return 1.0
    threads = max(run.threads or 1 for run in runs)
    return max(1.0, threads / cores_per_rank) / float(np.median(measured))


def _why_not(plan: Plan, fits: _Fits, largest: int, question: Question) -> str:
    """Why the data do not carry this plan; "" if they do."""
    if plan.num_ranks > FURTHEST * largest and not question.extrapolate:
        return texts.too_many_ranks(plan.num_ranks, FURTHEST, largest)
    runs = [run for run in fits.alike if run.plan.scheme == plan.scheme]
    works = [run.plan.work for run in runs or fits.alike]
    least, most = min(works) / FURTHEST, max(works) * FURTHEST
    if not least / _SAME_WORK <= plan.work <= most * _SAME_WORK and not question.extrapolate:
        alike = max(works) <= _SAME_WORK * min(works)
        return texts.batch_too_far(plan.work, FURTHEST, min(works), None if alike else max(works))
    classes = {call.link_class for calls in plan.ranks for call in calls}
    if question.network is not None and BETWEEN_HOSTS in classes and _begun_before(plan, fits):
        return texts.ANOTHER_NETWORK
    unknown = sorted(classes - set(fits.target))
    if BETWEEN_HOSTS in unknown:
        return texts.NO_CALL_BETWEEN_HOSTS
    if unknown:
        return texts.no_call(unknown[0])
    return ""


def _begun_before(plan: Plan, fits: _Fits) -> bool:
    return any(run.begun_before for run in fits.runs if run.plan.scheme == plan.scheme)


def _steps(plan: Plan, fits: _Fits) -> tuple[StepParts, Floats, Traits]:
    """The point and the draws of a plan's step."""
    traits = traits_of(plan.scheme, fits.runs, fits.run_links, fits.backend, fits.misfit)
    ranks = rank_terms(plan, fits.backend)
    point = compose(
        plan,
        sum(transfer_by_link(ranks, _point(fits.target)).values()),
        fits.compute,
        traits,
        slowdown=fits.slowdown,
        ratio=traits.ratio,
        hidden=traits.hidden,
    )
    draws = np.array([_draw(plan, ranks, traits, fits, row) for row in range(NUM_DRAWS)])
    return point, draws, traits


def _draw(plan: Plan, ranks: Sequence[RankTerms], traits: Traits, fits: _Fits, row: int) -> float:
    links = {
        name: (float(link.draws[row, 0]), float(link.draws[row, 1])) for name, link in fits.target.items()
    }
    of_ratio, of_hidden, of_growth = fits.chance[row].tolist()
    parts = compose(
        plan,
        sum(transfer_by_link(ranks, links).values()),
        fits.draws[row],
        traits,
        slowdown=fits.slowdown,
        ratio=_between(traits.ratio_bounds, of_ratio),
        hidden=_between(traits.hidden_bounds, of_hidden),
        growth=lambda num: _growth(num, fits.runs, of_growth),
    )
    return parts.step * float(fits.noise(plan.scheme)[row])


def _growth(num_ranks: int, runs: Sequence[MeasuredRun], chance: float) -> float:
    """e_N between that of the runs (stragglers do not grow) and as much beyond e_N (they have long tails)."""
    measured = expected_maximum(max(run.plan.num_ranks for run in runs))
    here = expected_maximum(num_ranks)
    return here + (2 * chance - 1) * max(here - measured, 0.0)


def _between(bounds: tuple[float, float], chance: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * chance


def _point(target: Mapping[str, FittedLink]) -> dict[str, Link]:
    return {name: (link.used.cost.alpha_s, link.used.cost.beta_s_per_byte) for name, link in target.items()}


class _Base(Struct, frozen=True, kw_only=True, eq=False):
    """What a scheme's efficiency is relative to, and its samples/s in the draws. Shape (NUM_DRAWS,)."""

    reference: Reference
    paces: Floats


def _base(plan: Plan, fits: _Fits, mode: str) -> _Base | None:
    """The scheme's own smallest run, at the plan's batch (strong) or batch per rank (weak).

    Predicted where none had it. None where there is no such run, no batch is known, or its links are not.
    """
    nearest = smallest_runs(plan, fits.alike, mode)
    if nearest is None:
        return None
    run, batch, same = nearest
    if same:
        speed = float(
            np.median(
                [(measured_run.plan.batch or 0.0) * 1e9 / measured_run.step_ns for measured_run in same]
            )
        )
        paces: Floats = np.full(NUM_DRAWS, speed) / fits.noise(run.plan.scheme)[::-1]
    else:
        more = batch / (run.plan.batch or 1)
        full = None if run.plan.whole is None else run.plan.whole * more
        asked = replace(run.plan, batch=batch, work=run.plan.work * more, whole=full)
        if any(call.link_class not in fits.target for calls in asked.ranks for call in calls):
            return None
        parts, draws, _ = _steps(asked, fits)
        speed, paces = batch * 1e9 / parts.step, batch * 1e9 / draws
    reference = Reference(
        scheme=run.plan.scheme,
        num_ranks=run.plan.num_ranks,
        batch=batch,
        samples_per_s=speed,
        measured=bool(same),
    )
    return _Base(reference=reference, paces=paces)


def _prediction(
    plan: Plan,
    parts: StepParts,
    draws: Floats,
    fits: _Fits,
    traits: Traits,
    base: _Base | None,
    largest: int,
) -> Prediction:
    compute, straggling = round(parts.compute), round(parts.straggling)
    hidden = round(parts.hidden)
    exposed = max(round(parts.transfer) - hidden, 0)
    step = compute + straggling + exposed
    links = {
        name: value * traits.ratio
        for name, value in transfer_by_link(rank_terms(plan, fits.backend), _point(fits.target)).items()
    }
    speed = efficiency = None
    if plan.batch:
        speed = plan.batch * 1e9 / step
        if base is not None:
            share = base.reference.num_ranks / plan.num_ranks
            efficiency = speed / base.reference.samples_per_s * share
            spread = interval(plan.batch * 1e9 / draws / base.paces * share, efficiency)
    runs = [run for run in fits.alike if run.plan.scheme == plan.scheme] or list(fits.alike)
    fixed = float(np.median([run.fixed_share for run in runs]))
    return Prediction(
        scheme=plan.scheme,
        num_ranks=plan.num_ranks,
        mesh=plan.mesh,
        batch=plan.batch,
        step_ns=step,
        step_interval_ns=interval(draws, float(step)),
        samples_per_s=speed,
        samples_interval=None if speed is None else interval((plan.batch or 0) * 1e9 / draws, speed),
        efficiency=efficiency,
        efficiency_interval=None if efficiency is None else spread,
        compute_ns=compute,
        straggler_ns=straggling,
        exposed_comm_ns=exposed,
        hidden_comm_ns=hidden,
        links_ns=tuple((name, round(value)) for name, value in sorted(links.items())),
        bytes_by_link=_bytes_by_link(plan),
        layers_ns=tuple(
            (name, round(value)) for name, value in layers_at(runs, plan.work, compute * (1 - fixed))
        ),
        measured=traits.observed or any(run.plan.scheme == plan.scheme for run in fits.runs),
        times_best=None,
        measured_step_ns=None,
        misfit=None,
        warnings=plan_warnings(plan, fits.alike, traits, fits.compute, largest, _known_links(fits)),
    )


def _known_links(fits: _Fits) -> frozenset[str]:
    """Classes of links that the target's hold: links between hosts fitted to calls over both hold both."""
    across = fits.target.get(BETWEEN_HOSTS)
    both = any(call.inside_too for run in fits.runs for calls in run.plan.ranks for call in calls)
    return frozenset(fits.target) | (
        {INSIDE_HOST} if both and across and across.used.given is None else set()
    )


def _beside(prediction: Prediction, step_ns: float | None, best: BestRun | None) -> Prediction:
    """With what was measured put beside it."""
    return replace(
        prediction,
        times_best=prediction.samples_per_s / best.samples_per_s
        if best and prediction.samples_per_s
        else None,
        measured_step_ns=None if step_ns is None else round(step_ns),
        misfit=None if step_ns is None else prediction.step_ns / step_ns - 1,
    )


def _bytes_by_link(plan: Plan) -> tuple[tuple[str, float], ...]:
    sums = []
    for calls in plan.ranks:
        by_link: dict[str, float] = defaultdict(float)
        for call in calls:
            by_link[call.link_class] += call.count * call.bytes
        sums.append(by_link)
    busiest = max(sums, key=lambda by_link: sum(by_link.values()), default={})
    return tuple(sorted(busiest.items()))
