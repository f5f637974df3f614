"""POP's factors from the replay (METRICS §3).

T_id is the longest path with every transfer instantaneous, not the shortcut max(execution - communication +
wait), which calls a slow link inside one group "serialisation". What the replay without a change is off by is
taken out: T_id = T x replayed T_id / replayed T.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.intervals import one_of
from perfscope.analysis.mainline import LINE_COMPUTE, LINE_OPTIMIZER
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.replay.program import Float
from perfscope.analysis.replay.replays import UNEXPLAINED, Replays
from perfscope.analysis.whatif.changes import zero_transfer
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure


def useful_ns(replays: Replays) -> dict[int, float]:
    """Computation and optimizer of each rank, over all windows."""
    total: dict[int, float] = {}
    for window in replays.windows:
        cells = window.program.cells
        useful = one_of(cells.part, (LINE_COMPUTE, LINE_OPTIMIZER))
        sums = np.bincount(cells.rank[useful], cells.local[useful], minlength=len(window.program.ranks))
        for rank, value in zip(window.program.ranks, sums.tolist(), strict=True):
            total[rank] = total.get(rank, 0.0) + value
    return total


def efficiency(
    replays: Replays | None, hosts: Mapping[int, str], *, communicates: bool
) -> tuple[Efficiency | None, tuple[Missing, ...]]:
    """The factors of one run, or why there are none.

    Args:
        replays: the run's windows; None: no window could be replayed.
        hosts: rank -> host.
        communicates: whether the traces show any communication at all.
    """
    if replays is None:
        return None, (missing_figure(Figure.PARALLEL_EFFICIENCY, Cause.NO_SHARED_STEPS),)
    useful = useful_ns(replays)
    if len(useful) < 2:
        return None, (missing_figure(Figure.PARALLEL_EFFICIENCY, Cause.ONE_RANK),)
    values = np.array(list(useful.values()))
    if values.max() <= 0:
        return None, (missing_figure(Figure.PARALLEL_EFFICIENCY, Cause.NO_COMPUTATION),)
    steps = replays.num_steps
    wall = replays.measured_rank_ns * steps
    missing: list[Missing] = []
    ideal = None
    if communicates and not replays.num_calls:
        missing.append(missing_figure(Figure.SERIALISATION_AND_TRANSFER, Cause.NO_CALL_MATCHED))
    elif communicates and replays.unexplained_ratio > UNEXPLAINED:
        share = replays.unexplained_ratio
        missing.append(missing_figure(Figure.SERIALISATION_AND_TRANSFER, Cause.COMM_UNEXPLAINED, share=share))
    else:
        ideal = wall * replays.rank_ns(zero_transfer) / replays.rank_ns()
    most = float(values.max())
    lb_in, lb_out = _split(useful, hosts)
    return Efficiency(
        num_steps=steps,
        step_ns=round(wall / steps),
        ideal_step_ns=None if ideal is None else round(ideal / steps),
        useful_ns=tuple((rank, round(value / steps)) for rank, value in sorted(useful.items())),
        load_balance=float(values.mean()) / most,
        lb_in=lb_in,
        lb_out=lb_out,
        comm_efficiency=most / wall,
        serialisation=None if ideal is None else most / ideal,
        transfer=None if ideal is None else ideal / wall,
        parallel_efficiency=float(values.mean()) / wall,
    ), tuple(missing)


def _split(useful: Mapping[int, float], hosts: Mapping[int, str]) -> tuple[float | None, float | None]:
    """(inside nodes, across nodes): with the busiest rank of each node standing for all of its ranks."""
    ranks = sorted(useful)
    values: Float = np.array([useful[rank] for rank in ranks])
    names = [hosts.get(rank, "") for rank in ranks]
    if len(set(names)) < 2:
        return None, None
    _, host = np.unique(names, return_inverse=True)
    busiest = np.zeros(int(host.max()) + 1)
    np.maximum.at(busiest, host, values)
    standing = float(busiest[host].sum())
    return float(values.sum()) / standing, standing / (len(values) * float(values.max()))
