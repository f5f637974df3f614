"""POP's factors by number of ranks (METRICS §3): the heat table of a series."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.study.averages import middle_efficiency
from perfscope.analysis.study.results import POP_ROWS, WEAK, PopRow, PopTree, StudyRun
from perfscope.messages.comparison import scaling as words
from perfscope.messages.missing import cause_text
from perfscope.vocabulary.efficiency import PopFactor
from perfscope.vocabulary.figures import Figure

_DEPTHS = {
    PopFactor.GLOBAL: 0,
    PopFactor.PARALLEL: 1,
    PopFactor.COMPUTATION_SCALING: 1,
    PopFactor.LOAD_BALANCE: 2,
    PopFactor.SERIALISATION: 2,
    PopFactor.TRANSFER: 2,
    PopFactor.LB_IN: 3,
    PopFactor.LB_OUT: 3,
}
_OF_SEVERAL = (PopFactor.COMPUTATION_SCALING, PopFactor.GLOBAL)  # runs
_FIGURES = {  # factor -> the missing figure that says why there is none
    PopFactor.PARALLEL: Figure.PARALLEL_EFFICIENCY,
    PopFactor.SERIALISATION: Figure.SERIALISATION_AND_TRANSFER,
    PopFactor.TRANSFER: Figure.SERIALISATION_AND_TRANSFER,
}


def pop_tree(
    runs_at: Mapping[int, Sequence[StudyRun]], reference: int, mode: str
) -> tuple[PopTree | None, str]:
    """The tree, and why there is none.

    computation_scaling = sum U_0 / sum U, in weak scaling times N / N_0; global_efficiency =
    parallel_efficiency x computation_scaling. Each column is of one run (see middle_efficiency), so that its
    factors multiply exactly.
    """
    sizes = tuple(sorted(runs_at))
    factors = {
        size: middle_efficiency(runs_at[size] if size > 1 else [_alone(run) for run in runs_at[size]])
        for size in sizes
    }
    if not any(factors.values()):
        return None, _why_none([run for size in sizes for run in runs_at[size]])
    columns = [
        _column(size, factors[size], factors[reference], reference, mode, runs_at[size]) for size in sizes
    ]
    rows = tuple(
        PopRow(
            factor=factor,
            depth=_DEPTHS[factor],
            values=tuple(column[factor][0] for column in columns),
            reasons=tuple(column[factor][1] for column in columns),
        )
        for factor in POP_ROWS
    )
    return PopTree(world_sizes=sizes, rows=rows), ""


def _alone(run: StudyRun) -> StudyRun:
    """One rank shares nothing, so that its run has no efficiency of its own; the definitions hold.

    U = compute and optimizer of its traced step, T_id = T: there is no network.
    """
    step = run.composition
    if run.efficiency is not None or step is None or step.step <= 0:
        return run
    useful = (step.compute + step.optimizer) / step.step
    efficiency = Efficiency(
        num_steps=step.num_steps,
        step_ns=round(step.step),
        ideal_step_ns=round(step.step),
        useful_ns=((0, round(step.compute + step.optimizer)),),
        load_balance=1.0,
        lb_in=None,
        lb_out=None,
        comm_efficiency=useful,
        serialisation=useful,
        transfer=1.0,
        parallel_efficiency=useful,
    )
    return replace(run, efficiency=efficiency)


def _column(
    size: int,
    efficiency: Efficiency | None,
    first: Efficiency | None,
    reference: int,
    mode: str,
    runs: Sequence[StudyRun],
) -> dict[PopFactor, tuple[float | None, str]]:
    """Factor -> value and why it is missing."""
    if efficiency is None:
        return dict.fromkeys(POP_ROWS, (None, _why_none(runs)))
    column: dict[PopFactor, tuple[float | None, str]] = {}
    for factor in POP_ROWS:
        if factor in _OF_SEVERAL:
            continue
        value = efficiency.value(factor)
        column[factor] = (value, "" if value is not None else _why_factor(factor, runs))
    useful, before = _total(efficiency), _total(first)
    if useful and before:
        scaling = before / useful * (size / reference if mode == WEAK else 1.0)
        column[PopFactor.COMPUTATION_SCALING] = (scaling, "")
        column[PopFactor.GLOBAL] = (scaling * efficiency.parallel_efficiency, "")
    else:
        why = words.needs_useful_time(reference, size)
        column[PopFactor.COMPUTATION_SCALING] = column[PopFactor.GLOBAL] = (None, why)
    return column


def _total(efficiency: Efficiency | None) -> float:
    return 0.0 if efficiency is None else math.fsum(time for _, time in efficiency.useful_ns)


def _why_none(runs: Sequence[StudyRun]) -> str:
    if all(run.composition is None for run in runs):
        return words.NO_STEP_TRACED
    figures = _FIGURES.values()
    causes = (cause_text(missing) for run in runs for missing in run.missing if missing.figure in figures)
    return next(causes, words.FACTORS_NOT_IN_TRACE)


def _why_factor(factor: PopFactor, runs: Sequence[StudyRun]) -> str:
    figure = _FIGURES.get(factor)
    causes = (cause_text(missing) for run in runs for missing in run.missing if missing.figure is figure)
    return next(causes, words.FACTOR_MISSING.get(factor, words.FACTOR_NOT_IN_TRACE))
