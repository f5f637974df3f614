"""What this host can do at most, as measured: memory bandwidth, FLOP/s, GPUs. Gives ceilings.json.

Measured in processes of their own, so that the caller loads neither numpy nor torch, within a hard limit:
what has not ended by then is killed, and what it had printed is kept. Figures are kept per host and merged:
the best of several measurements counts, since a neighbor can only make one worse. A refresh forgets them.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfscope.collectors.ceilings.cache import Cache, default_folder
from perfscope.collectors.ceilings.child import run_child
from perfscope.collectors.ceilings.host import LocalHost, last_level_bytes, read_host
from perfscope.collectors.context import Context
from perfscope.kernel_text import format_cpulist
from perfscope.rundir import layout
from perfscope.vocabulary.ceilings import CEILING_TITLES, CeilingKind

BUDGET_S = 2.0
MAX_TRIES = 3  # after which figures taken under pressure are left so; twice as many for what is missing
PRESSED = 0.2  # CPUs were waited for in this share of the time: worth another try at the next run
_MARGIN_S = 0.15  # to kill, to reap, to write
_FIRST_SHARE = 0.8  # of the budget, for the process with all BLAS threads; the other does GEMM by one
_TRIAD_S, _GEMM_S = 0.12, 0.1  # a measurement, once it is set up
_TORCH_STEP_S = 0.4
_CACHES = 4  # an array is so many times the last-level caches: STREAM's rule
_SMALLEST, _LARGEST = 8 << 20, 1 << 30  # bytes of one array
_MEMORY_SHARE = 6  # the three arrays take half of what is free at most
_MAX_WORKERS = 256
_BY_TORCH = "what torch can measure"
_TOUCH_BYTES_PER_S = 1.5e9  # how fast one thread touches new memory, at least

Document = dict[str, Any]
Entry = Mapping[str, Any]


def torch_python() -> str | None:
    """A Python that may have torch: our own where it has, else `python` on PATH; None without either."""
    try:
        torch_spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # a torch that is loaded without a spec, or half removed
        torch_spec = None
    return sys.executable if torch_spec and sys.executable else shutil.which("python")


def is_cached(ctx: Context, host: str, cache_dir: Path | None = None) -> bool:
    """Whether `read_or_measure` would answer at once."""
    if not ctx.live:
        return False
    machine = read_host(ctx)
    return _complete(_cache(ctx, host, machine, cache_dir).load(), _plan(ctx, machine))


def read_or_measure(
    ctx: Context,
    host: str,
    *,
    budget_s: float = BUDGET_S,
    cache_dir: Path | None = None,
    torch_python: str | None = None,
    torch_budget_s: float = 0.0,
    refresh: bool = False,
) -> Document:
    """The document of ceilings.json for this host. Never raises for what the machine lacks.

    Args:
        ctx: must be live; of a captured tree nothing is measured.
        host: its name.
        budget_s: wall time for measuring in all, process starts included.
        cache_dir: where figures are kept; None = below $XDG_CACHE_HOME. Need not be writable.
        torch_python: a Python that may have torch.
        torch_budget_s: further wall time for torch (GPUs, and bf16 on CPUs): it alone needs seconds to start.
        refresh: measure anew and forget what is kept for this host, what torch measured included.
    """
    if not ctx.live:
        return _document(
            host, {}, missing=[{"what": "ceilings", "reason": "a captured tree cannot be measured"}]
        )
    machine = read_host(ctx)
    cache = _cache(ctx, host, machine, cache_dir)
    plan = _plan(ctx, machine)
    with cache.locked() as alone:
        cached = _keepable(cache.load())
        if not refresh and _complete(cached, plan):
            return _finished(ctx, host, machine, {**cached, "cached": True}, 0.0)
        if not alone:
            reason = "another perfscope is measuring this host"
            waiting = _document(host, cached, missing=[{"what": "ceilings", "reason": reason}])
            return _finished(ctx, host, machine, {**waiting, "cached": bool(cached)}, 0.0)
        if refresh:
            cached = {}
        todo = (_settled(cached) and _left(cached, plan)) or plan
        fresh = measure(ctx, host, machine, todo, budget_s)
        if torch_python and torch_budget_s > 0:
            _add_torch(fresh, machine, torch_python, torch_budget_s)
        elif torch_budget_s > 0:
            fresh["missing"].append({"what": _BY_TORCH, "reason": "no Python with torch was found"})
        merged = merge(cached, fresh)
        cache.store(_keepable(merged))
    return _finished(ctx, host, machine, merged, torch_budget_s)


def measure(ctx: Context, host: str, machine: LocalHost, plan: Iterable[Entry], budget_s: float) -> Document:
    """Do what a plan says in `budget_s` seconds of wall time; see ceilings_numpy for the tasks."""
    began, pressure = time.monotonic(), _pressures(ctx)
    deadline = began + max(budget_s - _MARGIN_S, 0.0)
    tasks = list(plan)
    entries: list[Document] = []
    missing: list[Document] = []
    alone = [task for task in tasks if task["kind"] == "gemm" and task["label"]["threads"] < machine.threads]
    numpy_tasks = [task for task in tasks if task not in alone]
    if numpy_tasks:
        limit = deadline if not alone else began + _FIRST_SHARE * (deadline - began)
        _run_numpy(numpy_tasks, machine.threads, limit, entries, missing)
    if alone:
        _run_numpy(alone, 1, deadline, entries, missing)
    how = [str(line.pop("how")) for line in list(entries) if "how" in line]
    took = time.monotonic() - began
    return _document(
        host,
        {
            "measured_unix_ns": time.time_ns(),
            "took_ns": int(took * 1e9),
            "how": how[0] if how else "",
            "pressure": _ratios(pressure, _pressures(ctx), took),
            "entries": [line for line in entries if "value" in line],
            "tries": 1,
        },
        missing=missing,
    )


def _run_numpy(
    tasks: list[Entry], threads: int, deadline: float, entries: list[Document], missing: list[Document]
) -> None:
    script = Path(__file__).with_name("kernels_numpy.py")
    names = ("OPENBLAS", "OMP", "MKL", "BLIS", "VECLIB_MAXIMUM", "NUMEXPR")
    environment = {f"{name}_NUM_THREADS": str(threads) for name in names}
    # The process is asked to end a little earlier than it would be killed, so that it reports what it left
    # out.
    plan = {"deadline": deadline - _MARGIN_S, "tasks": tasks}
    answer = run_child(sys.executable, script, plan, environment, deadline)
    _sort(answer.lines, entries, missing)
    answered = {_key(line) for line in [*entries, *missing] if "kind" in line}
    reason = answer.failure or "no time was left"
    silent = [label for task in tasks for label in _labels(task) if _key(label) not in answered]
    missing += [{**label, "what": what(label), "reason": reason} for label in silent]


def _labels(task: Entry) -> list[Document]:
    return [{**task["label"], "dtype": dtype} for dtype in task.get("dtypes", (None,))]


def _sort(lines: list[Document], entries: list[Document], missing: list[Document]) -> None:
    for line in lines:
        if "missing" in line:
            label = line["missing"]
            missing.append({**label, "what": what(label), "reason": line["reason"]})
        else:
            entries.append(line)


def _add_torch(document: Document, machine: LocalHost, python: str, budget_s: float) -> None:
    """What torch measures, into a document that numpy's figures are in already."""
    deadline = time.monotonic() + max(budget_s - _MARGIN_S, 0.0)
    cpu = {"threads": machine.threads, "cpus": format_cpulist(machine.cpus)}
    plan = {"deadline": deadline - 2 * _TORCH_STEP_S, "cpu": cpu, "seconds": _TORCH_STEP_S}
    script = Path(__file__).with_name("kernels_torch.py")
    answer = run_child(python, script, plan, {"OMP_NUM_THREADS": str(machine.threads)}, deadline)
    entries: list[Document] = []
    _sort(answer.lines, entries, document["missing"])
    how = [str(line["how"]) for line in entries if "how" in line]
    document["how"] = "; ".join(part for part in [document["how"], *how] if part)
    document["entries"] += [line for line in entries if "value" in line]
    document["took_ns"] += answer.took_ns
    if answer.failure:
        reason = f"{python} has no torch" if "No module named 'torch'" in answer.failure else answer.failure
        document["missing"].append({"what": _BY_TORCH, "reason": reason})


