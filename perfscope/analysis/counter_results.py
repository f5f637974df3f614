"""What the counters of the ranks' training threads add up to, per layer and per step."""

from __future__ import annotations

from msgspec import Struct


class Counters(Struct, frozen=True, kw_only=True):
    """Counters of the training thread, per mean traced step and rank; null: `missing` has the reason.

    Attributes:
        task_clock_ns: CPU time.
        minor_faults: pages mapped without reading storage.
        major_faults: pages read from storage.
        context_switches: of the thread, voluntary and not.
        cpu_migrations: moves to another CPU.
        run_queue_wait_ns: ready to run, but no CPU was free.
        instructions: retired. This and what follows is scaled up where the PMU was shared.
        cycles: of the core, while the thread ran.
        ipc: instructions per cycle.
        llc_miss_bytes: misses of the last-level cache x 64 bytes; prefetches and writes back are not in it.
    """

    task_clock_ns: float | None = None
    minor_faults: float | None = None
    major_faults: float | None = None
    context_switches: float | None = None
    cpu_migrations: float | None = None
    run_queue_wait_ns: float | None = None
    instructions: float | None = None
    cycles: float | None = None
    ipc: float | None = None
    llc_miss_bytes: float | None = None


class LayerCounters(Counters, frozen=True, kw_only=True):
    """Counters of one layer: what it does itself, layers inside it left out."""

    forward_llc_miss_bytes: float | None = None  # `llc_miss_bytes` by phase
    backward_llc_miss_bytes: float | None = None  # likewise
    running_ratio: float | None = None  # share of the time the PMU counted; below 1: values are scaled up


class StepCounters(Struct, frozen=True, kw_only=True):
    """Counters of the training threads over the traced steps.

    `step` is the sum of all `layers[].counters` and `outside_layers`. Intra-operator threads and those of
    communication backends are not counted.
    """

    num_steps: int  # traced steps with complete readings, of all ranks
    ranks: tuple[int, ...]  # that have any
    step: Counters
    outside_layers: Counters  # the optimizer, input, what no layer does
    software_sources: tuple[str, ...]  # "perf_event_open", or "getrusage" where that is not permitted
    user_only: bool  # instructions, cycles and misses leave out what the kernel does for the thread
