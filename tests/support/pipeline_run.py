"""Run directories of simulated pipelines, as the reader leaves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfscope.analysis.pipeline.record import StageSpan
from perfscope.rundir import layout
from perfscope.vocabulary.pipelines import StageWork
from tests.support.pipelines import F, Simulated
from tests.support.synthetic_run import BACKEND, EPOCH, SyntheticRun, span

OPTIMIZER_NS = 3_000


def own_mark(work: StageSpan) -> str:
    """What the probe writes."""
    return f"{layout.MARK_STAGE}{work.stage}{work.work}{work.microbatch}"


def torch_range(work: StageSpan) -> str:
    """What torch's schedules with one stage per rank write."""
    return f"{'Forward' if work.work is F else 'Backward'} {work.microbatch}"


def pipeline_run(
    path: Path,
    pipelines: Mapping[tuple[int, ...], Sequence[Simulated]],
    *,
    mark: Callable[[StageSpan], str] | None = own_mark,
    steps: Sequence[int] = (),
) -> SyntheticRun:
    """A run with one window. Step k begins with the pipeline's first work and ends with the optimizer.

    Args:
        path: of the run directory.
        pipelines: ranks -> the steps of their pipeline.
        mark: name of the range around a work; None: none.
        steps: durations that the always-on probe has seen.
    """
    world = sorted(rank for ranks in pipelines for rank in ranks)
    run = SyntheticRun(path, world_size=len(world), num_ranks=len(world))
    for ranks, simulated in pipelines.items():
        group = {"name": "7", "ranks": list(ranks), "desc": "mesh_pp"}
        for row, rank in enumerate(ranks):
            run.rank(rank, world_size=len(world), groups=[group])
            if steps:
                run.steps(rank, steps)
            rows: list[dict[str, Any]] = []
            marks = []
            for number, step in enumerate(simulated):
                begin, end = _bounds(step)
                rows += _rank_rows(step, ranks, row, mark, number)
                rows.append(span(end, OPTIMIZER_NS, "optimizer", phase="optimizer"))
                marks.append((number, begin, end + OPTIMIZER_NS))
            run.window(
                rank, rows, marks, groups=[{"pg_name": "7", "ranks": list(ranks), "pg_desc": "mesh_pp"}]
            )
    return run


def _bounds(step: Simulated) -> tuple[int, int]:
    times = [(work.start_ns, work.end_ns) for rank in step.ranks for work in rank]
    return min(start for start, _ in times), max(end for _, end in times)


def _rank_rows(
    step: Simulated,
    ranks: Sequence[int],
    row: int,
    mark: Callable[[StageSpan], str] | None,
    number: int,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    works, last_stage = step.ranks[row], max(work.stage for rank in step.ranks for work in rank)
    waits = {int(end): int(start) for start, end in step.exposed[row]}
    for index, work in enumerate(works):
        phase = "forward" if work.work is F else "backward"
        duration = work.end_ns - work.start_ns
        rows.append(
            span(work.start_ns, duration, "compute", phase=phase, layer=f"stage{work.stage}", name="aten::mm")
        )
        if mark is not None:
            rows.append(span(work.start_ns, duration, "annotation", phase=phase, name=mark(work)))
        source = work.stage - 1 if work.work is F else work.stage + 1
        waited = [end for end in waits if (works[index - 1].end_ns if index else 0) < end <= work.start_ns]
        if work.work is not StageWork.WEIGHT_BACKWARD and 0 <= source <= last_stage:
            begin = waits[max(waited)] if waited else work.start_ns - 1
            rows.append(
                _message("recv", begin, max(waited) if waited else work.start_ns, ranks[source % len(ranks)])
            )
        target = work.stage + 1 if work.work is F else work.stage - 1
        if work.work is not StageWork.WEIGHT_BACKWARD and 0 <= target <= last_stage:
            rows.append(_message("send", work.end_ns, work.end_ns + 1, ranks[target % len(ranks)]))
    return [
        {**one, "seq": 1_000 * number + place} if one["kind"] == "comm" else one
        for place, one in enumerate(rows)
    ]


def _message(collective: str, start: int, end: int, peer: int) -> dict[str, Any]:
    columns = {"collective": collective, "group": "7", "in_bytes": 64, "out_bytes": 64, "peer": peer}
    return span(start, end - start, "comm", lane=BACKEND, name=f"gloo:{collective}", **columns)


__all__ = ["EPOCH", "own_mark", "pipeline_run", "torch_range"]
