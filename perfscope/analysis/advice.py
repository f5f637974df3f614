"""Whose recommendations hold for a run: its framework's, and those of the library that carries its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfscope.analysis.rank_facts import framework_of
from perfscope.messages.advice import (
    MPI,
    CommAdvice,
    TrainingAdvice,
    advice_key,
    comm_advice,
    training_advice,
)
from perfscope.rundir.records import RankRecord
from perfscope.vocabulary.frameworks import OWN_STEPS, FrameworkName
from perfscope.vocabulary.workload import Workload


def training(metas: Mapping[int, RankRecord], workload: Workload = Workload.TRAINING) -> TrainingAdvice:
    """For the framework that the ranks trained with.

    Args:
        metas: rank -> rank.json.
        workload: what the program does.
    """
    return training_advice(advice_key(framework_of(metas), workload))


def communication(metas: Mapping[int, RankRecord], groups: Sequence[str] = ()) -> CommAdvice:
    """For the library that carries the calls; arguments as for `library_of`."""
    return comm_advice(library_of(metas, groups))


def library_of(metas: Mapping[int, RankRecord], groups: Sequence[str] = ()) -> str:
    """The library that carries the calls, as `comm_advice` takes it.

    Args:
        metas: rank -> rank.json.
        groups: names of the groups that the calls in question are on; () = of the framework's own.
    """
    backends = _backends(metas, groups)
    if backends and all(map(_is_horovod, backends)):
        return FrameworkName.HOROVOD.value
    framework = framework_of(metas)
    by_mpi = any(meta.mpi_library for meta in metas.values())  # mpi4py's; torch may speak MPI, too
    return MPI if framework in OWN_STEPS or (by_mpi and backends == {MPI}) else framework


def has_calls_beside(metas: Mapping[int, RankRecord]) -> bool:
    """Whether calls were recorded that the framework's own trace does not show: Horovod's, MPI's."""
    return any(meta.mpi_library for meta in metas.values()) or any(map(_is_horovod, _backends(metas, None)))


def _is_horovod(backend: str) -> bool:
    return backend.startswith(FrameworkName.HOROVOD)


def _backends(metas: Mapping[int, RankRecord], groups: Sequence[str] | None) -> set[str]:
    """Of the groups of these names; None = of all."""
    return {
        row.backend or ""
        for meta in metas.values()
        for row in meta.groups
        if groups is None or row.name in groups
    }