def _plan(ctx: Context, machine: LocalHost) -> list[Document]:
    """Tasks in order of worth: what does not fit into the budget is left for the next run."""
    tasks: list[Document] = []
    with_cores = [node for node in machine.nodes if node.cores]
    everything = [(cpu, node.number) for node in with_cores for cpu in node.cores]
    chosen = _spread(everything, machine.threads)
    tasks.append(_triad(ctx, machine, None, chosen))
    if machine.threads > 1:
        tasks.append(_gemm(machine, machine.threads))
    if len(machine.nodes) > 1:
        for node in machine.nodes:
            cores = node.cores or tuple(cpu for cpu, _ in chosen)
            tasks.append(_triad(ctx, machine, node.number, [(cpu, node.number) for cpu in cores]))
    tasks.append(_gemm(machine, 1))
    for node in machine.nodes:
        cpu = (node.cores or with_cores[0].cores)[0]
        tasks.append(_triad(ctx, machine, node.number, [(cpu, node.number)]))
    by_key: dict[tuple[Any, ...], Document] = {}
    for task in tasks:
        by_key.setdefault((task["kind"], *sorted(task["label"].items(), key=str)), task)
    return list(by_key.values())


def _spread(workers: list[tuple[int, int]], number: int) -> list[tuple[int, int]]:
    """So many of them, taken from all nodes in turn."""
    turns: dict[int, int] = {}
    order = []
    for cpu, node in workers:
        turns[node] = turns.get(node, 0) + 1
        order.append((turns[node], node, cpu))
    return [(cpu, node) for _, node, cpu in sorted(order)[:number]]


