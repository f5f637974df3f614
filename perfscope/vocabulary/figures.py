"""The figures of a report that may be missing."""

from __future__ import annotations

from enum import Enum


class Figure(str, Enum):
    """What a report lacks. The value is the code in the JSON report and in rank.json."""

    # The run and its files.
    RUN_REMAINDER = "run_remainder"
    RUN_END = "run_end"
    TRAINING = "training"
    FILE = "file"
    FILE_LINES = "file_lines"
    ATTEMPT = "attempt"
    RANK = "rank"
    RANKS = "ranks"
    WINDOW = "window"
    WINDOW_PART = "window_part"
    RANK_RECORDS = "rank_records"
    SCHEME = "scheme"
    OVERHEAD = "overhead"
    WHOLE_RUN = "whole_run"

    # Steps.
    STEP_BOUNDARIES = "step_boundaries"
    STEP_BREAKDOWN = "step_breakdown"
    STEP_PART = "step_part"
    STEP_TIME = "step_time"
    DEVICE_TIME = "device_time"
    STEPS_LEFT_OUT = "steps_left_out"
    LATER_STEPS = "later_steps"
    OTHER_THREADS = "other_threads"
    PHASES = "phases"
    THROUGHPUT = "throughput"
    INPUT_WAIT = "input_wait"
    COMPUTATION = "computation"

    # Traced windows.
    WINDOWS = "windows"  # all that windows would show, as a probe reports it
    TRACED_FIGURES = "traced_figures"
    LAYERS = "layers"
    LAYERS_AND_PHASES = "layers_and_phases"
    LAYERS_OF_OPERATORS = "layers_of_operators"
    LAYER_COUNTERS = "layer_counters"
    LAYER_COMM = "layer_comm"
    COMM_OUTSIDE_LAYERS = "comm_outside_layers"
    COLLECTIVES = "collectives"
    COLLECTIVE_TIMES = "collective_times"
    SOME_COLLECTIVE_TIMES = "some_collective_times"
    COLLECTIVE_BYTES = "collective_bytes"
    COMM_SPANS = "comm_spans"
    EXPOSED_COMM = "exposed_comm"
    CLOCKS = "clocks"
    RANK_CLOCKS = "rank_clocks"
    CLOCK_JUMP = "clock_jump"

    # What is computed from several ranks.
    PIPELINE = "pipeline"
    EXPERTS = "experts"
    EXPERT_IMBALANCE = "expert_imbalance"
    REPLAY = "replay"
    WHAT_IFS = "what_ifs"
    STORE_WHAT_IFS = "store_what_ifs"
    NODE_CACHE = "node_cache"
    PARALLEL_EFFICIENCY = "parallel_efficiency"
    SERIALISATION_AND_TRANSFER = "serialisation_and_transfer"
    CRITICAL_PATH = "critical_path"
    CRITICAL_PATH_LATE_RANK = "critical_path_late_rank"
    CRITICAL_PATH_RANKS = "critical_path_ranks"
    WAITS = "waits"
    WAITS_FOR_UNTRACED_RANKS = "waits_for_untraced_ranks"
    SOME_WAITS = "some_waits"
    LATE_CAUSES = "late_causes"

    # The machine.
    HARDWARE_COUNTERS = "hardware_counters"
    FIRST_HARDWARE_COUNTERS = "first_hardware_counters"
    LAST_HARDWARE_COUNTERS = "last_hardware_counters"
    HARDWARE_SOURCES = "hardware_sources"
    RANK_MEMORY = "rank_memory"
    ALLOCATIONS = "allocations"
    OTHERS_CPU_TIME = "others_cpu_time"
    ENERGY_PER_SAMPLE = "energy_per_sample"
    WIRE_BYTES = "wire_bytes"
    CEILINGS = "ceilings"
    ROOFLINE = "roofline"
    HOST_ROOFLINE = "host_roofline"

    # Several runs.
    STUDY_RUN = "study_run"
    SCALING = "scaling"
    SAMPLES_PER_S = "samples_per_s"
    STEP_COMPOSITION = "step_composition"
    LOSS_CURVE = "loss_curve"
    MEMORY_AND_LINKS = "memory_and_links"
    WINNER = "winner"
    RATIOS = "ratios"
    FRAMEWORK_SPEED = "framework_speed"

    OTHER = "other"  # of another version: in its own words
