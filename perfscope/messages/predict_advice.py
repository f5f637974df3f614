"""What is said with advice by published lemmas."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.units import format_ns
from perfscope.vocabulary.lemmas import Gap, Quantity
from perfscope.vocabulary.memory import FULL

SOURCE = "Zou et al. 2017, arXiv 1709.06622"
FORMULAS = {
    Quantity.WORKERS: "G = (1 + R - a) / (a R), R = overhead / (workers x compute)",
    Quantity.MINIBATCH: "B = overhead / (compute per sample x (1 - a) / (a G - 1)), G as in the run",
    Quantity.SERVERS: "N >= 2 x weights x workers / (bandwidth x compute)",
    Quantity.FITTING_BATCH: (
        f"B = workers x floor(({FULL:g} x device memory - kept) / ((peak - kept) / samples))"
    ),
}
TITLES = {
    Quantity.WORKERS: "Workers, at most",
    Quantity.MINIBATCH: "Samples per step, at least",
    Quantity.SERVERS: "Parameter servers, at least",
    Quantity.FITTING_BATCH: "Samples per step, at most, by memory",
}
GAPS = {
    Gap.NOT_TRACED: "no step was traced; record a run with a traced window and step marks",
    Gap.NOT_DATA_PARALLEL: "the lemma is of data parallelism, and the run divides the model, too",
    Gap.NO_COMPUTE: "the traced steps have no compute",
    Gap.NO_OVERHEAD: "the run has no overhead: the lemma sets no limit",
    Gap.ONE_WORKER: "so few workers reach this efficiency with any overhead",
    Gap.BATCH_NOT_KNOWN: "the samples per step are not known; record with --samples-per-step",
    Gap.WEIGHTS_NOT_KNOWN: (
        "the bytes of one copy of the weights are not known: neither a bench run in float32 or float64, nor "
        "one rank"
    ),
    Gap.NO_BANDWIDTH: "no traced call has both a size and a transfer time",
    Gap.NO_DEVICE: "the ranks train on CPUs, where a process's memory is not only tensors",
    Gap.MEMORY_NOT_KNOWN: "the peak of a device, its size or bytes of the model's tensors were not recorded",
}
# What to do where a figure is missing; the other gaps are facts of the run.
RECORDING = {
    Gap.NOT_TRACED: "perfscope run --windows 3 --steps-per-window 3 -- ...",
    Gap.BATCH_NOT_KNOWN: "perfscope run --samples-per-step B -- ...",
    Gap.WEIGHTS_NOT_KNOWN: "perfscope bench run dp.packed --dtype float32 ...",
    Gap.NO_BANDWIDTH: "record more than one rank, with a traced window",
    Gap.MEMORY_NOT_KNOWN: "perfscope run -- ... (at least three steps; an imported trace does not have them)",
    Gap.NO_COMPUTE: "trace longer windows: perfscope run --steps-per-window 3 -- ...",
    Gap.NOT_DATA_PARALLEL: "record a data-parallel run of the same model: perfscope bench run dp.packed ...",
}
NO_SERVERS = "the run has no servers: so many would hide the traffic of a server scheme behind this compute"
ONE_RUN = (
    "whether the lemma holds here is not known from one run; record others with the same batch and other "
    "numbers of workers, and name them behind this one"
)


def substituted(quantity: Quantity, used: Mapping[str, float], target: float, num_workers: int) -> str:
    """The formula with the values of a run put in; `used` as in AdviceItem of a quantity that has a value."""
    if quantity is Quantity.WORKERS:
        ratio = used["overhead_ratio"]
        exact = (1 + ratio - target) / (target * ratio)
        return f"G = (1 + {ratio:.4g} - {target:g}) / ({target:g} x {ratio:.4g}) = {exact:,.4g}"
    if quantity is Quantity.MINIBATCH:
        overhead, each = used["overhead_ns"] / 1e6, used["compute_ns_per_sample"] / 1e6
        exact = overhead / (each * used["allowed_overhead_ratio"])
        allowed = f"{1 - target:.4g} / ({target:g} x {num_workers} - 1)"
        return f"B = {overhead:.4g} ms / ({each:.4g} ms x {allowed}) = {exact:,.4g}"
    if quantity is Quantity.FITTING_BATCH:
        peak, kept, limit = (used[name] / 1e9 for name in ("peak_bytes", "kept_bytes", "limit_bytes"))
        exact = (FULL * limit - kept) / ((peak - kept) / used["samples"])
        per_sample = f"(({peak:.4g} GB - {kept:.4g} GB) / {used['samples']:g})"
        room = f"({FULL:g} x {limit:.4g} GB - {kept:.4g} GB)"
        return f"B = {num_workers} x floor({room} / {per_sample} = {exact:,.4g})"
    weights, rate, compute = (used[name] for name in ("weight_bytes", "bandwidth_bytes_per_s", "compute_ns"))
    exact = 2 * weights * num_workers / (rate * compute / 1e9)
    hidden = f"({rate / 1e6:.4g} MB/s x {compute / 1e6:.4g} ms)"
    return f"N >= 2 x {weights / 1e6:.4g} MB x {num_workers} / {hidden} = {exact:,.4g}"


def unlike_traced(traced_ns: float, step_ns: float) -> str:
    """Where the traced steps, which all figures are of, do not stand for the run."""
    return (
        f"the figures are of the traced steps, which take {format_ns(traced_ns)} on average; by its "
        f"samples/s a step of the run takes {format_ns(step_ns)}. Record a longer run, "
        "or more windows (--windows)"
    )


MEMORY_LINEAR = (
    "by memory, an estimate: what tensors take beyond parameters, gradients, optimizer state and buffers is "
    f"taken to grow with the samples, and {100 * (1 - FULL):.0f} % of the device are left free"
)
