"""Parts of the step as causes: compute, copies, input, the optimizer, idle time."""

from __future__ import annotations

from msgspec import Struct

from perfscope.messages.advice import TrainingAdvice, training_advice
from perfscope.messages.findings.asleep import ASLEEP_ADVICE, ASLEEP_IN
from perfscope.messages.findings.facts import PartOfStep
from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject, of_step
from perfscope.messages.kernels import TITLES
from perfscope.messages.lists import counted, joined
from perfscope.messages.sentences import in_sentence
from perfscope.units import format_ns, format_ratio
from perfscope.vocabulary.host_activity import HostActivity
from perfscope.vocabulary.kernels import KernelType


class ComputeKinds(Struct, frozen=True, kw_only=True):
    """What computes, over all traced windows and ranks."""

    of_device: bool  # kernels; False: operators of the host
    shares: tuple[tuple[KernelType, float], ...]  # of the time of all that compute, the longest first
    bytes_ratio: float  # in what moves bytes rather than computing: elementwise, normalization, reduction
    matrix_ratio: float  # in matrix products, attention and convolution
    on_matrix_units: float | None  # of these, in kernels known to use them; None: no name tells

    def text(self) -> str:
        """Such as "By kind of kernel: GEMM 40 %, elementwise 37 % and optimizer 7 %."."""
        kinds = [f"{in_sentence(TITLES[kind])} {format_ratio(share, 0)}" for kind, share in self.shares]
        return f"By kind of {'kernel' if self.of_device else 'operator'}: {joined(kinds)}."

    def advice(self, framework: TrainingAdvice) -> str:
        """What fits the kinds; "" where nothing in particular does."""
        if not self.of_device:
            return ""
        if self.matrix_ratio >= _FUSES and self.on_matrix_units is not None and self.on_matrix_units < 0.5:
            return framework.matrix_units
        return framework.fuse if self.bytes_ratio >= _FUSES else ""


_FUSES = 0.3  # of the computation: it is worth another way of computing


class ComputeBound(FindingFacts, frozen=True, kw_only=True):
    OF_TRACED_STEPS = ("forward_ns", "backward_ns", "layers_ns")

    compute: PartOfStep
    framework: str
    layer: str | None = None  # with most compute; None: the trace names no layers
    module_type: str | None = None
    forward_ns: int = 0
    backward_ns: int = 0
    layers_ns: int = 0  # compute of all layers
    stands_out: bool = False  # the layer has a share worth looking at
    kinds: ComputeKinds | None = None

    def text(self, subject: Subject) -> FindingText:
        text, kinds = self._by_layer(), self.kinds
        if kinds is None:
            return text
        action = kinds.advice(training_advice(self.framework)) or text.action
        return text._replace(detail=f"{text.detail} {kinds.text()}", action=action)

    def _by_layer(self) -> FindingText:
        advice, cost = training_advice(self.framework), self.compute.part_ns
        lead = "Compute-bound"
        title = f"{lead}: {of_step(self.compute)} is spent {advice.busy}"
        layer_ns = self.forward_ns + self.backward_ns
        if self.layer is None:
            return FindingText(f"{title}.", advice.unnamed, advice.heavy_unnamed, lead)
        if not self.stands_out:
            detail = (
                f"No layer dominates: the largest, {self.layer}, has {format_ratio(layer_ns / cost)} of the "
                f"computation ({format_ns(layer_ns)}), all of them {format_ratio(self.layers_ns / cost)}."
            )
            return FindingText(f"{title}.", detail, advice.heavy_unnamed, lead)
        if layer_ns > cost / 2:
            title += f", most of it in layer {self.layer} ({format_ns(layer_ns)})"
        else:
            title += f"; the largest layer is {self.layer} with {format_ns(layer_ns)}"
        module_type = f" ({self.module_type})" if self.module_type else ""
        time = format_ns(layer_ns)
        if self.backward_ns:
            time = f"{format_ns(self.forward_ns)} forward and {format_ns(self.backward_ns)} backward"
        share = format_ratio(layer_ns / cost)
        detail = f"Layer {self.layer}{module_type} takes {time} per step, {share} of the computation."
        return FindingText(f"{title}.", detail, advice.heavy, lead)


class CopyBound(FindingFacts, frozen=True, kw_only=True):
    copy: PartOfStep
    framework: str

    def text(self, subject: Subject) -> FindingText:
        return FindingText(
            f"Copies take {of_step(self.copy)}, not overlapped with compute or communication.",
            "Host-to-device, device-to-host and device-to-device copies and fills.",
            training_advice(self.framework).faster_copies,
        )


