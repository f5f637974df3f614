"""Ranks as the cause: a straggler, a model that is split unevenly, work that varies, a server."""

from __future__ import annotations

from perfscope.messages.findings.asleep import ASLEEP_ADVICE, ASLEEP_IN
from perfscope.messages.findings.facts import LateRank, LayerShare, PartOfStep, Prediction, WaitOrTransfer
from perfscope.messages.findings.texts import (
    FindingFacts,
    FindingText,
    Subject,
    of_step,
    predicted,
    wait_or_transfer,
)
from perfscope.messages.sentences import capital
from perfscope.messages.whatif import slower_than_peers
from perfscope.units import format_bytes, format_count, format_ns, format_ratio, three_digits
from perfscope.vocabulary.host_activity import HostActivity

_RUNS = 0.5  # of what a rank takes longer that its thread runs on a CPU
MOSTLY = 0.6  # of a rank's excess in one layer: the layer is where to look


class Straggler(FindingFacts, frozen=True, kw_only=True):
    OF_TRACED_STEPS = ("excess_ns", "peers_ns", "part_excess_ns")

    excess_ns: float
    peers_ns: float
    part: str  # that most of the excess is in
    part_excess_ns: float
    phase: str | None
    has_layers: bool
    prediction: Prediction
    waited: PartOfStep | None = None  # what the others wait for it, where it enters nearly all calls last
    late: LateRank | None = None
    asleep: HostActivity | None = None  # what its training thread sleeps in, where that is most of the excess

    def text(self, subject: Subject) -> FindingText:
        rank = subject.rank
        why = f", mostly because {ASLEEP_IN[self.asleep]}" if self.asleep is not None else ""
        if self.waited is not None and self.late is not None:
            title = (
                f"Rank {rank} is the straggler: the others wait {of_step(self.waited)} for it{why}; it "
                f"enters last in {format_count(self.late.num_late)} of {format_count(self.late.num_calls)} "
                "collectives."
            )
        else:
            more = format_ratio(self.excess_ns / self.peers_ns, 0) if self.peers_ns else "all of it"
            title = f"Rank {rank} is slow: {more} more for the same work{why}, and the others wait for it."
        excess = slower_than_peers(
            rank or 0,
            self.excess_ns,
            self.part_excess_ns,
            layer=subject.layer,
            phase=self.phase,
            part=self.part,
            has_layers=self.has_layers,
        )
        return FindingText(title, f"{capital(excess)}.{predicted(self.prediction)}", _why_slow(self, subject))


def _why_slow(of: Straggler, subject: Subject) -> str:
    if of.asleep is not None:
        return _spends_more(of.asleep, subject.rank)
    if of.part == "idle":
        return (
            f"Find out what rank {subject.rank} does outside operators: logging, checkpoints, other "
            "processes on its cores (see Machine), its core binding."
        )
    if subject.layer is not None and of.part_excess_ns > MOSTLY * of.excess_ns:
        return (
            f"Look at {subject.layer} on rank {subject.rank}: its data, shapes and code path against the "
            "others'."
        )
    return f"Find out what rank {subject.rank} does differently: its data, code path, clocks, core binding."


class SlowBesidePasses(FindingFacts, frozen=True, kw_only=True):
    """A rank that the others wait for in the untraced steps; medians of these."""

    num_steps: int
    excess_ns: float
    ran_ns: float  # CPU time of its training thread beyond that of the others
    asleep: HostActivity | None  # as in Straggler

    def text(self, subject: Subject) -> FindingText:
        rank, runs = subject.rank, self.ran_ns >= _RUNS * self.excess_ns
        why = f", mostly because {ASLEEP_IN[self.asleep]}" if self.asleep is not None and not runs else ""
        title = (
            f"Rank {rank} is slow: it spends {format_ns(self.excess_ns)} more per step outside the backward "
            f"pass than the others{why}, and they wait for it."
        )
        detail = f"Median of {format_count(self.num_steps)} untraced steps."
        if runs:
            detail += f" Its training thread runs for {format_ns(self.ran_ns)} of it on a CPU."
        if self.asleep is not None and not runs:
            return FindingText(title, detail, _spends_more(self.asleep, rank))
        what = "Python code, logging, metrics, larger inputs" if runs else "files, sleeps, waits for locks"
        return FindingText(
            title,
            detail,
            f"Find out what only rank {rank} does in each step: {what}. `--stacks` records where its Python "
            "code is.",
        )


def _spends_more(asleep: HostActivity, rank: int | None) -> str:
    return f"{ASLEEP_ADVICE[asleep]} Rank {rank} spends more time there than the others."


class BusyRank(FindingFacts, frozen=True, kw_only=True):
    """A rank with more to do, where nothing could be replayed."""

    OF_TRACED_STEPS = ("busy_ns", "mean_ns")

    busy_ns: int
    mean_ns: float
    gain: PartOfStep

    def text(self, subject: Subject) -> FindingText:
        return FindingText(
            f"In the traced steps rank {subject.rank} is busy {format_ns(self.busy_ns)} per step, ranks on "
            f"average {format_ns(self.mean_ns)}; balanced work would save up to {of_step(self.gain)}.",
            "Busy is computation, optimizer and input; the others wait for it in collectives.",
            f"Compare rank {subject.rank}'s data, layers, clocks and core binding with the others'.",
        )


