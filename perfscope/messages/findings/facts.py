"""Figures that several kinds of findings have.

Times are ns per mean analyzed step and rank unless said otherwise. `framework` and `library` are the keys of
`messages.advice`.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace


class Basis(Struct, frozen=True, kw_only=True):
    """What the verdict rests on."""

    num_ranks: int  # traced
    num_steps: float  # analyzed, of the mean rank
    has_step_marks: bool


class PartOfStep(Struct, frozen=True, kw_only=True):
    part_ns: float
    step_ns: float
    has_step_marks: bool  # False: the whole file counts as one step
    is_usual: bool = False  # of the median untraced step; else of the mean traced one

    def on_usual_step(self, factor: float) -> PartOfStep:
        """The same share of the median untraced step."""
        return replace(self, part_ns=self.part_ns * factor, step_ns=self.step_ns * factor, is_usual=True)


class WaitOrTransfer(Struct, frozen=True, kw_only=True):
    """Time in collectives, summed over the analyzed steps of the mean rank."""

    num_devices: int  # of one process, where its devices are the whole group; else 0
    in_calls_ns: int | None
    waiting_ns: int | None  # None: waiting cannot be distinguished from transfer
    transfer_ns: int  # of the calls themselves, which may overlap
    num_steps: float
    has_step_marks: bool

    def on_usual_step(self, factor: float) -> WaitOrTransfer:
        """The same shares of median untraced steps."""
        return replace(
            self,
            in_calls_ns=None if self.in_calls_ns is None else round(self.in_calls_ns * factor),
            waiting_ns=None if self.waiting_ns is None else round(self.waiting_ns * factor),
            transfer_ns=round(self.transfer_ns * factor),
        )

    @property
    def is_mostly_waiting(self) -> bool:
        return bool(self.in_calls_ns and self.waiting_ns and self.waiting_ns > self.in_calls_ns / 2)


class LateRank(Struct, frozen=True, kw_only=True):
    rank: int
    num_late: int  # calls that it entered last
    num_calls: int


class SmallCalls(Struct, frozen=True, kw_only=True):
    calls_per_step: float
    mean_bytes: float
    shortest_ns: int
    merged_step_ns: int  # step with the calls merged into buckets
    library: str


class Sent(Struct, frozen=True, kw_only=True):
    """Calls of one kind of collective over all analyzed steps."""

    collective: str
    num_calls: int
    num_bytes: int


class Prediction(Struct, frozen=True, kw_only=True):
    """The step without the cause, as the replay has it."""

    change: str  # what is changed, a noun phrase
    step_ns: int
    caution: str


class LayerShare(Struct, frozen=True, kw_only=True):
    """A layer of which two ranks hold unequal shares of the parameters."""

    layer: str
    excess_ratio: float  # most / least - 1
    most_rank: int
    least_rank: int


class Binding(Struct, frozen=True, kw_only=True):
    """How to keep ranks on NUMA nodes."""

    command: str  # a whole command line; "": what each rank needs
    nodes: tuple[tuple[int, tuple[int, ...]], ...] = ()  # (rank, nodes), by rank
    replaces: bool = False  # the command binds already