class OptimizerBound(FindingFacts, frozen=True, kw_only=True):
    optimizer: PartOfStep
    framework: str

    def text(self, subject: Subject) -> FindingText:
        lead = "Optimizer-bound" if subject.is_verdict else "The optimizer takes long"
        return FindingText(
            f"{lead}: {of_step(self.optimizer)} is spent inside the optimizer's step.",
            "The time grows with the number of parameters, not with the batch.",
            training_advice(self.framework).quicker_update,
            lead,
        )


class LaunchBound(FindingFacts, frozen=True, kw_only=True):
    OF_TRACED_STEPS = ("idle_ns",)

    launch: PartOfStep  # the device idles because the host launches late
    idle_ns: float
    framework: str

    def text(self, subject: Subject) -> FindingText:
        lead = "Launch-bound" if subject.is_verdict else "The device waits for kernel launches"
        return FindingText(
            f"{lead}: for {of_step(self.launch)} the device is idle with nothing queued while the host is in "
            "operators and launches.",
            f"The device is idle for {format_ns(self.idle_ns)} per step in all.",
            training_advice(self.framework).fewer_launches,
            lead,
        )


_BLOCKED_ADVICE = {
    HostActivity.COPY: "Pin the host memory (`pin_memory=True`) and copy with `non_blocking=True`; read "
    "results (`.item()`, `.cpu()`, printing a tensor) only every so many steps, or after the step.",
    HostActivity.SYNCHRONIZE: "Remove what waits for the device inside the step: `.item()`, `.cpu()`, "
    "`nonzero()`, `torch.cuda.synchronize()`, printing a tensor; or do it only every so many steps.",
    HostActivity.ALLOCATION: "Memory is allocated from the driver in every step, so the caching allocator is "
    "off or short of memory: unset `PYTORCH_NO_CUDA_MEMORY_CACHING`, do not call "
    "`torch.cuda.empty_cache()` inside the step, and if memory is nearly full, reduce its peak or set "
    "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.",
}


_MOST_CALLS = 3  # named


class BlockingCall(Struct, frozen=True, kw_only=True):
    """A runtime call in which the host was while the devices idled; the other fields as in DeviceIdle."""

    kind: HostActivity
    names: tuple[str, ...]  # the longest first; several of calls that allocate and free memory
    ratio: float  # of the devices' idle time, all ranks
    after_ratio: float  # of this, after the calls, which had waited for all work of the device
    calls: int
    num_ranks: int
    operator: str | None
    range: str | None
    layer: str | None


_AFTER = 0.1  # of the time of a blocking call that follows it, to be worth a sentence


def _in_or_after(call: BlockingCall, names: str) -> str:
    if call.after_ratio < _AFTER:
        return f"is in {names}"
    if call.after_ratio > 1 - _AFTER:
        return f"catches up after {names}"
    return f"is in {names} or catches up after it"


class HostBlocked(FindingFacts, frozen=True, kw_only=True):
    idle: PartOfStep  # of the mean rank's device
    call: BlockingCall
    framework: str

    def text(self, subject: Subject) -> FindingText:
        call = self.call
        lead = "Bound by a blocking call" if subject.is_verdict else "A blocking call leaves the device idle"
        inside = [
            f"{what} {name}"
            for what, name in (("operator", call.operator), ("range", call.range), ("layer", call.layer))
            if name is not None
        ]
        names = joined(call.names[:_MOST_CALLS])
        per = f" on {counted(call.num_ranks, 'rank')}" if call.num_ranks > 1 else ""
        where = f", most of the time in {joined(inside)}" if inside else ""
        after = ""
        if call.after_ratio >= _AFTER:
            after = (
                " They return when the device has done all that was launched: what the host does until it "
                f"launches the next kernel ({format_ratio(call.ratio * call.after_ratio)} of the idle time) "
                "no longer overlaps with the device."
            )
        return FindingText(
            f"{lead}: for {of_step(self.idle)} the device is idle, {format_ratio(call.ratio)} of it while "
            f"the host {_in_or_after(call, names)}.",
            f"{counted(call.calls, 'call')} of {names}{per} cover idle time of the device{where}.{after}",
            _BLOCKED_ADVICE[call.kind],
            lead,
        )


