"""Counters of the kernel and the processor that the probe reads per layer. Standard library, Python 3.8."""

from __future__ import annotations

from enum import Enum


class LayerCounter(str, Enum):
    """The value is the column in N.counters.json; see `rundir.layout`."""

    TASK_CLOCK = "task_clock_ns"  # CPU time
    MINOR_FAULTS = "minor_faults"  # pages mapped without reading storage
    MAJOR_FAULTS = "major_faults"  # pages read from storage
    CONTEXT_SWITCHES = "context_switches"
    CPU_MIGRATIONS = "cpu_migrations"
    RUN_QUEUE_WAIT = "run_queue_wait_ns"  # ready to run, but no CPU was free
    INSTRUCTIONS = "instructions"
    CYCLES = "cycles"
    LLC_MISSES = "llc_misses"  # last-level cache, PERF_COUNT_HW_CACHE_MISSES

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum


HARDWARE = (LayerCounter.INSTRUCTIONS, LayerCounter.CYCLES, LayerCounter.LLC_MISSES)
# Columns beside those of HARDWARE: how long their group was enabled, and how long it really counted.
HARDWARE_ENABLED = "hardware_enabled_ns"
HARDWARE_RUNNING = "hardware_running_ns"
CACHE_LINE = 64  # bytes that a miss of the last-level cache moves
