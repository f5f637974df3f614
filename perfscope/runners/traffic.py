"""What a scheme says that it communicates: predictions in the same words as the ledger's record. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.vocabulary.traffic import ScalesWith


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Calls of one kind by one rank.

    Attributes:
        collective: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather, scatter or
            send.
        axis: of the mesh (dp, tp, pp ...), world or a name of the scheme's own; as in comm.Group.
        members: global ranks in the group's order; for a send (sender, receiver).
        bytes: S of one call, as comm.py defines it. For a receiver nothing is listed.
        count: calls per step; their mean over the run where steps differ.
        every: they happen in steps whose number (from 1) is a multiple of this.
        at_end: calls after the last step, where its number is no multiple of `every`.
        what: for reading: "gradients", "activations forward", "halo rows" ...
        scales_with: what `bytes` grows with.
        by_library: calls that a library makes and that the ledger therefore cannot see
            (DDP's reducer, FSDP, torch's pipelines); the trace shows them.
        group_size: as the ledger notes it where that is not len(members) (a send inside a larger group).
    """

    collective: str
    axis: str
    members: tuple[int, ...]
    bytes: int
    count: float = 1
    every: int = 1
    at_end: int = 0
    what: str = ""
    scales_with: ScalesWith = ScalesWith.WEIGHTS
    by_library: bool = False
    group_size: int | None = None

    def calls_in(self, steps: int) -> int:
        """How many such calls this rank makes in so many steps."""
        return round(self.count * (steps // self.every)) + (self.at_end if steps % self.every else 0)
