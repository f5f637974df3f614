"""Paths and names inside a run directory. Standard library only.

The probes inside the training process load this file, too (under another Python, >= 3.8, where perfscope
need not be installed), so nothing here may import perfscope by that name.

    <run>/run.json                       the manifest, see schema.py
    <run>/scheme.json                    a bench run's scheme and places as its ranks found them, by rank 0
    <run>/neighbours.jsonl               what ran on a batch job's nodes before and after, see perfscope/slurm
    <run>/darshan.json                   file I/O by imported logs of Darshan (storage_records.py)
    <run>/inspector.json                 calls by imported files of NCCL Inspector (inspector_records.py)
    <run>/plan.json                      step at which the next window starts, written by rank 0
    <run>/hosts/<host>/topology.json     what the machine is
    <run>/hosts/<host>/ceilings.json     measured peaks: memory bandwidth, FLOP/s
    <run>/hosts/<host>/samples.jsonl     hardware counters, append-only, see samples.py
    <run>/hosts/<host>/scrapes.jsonl     the same, imported from a monitor of GPUs
    <run>/hosts/<host>/samples.seal.json how long samples.jsonl is and its checksum, when the sampler ends
    <run>/hosts/<host>/kernel            which kernel the host runs on; emulated hosts share one
    <run>/hosts/<host>/pids/<pid>        empty: a rank of this host says that it lives (removed at the end)
    <run>/hosts/<host>/watcher           pid of the `perfscope run` that starts this host's sampler
    <run>/hosts/<host>/watching          empty: a `perfscope run` looks whether this host's ranks hang
    <run>/hosts/<host>/sampler.lock      held (flock) by the one sampler of the host
    <run>/hosts/<host>/sampler.error     why no sampler could start; only then
    <run>/hosts/<host>/hangs.jsonl       ranks that made no step for long, and where they stood (hangs.py)
    <run>/hosts/<host>/workers/*.jsonl   batches of a data loader's workers (loader_records.py)
    <run>/hosts/<host>/stacks.speedscope.json   Python stacks of the ranks, with --stacks
    <run>/ranks/<rank>/rank.json         one rank: pid, host, framework, groups, clock anchors
    <run>/ranks/<rank>/steps.jsonl       one line per step, append-only
    <run>/ranks/<rank>/marks.jsonl       what the rank does while it makes no step (probes/marks.py)
    <run>/ranks/<rank>/phases.jsonl      time of phases by name, append-only (phase_records.py)
    <run>/ranks/<rank>/loading.jsonl     when it asked loaders with workers for batches (loader_records.py)
    <run>/ranks/<rank>/bench.json        a bench run's losses, calls and interface counters
    <run>/ranks/<rank>/layers.json       module names, types, parameter counts
    <run>/ranks/<rank>/windows.jsonl     one line per traced window
    <run>/ranks/<rank>/windows/N.json.gz the framework's own trace of window N (torch: Kineto's JSON)
    <run>/ranks/<rank>/windows/N.FORMAT.*[.gz]   the same of other frameworks, see TRACE_FORMATS
    <run>/ranks/<rank>/windows/N.calls.json[.gz] calls the probe timed itself in window N, see CALL_COLUMNS
    <run>/ranks/<rank>/windows/N.et.json[.gz]    execution trace of window N (imports), beside N.json or alone
    <run>/ranks/<rank>/windows/N.counters.json[.gz] counters per layer in window N, see COUNTER_COLUMNS
    <run>/ranks/<rank>/errors.jsonl      what a probe swallowed
    <run>/derived/                       rebuilt from the above at will
"""

SCHEMA_VERSION = 1
HIDDEN = "<redacted>"  # in place of a secret

RUN_JSON = "run.json"
PLAN_JSON = "plan.json"
SCHEME_JSON = "scheme.json"
DARSHAN_JSON = "darshan.json"
INSPECTOR_JSON = "inspector.json"
NEIGHBORS_JSONL = "neighbours.jsonl"
HOSTS = "hosts"
OWNER = ".owner"  # a file, or the folder of a Slurm step's tasks: several launchers share the directory
BOOT_ERRORS = "boot-errors.txt"  # what the boot code inside the training swallowed, one line each
TOPOLOGY_JSON = "topology.json"
CEILINGS_JSON = "ceilings.json"
SAMPLES_JSONL = "samples.jsonl"
SCRAPES_JSONL = "scrapes.jsonl"
SAMPLES_SEAL = "samples.seal.json"
SAMPLER_LOCK = "sampler.lock"
SAMPLER_ERROR = "sampler.error"
PIDS = "pids"
WORKERS = "workers"
WATCHER = "watcher"
WATCHING = "watching"
STACKS_JSON = "stacks.speedscope.json"
HANGS_JSONL = "hangs.jsonl"
RANKS = "ranks"
RANK_JSON = "rank.json"
STEPS_JSONL = "steps.jsonl"
MARKS_JSONL = "marks.jsonl"
PHASES_JSONL = "phases.jsonl"
LOADING_JSONL = "loading.jsonl"
LAYERS_JSON = "layers.json"
BENCH_JSON = "bench.json"
WINDOWS_JSONL = "windows.jsonl"
WINDOWS = "windows"
ERRORS_JSONL = "errors.jsonl"
DERIVED = "derived"
TIMELINE = "timeline"
INGEST = "ingest"