def _triad(ctx: Context, machine: LocalHost, node: int | None, workers: list[tuple[int, int]]) -> Document:
    workers = workers[: min(machine.threads, _MAX_WORKERS)]
    cpus = tuple(cpu for cpu, _ in workers)
    free = [machine.free_bytes]
    free += [
        node_facts.free_bytes
        for node_facts in machine.nodes
        if node_facts.number == node and node_facts.free_bytes is not None
    ]
    wanted = max(_CACHES * last_level_bytes(ctx, cpus), _SMALLEST)
    # Touching the arrays first must not take the whole budget either.
    affordable = int(_TOUCH_BYTES_PER_S * 0.5 * len(workers) / 3)
    size = min(wanted, max(affordable, _SMALLEST), _LARGEST * len(workers), min(free) // _MEMORY_SHARE)
    label = {
        "kind": "stream_triad",
        "device": "cpu",
        "node": node,
        "cpus": format_cpulist(cpus),
        "threads": len(workers),
    }
    return {"kind": "stream_triad", "label": label, "workers": workers, "bytes": size, "seconds": _TRIAD_S}


def _gemm(machine: LocalHost, threads: int) -> Document:
    label = {
        "kind": "gemm",
        "device": "cpu",
        "node": None,
        "cpus": format_cpulist(machine.cpus),
        "threads": threads,
    }
    return {"kind": "gemm", "label": label, "dtypes": ["float32", "float64"], "seconds": _GEMM_S}


def what(label: Entry) -> str:
    """An entry in words: ``STREAM triad, node 0, 4 threads``."""
    kinds = {kind.value: title for kind, title in CEILING_TITLES.items()}
    parts = [kinds.get(str(label.get("kind")), CEILING_TITLES[CeilingKind.DEVICE_GEMM])]
    if label.get("dtype"):
        parts[0] += f" {label['dtype']}"
    if label.get("device") not in (None, "cpu"):
        parts.append(str(label["device"]))
    if label.get("node") is not None:
        parts.append(f"node {label['node']}")
    if label.get("threads"):
        parts.append(f"{label['threads']} thread{'s' if label['threads'] != 1 else ''}")
    return ", ".join(parts)


def _key(entry: Entry) -> tuple[object, ...]:
    return tuple(entry.get(name) for name in ("kind", "device", "node", "threads", "dtype"))


def _settled(cached: Entry) -> bool:
    """Whether figures are as good as they will become."""
    pressure = cached.get("pressure") or {}
    quiet = (pressure.get("cpu_some_ratio") or 0.0) < PRESSED
    return bool(cached) and (quiet or cached.get("tries", 1) >= MAX_TRIES)


def _complete(cached: Entry, plan: Iterable[Entry]) -> bool:
    if not cached.get("entries"):
        return False
    if _left(cached, plan):
        return bool(cached.get("tries", 1) >= 2 * MAX_TRIES)
    return _settled(cached)


def _left(cached: Entry, plan: Iterable[Entry]) -> list[Document]:
    """Tasks of which a figure is missing."""
    have = {_key(entry) for entry in cached.get("entries", ())}
    return [dict(task) for task in plan if any(_key(label) not in have for label in _labels(task))]


def _keepable(document: Document) -> Document:
    """Without remarks about the moment ("this Python has no torch"): they need not be true later."""
    if not document:
        return document
    return {**document, "missing": [gap for gap in document["missing"] if "kind" in gap]}


def merge(cached: Entry, fresh: Entry) -> Document:
    """The best of two measurements, entry by entry, and what is missing in both."""
    entries: dict[tuple[object, ...], Document] = {}
    dated = [
        {"measured_unix_ns": doc.get("measured_unix_ns"), **entry}
        for doc in (cached, fresh)
        for entry in doc.get("entries", ())
    ]
    for entry in dated:
        other = entries.get(_key(entry))
        runs = entry["runs"] + (other["runs"] if other else 0)
        best = entry if other is None or entry["value"] > other["value"] else other
        entries[_key(entry)] = {**best, "runs": runs}
    missing = [gap for gap in fresh["missing"] if "kind" not in gap or _key(gap) not in entries]
    pressures = [doc.get("pressure") or {} for doc in (cached, fresh) if doc]
    calm = min(pressures, key=lambda pressure: pressure.get("cpu_some_ratio") or 0.0)
    tries = int(cached.get("tries", 0)) + int(fresh.get("tries", 1))
    how = fresh["how"] or cached.get("how", "")
    return {
        **fresh,
        "how": how,
        "entries": list(entries.values()),
        "missing": missing,
        "pressure": calm,
        "tries": tries,
    }


def _document(host: str, parts: Entry, *, missing: list[Document]) -> Document:
    empty: Document = {
        "schema_version": layout.SCHEMA_VERSION,
        "host": host,
        "measured_unix_ns": None,
        "took_ns": 0,
        "how": "",
        "cached": False,
        "pressure": {"cpu_some_ratio": None, "memory_some_ratio": None},
        "entries": [],
        "theoretical": [],
        "tries": 0,
    }
    return {**empty, **parts, "missing": missing}


def _finished(
    ctx: Context, host: str, machine: LocalHost, document: Document, torch_budget_s: float
) -> Document:
    """With one node standing for all where there is only one, the data sheets, and words for the GPUs."""
    entries = [dict(entry) for entry in document["entries"]]
    if len(machine.nodes) == 1:
        have = {_key(entry) for entry in entries}
        both = (machine.nodes[0].number, None)
        for entry in [entry for entry in entries if entry["kind"] == "stream_triad"]:
            twins = [{**entry, "node": node} for node in both]
            entries += [twin for twin in twins if _key(twin) not in have]
    named = ("kind", "what", "reason")
    missing = [{name: gap[name] for name in named if name in gap} for gap in document["missing"]]
    measured = {entry["device"] for entry in entries}
    if not any(device.startswith("cuda") for device in measured) and _gpu_names(ctx) and not torch_budget_s:
        reason = (
            "torch needs seconds to start: `perfscope doctor --ceilings` measures them once for this host"
        )
        missing += [
            {"kind": kind.value, "what": CEILING_TITLES[kind], "reason": reason}
            for kind in (CeilingKind.DEVICE_COPY, CeilingKind.DEVICE_GEMM)
        ]
    document = {**document, "entries": entries, "missing": missing, "theoretical": _theoretical(ctx, host)}
    del document["tries"]
    document.pop("fingerprint", None)
    return document


def _theoretical(ctx: Context, host: str) -> list[dict[str, object]]:
    """Data sheet figures for what this host has."""
    from perfscope.collectors.machine.peaks import theoretical_peaks
    from perfscope.collectors.machine.topology import read_topology

    return theoretical_peaks(read_topology(ctx, host))


def _gpu_names(ctx: Context) -> list[str]:
    from perfscope.collectors.gpu.registry import driver_names

    return driver_names(ctx)


def _cache(ctx: Context, host: str, machine: LocalHost, folder: Path | None) -> Cache:
    return Cache(folder or default_folder(), host, machine, _gpu_names(ctx))


def _pressures(ctx: Context) -> dict[str, int]:
    """Total µs in which some process waited, by resource; {} where the kernel does not tell."""
    totals = {}
    for resource in ("cpu", "memory"):
        for line in ctx.read_or(f"/proc/pressure/{resource}").splitlines():
            head, _, total = line.rpartition("total=")
            if head.startswith("some") and total.isdigit():
                totals[resource] = int(total)
    return totals


def _ratios(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, float | None]:
    """Shares of the time measured in which CPU and memory were waited for (by us as well as by others)."""
    return {
        f"{resource}_some_ratio": round((after[resource] - before[resource]) / 1e6 / max(seconds, 1e-3), 4)
        if resource in before and resource in after
        else None
        for resource in ("cpu", "memory")
    }
