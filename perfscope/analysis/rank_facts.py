"""What the ranks say of themselves in rank.json, as several parts of the analysis ask it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfscope.rundir.records import RankRecord, RunRecord
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.frameworks import RUN_AHEAD, UNNAMED, FrameworkName
from perfscope.vocabulary.workload import Workload

if TYPE_CHECKING:
    from perfscope.analysis.source import RunSource

SEVERAL = "several"
# Axes of a device mesh along which ranks share a batch rather than split it.
_MODEL_AXES = frozenset(
    {"tp", "cp", "pp", "ep", "sp", "tensor", "model", "pipeline", "stage", "expert", "context"}
)


def has_unseen_calls(record: RankRecord) -> bool:
    """Whether threads of the rank communicated that its traces do not show."""
    return any(entry.figure == Figure.EXPOSED_COMM.value for entry in record.missing)


def are_on_cpus(records: Mapping[int, RankRecord]) -> bool:
    """Whether all ranks train on CPUs, as those that do not say."""
    return all(record.device in ("", "cpu") for record in records.values())


def framework_of(records: Mapping[int, RankRecord]) -> str:
    """``torch``, ``keras-jax`` (Keras with its backend), ``mpi4py``; "several" where ranks differ.

    Runs that do not say (imported traces) are torch's.
    """
    return named_framework(records) or UNNAMED.value


def named_framework(records: Mapping[int, RankRecord]) -> str:
    """The same, and "" where no rank says."""
    names = {record.framework.full_name for record in records.values()} - {""}
    return next(iter(names), "") if len(names) < 2 else SEVERAL


def is_torch(records: Mapping[int, RankRecord]) -> bool:
    """Whether it is torch alone that trained, or, of runs that do not say, presumably.

    Torch's windows begin with a root module.
    """
    return framework_of(records) == FrameworkName.TORCH


def runs_ahead(records: Mapping[int, RankRecord]) -> bool:
    """Whether steps are times from hand-over to hand-over, with the work behind them."""
    return framework_of(records) in RUN_AHEAD


def workload_of(source: RunSource) -> Workload:
    """What the program does: inference where imported traces show work, and none of it is training's."""
    signs = {summary.trains for summary in source.summaries()}
    is_inference = source.run.is_imported and False in signs and True not in signs
    return Workload.INFERENCE if is_inference else Workload.TRAINING


def world_size(run: RunRecord, records: Mapping[int, RankRecord]) -> int | None:
    """Ranks of the job, by run.json, else by what the ranks themselves say."""
    sizes = (run.world_size, *(record.world_size for record in records.values()))
    return next(filter(None, sizes), None)


def num_devices(records: Mapping[int, RankRecord]) -> dict[int, int]:
    """rank -> devices of its process, where it has several: its collectives count them, not ranks."""
    return {
        rank: record.num_devices
        for rank, record in records.items()
        if record.num_devices is not None and record.num_devices > 1
    }


def data_parallel_width(records: Mapping[int, RankRecord]) -> int | None:
    """Over how many ranks the batch is split; None when that is not known."""
    widths = {_width_of(record, len(records)) for record in records.values()}
    widths.discard(None)
    return widths.pop() if len(widths) == 1 else None


def _width_of(record: RankRecord, num_ranks: int) -> int | None:
    world, root, mesh = record.world_size or num_ranks, record.root, record.mesh
    if world == 1:
        return 1
    if root is None:
        return None
    width = root.dp_size if root.dp_size is not None and root.dp_size > 0 else None
    if width is None and root.data_parallel:
        width = world
    if width is None or width != world or mesh is None:
        return width
    # The wrapper's group is the whole job, and the program works within a mesh that says otherwise.
    shared = math.prod(size for axis, size in zip(mesh.axes, mesh.shape, strict=False) if axis in _MODEL_AXES)
    return max(1, width // shared)
