"""Which figures of a report come from which file of a run: what a file's damage or absence affects."""

from __future__ import annotations

from msgspec import Struct

from perfscope.messages import files
from perfscope.rundir import layout

RANKS = "ranks"  # key of the report
# What is drawn from several ranks, their calls and their waits.
_CAUSES = ("efficiency", "what_ifs", "replay", "waits", "critical_path", "clocks", "clock_residual_ns")
_SPEED = (
    *("throughput_samples_per_s", "samples_source", "samples_per_step", "samples_per_step_range"),
    *("throughput_tokens_per_s", "tokens_per_step", "uneven_mean_ns"),
)
_OF_STEPS = (
    *("step_ns", "overhead_ratio", "whole_run", "phases", "loading", "file_io", "page_faults", *_SPEED),
    *("machine", "findings", "bench", "remarks", "traced_ratio", "unlike_windows", "self_checks", *_CAUSES),
    "flops_utilization",
)
_OF_WINDOWS = (
    *("breakdown_of", "layers", "communication", "process_groups", "pipeline", "experts", "counters"),
    *("kernels", "workload", "collectives", "provenance", "machine", "findings", "bench", "remarks"),
    *(
        "flops_utilization",
        "framework",
        "traced_ratio",
        "unlike_windows",
        "self_checks",
        "progress",
        "communicators",
        "execution",
        "allocations",
        *_CAUSES,
    ),
)
OF_TRAINING = tuple(sorted({*_OF_STEPS, *_OF_WINDOWS, RANKS}))
_OF_MACHINE = (
    "machine",
    "flops_utilization",
    "findings",
    "loading",
    "waits",
    "what_ifs",
    "remarks",
    "self_checks",
    f"{RANKS}.*.host_idle",
)
COUNTED = ("layers", "counters")  # keys of the report with counters of layers


class Affected(Struct, frozen=True, kw_only=True):
    """The figures that a file gives: their paths (see `Missing`), and their names in a sentence."""

    paths: tuple[str, ...]
    text: str


_TRAINING = Affected(paths=OF_TRAINING, text=files.TRAINING)
_RUN = Affected(paths=("run", *OF_TRAINING), text=files.EVERYTHING)
_LOADING = Affected(paths=("loading", "findings", "what_ifs"), text=files.LOADING)
_OF_RANK = {
    layout.PHASES_JSONL: Affected(paths=("phases", "findings"), text=files.PHASES),
    layout.LOADING_JSONL: _LOADING,
    layout.ERRORS_JSONL: Affected(paths=("findings", "remarks"), text=files.ERRORS),
    layout.BENCH_JSON: Affected(paths=("bench", "findings", "machine", *_SPEED), text=files.BENCH),
}
_OF_HOST = {
    layout.TOPOLOGY_JSON: Affected(paths=_OF_MACHINE, text=files.MACHINE),
    layout.CEILINGS_JSON: Affected(paths=_OF_MACHINE, text=files.PEAKS),
    layout.SAMPLES_JSONL: Affected(paths=_OF_MACHINE, text=files.COUNTERS),
    layout.SAMPLES_SEAL: Affected(paths=_OF_MACHINE, text=files.COUNTERS),
    layout.HANGS_JSONL: Affected(paths=("hangs",), text=files.HANGS),
    layout.STACKS_JSON: Affected(paths=_OF_MACHINE, text=files.STACKS),
}


_IMPORTED = {
    layout.DARSHAN_JSON: Affected(paths=("file_io",), text=files.FILE_IO),
    layout.INSPECTOR_JSON: Affected(paths=("communicators",), text=files.COMMUNICATORS),
}


def affected_by(path: str) -> Affected:
    """What comes from the file at `path`, relative to the run directory."""
    parts = path.split("/")
    if parts[0] == layout.HOSTS:
        if layout.WORKERS in parts[2:3]:
            return _LOADING
        return _OF_HOST.get(parts[-1], Affected(paths=_OF_MACHINE, text=files.HOST))
    if parts[0] in _IMPORTED:
        return _IMPORTED[parts[0]]
    if parts[0] != layout.RANKS:
        return _RUN if parts[0] == layout.RUN_JSON else _TRAINING
    if len(parts) == 2:  # an attempt that is not shown
        return Affected(paths=(), text="")
    rank = parts[1].partition(".")[0]
    file, name = f"{RANKS}.{rank}", parts[2]
    if name == layout.STEPS_JSONL:
        return Affected(paths=(file, *_OF_STEPS), text=files.STEPS)
    if name == layout.LAYERS_JSON:
        of_layers = ("layers", "communication", "process_groups", f"{file}.communication")
        return Affected(paths=(*of_layers, "machine", "findings", *_CAUSES), text=files.LAYERS)
    if name in _OF_RANK:
        return _OF_RANK[name]
    if name in (layout.WINDOWS, layout.WINDOWS_JSONL):
        return Affected(paths=(file, *_OF_WINDOWS), text=files.WINDOWS)
    return _TRAINING
