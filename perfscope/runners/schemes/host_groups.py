"""Schemes whose ranks along the axis numa are those of one host."""

from __future__ import annotations

from typing import ClassVar

from perfscope.runners.config import BenchError
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.schemes.base import Scheme
from perfscope.vocabulary.axes import Axis


class HostGroups(Scheme):
    """Data parallel between groups of ranks, and in each.

    Class attributes:
        members: what the ranks of a group are, for messages.
    """

    splits: ClassVar[tuple[Axis, ...]] = (Axis.DP, Axis.NUMA)
    members: ClassVar[str]

    @classmethod
    def default_mesh(cls, num_ranks: int) -> Mesh:
        """See Scheme: two groups where each still has two ranks."""
        if num_ranks >= 4 and num_ranks % 2 == 0:
            return Mesh({Axis.DP: 2, Axis.NUMA: num_ranks // 2})
        return Mesh({Axis.NUMA: num_ranks})

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        for group in job.mesh.groups(Axis.NUMA):
            if len({job.host_of(rank) for rank in group}) > 1:
                raise BenchError(
                    f"{cls.name}: the {len(group)} {cls.members} must share a host, but ranks {group[0]} "
                    f"to {group[-1]} do not; use a mesh whose numa divides the ranks of a host"
                )