class ModelSplit(FindingFacts, frozen=True, kw_only=True):
    OF_TRACED_STEPS = ("most_ns", "least_ns", "mean_ns")

    most_ns: int
    least_rank: int
    least_ns: int
    mean_ns: float
    uneven: LayerShare | None  # None: ranks run different layers
    prediction: Prediction

    def text(self, subject: Subject) -> FindingText:
        how = "Ranks run different layers."
        if self.uneven is not None:
            how = (
                f"Rank {self.uneven.most_rank} holds {format_ratio(self.uneven.excess_ratio, 0)} more "
                f"parameters of {self.uneven.layer} than rank {self.uneven.least_rank}."
            )
        most = subject.rank
        return FindingText(
            f"The model is split unevenly: rank {most} computes {format_ns(self.most_ns)} per step, rank "
            f"{self.least_rank} {format_ns(self.least_ns)}, ranks on average {format_ns(self.mean_ns)}.",
            f"{how} The others wait for rank {most}.{predicted(self.prediction)}",
            f"Move layers (or parts of them) from rank {most} to rank {self.least_rank}.",
        )


class LateStart(FindingFacts, frozen=True, kw_only=True):
    late: LateRank
    evidence: str
    prediction: Prediction
    waits: WaitOrTransfer

    def text(self, subject: Subject) -> FindingText:
        times, calls = format_count(self.late.num_late), format_count(self.late.num_calls)
        return FindingText(
            f"Rank {subject.rank} begins the traced steps late, and the others wait for it in their first "
            f"call; it enters last in {times} of {calls} calls.",
            f"{capital(self.evidence)}.{predicted(self.prediction)} {wait_or_transfer(self.waits)}",
            f"Look at what rank {subject.rank} does before: its input, logging, the step before. Trace "
            "several steps to see whether it is so in each.",
        )


class Imbalance(FindingFacts, frozen=True, kw_only=True):
    OF_TRACED_STEPS = ("worst_ns", "mean_ns")

    worst_rank: int | None  # None: ranks take turns
    worst_ns: int
    mean_ns: float
    arithmetic_ratio: float | None  # the rank's over that of the others, where that is why
    samples: tuple[float, float] | None = (
        None  # per step: the rank's, the mean of the others, where it has more
    )
    gain_ratio: float
    prediction: Prediction

    @property
    def has_larger_inputs(self) -> bool:
        """Whether the rank has more to compute than the others."""
        return self.arithmetic_ratio is not None or self.samples is not None

    def text(self, subject: Subject) -> FindingText:
        if self.worst_rank is not None:
            lead = "Load imbalance"
            title = (
                f"{lead}: rank {self.worst_rank} is busy {format_ns(self.worst_ns)} per step, ranks "
                f"on average {format_ns(self.mean_ns)}; balanced work would save "
                f"{format_ratio(self.gain_ratio)} of the step."
            )
            detail = "Busy is computation, optimizer and input."
            action = "Distribute the work evenly: give less busy ranks a larger share."
            if self.arithmetic_ratio is not None:
                detail += (
                    f" Rank {self.worst_rank} does {self.arithmetic_ratio:.2g} times the arithmetic of the "
                    "others in the same layers of the traced steps: its inputs are larger."
                )
            if self.samples is not None:
                title = (
                    f"{lead}: rank {self.worst_rank} trains on {_samples(self.samples[0])} samples per step, "
                    f"the others on {_samples(self.samples[1])}; balanced work would save "
                    f"{format_ratio(self.gain_ratio)} of the step."
                )
                detail = (
                    f"Rank {self.worst_rank} is busy {format_ns(self.worst_ns)} per step, ranks on average "
                    f"{format_ns(self.mean_ns)}. {detail}"
                )
                action = (
                    "Give all ranks as many samples per step: use the same batch size, and a sampler that "
                    "divides the data evenly (DistributedSampler)."
                )
            elif self.arithmetic_ratio is not None:
                action = (
                    "Give all ranks inputs of similar size: group samples by length, or make batches of as "
                    "many tokens."
                )
        else:
            lead = "Ranks take turns at being slow"
            title = (
                f"{lead}: equal computation in every step would save {format_ratio(self.gain_ratio)} of it."
            )
            detail = "No rank is slower than the others over all traced steps."
            action = "Look for work that varies: sample lengths, caches, other processes, clocks."
        return FindingText(title, detail + predicted(self.prediction), action, lead)


def _samples(value: float) -> str:
    return format_count(value) if value == int(value) else three_digits(value)


class ServerBound(FindingFacts, frozen=True, kw_only=True):
    OF_TRACED_STEPS = ("wait_ns", "step_ns")

    busy_ratio: float
    num_workers: int
    wait_ns: float
    step_ns: float
    requests_per_s: float | None
    request_bytes: float | None

    def text(self, subject: Subject) -> FindingText:
        lead = (
            "The parameter server bounds the step"
            if subject.is_verdict
            else "Workers wait for the parameter server"
        )
        served = ""
        if self.requests_per_s is not None:
            size = f" of {format_bytes(round(self.request_bytes))}" if self.request_bytes is not None else ""
            served = f" It receives {self.requests_per_s:,.1f} requests{size} per second."
        is_single = self.num_workers == 1
        whose = "the" if is_single else "their"
        workers = "its worker waits" if is_single else f"its {format_count(self.num_workers)} workers wait"
        return FindingText(
            f"{lead}: rank {subject.rank} is busy {format_ratio(self.busy_ratio, 0)} of the time, and "
            f"{workers} for it {format_ratio(self.wait_ns / self.step_ns, 0)} of {whose} step.",
            f"A worker waits {format_ns(self.wait_ns)} of {format_ns(self.step_ns)} per step, transfers not "
            f"counted.{served}",
            "Give each server fewer workers or a part of the weights (several servers), make the update "
            "cheaper, take more local steps between exchanges, or send less (compression).",
            lead,
        )
