"""What is missing in a report, and why, in English."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

from perfscope.messages.lists import first_of, ranks_of
from perfscope.units import format_ns, format_ratio
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.missing import Missing

_ENERGY_SOURCES = {"power": "RAPL", "power.perf": "RAPL through perf"}
_FORMATS: dict[str, Callable[[Any], str]] = {
    "all": ", ".join,
    "four": lambda names: first_of(names, 4),
    "eight": lambda names: first_of(names, 8),
    "eight_only": lambda names: ", ".join(map(str, names[:8])),
    "ranks": ranks_of,
    "it_or_them": lambda ranks: "them" if len(ranks) > 1 else "it",
    "it_or_they": lambda ranks: "they" if len(ranks) > 1 else "it",
    "ns": format_ns,
    "percent": lambda ratio: format_ratio(ratio, 0),
    "energy_sources": lambda sources: "; ".join(
        f"{_ENERGY_SOURCES.get(name, 'GPUs')}: {reason or 'not available'}" for name, reason in sources
    ),
    "spaced_list": lambda names: ", ".join(name.removesuffix("_ns").replace("_", " ") for name in names),
    "spaced": lambda name: name.replace("_", " "),
}

_WHAT = {
    Figure.RUN_REMAINDER: "the rest of the run",
    Figure.RUN_END: "the end of the run and its exit code",
    Figure.TRAINING: "every figure of the training",
    Figure.FILE: "{path}",
    Figure.FILE_LINES: "{count:,} lines of {path}",
    Figure.ATTEMPT: "attempt {path}",
    Figure.RANK: "rank {rank}",
    Figure.RANKS: "steps and windows of {ranks:ranks}",
    Figure.WINDOW: "window {window} of rank {rank}",
    Figure.WINDOW_PART: "part of window {window} of rank {rank}",
    Figure.RANK_RECORDS: "calls and losses of every rank",
    Figure.SCHEME: "the scheme's figures",
    Figure.OVERHEAD: "overhead of perfscope",
    Figure.WHOLE_RUN: "account of the run's wall time",
    Figure.STEP_BOUNDARIES: "step boundaries",
    Figure.STEP_BREAKDOWN: "step breakdown of {ranks:ranks}",
    Figure.STEP_PART: "{part:spaced} of the traced steps",
    Figure.STEP_TIME: "step time of {ranks:ranks}",
    Figure.DEVICE_TIME: "device time of window {window} of rank {rank}",
    Figure.STEPS_LEFT_OUT: "{count} of the steps in window {window} of rank {rank}",
    Figure.LATER_STEPS: "the later steps of {ranks:ranks}",
    Figure.OTHER_THREADS: "steps of other threads",
    Figure.PHASES: "phases by name",
    Figure.THROUGHPUT: "throughput",
    Figure.INPUT_WAIT: "input wait",
    Figure.COMPUTATION: "what the ranks compute",
    Figure.WINDOWS: "windows",
    Figure.TRACED_FIGURES: "step breakdown, timeline{and_layers} and collectives",
    Figure.LAYERS: "layers",
    Figure.LAYERS_AND_PHASES: "layers, forward and backward",
    Figure.LAYERS_OF_OPERATORS: "layers of part of the operators",
    Figure.LAYER_COUNTERS: "{counters:spaced_list} of layers on {ranks:ranks}",
    Figure.LAYER_COMM: "exposed communication per layer",
    Figure.COMM_OUTSIDE_LAYERS: "exposed communication of no layer",
    Figure.COLLECTIVES: "collectives",
    Figure.COLLECTIVE_TIMES: "transfer and wait of {collective} on group {group}",
    Figure.SOME_COLLECTIVE_TIMES: "transfer and wait of some {collective} calls on group {group}",
    Figure.COLLECTIVE_BYTES: "bytes of {count} of {total} {collective} calls on group {group}",
    Figure.COMM_SPANS: "{count} communication spans",
    Figure.EXPOSED_COMM: "exposed communication",
    Figure.CLOCKS: "clocks of {hosts:all}",
    Figure.RANK_CLOCKS: "clocks of {ranks:ranks}",
    Figure.CLOCK_JUMP: "times of {host} across a jump of its clock",
    Figure.PIPELINE: "stages and microbatches of the pipeline",
    Figure.EXPERTS: "tokens of experts",
    Figure.EXPERT_IMBALANCE: "imbalance of experts and what it costs",
    Figure.REPLAY: "replay of window {window}",
    Figure.WHAT_IFS: "what-ifs",
    Figure.STORE_WHAT_IFS: "what-ifs of a faster store",
    Figure.NODE_CACHE: "what-if of a cache in each node",
    Figure.PARALLEL_EFFICIENCY: "parallel efficiency",
    Figure.SERIALISATION_AND_TRANSFER: "serialization and transfer efficiency",
    Figure.CRITICAL_PATH: "critical path of window {window}",
    Figure.CRITICAL_PATH_LATE_RANK: "who was late on the critical path of window {window}",
    Figure.CRITICAL_PATH_RANKS: "rank {ranks:eight_only} on the critical path of window {window}",
    Figure.WAITS: "wait states",
    Figure.WAITS_FOR_UNTRACED_RANKS: "waits for ranks without a trace",
    Figure.SOME_WAITS: "some waits of window {windows:eight_only}",
    Figure.LATE_CAUSES: "why some ranks were late",
    Figure.HARDWARE_COUNTERS: "hardware counters of {hosts:four}",
    Figure.FIRST_HARDWARE_COUNTERS: "hardware counters of {host} for the first {time_ns:ns} of the steps",
    Figure.LAST_HARDWARE_COUNTERS: "hardware counters of {host} for the last {time_ns:ns} of the steps",
    Figure.HARDWARE_SOURCES: "{count} of {total} hardware sources of {host} ({sources})",
    Figure.RANK_MEMORY: "memory over time of {ranks:ranks}",
    Figure.ALLOCATIONS: "allocated memory during the traced windows",
    Figure.OTHERS_CPU_TIME: "CPU time taken by others on {hosts:four}",
    Figure.ENERGY_PER_SAMPLE: "energy per sample",
    Figure.WIRE_BYTES: "bytes on the wire",
    Figure.CEILINGS: "measured ceilings of {hosts:four}",
    Figure.ROOFLINE: "roofline",
    Figure.HOST_ROOFLINE: "roofline of {host}",
    Figure.STUDY_RUN: "the run {run}",
    Figure.SCALING: "scaling{of_series}",
    Figure.SAMPLES_PER_S: "samples/s",
    Figure.STEP_COMPOSITION: "step composition",
    Figure.LOSS_CURVE: "loss curve",
    Figure.MEMORY_AND_LINKS: "peak memory and bytes per link class",
    Figure.WINNER: "which setting wins",
    Figure.RATIOS: "ratios of {runs}",
    Figure.FRAMEWORK_SPEED: "the speed of {framework} against others on {size}",
    Figure.OTHER: "a figure",
}
_OF_PROBE = " of {ranks:ranks}"  # where other ranks' probes report something else
_NO_MATCH = "no call could be matched across ranks"

_WHY = {
    Cause.NOT_CLOSED: "the run was not closed: it is still running, or perfscope was killed; "
    "the values cover what was written so far",
    Cause.NO_RANK_ATTACHED: "no rank was attached.{notes}",
    Cause.RANKS_DIED: "{count} of {total} ranks did not live to write their record",
    Cause.NO_RANK_FINISHED: "no rank lived to write it",
    Cause.IMPORTED: "imported traces do not say what recording them cost",
    Cause.NOT_A_BENCH_RUN: "only runs of `perfscope bench` record it",
    Cause.TASK_FAILED: "the task that reads {ranks:it_or_them} failed three times: {failure}",
    Cause.NOT_READ: "the ranks' records (bench.json) were not read",
    Cause.NO_WINDOW_TRACED: "no window of theirs was traced",
    Cause.NO_STEP_TRACED: "no step was traced",
    Cause.NO_STEP_RECORDED: "no step was recorded",
    Cause.NO_STEP_TIMED: "no step was timed",
    Cause.NO_STEP_MARKS: "the trace has no step marks (ProfilerStep): its figures cover the whole file "
    "as one",
    Cause.STRUCTURE_ONLY: "the files state which operators ran, not when and for how long",
    Cause.NO_DEVICE_EVENTS: "the host used a device, but the trace has no event of it",
    Cause.FILE_ENDS_EARLY: "the file ends early and does not hold them whole",
    Cause.UNEVEN_STEPS: "{ranks:it_or_they} recorded {least:,} steps at least, others {most:,}: "
    "their medians are of different stretches of the run",
    Cause.BATCH_NOT_KNOWN: "the number of samples per step is not known",
    Cause.NO_COMMUNICATION: "no communication appears in the traced windows",
    Cause.SOME_CALLS_UNMATCHED: "{count} of {total} calls have no counterpart on every rank "
    "(the ranks' traces differ)",
    Cause.NO_CALL_MATCHED: _NO_MATCH,
    Cause.COMM_UNEXPLAINED: "{share:percent} of the ranks' time is communication that no call matched across "
    "ranks explains",
    Cause.COLLECTIVE_NOT_NAMED: "the trace does not say which collective they are; they count as "
    "communication all the same",
    Cause.SIZE_NOT_IN_TRACE: "the trace does not state their size; bytes and bandwidths are those of the "
    "others",
    Cause.UNSEEN_CALLS: "its ranks communicate in untraced threads",
    Cause.CLOCKS_UNLINKED: "they share no synchronizing collective with the others, nor messages both ways: "
    "their clock offset is unknown, and waits between them and the others are marked",
    Cause.CLOCK_SET: "its wall clock was set by {jump_s:+.3f} s between two looks {apart_s:.1f} s apart: its "
    "offset from the other hosts is not one straight line, and its uncertainty is stated accordingly",
    Cause.NO_LAYER_TENSORS: "{calls} per step carry no layer's tensors and are not attributed to a layer",
    Cause.LAYERS_NOT_DETERMINED: "the layers of {calls} cannot be determined, {time_ns:ns} of {total_ns:ns} "
    "per step: {reasons}",
    Cause.NO_EXPERT_SPLITS: "the traces have no sizes of all-to-all calls that come in pairs in a layer, "
    "alike on all ranks of a group",
    Cause.EXPERTS_NOT_TRACED: "not all ranks of their process groups were traced",
    Cause.NO_STAGE_MARKS: "the traces do not say which stage works on which microbatch",
    Cause.STAGES_INCOMPLETE: "in no traced step did every stage of a pipeline work once on every microbatch, "
    "by the marks of all its ranks",
    Cause.ONE_RANK: "one rank was traced",
    Cause.ONE_RANK_JOB: "the job has one rank, which waits for no other",
    Cause.NOT_ALL_RANKS_TRACED: "{count} of {total} ranks were traced; who waited for the others is not "
    "known",
    Cause.RANKS_TRACED_WINDOW: "{count} of {total} ranks traced it",
    Cause.OTHER_STEPS_TRACED: "its ranks did not trace the same steps",
    Cause.NO_SHARED_STEPS: "no traced window has the same steps on every rank",
    Cause.NO_STEP_IN_WINDOW: "no step of rank {ranks:eight_only} was traced in the same window",
    Cause.NO_COMPUTATION: "no rank's computation is in the trace",
    Cause.CIRCULAR_WAIT: "{count} calls wait for each other in a circle, by the trace's times",
    Cause.STATE_HARDLY_READ: "no loader workers were recorded for {ranks:ranks}, and what its training "
    "thread waits for was read less than 20 times",
    Cause.PASS_NOT_KNOWN: "the bytes of a whole pass over the data are not known: no pass ended, and the "
    "loader does not say its length, or bytes were not counted",
    Cause.FREE_MEMORY_NOT_READ: "the free memory of the hosts of {ranks:ranks} was not read",
    Cause.REPLAY_ERROR: "the replay of the traced steps is off by {ratio:percent}: what ties the ranks "
    "together is not in the trace",
    Cause.SAMPLING_OFF: "switched off by `--sample-interval off`",
    Cause.NO_SAMPLER: "no sampler wrote there",
    Cause.HOST_NOT_RECORDED: "nothing was recorded there",
    Cause.SAMPLER_STARTED_LATE: "its sampler began to read only then",
    Cause.SAMPLER_KILLED: "its sampler was killed",
    Cause.SAMPLER_ENDED: "its sampler ended: {end}",
    Cause.SOURCES_ABSENT: "not available there: run `perfscope doctor` on that host for reasons and remedies",
    Cause.NO_ALLOCATOR_EVENTS: "the traces have no allocator events: record with `perfscope run "
    "--allocations`, or with torch.profiler's profile_memory=True",
    Cause.MEMORY_NOT_READ: "the sampler read none of it: an older perfscope recorded the run, or "
    "the processes could not be read",
    Cause.CPU_COUNT_NOT_KNOWN: "topology.json does not say how many CPUs there are",
    Cause.NO_ENERGY: "no energy counter was read",
    Cause.NO_ENERGY_SOURCE: "{absent:energy_sources}",
    Cause.ENERGY_BARELY_READ: "energy was read in less than {share:percent} of the steps' time",
    Cause.ENERGY_OF_SOME_HOSTS: "the energy of {count} of {total} hosts was not read",
    Cause.SAMPLES_NOT_KNOWN: "the number of samples is not known",
    Cause.NO_SHAPES: "the trace gives no shapes, so neither FLOP nor bytes of a layer are known",
    Cause.NO_LAYER_BYTES: "the trace has the FLOPs of layers, but not the bytes they move",
    Cause.NOT_PERMITTED: "the kernel does not permit perf_event_open ({detail}): set "
    "kernel.perf_event_paranoid to 1 or less, or give the process CAP_PERFMON; containers may forbid it too",
    Cause.NO_PMU: "the kernel offers no such event here ({detail}), as is usual in virtual machines",
    Cause.NOT_IN_KERNEL: "this kernel does not have it ({detail})",
    Cause.NO_DESCRIPTORS: "the process has no file descriptors left ({detail}): raise its limit (ulimit -n)",
    Cause.DESCRIPTORS_CLOSED: "the training closed the counters' file descriptors; only the steps before are "
    "counted",
    Cause.TOO_COSTLY: "readings at every layer would have slowed down the traced steps; only the steps "
    "before are counted",
    Cause.MULTIPLEXED: "the processor counted other events all the while in {layers:four}",
    Cause.BAD_FACTORS: "{run} has factors below 0 or above 1: its clocks or traces disagree",
    Cause.NO_LOSS: "no rank recorded a loss that is a number",
    Cause.NO_USABLE_RUN: "no run is usable: see the problems",
    Cause.SINGLE_RANK_RUNS: "no usable run has more than one rank",
    Cause.NOT_GROUPED: "no usable run belongs to a group: see the problems",
    Cause.NO_FRAMEWORK: "no usable run states its framework: see the problems",
    Cause.NO_COUNTERPART: "no other setting has their model, data type, batch, machine and number of ranks",
    Cause.LOSSES_NOT_RECORDED: "its losses or those of {reference} were not recorded",
    Cause.NO_REFERENCE_RUN: "there is no run of {reference} on {size} to compare its losses with",
}
# Where a cause has another wording for one figure.
_WHY_OF: dict[Figure, dict[Cause, str]] = {
    Figure.WHOLE_RUN: {
        Cause.IMPORTED: "imported traces do not say when the run began and ended",
        Cause.NOT_CLOSED: "the end of the run is not recorded",
    },
    Figure.SERIALISATION_AND_TRANSFER: {
        Cause.NO_CALL_MATCHED: f"{_NO_MATCH}, so an ideal network cannot be replayed",
    },
    Figure.PARALLEL_EFFICIENCY: {Cause.ONE_RANK: "one rank was traced: there is nothing to share"},
    Figure.SOME_WAITS: {
        Cause.OTHER_STEPS_TRACED: "the ranks traced different steps there; only calls that all members made "
        "are compared",
    },
    Figure.LOSS_CURVE: {Cause.NOT_A_BENCH_RUN: "only runs of `perfscope bench` record their losses"},
    Figure.STEP_COMPOSITION: {
        Cause.NO_STEP_MARKS: "its traces have no step marks: what they hold is not a step",
        Cause.NO_WINDOW_TRACED: "no window of it was traced",
    },
    Figure.CRITICAL_PATH_LATE_RANK: {
        Cause.CALLS_UNMATCHED: "calls of rank {ranks:eight} are matched with no other rank's: whom they "
        "waited for is not known, so the path stays on the rank",
    },
    Figure.CRITICAL_PATH_RANKS: {
        Cause.CLOCKS_UNLINKED: "the clocks of their hosts cannot be compared with the others'",
    },
}


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        formatter = _FORMATS.get(format_spec)
        return formatter(value) if formatter else str(super().format_field(value, format_spec))


_FORMATTER = _Formatter()


def figure_text(missing: Missing) -> str:
    """The figure's name: "replay of window 3"."""
    detail = dict(missing.detail)
    if "what" in detail:
        return str(detail["what"]) + (_filled(_OF_PROBE, missing) if missing.ranks else "")
    return _filled(_WHAT[missing.figure], missing)


def cause_text(missing: Missing) -> str:
    """Why it is missing, as a clause: "2 of 4 ranks traced it"."""
    detail = dict(missing.detail)
    if "reason" in detail:
        return str(detail["reason"])
    special = _WHY_OF.get(missing.figure, {})
    return _filled(special.get(missing.cause) or _WHY.get(missing.cause, ""), missing)


def missing_document(missing: Missing) -> dict[str, object]:
    """The JSON report's entry."""
    return {
        "what": figure_text(missing),
        "reason": cause_text(missing),
        "affects": list(missing.affects),
        "figure": missing.figure.value,
        "cause": missing.cause.value,
    }


def _filled(template: str, missing: Missing) -> str:
    return _FORMATTER.vformat(template, (), {"ranks": missing.ranks, **dict(missing.detail)})
