"""Why a figure may be missing."""

from __future__ import annotations

from enum import Enum


class Cause(str, Enum):
    """The reason that a figure is missing. The value is the code in the JSON report."""

    # The run and its files.
    CUT_SHORT = "cut_short"
    NOT_CLOSED = "not_closed"
    ENDED_BY_SIGNAL = "ended_by_signal"
    EXIT_CODE = "exit_code"
    RANKS_MISSING = "ranks_missing"
    FILES_NOT_CLOSED = "files_not_closed"
    NO_RANK_ATTACHED = "no_rank_attached"
    INPUT_DROPPED = "input_dropped"
    UNREADABLE = "unreadable"
    NOT_READ = "not_read"
    RANKS_DIED = "ranks_died"
    NO_RANK_FINISHED = "no_rank_finished"
    IMPORTED = "imported"
    NOT_A_BENCH_RUN = "not_a_bench_run"
    PROBE_LIMIT = "probe_limit"  # what a rank's framework cannot record, in its probe's words

    # Windows: why there is none, or none that can be used.
    TRACING_OFF = "tracing_off"
    TRACES_GONE = "traces_gone"
    NOT_INGESTED = "not_ingested"
    NO_USABLE_WINDOW = "no_usable_window"
    PROBE_ERROR = "probe_error"
    RUN_TOO_SHORT = "run_too_short"
    FORWARD_NOT_SEEN = "forward_not_seen"
    WINDOW_PUT_OFF = "window_put_off"
    NO_WINDOW_REACHED = "no_window_reached"
    NO_PROFILER = "no_profiler"
    NO_WINDOW_TRACED = "no_window_traced"
    NO_USABLE_EVENT = "no_usable_event"
    NO_STEP_TRACED = "no_step_traced"

    # Steps.
    NO_STEP_RECORDED = "no_step_recorded"
    NO_STEP_TIMED = "no_step_timed"
    NO_STEP_MARKS = "no_step_marks"
    UNEVEN_STEPS = "uneven_steps"
    BATCH_NOT_KNOWN = "batch_not_known"
    DATA_PARALLEL_WIDTH_NOT_KNOWN = "data_parallel_width_not_known"
    NOT_IN_TRACE_FORMAT = "not_in_trace_format"

    # Communication.
    NO_COMMUNICATION = "no_communication"
    CALLS_UNMATCHED = "calls_unmatched"
    SOME_CALLS_UNMATCHED = "some_calls_unmatched"
    NO_CALL_MATCHED = "no_call_matched"
    COMM_UNEXPLAINED = "comm_unexplained"
    COLLECTIVE_NOT_NAMED = "collective_not_named"
    SIZE_NOT_IN_TRACE = "size_not_in_trace"
    MPI_NOT_TRACED = "mpi_not_traced"
    CLOCKS_UNLINKED = "clocks_unlinked"
    CLOCK_SET = "clock_set"
    LAYERS_NOT_DETERMINED = "layers_not_determined"
    NO_LAYER_TENSORS = "no_layer_tensors"

    # Ranks and windows that do not fit each other.
    ONE_RANK = "one_rank"
    ONE_RANK_JOB = "one_rank_job"
    NOT_ALL_RANKS_TRACED = "not_all_ranks_traced"
    RANKS_TRACED_WINDOW = "ranks_traced_window"
    OTHER_STEPS_TRACED = "other_steps_traced"
    NO_SHARED_STEPS = "no_shared_steps"
    NO_STEP_IN_WINDOW = "no_step_in_window"
    NO_COMPUTATION = "no_computation"
    CIRCULAR_WAIT = "circular_wait"
    REPLAY_ERROR = "replay_error"

    # The machine.
    SAMPLING_OFF = "sampling_off"
    NO_SAMPLER = "no_sampler"
    HOST_NOT_RECORDED = "host_not_recorded"
    SAMPLER_NOT_STARTED = "sampler_not_started"
    SAMPLER_STARTED_LATE = "sampler_started_late"
    SAMPLER_KILLED = "sampler_killed"
    SAMPLER_ENDED = "sampler_ended"
    SOURCES_ABSENT = "sources_absent"
    CPU_COUNT_NOT_KNOWN = "cpu_count_not_known"
    NO_ENERGY = "no_energy"
    NO_ENERGY_SOURCE = "no_energy_source"
    ENERGY_BARELY_READ = "energy_barely_read"
    ENERGY_OF_SOME_HOSTS = "energy_of_some_hosts"
    SAMPLES_NOT_KNOWN = "samples_not_known"
    NOTHING_ON_WIRE = "nothing_on_wire"
    NO_CEILINGS = "no_ceilings"
    NO_SHAPES = "no_shapes"
    NO_LAYER_BYTES = "no_layer_bytes"

    NOT_PERMITTED = "not_permitted"
    NO_PMU = "no_pmu"
    NOT_IN_KERNEL = "not_in_kernel"
    NO_DESCRIPTORS = "no_descriptors"
    DESCRIPTORS_CLOSED = "descriptors_closed"
    TOO_COSTLY = "too_costly"
    MULTIPLEXED = "multiplexed"

    # Several runs.
    RUN_LEFT_OUT = "run_left_out"
    BAD_FACTORS = "bad_factors"
    NO_LOSS = "no_loss"
    NO_USABLE_RUN = "no_usable_run"
    SINGLE_RANK_RUNS = "single_rank_runs"
    REFUSED = "refused"
    NOT_GROUPED = "not_grouped"
    NO_FRAMEWORK = "no_framework"
    NO_COUNTERPART = "no_counterpart"
    LOSSES_DISAGREE = "losses_disagree"
    LOSSES_NOT_RECORDED = "losses_not_recorded"
    NO_REFERENCE_RUN = "no_reference_run"
