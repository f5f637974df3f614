"""Measures what this machine's memory and CPUs can do, with numpy. Run as a script, in a process of its own.

    python ceilings_numpy.py PLAN          PLAN: JSON, see `main`; prints one JSON object a line as it goes

STREAM triad (a = b + s*c, 24 bytes an element) by one forked process per CPU, bound to it, each with arrays
of its own that it touches first: threads would wait for each other's Python. The scalar is 1, so that numpy
needs one pass; the multiplication that this saves moves no bytes, while in two passes, block by block, one
thread reaches only three quarters of what C does. GEMM is numpy's BLAS; the number of its threads comes
from the environment. Nothing else of perfscope is imported: the sampler never loads numpy.

Latency: loads that each need the one before, through lines in random order. A step in Python takes as long as
the load itself, so the loop is four instructions of machine code in a mapping of their own.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import statistics
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

TRIAD_BYTES = 24  # per element, as STREAM counts: two reads and a write
_FEWEST = 1 << 14  # elements
MAX_PASSES = 400
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_BIND = 2
_FIRST_N, _LARGEST_N = 256, 4096
_GEMM_S = 0.02  # how long one multiplication should take
_LINE_BYTES = 64
_CHASES, _FEWEST_CHASES = 8, 2
# f(address, count): follow pointers `count` times and return where that led.
_CHASE_CODE = {
    "x86_64": bytes.fromhex("488b3f48ffce75f84889f8c3"),  # mov, dec, jnz, mov, ret
    "aarch64": bytes.fromhex("000040f9210400f1c1ffff54c0035fd6"),  # ldr, subs, b.ne, ret
}

Worker = tuple[int, int | None]  # CPU, NUMA node of its memory


def main(text: str) -> None:
    """Do what a plan says: {"deadline": monotonic s, "tasks": [task, ..]}.

    Tasks: {"kind":"stream_triad","label":{..},"workers":[[cpu,node],..],"bytes":array size of all workers,
    "seconds":..}, {"kind":"latency","label":{..},"worker":[cpu,node],"bytes":..,"seconds":..} and
    {"kind":"gemm","label":{..},"dtypes":[..],"seconds":..}. What is printed is the label with value, unit,
    runs, spread_ratio and size.
    """
    plan = json.loads(text)
    say({"how": library()})
    for task in plan["tasks"]:
        for dtype in task.get("dtypes", [None]):
            label = {**task["label"], "dtype": dtype}
            left = plan["deadline"] - time.monotonic()
            if left < task["seconds"]:
                say({"missing": label, "reason": "no time was left"})
                continue
            try:
                say({**label, **measure(task, dtype, left)})
            except (OSError, MemoryError, ValueError) as error:
                say({"missing": label, "reason": str(error) or type(error).__name__})


def measure(task: dict[str, Any], dtype: str | None, left: float) -> dict[str, Any]:
    """One figure, with `left` seconds at most."""
    if task["kind"] == "gemm":
        return gemm(str(dtype), task["seconds"])
    if task["kind"] == "latency":
        return latency(task["worker"], task["bytes"], task["seconds"], left)
    return triad(task["workers"], task["bytes"], task["seconds"], left)


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def library() -> str:
    """``numpy 2.4.6, OpenBLAS 0.3.30``."""
    try:
        config: Any = np.show_config(mode="dicts")
        blas = config["Build Dependencies"]["blas"]
        name = str(blas["name"]).replace("scipy-openblas", "OpenBLAS")
        return f"numpy {np.__version__}, {name} {blas['version']}"
    except (KeyError, TypeError):
        return f"numpy {np.__version__}"


def gemm(dtype: str, seconds: float) -> dict[str, Any]:
    """FLOP/s of square multiplications (2n³ each), the best of those that fit into `seconds`."""
    end = time.perf_counter() + seconds
    took = min(_multiply(dtype, _FIRST_N, 5))  # the first wakes the BLAS threads
    wanted = _FIRST_N * (_GEMM_S / max(took, 1e-6)) ** (1 / 3)
    size = max(2 * _FIRST_N, min(_LARGEST_N, int(wanted) // 64 * 64))
    runs = _multiply(dtype, size, MAX_PASSES, end)
    rates = [2.0 * size**3 / run for run in runs]
    return _figure(rates, "flops_per_s", size)


def _multiply(dtype: str, size: int, times: int, end: float = 0.0) -> list[float]:
    """Seconds of each multiplication: `times` at most, three at least when there is an end."""
    a = np.full((size, size), 0.5, dtype)
    b = np.full((size, size), 0.25, dtype)
    out = np.empty((size, size), dtype)
    runs: list[float] = []
    while len(runs) < times and (not end or len(runs) < 3 or time.perf_counter() < end):
        began = time.perf_counter()
        np.matmul(a, b, out=out)
        runs.append(time.perf_counter() - began)
    return runs


def triad(workers: Sequence[Worker], size: int, seconds: float, left: float) -> dict[str, Any]:
    """Bytes/s of all workers together; the best of several windows as long as a pass.

    Args:
        workers: a process each.
        size: bytes of one array, shared out among the workers.
        seconds: how long to go on once all are ready.
        left: after so long from now everybody ends, ready or not.

    Raises:
        OSError: processes cannot be started, or none has finished.
    """
    elements = max(size // 8 // len(workers), _FEWEST)
    times = mmap.mmap(-1, len(workers) * (MAX_PASSES + 1) * 16)
    deadline = time.perf_counter() + left
    children: list[int] = []
    try:
        for index, (cpu, node) in enumerate(workers):
            pid = os.fork()
            if pid == 0:
                _work(index, len(workers), cpu, node, elements, times, seconds, deadline)
            children.append(pid)
    finally:
        for pid in children:
            os.waitpid(pid, 0)
    passes = [_passes(times, index) for index in range(len(workers))]
    rates = aggregate([worker_passes for worker_passes in passes if worker_passes], elements * TRIAD_BYTES)
    if not rates or not all(passes):
        raise OSError("no pass was finished in time")
    return _figure(rates, "bytes_per_s", 3 * 8 * elements * len(workers))


def latency(worker: Worker, size: int, seconds: float, left: float) -> dict[str, Any]:
    """Seconds of one load that misses every cache, by a CPU from a node's memory; the best of several rounds.

    Args:
        worker: the CPU, and the node of the memory.
        size: bytes that are walked through; several times the last-level cache.
        seconds: how long to go on once the memory is set up.
        left: after so long it ends, with what it has.

    Raises:
        OSError: this processor has no loop here, machine code may not be mapped, or there was no time.
    """
    code = _CHASE_CODE.get(platform.machine())
    if code is None:
        raise OSError(f"not measured on {platform.machine()}: its loop of loads is not written")
    times = mmap.mmap(-1, (_CHASES + 1) * 16)
    pid = os.fork()
    if pid == 0:
        _chase_alone(worker, size, code, times, seconds, time.perf_counter() + left)
    os.waitpid(pid, 0)
    rounds = [_read(times, 0, index) for index in range(_CHASES)]
    per_load = [end for begin, end in rounds if begin]
    if not per_load:
        raise OSError("no round of loads was finished, or this kernel forbids new machine code")
    best = min(per_load)
    return {
        "value": best,
        "unit": "s",
        "runs": len(per_load),
        "spread_ratio": round((statistics.median(per_load) - best) / best, 4) if len(per_load) > 1 else None,
        "size": size,
    }


def _chase_alone(
    worker: Worker, size: int, code: bytes, times: mmap.mmap, seconds: float, deadline: float
) -> None:
    """The life of the process that measures a latency; never returns."""
    try:
        cpu, node = worker
        os.sched_setaffinity(0, {cpu})
        if node is not None:
            _bind_memory(node)
        memory = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # else much of the time goes into finding pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        loop = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        loop.write(code)
        entry = ctypes.addressof(ctypes.c_char.from_buffer(loop))
        chase = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)(entry)
        at, lines = _linked(memory), size // _LINE_BYTES
        end = min(time.perf_counter() + seconds, deadline)
        count = min(lines, 100_000)
        for index in range(_CHASES):
            began = time.perf_counter()
            at = chase(at, count)
            took = time.perf_counter() - began
            _mark(times, 0, index, 1.0, took / count)
            if time.perf_counter() > end and index + 1 >= _FEWEST_CHASES:
                break
    finally:
        os._exit(0)


def _linked(memory: mmap.mmap) -> int:
    """Fills memory with pointers from line to line, one circle in random order; the address of its start."""
    pointers = np.frombuffer(memory, np.uint64)
    step = _LINE_BYTES // 8
    order = np.random.default_rng(0).permutation(len(pointers) // step)
    base = int(pointers.ctypes.data)
    pointers[order * step] = base + np.roll(order, -1).astype(np.uint64) * np.uint64(_LINE_BYTES)
    return base


def aggregate(passes: Sequence[Sequence[tuple[float, float]]], num_bytes: int) -> list[float]:
    """Rates of all workers together, window by window, in the time in which all of them worked.

    Args:
        passes: per worker, (begin, end) of each pass.
        num_bytes: of one pass.
    """
    if not passes:
        return []
    start = max(worker[0][0] for worker in passes)
    end = min(worker[-1][1] for worker in passes)
    longest = max(stop - begin for worker in passes for begin, stop in worker)
    count = int((end - start) / longest)
    if count < 1:
        return []
    width = (end - start) / count
    rates = [0.0] * count
    for worker in passes:
        for begin, stop in worker:
            first = max(int((begin - start) / width), 0)
            for window in range(first, min(int((stop - start) / width) + 1, count)):
                low = max(begin, start + window * width)
                shared = min(stop, start + (window + 1) * width) - low
                if shared > 0:
                    rates[window] += num_bytes * shared / (stop - begin) / width
    return rates


def _figure(rates: Sequence[float], unit: str, size: int) -> dict[str, Any]:
    best = max(rates)
    return {
        "value": best,
        "unit": unit,
        "runs": len(rates),
        "spread_ratio": round((best - statistics.median(rates)) / best, 4) if len(rates) > 1 else None,
        "size": size,
    }


def _work(
    index_of_worker: int,
    number: int,
    cpu: int,
    node: int | None,
    elements: int,
    times: mmap.mmap,
    seconds: float,
    deadline: float,
) -> None:
    """One worker's life; never returns."""
    try:
        os.sched_setaffinity(0, {cpu})
        if node is not None:
            _bind_memory(node)
        a, b, c = np.empty(elements), np.empty(elements), np.empty(elements)
        b.fill(1.0)
        c.fill(2.0)
        np.add(b, c, a)  # touches the first array
        _mark(times, index_of_worker, MAX_PASSES, 1.0, 1.0)  # ready
        while not all(_read(times, other, MAX_PASSES)[0] for other in range(number)):
            if time.perf_counter() > deadline:
                os._exit(1)
            time.sleep(0.0002)
        end = min(time.perf_counter() + seconds, deadline)
        for index in range(MAX_PASSES):
            began = time.perf_counter()
            if began > end and index >= 2:
                break
            np.add(b, c, a)
            _mark(times, index_of_worker, index, began, time.perf_counter())
    finally:
        os._exit(0)


def _bind_memory(node: int) -> None:
    """All that this process allocates from now on lies on `node`. Silently not, where it is not allowed:
    then first touch decides, which is the same on a node that has the CPU."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return
    mask = (ctypes.c_ulong * (node // 64 + 1))()
    mask[node // 64] = 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(ctypes.c_long(number), ctypes.c_int(_MPOL_BIND), mask, ctypes.c_ulong(64 * len(mask) + 1))


def _mark(times: mmap.mmap, index_of_worker: int, index: int, begin: float, end: float) -> None:
    struct.pack_into("dd", times, 16 * (index_of_worker * (MAX_PASSES + 1) + index), begin, end)


def _read(times: mmap.mmap, index_of_worker: int, index: int) -> tuple[float, float]:
    begin, end = struct.unpack_from("dd", times, 16 * (index_of_worker * (MAX_PASSES + 1) + index))
    return begin, end


def _passes(times: mmap.mmap, index_of_worker: int) -> list[tuple[float, float]]:
    pairs = (_read(times, index_of_worker, index) for index in range(MAX_PASSES))
    return [pair for pair in pairs if pair[1] > 0]


if __name__ == "__main__":
    main(sys.argv[1])
