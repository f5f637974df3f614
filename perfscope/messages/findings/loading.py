"""Waiting for input as a cause: what the workers of the data loader did."""

from __future__ import annotations

from msgspec import Struct

from perfscope.messages.advice import training_advice
from perfscope.messages.findings.facts import PartOfStep
from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject, of_step
from perfscope.messages.lists import counted
from perfscope.messages.sentences import capital
from perfscope.units import format_bytes, format_ns, format_ratio
from perfscope.vocabulary.loading import InputCause

_LEADS = {
    InputCause.DECODE: "Decode-bound",
    InputCause.STORE: "Store-bound",
    InputCause.WAIT: "Input-bound",
    InputCause.RECEIVING: "Input-bound",
    InputCause.SLOW_WORKER: "One slow loader worker",
}


class LoaderFacts(Struct, frozen=True, kw_only=True):
    """What the workers of the loader did, of the rank that waits longest."""

    cause: InputCause | None
    num_workers: int
    batch_ns: int  # mean time on a batch
    cpu_ratio: float  # of that
    asleep_ratio: float
    late_ratio: float  # of the batches
    received_ratio: float  # of the wait, for batches that were finished
    mean_ready: float | None
    bytes_per_sample: float | None  # page cache included
    cached_ratio: float | None
    num_cpus: int | None
    more_workers: int = 0  # as many as the replay was asked of; 0: it was not
    more_ratio: float = 0.0  # of the mean step that these would save
    slow_worker: int = -1
    slow_ns: int = 0
    others_ns: int = 0  # mean time of the other workers on a batch

    def text(self) -> str:
        """Evidence, in sentences."""
        workers = counted(self.num_workers, "worker")
        if self.cause is InputCause.SLOW_WORKER:
            return (
                f"Of {self.num_workers} workers, worker {self.slow_worker} takes "
                f"{format_ns(self.slow_ns)} for a batch, the others {format_ns(self.others_ns)}. Batches are "
                "taken in order, so the others wait."
            )
        if self.cause is InputCause.RECEIVING:
            return (
                f"{capital(workers)} finished batches in time: {format_ratio(self.received_ratio, 0)} of the "
                f"wait is for batches that were finished already. {self._ready()}"
            )
        shares = (
            f"{capital(workers)} take{'s' if self.num_workers == 1 else ''} {format_ns(self.batch_ns)} for a "
            f"batch: {format_ratio(self.cpu_ratio, 0)} on a CPU, {format_ratio(self.asleep_ratio, 0)} asleep."
        )
        return f"{shares} {self._ready()}{self._read()}"

    def _ready(self) -> str:
        late = f"{format_ratio(self.late_ratio, 0)} of the batches were not ready in time"
        if self.mean_ready is None:
            return f"{late}."
        return f"{late}; on average {self.mean_ready:.1f} finished batches were in the queue."

    def _read(self) -> str:
        if not self.bytes_per_sample or self.bytes_per_sample < 1:
            return ""
        cached = (
            "" if self.cached_ratio is None else f", {format_ratio(self.cached_ratio, 0)} from the page cache"
        )
        text = f" Workers read {format_bytes(self.bytes_per_sample)} per sample{cached}."
        if self.cause is InputCause.WAIT:
            text += " The kernel counts no bytes of sockets, FUSE and object stores."
        return text

    def action(self, otherwise: str) -> str:
        """One thing to do; `otherwise`: where the cause is not known."""
        more = (
            f"{counted(self.more_workers, 'worker')} would save {format_ratio(self.more_ratio, 0)} of the "
            "mean step"
            if self.more_ratio >= _WORTH
            else ""
        )
        if self.cause is InputCause.SLOW_WORKER:
            return (
                f"Look at what worker {self.slow_worker} loads: its files, its shard, its CPU. "
                "`in_order=False` (torch 2.6) lets finished batches go first."
            )
        if self.cause is InputCause.RECEIVING:
            cpus = "" if self.num_cpus is None else f" ({counted(self.num_cpus, 'CPU')} for the rank)"
            return (
                f"Keep a CPU free for the training process: fewer workers{cpus}. Make batches cheap to "
                "receive: few large tensors instead of many small objects."
            )
        if self.cause is InputCause.STORE:
            return (
                "Put the samples where the node's page cache or local disks hold them: smaller files, fewer "
                "and larger reads, or a copy per node."
            )
        if self.cause is InputCause.DECODE:
            cpus = "" if self.num_cpus is None else f" ({counted(self.num_cpus, 'CPU')} for the rank)"
            if more:
                return f"Give the DataLoader more workers{cpus}: {more}."
            return f"Decode less: cheaper transforms, smaller or decoded samples, more CPUs{cpus}."
        if self.cause is InputCause.WAIT:
            hide = f" More workers hide the wait: {more}." if more else ""
            return f"Find what the workers wait for: network, a server, a lock or a sleep.{hide}"
        return otherwise


