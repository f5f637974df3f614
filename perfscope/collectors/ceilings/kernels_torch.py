"""Measures GEMM on CPU and GPUs and copies on GPUs with the user's PyTorch. Run as a script by that Python.

    python ceilings_torch.py PLAN          PLAN: JSON, see `main`; prints one JSON object a line as it goes

Standard library and torch only, Python 3.8 and later. Dense figures: 2n³ per multiplication of n x n; a copy
counts the bytes it reads and those it writes.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

GEMM_S = 0.05  # how long one timed batch should take, about
FIRST_N, LARGEST_N = 256, 8192
COPY_BYTES = 1 << 30
BATCHES = 50


def main(text: str) -> None:
    """Do what a plan says: {"deadline": monotonic s, "cpu": {"threads":..,"cpus":..} or null, "seconds": s}.

    Prints entries of ceilings.json, {"how": ..} first, and {"missing": .., "reason": ..} for what fails.
    """
    plan = json.loads(text)
    version = "torch " + torch.__version__
    say({"how": version + (", CUDA " + torch.version.cuda if torch.version.cuda else "")})
    tasks: list[tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = []
    if plan.get("cpu"):
        torch.set_num_threads(plan["cpu"]["threads"])
        label = {
            "device": "cpu",
            "node": None,
            "cpus": plan["cpu"]["cpus"],
            "threads": plan["cpu"]["threads"],
        }
        tasks += [
            (dict(label, kind="gemm", dtype=dtype), partial(gemm, "cpu", dtype, plan["seconds"]))
            for dtype in ("float32", "bfloat16", "float16")
        ]
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        tasks += gpu_tasks(number, plan["seconds"])
    for label, task in tasks:
        if time.monotonic() > plan["deadline"]:
            say({"missing": label, "reason": "no time was left"})
            continue
        try:
            say(dict(label, **task()))
        except (RuntimeError, TypeError, AttributeError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            say({"missing": label, "reason": first})


def gpu_tasks(number: int, seconds: float) -> list[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    device = "cuda:" + str(number)
    properties = torch.cuda.get_device_properties(number)
    label = {
        "device": device,
        "node": None,
        "cpus": None,
        "threads": None,
        "name": properties.name,
        "uuid": str(getattr(properties, "uuid", "")) or None,
    }
    tasks: list[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]
    tasks = [(dict(label, kind="device_copy", dtype=None), partial(copy, device, seconds))]
    tasks += [
        (dict(label, kind="device_gemm", dtype=dtype), partial(gemm, device, dtype, seconds))
        for dtype in ("bfloat16", "float16", "tf32", "float32", "float64")
    ]
    return tasks


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def gemm(device: str, dtype: str, seconds: float) -> dict[str, Any]:
    """FLOP/s of square multiplications, the best of several batches."""
    on_gpu = device != "cpu"
    if on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    size = FIRST_N if not on_gpu else 2048
    end = time.perf_counter() + seconds
    took = min(_timed(device, _multiplication(device, kind, size), 1) for _ in range(3))
    wanted = int(size * (GEMM_S / max(took, 1e-6)) ** (1.0 / 3)) // 128 * 128
    size = max(size, min(LARGEST_N, wanted))
    work = _multiplication(device, kind, size)
    batch = max(1, int(GEMM_S / max(_timed(device, work, 1), 1e-6)))
    rates: list[float] = []
    while len(rates) < BATCHES and (len(rates) < 3 or time.perf_counter() < end):
        rates.append(2.0 * size**3 * batch / _timed(device, work, batch))
    return _figure(rates, "flops_per_s", size)


def _multiplication(device: str, kind: Any, size: int) -> Callable[[], Any]:
    a = torch.full((size, size), 0.5, dtype=kind, device=device)
    b = torch.full((size, size), 0.25, dtype=kind, device=device)
    out = torch.empty((size, size), dtype=kind, device=device)
    return lambda: torch.mm(a, b, out=out)


def copy(device: str, seconds: float) -> dict[str, Any]:
    """Bytes/s read and written by a copy within the GPU's memory."""
    free = torch.cuda.mem_get_info(device)[0]
    size = min(COPY_BYTES, free // 4)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    end = time.perf_counter() + seconds
    _timed(device, lambda: target.copy_(source), 2)
    rates: list[float] = []
    while len(rates) < BATCHES and (len(rates) < 3 or time.perf_counter() < end):
        rates.append(2.0 * size * 10 / _timed(device, lambda: target.copy_(source), 10))
    return _figure(rates, "bytes_per_s", size)


def _timed(device: str, work: Callable[[], Any], times: int) -> float:
    """Seconds of `times` calls: by the GPU's own clock where there is one."""
    if device == "cpu":
        began = time.perf_counter()
        for _ in range(times):
            work()
        return time.perf_counter() - began
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.device(device):
        begin.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
    seconds: float = begin.elapsed_time(end) / 1000.0
    return seconds


def _figure(rates: list[float], unit: str, size: int) -> dict[str, Any]:
    best = max(rates)
    return {
        "value": best,
        "unit": unit,
        "runs": len(rates),
        "spread_ratio": round((best - statistics.median(rates)) / best, 4) if len(rates) > 1 else None,
        "size": size,
    }


if __name__ == "__main__":
    code = 0
    with torch.no_grad():
        main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)  # no waiting for CUDA to be taken down
