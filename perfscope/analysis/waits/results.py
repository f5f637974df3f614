"""What the analysis of wait states yields. Reports draw these and nothing else. Times are integer ns."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfscope.analysis.intervals import Int64
from perfscope.analysis.missing import Missing
from perfscope.vocabulary.lateness import LateReason


class Hop(Struct, frozen=True, kw_only=True):
    """A call in which one rank waited for another, on the way to a cause."""

    collective: str
    group: str
    waiting_rank: int  # rank that waited
    late_rank: int  # rank that it waited for


class LateCause(Struct, frozen=True, kw_only=True):
    """Why a rank was late.

    Attributes:
        reason: why `rank` was late.
        rank: the rank that caused it; not the late rank where that one had waited for another (`through`).
        excess_ns: by how much `rank` spent more on it than the lower median of the others did.
        layer, phase: of what was computed; None where it is no rank's, or no computation.
        group: for exposed_comm the other call's process group.
        through: the calls that handed the delay on, nearest first; () = the late rank's own doing.
        sentence: all of that in words.
        meanwhile: what disturbed that rank's host in the window, where it is not the reason; "" = nothing.
    """

    reason: LateReason
    rank: int
    excess_ns: int
    sentence: str
    layer: str | None = None
    phase: str | None = None
    group: str | None = None
    through: tuple[Hop, ...] = ()
    meanwhile: str = ""


class WaitCall(Struct, frozen=True, kw_only=True):
    """One matched collective, or one message (its sends and receives)."""

    window: int
    step: int  # of the late rank; -1 = outside every step
    seq: int
    collective: str  # "send" = a message from the first of `ranks` to the second
    group: str
    ranks: tuple[int, ...]
    start_ns: int  # first entry, reference clock
    wait_ns: int  # the mean rank's
    max_wait_ns: int  # longest wait of a rank
    transfer_ns: int
    late_rank: int | None  # None: no rank, or the clocks leave it open
    lateness_ns: int  # behind the lower median of the others' entries
    cause: LateCause | None  # None with `late_rank`, or where the late rank has no line
    uncertain: bool = False  # the last rank is within clock uncertainty


class ReasonShare(Struct, frozen=True, kw_only=True):
    """One reason of the waiting in one group's calls."""

    reason: LateReason  # code of the reason
    rank: int
    layer: str | None
    phase: str | None
    num_calls: int
    wait_ns: int  # the mean rank's, summed over these calls
    share: float  # of all waiting in the group's calls
    sentence: str  # of the call that cost most
    meanwhile: str = ""  # likewise


class GroupWait(Struct, frozen=True, kw_only=True):
    """All calls of one collective on one group, per step, on the mean member rank."""

    collective: str
    group: str
    num_ranks: int
    num_calls: int  # matched, in all windows
    wait_ns: int  # per step
    transfer_ns: int  # per step
    max_wait_ns: int  # of one call
    late_counts: tuple[tuple[int, int], ...]  # (rank, times late), most often first
    num_uncertain: int  # calls of which the clocks leave open who was late
    reasons: tuple[ReasonShare, ...]  # most waiting first


class RankWait(Struct, frozen=True, kw_only=True):
    """One rank, per traced step."""

    rank: int
    wait_ns: int  # union over its calls
    exposed_wait_ns: int  # the part of it that no computation hid
    num_late: int  # collectives that it entered last, all windows
    held_ns: int  # time in which the others had entered one of these and it had not (union), per step


class StepWaits(Struct, frozen=True, kw_only=True, eq=False):
    """How long each rank waits for others in its calls of each traced step.

    Attributes:
        ranks: rows.
        windows, steps: of each column.
        wait_ns: shape (ranks, steps), union over the rank's calls; -1: none of its calls was matched there.
    """

    ranks: tuple[int, ...]
    windows: Sequence[int]
    steps: Sequence[int]
    wait_ns: Int64


class StepStraggler(Struct, frozen=True, kw_only=True):
    """Who delayed one traced step's collectives most."""

    window: int
    step: int
    rank: int
    times: int  # collectives of the step it entered last
    num_calls: int  # collectives of the step of which it is known who was last
    held_ns: int  # union over these calls: from the lower median of the others' entries to its own
    reason: LateReason | None  # of the call in which it was latest
    sentence: str


class AlwaysOn(Struct, frozen=True, kw_only=True):
    """What the untraced steps say of one rank."""

    rank: int
    what: str  # "outside the backward pass", "waiting for input"
    num_steps: int
    times: int  # steps in which it spent the most of all ranks on that
    excess_ns: int  # median over steps, against the lower median of the other ranks
    p_value: float  # one-sided, that it is chance


class PersistentStraggler(Struct, frozen=True, kw_only=True):
    """A rank that delays more steps than chance would have it do."""

    rank: int
    num_steps: int  # traced steps with a straggler
    times: int  # of them its own
    p_value: float  # binomial, times the number of ranks
    held_ns: int  # per traced step
    always_on: AlwaysOn | None  # None: untraced steps do not say so
    sentence: str


class SplitRow(Struct, frozen=True, kw_only=True):
    """Per step, mean member rank of a group.

    Computation is its layer's and is in the row of every group that has calls behind that layer, so it
    does not add up over groups; the other columns do. `group` None: computation with no call behind it.
    """

    group: str | None
    layer: str | None  # None: not known
    phase: str | None
    num_ranks: int
    compute_ns: int | None  # None: the calls' layer is not known
    exposed_comm_ns: int
    wait_ns: int
    transfer_ns: int


class WaitAnalysis(Struct, frozen=True, kw_only=True):
    """Every wait state of one run."""

    num_steps: int  # traced, of the rank with most
    calls: tuple[WaitCall, ...] = ()  # by window and start
    groups: tuple[GroupWait, ...] = ()  # most waiting first
    ranks: tuple[RankWait, ...] = ()  # by rank
    stragglers: tuple[StepStraggler, ...] = ()  # by window and step
    persistent: tuple[PersistentStraggler, ...] = ()  # stragglers beyond chance, most steps first
    pattern: str | None = None  # persistent, varying, none; None: too few steps to tell
    pattern_reason: str = ""  # one sentence
    split: tuple[SplitRow, ...] = ()  # by process group, layer and phase
    num_uncertain: int = 0  # calls of which the clocks leave open who was late
    missing: tuple[Missing, ...] = ()
