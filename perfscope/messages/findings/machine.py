"""What the machine did to the training: disturbances, oversubscription, NUMA, links and clocks."""

from __future__ import annotations

from perfscope.messages.advice import comm_advice, training_advice
from perfscope.messages.disturbances import WORDS
from perfscope.messages.findings.facts import Binding, PartOfStep
from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject, of_step
from perfscope.messages.lists import counted, joined, plural
from perfscope.messages.sentences import clause, in_sentence
from perfscope.units import format_count, format_ns, format_rate, format_ratio
from perfscope.vocabulary.disturbances import DisturbanceKind

SLOWER = 1.02  # steps this many times longer than the others are slower


_OTHERS = 0.05  # CPUs: less is not worth a word
_MOST_RANKS = 4  # whose binding is spelled out


class Disturbed(FindingFacts, frozen=True, kw_only=True):
    kind: DisturbanceKind
    cause: str  # title of the worst disturbance
    host: str  # "" where there is one host
    leads: bool  # it costs more than anything else
    num_steps: int
    during_ns: int | None  # median step during it; None: not known
    otherwise_ns: int | None
    slowed_rank: int | None
    evidence: tuple[str, ...]
    num_others: int  # further disturbances
    cpu_wait_ratio: float | None = (
        None  # of the steps' time, for CPUs that others had; where steps were alike
    )
    windows: tuple[int, ...] | None  # traced windows that were hit; None: not known

    def text(self, subject: Subject) -> FindingText:
        where = f"on {self.host} " if self.host else ""
        cause = f"{where}{in_sentence(clause(self.cause))}"
        effect = _effect(self)
        if self.leads and effect:
            lead = f"{WORDS[self.kind].slows} the steps"
            clauses = [effect, cause]
        else:
            lead = "Interference from outside the training"
            clauses = [cause, effect] if effect else [cause]
        if self.slowed_rank is not None:
            clauses.append(f"rank {self.slowed_rank} is slowed by it")
        traced = "" if self.windows is None else f" {hit_windows(self.windows)}."
        more = ""
        if self.num_others:
            more = f" {counted(self.num_others, 'other disturbance')} in section Machine."
        detail = (
            f"Observed: {'; '.join(self.evidence)}.{traced}{more} "
            "Compare with other runs only after a run without interference."
        )
        return FindingText(f"{lead}: {'; '.join(clauses)}.", detail, WORDS[self.kind].remedy, lead)


def hit_windows(windows: tuple[int, ...]) -> str:
    """``Traced windows 0 and 2 were hit``."""
    if not windows:
        return "No traced window was hit"
    were = "was" if len(windows) == 1 else "were"
    return f"Traced {plural('window', len(windows))} {joined(windows)} {were} hit"


def _effect(of: Disturbed) -> str:
    """``203 steps took 25.4 ms instead of 13.4 ms``; "" where that is not known."""
    if of.during_ns is None or of.otherwise_ns is None:
        return ""
    count, during, otherwise = format_count(of.num_steps), format_ns(of.during_ns), format_ns(of.otherwise_ns)
    if of.cpu_wait_ratio is not None:
        return (
            f"in {format_ratio(of.cpu_wait_ratio)} of step time the training was ready to run while others "
            f"had the CPU (steps took {during} during it and {otherwise} without it)"
        )
    if of.during_ns >= SLOWER * of.otherwise_ns:
        return f"{count} {plural('step', of.num_steps)} took {during} instead of {otherwise}"
    slower = "barely slower" if of.during_ns >= of.otherwise_ns else "not slower"
    noun, was = plural("step", of.num_steps), "was" if of.num_steps == 1 else "were"
    return f"its {count} {noun} {was} {slower} ({during}, {otherwise} without it)"


class Oversubscribed(FindingFacts, frozen=True, kw_only=True):
    num_ranks: int
    threads: float
    cpus: float
    where: str
    host: str  # "" where there is one host
    wait_ratio: float | None
    cpu_wait_ratio: float | None  # of the steps' time, of the rank that waits most; None: not measured
    others_cpus: float | None  # that other processes took meanwhile; None: not known
    framework: str

    def text(self, subject: Subject) -> FindingText:
        each = self.threads / self.num_ranks
        where = f" on {self.host}" if self.host else ""
        ranks = f"{counted(self.num_ranks, 'rank')} x {each:g} compute {plural('thread', each)}"
        waited = (
            f"In {format_ratio(self.wait_ratio)} of step time some task waited for a CPU."
            if self.wait_ratio is not None
            else "How long they wait for a CPU was not measured."
        )
        lead = "CPU oversubscription"
        return FindingText(
            f"{lead}: {ranks} share {self.where}{where} ({self.cpus:g} {plural('CPU', self.cpus)}).",
            " ".join(filter(None, (self._main_thread(), waited, _beside(self.others_cpus)))),
            _fewer_threads(self.num_ranks, self.cpus, training_advice(self.framework).threads),
            lead,
        )

    def _main_thread(self) -> str:
        if self.cpu_wait_ratio is None:
            return ""
        share = format_ratio(self.cpu_wait_ratio)
        return f"The main thread of a rank was ready to run for up to {share} of step time without a CPU."


def _beside(others_cpus: float | None) -> str:
    """Whether the job alone is the reason; "" where that is not known."""
    if others_cpus is None:
        return ""
    if others_cpus < _OTHERS:
        return "Caused by this job, not by other processes."
    return f"Other processes took {others_cpus:.1f} CPUs meanwhile."


