"""What is known of a run's experts. Times are integer nanoseconds per mean step."""

from __future__ import annotations

from msgspec import Struct


class ExpertRank(Struct, frozen=True, kw_only=True):
    """One rank's experts in one layer, per step.

    Attributes:
        tokens: that the forward passes gave them; None: the trace has bytes alone. How many of them each
            expert of the rank gets, all-to-all calls do not tell.
        bytes: of these tokens.
        compute_ns: from the arrival of the tokens until their results are sent, forward and backward.
    """

    rank: int
    tokens: float | None
    bytes: int
    compute_ns: int


class ExpertLayer(Struct, frozen=True, kw_only=True):
    """One layer of experts, per step.

    Attributes:
        layer: "": all layers, because the trace does not say in which layer a call was made.
        imbalance: most loaded rank over the mean rank, the mean over forward passes.
        wait_ns: of the mean rank, until the last rank's experts were done, forward and backward.
        saved_ns: of the step, if every rank had the same number of tokens.
    """

    layer: str
    ranks: tuple[ExpertRank, ...]
    imbalance: float
    wait_ns: int
    saved_ns: int


class TracedRank(Struct, frozen=True, kw_only=True):
    """One rank's experts in a layer of which not all ranks were traced, per step; as ExpertRank has them."""

    layer: str
    rank: int
    tokens: float | None
    bytes: int
    compute_ns: int


class Experts(Struct, frozen=True, kw_only=True):
    """Experts of a run: those whose calls are alike on all traced ranks of their group.

    Attributes:
        layers: of which all ranks were traced, the costliest first.
        incomplete: ranks of the other ones.
    """

    layers: tuple[ExpertLayer, ...]
    incomplete: tuple[TracedRank, ...] = ()
    num_steps: int

    @property
    def saved_ns(self) -> int:
        """If all layers were balanced."""
        return sum(layer.saved_ns for layer in self.layers)
