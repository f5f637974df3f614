"""A checked bench run: its mesh, its model's shapes, and what follows from them before it is started."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from perfscope.runners.config import BenchConfig
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.shapes import ModelShape


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that every rank must agree on.

    Attributes:
        config: what was asked for.
        mesh: settled.
        shape: of the model.
    """

    config: BenchConfig
    mesh: Mesh
    shape: ModelShape

    @property
    def num_ranks(self) -> int:
        """P."""
        return self.config.num_ranks

    @property
    def element_size(self) -> int:
        """e, bytes of a weight."""
        return 8 if self.config.dtype == "float64" else 4

    @property
    def group_batch(self) -> int:
        """b, samples of one data part per step."""
        return self.config.batch // self.mesh.num_data_parts

    def host_of(self, rank: int) -> int:
        """Planned host of a rank: consecutive ranks together."""
        return rank // (self.config.num_ranks // self.config.num_hosts)

    @cached_property
    def model_bytes(self) -> int:
        """Bytes of all parameters."""
        return self.shape.num_params * self.element_size
