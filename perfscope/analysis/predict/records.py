"""What a prediction starts from: runs as measured, and the calls of runs that are only planned."""

from __future__ import annotations

from msgspec import Struct

from perfscope.vocabulary.links import LinkClass

# All that a prediction distinguishes.
BETWEEN_HOSTS: str = LinkClass.ETHERNET
INSIDE_HOST: str = LinkClass.LOOPBACK


class PlannedCall(Struct, frozen=True, kw_only=True):
    """Calls of one kind that one rank takes part in.

    Attributes:
        collective: canonical name.
        num_ranks: P of its group (a send: 2).
        bytes: S of one call, as `perfscope.volumes` defines it.
        count: calls per step, the mean over a scheme's period.
        link_class: the slowest that it crosses: BETWEEN_HOSTS or INSIDE_HOST.
        sharing: how many such calls' bytes go through the busiest host's link at once, >= 1 (`crossings`).
        what: for reading: "gradients", "input of fc1" ...
        inside_too: it crosses hosts, and some of its messages stay inside one: each stage of it is as slow as
            the slower of the two links.
    """

    collective: str
    num_ranks: int
    bytes: float
    count: float
    link_class: str
    sharing: float = 1.0
    what: str = ""
    inside_too: bool = False


class Plan(Struct, frozen=True, kw_only=True):
    """A scheme on so many ranks, before it is run.

    Attributes:
        scheme: with modifiers.
        num_ranks: N.
        mesh: for reading: "4" or "2 x 2".
        batch: B, samples of one step over all ranks; None: not known.
        work: samples of the whole model that the busiest rank's arithmetic amounts to in one step: B/N where
            all is divided evenly, times (m+S-1)/m in a pipeline of S stages and m microbatches.
        whole: samples whose activations a rank gathers or holds whole beside its share of the arithmetic,
            where a group of ranks divides layers: those of the group. None: no layer is divided.
        ranks: the calls of each rank; equal ranks may stand for each other.
        notes: what the plan assumes that the user should know.
    """

    scheme: str
    num_ranks: int
    mesh: str
    batch: float | None
    work: float
    whole: float | None = None
    ranks: tuple[tuple[PlannedCall, ...], ...] = ()
    notes: tuple[str, ...] = ()


class Refusal(Struct, frozen=True, kw_only=True):
    """A (scheme, world size) that is not predicted, and why: one line that says what to do."""

    scheme: str
    num_ranks: int
    reason: str


class MeasuredCall(Struct, frozen=True, kw_only=True):
    """One matched collective of a traced window; its transfer, without waiting for the last rank, ns."""

    collective: str
    num_ranks: int
    bytes: float
    link_class: str
    transfer_ns: float
    sharing: float = 1.0


class LayerOperators(Struct, frozen=True, kw_only=True):
    """One layer's operators in a mean traced step, ns, mean over ranks."""

    layer: str
    forward_ns: float
    backward_ns: float


class MeasuredRun(Struct, frozen=True, kw_only=True):
    """One run, as far as predictions need it. Times in ns.

    Attributes:
        name: for messages.
        plan: what it was: scheme, N, batch, work, and the calls that the formulas say it makes.
        model: what must be equal among runs; for messages, too.
        ranks_per_host: of the run.
        cores_per_rank: of its host's usable cores; None: not recorded.
        threads: per rank; None: not recorded.
        step_ns: its typical untraced step (the slowest rank's, where a bench run tells).
        steps_ns: untraced steps that the typical one is taken from.
        comm_ns: |union| of a rank's calls in a traced step without `wait_ns`, mean over ranks, brought to the
            pace of untraced steps: transfers, leaving one after the other, and what calls lack of a CPU.
        wait_ns: likewise, waiting in them for the last rank to enter.
        overlap_ratio: share of communication under compute, mean over ranks; None: no communication.
        backward_share: of the operators' time, what runs while gradients can be sent.
        fixed_share: of a traced step without communication, the part that no layer has (optimizer, idle).
        layers: of the mean traced step, in the order of execution.
        calls: every matched call of known size.
        begun_before: it idles for long, waiting for exchanges that its scheme began before the traced window:
            what looks like computing is communication in part.
        problems: said with every prediction: disturbed, short of steps ...
    """

    name: str
    plan: Plan
    model: str
    ranks_per_host: int
    cores_per_rank: float | None
    threads: int | None
    step_ns: float
    steps_ns: tuple[float, ...]
    comm_ns: float
    wait_ns: float
    overlap_ratio: float | None
    backward_share: float
    fixed_share: float
    layers: tuple[LayerOperators, ...]
    calls: tuple[MeasuredCall, ...] = ()
    begun_before: bool = False
    problems: tuple[str, ...] = ()

    @property
    def cell(self) -> tuple[str, int, float]:
        """What repeats of a run have in common."""
        return self.plan.scheme, self.plan.num_ranks, self.plan.work
