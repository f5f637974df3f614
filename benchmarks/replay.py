"""How long the replay takes: `python benchmarks/replay.py [--ranks 1024] [--calls 20000]`.

Two made-up jobs on one core: every call on all ranks, and a mesh in which tensor-parallel and data-parallel
groups take turns (square root of the ranks each). Times are for finding the levels (once per run) and for one
replay (once per what-if). The budget is 5 s for 1,024 ranks x 20,000 collectives.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time

import numpy as np

from perfscope.analysis.mainline import LINE_COMPUTE
from perfscope.analysis.replay.engine import replay, schedule
from perfscope.analysis.replay.program import Cells, Change, Events, Program, Stretches


def blocking_job(
    num_ranks: int, groups: list[np.ndarray[tuple[int, int], np.dtype[np.int64]]], num: int
) -> Program:
    """Each rank works, calls, waits, `num` times; call k is on the groups of axis k modulo the axes.

    Args:
        num_ranks: R.
        groups: per axis an array of shape (groups, members).
        num: calls per rank.
    """
    rng = np.random.default_rng(0)
    event_rank, event_call = [], []
    first = 0
    for k in range(num):
        axis = groups[k % len(groups)]
        event_rank.append(axis.ravel())
        event_call.append(np.repeat(first + np.arange(len(axis)), axis.shape[1]))
        first += len(axis)
    ends = first + np.arange(num_ranks)
    rank = np.concatenate([*event_rank, np.arange(num_ranks)])
    call = np.concatenate([*event_call, ends])
    turn = np.concatenate([np.repeat(np.arange(num), num_ranks), np.full(num_ranks, num)])
    place = rank * (num + 1) + turn  # a rank's cells, and its stretches: the k-th lies behind its k-th call
    order = np.empty(len(rank), dtype=np.int64)
    order[place] = np.arange(len(rank))
    awaited = np.where(np.arange(len(rank)) % (num + 1) == 0, -1, np.roll(order, 1))
    cells = num_ranks * (num + 1)
    ones = np.zeros(cells, dtype=np.int64)
    return Program(
        ranks=tuple(range(num_ranks)),
        cells=Cells(
            first=np.arange(num_ranks + 1) * (num + 1),
            local=rng.uniform(1e3, 1e6, cells).round(),
            part=np.full(cells, LINE_COMPUTE, dtype=np.int8),
            layer=np.full(cells, -1, dtype=np.int32),
            phase=np.full(cells, -1, dtype=np.int8),
            step=ones,
        ),
        events=Events(
            rank=rank,
            call=call,
            stretch=place,
            cell=place,
            fraction=np.ones(len(rank)),
            slot=rank,
            delay=np.zeros(len(rank)),
            transfer=np.where(turn < num, 1e5, 0.0),
        ),
        stretches=Stretches(
            rank=np.repeat(np.arange(num_ranks), num + 1),
            awaited=awaited,
            cell=np.arange(cells),
            early=np.zeros(cells),
        ),
        after=np.full(first + num_ranks, -1, dtype=np.int64),
        kind=np.concatenate((np.zeros(first, dtype=np.int64), np.full(num_ranks, -1))),
        size=np.full(first + num_ranks, 1 << 20, dtype=np.int64),
        names=(("all_reduce", "world"),),
        ends=order.reshape(num_ranks, num + 1)[:, -1:],
        measured=np.zeros((num_ranks, 1)),
        skew=np.zeros(num_ranks),
        begin=np.zeros(num_ranks),
        steps=(0,),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=20_000, help="per rank")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    everyone = np.arange(options.ranks)
    side = int(options.ranks**0.5)
    mesh = everyone[: side * side].reshape(side, side)
    rows = []
    for name, num_ranks, groups in (
        ("all ranks in every call", options.ranks, [everyone.reshape(1, -1)]),
        (f"mesh {side} x {side}, axes in turn", side * side, [mesh, mesh.T.copy()]),
    ):
        program = blocking_job(num_ranks, groups, options.calls)
        started = time.process_time()
        plan = schedule(program)
        scheduled = time.process_time()
        base = replay(program, plan)
        replayed = time.process_time()
        ideal = replay(program, plan, Change(transfer=np.zeros(len(program.events.transfer))))
        rows.append(
            {
                "job": name,
                "ranks": num_ranks,
                "calls_per_rank": options.calls,
                "calls": program.num_calls - num_ranks,
                "events": len(program.events.rank),
                "levels_cpu_s": scheduled - started,
                "replay_cpu_s": replayed - scheduled,
                "transfer_efficiency": ideal.wall_ns / base.wall_ns,
            }
        )
        del program, plan, base, ideal
    if options.json:
        print(
            json.dumps(
                {"rows": rows, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
            )
        )
        return
    print(f"{'job':32} {'events':>11} {'levels':>8} {'replay':>8}  transfer")
    for row in rows:
        print(
            f"{row['job']:32} {row['events']:>11,} {row['levels_cpu_s']:7.2f}s {row['replay_cpu_s']:7.2f}s"
            f"  {row['transfer_efficiency']:.3f}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"peak memory {peak:.1f} GiB; CPU seconds on one core")


if __name__ == "__main__":
    main()