# Marks the probe writes into the framework's own trace (record_function names).
# "perfscope.step:12" spans step 12; "perfscope.layer:features.3.conv" spans one forward call.
MARK_STEP = "perfscope.step:"
PROFILER_STEP = "ProfilerStep#"  # PyTorch's own, likewise
MARK_LAYER = "perfscope.layer:"
MARK_PHASE = "perfscope.phase:"  # + name of a phase (probes/phases.py)
MARK_INPUT = "perfscope.input"
MARK_CLOSURE = "perfscope.closure"  # forward and backward that an optimizer's step calls
# + work of a pipeline as torch writes it: stage, F (forward), B (backward), I (gradients of inputs only) or
# W (of weights only), microbatch: `0F3`
MARK_STAGE = "perfscope.stage:"
MARK_BOUNDARY = "perfscope.boundary:"  # + stage that sends, that receives, microbatch: `1 2 3`
MARK_ROWS = "perfscope.rows:"  # + number of rows that the all-to-all after it sends
MARK_GROUP = "perfscope.group:"  # + name of a process group, + MARK_PEER + global rank of the other end
MARK_PEER = ":peer="
MARK_SERVES = "perfscope.serves:"  # + axis, layers whose tensors calls inside carry (rundir.served_layers)
TRACE_REDUCERS = "perfscope.reducer_groups"  # key of a trace: groups of DistributedDataParallel's reducers
MARK_WAIT = "perfscope.wait"  # the thread waits for calls of communication that it made before
MARK_SOURCE = "perfscope.source:"  # + rank within its group of the sender of a receive from any source

# How a window's file name ends after its number, and what reads it (ingest/formats). A window has at most one
# of these, and CALLS beside it or alone.
KINETO = ".json"
TENSORFLOW = ".tensorflow.xplane.pb"
JAX = ".jax.xplane.pb"
MXNET = ".mxnet.json"
NSYS = ".nsys.sqlite"
FLIGHTS = (".flight.pickle", ".flight.json")
INSPECTOR = ".inspector.jsonl"
CHAKRA = ".chakra.et"
EXECUTION = ".et.json"  # an execution trace of PyTorch: alone, or beside the Kineto trace of the same steps
TRACE_FORMATS = (KINETO, TENSORFLOW, JAX, MXNET, NSYS, *FLIGHTS, INSPECTOR, CHAKRA, EXECUTION)
CALLS = ".calls.json"
# N.calls.json: {"version": 1, "monotonic_ns": M, "unix_ns": U (the same moment), "main_tid": T,
#   "lanes": {"<lane>": "label"}, "columns": CALL_COLUMNS, "rows": [[...], ...], "num_lost": rows too
#   many, "steps": [[step, start_ns, end_ns], ...]} and, where known,
#   "groups": [{"name", "ranks": [global ranks], "backend"}], "notes": [text, ...],
#   "outside": name of the compute spans that fill what the main thread's calls leave of the steps (no
#   framework's trace says what happens there: a program that only speaks MPI).
# Times: CLOCK_MONOTONIC, ns. lane: a thread id. kind, phase, collective: words of schema.TIMELINE.
CALL_COLUMNS = (
    *("start_ns", "dur_ns", "lane", "kind", "phase", "layer", "name"),
    *("collective", "group", "group_size", "in_bytes", "out_bytes", "dtype", "peer"),
)

COUNTERS = ".counters.json"
# N.counters.json, beside a Kineto trace: {"version": 1, "monotonic_ns": M, "unix_ns": U (the same moment),
#   "columns": COUNTER_COLUMNS and the counters that were read (vocabulary.layer_counters),
#   "rows": [[...], ...], "steps": [[step, first row, row after the last], ...],
#   "software_source": "perf_event_open" or "getrusage",
#   "user_only": the hardware counters leave the kernel out, "refused": {"<counter>": [cause, text], ...},
#   "ended": [cause, text]: no readings since, or null, "cost_ns": time spent on readings}.
# A row is what the training thread did from start_ns (CLOCK_MONOTONIC) for dur_ns. phase: a word of
# schema.TIMELINE. layer: "" for none.
COUNTER_COLUMNS = ("start_ns", "dur_ns", "phase", "layer")

# Environment through which the launcher talks to the agent. All are plain strings.
ENV_RUN_DIR = "PERFSCOPE_RUN_DIR"  # absolute path of the run directory
ENV_AGENT = "PERFSCOPE_AGENT"  # absolute path of probes/bootstrap/agent.py
ENV_CONFIG = "PERFSCOPE_CONFIG"  # JSON, see probes/bootstrap/agent.py
ENV_PYTHON = "PERFSCOPE_PYTHON"  # the Python that has perfscope: the sampler runs under it
ENV_PYTHON_PATH = "PERFSCOPE_PYTHON_PATH"  # and where that finds its packages


def host_name() -> str:
    """The name of this host's folder below hosts/: ranks and `perfscope run` must agree on it."""
    import socket  # not at the top: readers of runs do not need it

    return socket.gethostname().replace("/", "_") or "localhost"