_READS_PAGES = 10  # major page faults per step from which on they are what the thread waits for
_ADVICE_ON_PAGES = (
    "Read mapped data ahead of the training thread (loader workers, `madvise(MADV_WILLNEED)`), keep the data "
    "set in memory or on a faster disk, or use less memory if the machine swaps."
)
_BUSY_BESIDE = (
    0.5  # of the time blocked that other threads must compute for the interpreter lock to be likely
)


class ThreadBlocked(FindingFacts, frozen=True, kw_only=True):
    """The training thread of ranks that compute on the CPU sleeps in the kernel, outside communication and
    input.
    """

    asleep: PartOfStep
    ratio: float  # of the idle time
    kind: HostActivity  # of ASLEEP; the longest
    kind_ratio: float  # of the time asleep
    num_readings: int  # of what the threads sleep in; 0: not read
    other_threads_ns: float | None  # CPU time of other threads of the process per step, mean rank
    major_faults: float = 0.0  # pages read from a disk per step, mean rank
    of_untraced_ratio: float | None = None  # share of the untraced steps; None: `asleep` is of traced ones

    def text(self, subject: Subject) -> FindingText:
        blocked = "training thread is blocked"
        lead = f"Host-bound, the {blocked}" if subject.is_verdict else f"The {blocked}"
        of = f"{format_ratio(self.ratio)} of the idle time"
        if self.of_untraced_ratio is not None:
            of = f"{format_ratio(self.of_untraced_ratio)} of the untraced steps"
        detail = f"The training thread sleeps in the kernel for {of}"
        if self.num_readings:
            detail += (
                f"; {format_ratio(self.kind_ratio)} of this by {counted(self.num_readings, 'reading')} of "
                "the main threads' state."
            )
        else:
            detail += "; what it waits for was not read."
        beside = self.other_threads_ns
        if self.kind is HostActivity.LOCK and beside and beside >= _BUSY_BESIDE * self.asleep.part_ns:
            detail += (
                f" Other threads of the process compute for {format_ns(beside)} per step, so it is likely "
                "Python's interpreter lock (GIL) that it waits for."
            )
        advice = ASLEEP_ADVICE[self.kind]
        if self.kind is HostActivity.FILES and self.major_faults >= _READS_PAGES:
            detail += (
                f" {self.major_faults:,.0f} pages per step are read from a disk when they are touched (major "
                "page faults): mapped files that are not in memory, or memory that was swapped out."
            )
            advice = _ADVICE_ON_PAGES
        return FindingText(f"{lead}: for {of_step(self.asleep)} {ASLEEP_IN[self.kind]}.", detail, advice)


def _nothing_runs(on_device: bool) -> str:
    return "the device is idle" if on_device else "no operator or communication runs"


class Preempted(FindingFacts, frozen=True, kw_only=True):
    idle: PartOfStep  # of the idle time, what is attributed to it
    on_device: bool
    cpu_wait_ratio: float  # of the steps' time, mean rank

    def text(self, subject: Subject) -> FindingText:
        lead = "Bound by a shortage of CPUs" if subject.is_verdict else "Ranks wait for a CPU"
        share = (
            "" if self.on_device else ", and in so much of the time in which no operator runs, in proportion"
        )
        return FindingText(
            f"{lead}: for {of_step(self.idle)} {_nothing_runs(self.on_device)}, while threads wait for a "
            "CPU.",
            f"In {format_ratio(self.cpu_wait_ratio)} of step time a thread of an average rank was ready to "
            f"run while another thread had its CPU{share}. That much may not come from the training code."
            f"{'' if self.on_device else ' Waiting inside operators comes on top of it.'}",
            "Repeat the run on an idle machine, or give each rank its own CPUs (fewer threads, binding), "
            "before you look for gaps in the code.",
            lead,
        )


class IdleBound(FindingFacts, frozen=True, kw_only=True):
    idle: PartOfStep
    on_device: bool
    framework: str
    is_rest: bool = False  # time asleep or without a CPU is taken off, and a finding of its own

    def text(self, subject: Subject) -> FindingText:
        advice = training_advice(self.framework)
        lead = "Idle-bound" if subject.is_verdict else "Part of the step is idle"
        counted_apart = " (time asleep or waiting for a CPU not counted)" if self.is_rest else ""
        return FindingText(
            f"{lead}: for {of_step(self.idle)} {_nothing_runs(self.on_device)}{counted_apart}.",
            advice.gaps,
            advice.shorter_gaps,
            lead,
        )