def _fewer_threads(num_ranks: int, cpus: float, setting: str) -> str:
    fitting = int(cpus // num_ranks)
    if fitting >= 1 and setting:
        return f"Set {setting.format(fitting)}, or bind each rank to its own CPUs."
    if fitting >= 1:
        return f"Bind each rank to {fitting} CPUs of its own (taskset, --cpus-per-task)."
    most = counted(max(1, int(cpus)), "rank")
    return f"Run at most {most} on these CPUs, one thread each, or give each rank its own core."


class NumaRemote(FindingFacts, frozen=True, kw_only=True):
    cpu_nodes: tuple[int, ...]
    remote_ratio: float
    most_node: int
    most_ratio: float
    num_others: int
    source: str
    cpus: str
    host: str
    policy: str  # memory policy; "": the default one
    binding: Binding
    local_step_ns: int | None = None  # with local memory, where ranks that have it show that
    all_ranks: bool = False

    def text(self, subject: Subject) -> FindingText:
        policy = f" Its memory policy is {self.policy}." if self.policy else ""
        detail = (
            f"{self.source}; CPUs {self.cpus} on {self.host}.{policy} Every access to that memory crosses "
            "the link between the nodes: less bandwidth, more latency."
        )
        if self.local_step_ns is not None:
            detail += (
                " Ranks with local memory do the same work faster. With local memory the step would take "
                f"{format_ns(self.local_step_ns)}."
            )
        elif self.all_ranks:
            detail += " Every rank is affected, so this run does not show the cost."
        return FindingText(
            f"Rank {subject.rank} runs on NUMA {_nodes(self.cpu_nodes)}, but "
            f"{format_ratio(self.remote_ratio, 0)} of its memory is on other nodes "
            f"({format_ratio(self.most_ratio, 0)} on node {self.most_node}){_and_more(self.num_others)}.",
            detail,
            f"Keep CPUs and memory together: {binding_text(self.binding)}.",
        )


class GpuRemote(FindingFacts, frozen=True, kw_only=True):
    cpu_nodes: tuple[int, ...]
    device_node: int | None
    num_others: int
    cpus: str
    host: str
    binding: Binding

    def text(self, subject: Subject) -> FindingText:
        return FindingText(
            f"Rank {subject.rank} runs on NUMA {_nodes(self.cpu_nodes)}, its GPU is attached to node "
            f"{self.device_node}{_and_more(self.num_others)}.",
            f"CPUs {self.cpus} on {self.host}. Copies and launches cross the link between the nodes.",
            f"Bind it beside its GPU: {binding_text(self.binding)}.",
        )


def binding_text(binding: Binding) -> str:
    """What stands after a colon: a command line in backquotes, else what each rank needs."""
    if binding.command:
        return f"`{binding.command}`"
    commands = [f"rank {rank} under `{numactl(nodes)}`" for rank, nodes in binding.nodes[:_MOST_RANKS]]
    more = len(binding.nodes) - len(commands)
    if more:
        commands.append(f"the other {more} each on the node of its own CPUs or GPU")
    instead = " (in place of what the command binds now)" if binding.replaces else ""
    return f"start {', '.join(commands)}{instead}"


def numactl(numa_nodes: tuple[int, ...]) -> str:
    """The command that keeps CPUs and memory on those nodes."""
    listed = ",".join(map(str, numa_nodes))
    return f"numactl --cpunodebind={listed} --membind={listed}"


def _nodes(nodes: tuple[int, ...]) -> str:
    return f"{plural('node', len(nodes))} {', '.join(map(str, nodes))}"


def _and_more(count: int) -> str:
    return f"; so {'are' if count > 1 else 'is'} {counted(count, 'other rank')}" if count else ""


class PowerCapped(FindingFacts, frozen=True, kw_only=True):
    gpu: str
    host: str
    ratio: float  # of the steps' time
    num_capped: int
    num_gpus: int

    def text(self, subject: Subject) -> FindingText:
        return FindingText(
            f"GPU {self.gpu} of {self.host} was at its power limit in {format_ratio(self.ratio, 0)} of the "
            "steps' time.",
            f"{format_count(self.num_capped)} of {format_count(self.num_gpus)} GPUs were slowed by it.",
            "Expect this under full load; raise the power limit if the site allows it.",
        )


class LinkSaturated(FindingFacts, frozen=True, kw_only=True):
    link: str
    host: str
    direction: str
    p95_bytes_per_s: float
    mean_bytes_per_s: float
    peak_bytes_per_s: float | None
    peak_source: str
    exposed: PartOfStep
    library: str

    def text(self, subject: Subject) -> FindingText:
        return FindingText(
            f"{self.link} of {self.host} is full: {self.direction} {format_rate(self.p95_bytes_per_s)} of "
            f"{format_rate(self.peak_bytes_per_s)} in 5 % of the time.",
            f"{format_rate(self.mean_bytes_per_s)} in the mean; peak by {self.peak_source}. Communication "
            f"not overlapped with compute takes {of_step(self.exposed)}.",
            f"Send fewer bytes ({comm_advice(self.library).on_full_link}), or use a faster link.",
        )


class MemoryBound(FindingFacts, frozen=True, kw_only=True):
    OF_TRACED_STEPS = ("time_ns",)

    layers: PartOfStep
    phase: str
    bytes_per_s: float
    peak_bytes_per_s: float
    intensity: float  # FLOP per byte
    time_ns: float
    framework: str

    def text(self, subject: Subject) -> FindingText:
        return FindingText(
            f"Layers at the memory roof take {of_step(self.layers)}: {subject.layer} ({self.phase}) moves "
            f"{format_rate(self.bytes_per_s)} of {format_rate(self.peak_bytes_per_s)}.",
            f"Bytes are modeled from shapes; it does {self.intensity:.1f} FLOP per byte. "
            f"It takes {format_ns(self.time_ns)} per step.",
            training_advice(self.framework).fewer_bytes,
        )