_WORTH = 0.05  # of the mean step


class InputBound(FindingFacts, frozen=True, kw_only=True):
    OF_TRACED_STEPS = ("worst_ns",)

    input_wait: PartOfStep
    framework: str
    worst_ns: int  # of the rank that waits longest in the traced steps
    mean_wait_ns: float | None = None  # of the mean step where the median one is quite another, and that
    mean_step_ns: float = 0.0
    is_hidden_when_traced: bool = False  # traced steps are longer, and wait less for the workers
    loader: LoaderFacts | None = None

    def text(self, subject: Subject) -> FindingText:
        advice = training_advice(self.framework)
        lead = "Input-bound" if subject.is_verdict else f"{capital(advice.work)} waits for input"
        if self.loader is not None and self.loader.cause is not None:
            lead = _LEADS[self.loader.cause]
        return FindingText(
            f"{lead}: for {self._share()} the {advice.work} waits for the {advice.loader}.",
            f"{self._worst(subject)}{'' if self.loader is None else self.loader.text()}".strip(),
            advice.faster_input if self.loader is None else self.loader.action(advice.faster_input),
            lead,
        )

    def _worst(self, subject: Subject) -> str:
        if self.is_hidden_when_traced:
            return (
                f"Rank {subject.rank} waits longest, in untraced steps. In the traced steps, which the "
                f"profiler makes longer, ranks wait {format_ns(self.input_wait.part_ns)} per step on "
                "average. "
            )
        if self.mean_wait_ns is not None:
            usual = format_ns(self.input_wait.step_ns)
            return f"Steps differ: the median one takes {usual}, but the mean decides how many there are. "
        return f"Rank {subject.rank} waits longest: {format_ns(self.worst_ns)} per step. "

    def _share(self) -> str:
        if self.mean_wait_ns is None:
            return of_step(self.input_wait)
        share = format_ratio(self.mean_wait_ns / self.mean_step_ns)
        return f"{share} of the mean step ({format_ns(self.mean_wait_ns)} of {format_ns(self.mean_step_ns)})"


class InputBoundUntraced(FindingFacts, frozen=True, kw_only=True):
    wait_ns: float
    step_ns: float  # median step; the mean one where `is_mean`
    framework: str
    is_mean: bool = False
    loader: LoaderFacts | None = None

    def text(self, subject: Subject) -> FindingText:
        advice = training_advice(self.framework)
        lead = f"{capital(advice.work)} waits for input"
        if self.loader is not None and self.loader.cause is not None:
            lead = _LEADS[self.loader.cause]
        workers = "" if self.loader is None else f" {self.loader.text()}"
        return FindingText(
            f"{lead}: {format_ratio(self.wait_ns / self.step_ns)} of the "
            f"{'mean' if self.is_mean else 'median'} step ({format_ns(self.wait_ns)} of "
            f"{format_ns(self.step_ns)}) is spent in the {advice.loader}.",
            f"Measured without a trace, so the rest of the step is not split up.{workers}",
            advice.faster_input if self.loader is None else self.loader.action(advice.faster_input),
        )
