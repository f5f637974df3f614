"""One copy of a short serial training, timed block by block: `python -m ... SETTINGS`, one JSON line out.

Copies run at the same time, as the ranks of a host do, and so share its cores and its memory bandwidth. They
meet before each batch size; afterwards they time the all-reduces of their group.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from perfscope.runners.config import BenchConfig
from perfscope.runners.data.registry import open_feed
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import describe_model
from perfscope.runners.schemes.serial import Serial
from perfscope.runners.world import Alone, World

_WARM_UP, _FEWEST, _MOST = 2, 3, 200  # steps
_SIZES = (4096, 262_144, 4 << 20)  # bytes of all-reduces
_ROUNDS = 10
_JOIN_S = 60.0


class _Clock:
    """When each block's passes begin and end in one step; seconds, or events of a GPU."""

    def __init__(self, model: nn.Sequential, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._is_device = device.type == "cuda"
        self._marks: list[tuple[str, int, Any]] = []
        for index, child in enumerate(model.children()):
            child.register_forward_pre_hook(partial(self._enter, index))
            child.register_forward_hook(partial(self._leave, index))
        optimizer.register_step_pre_hook(lambda *_: self.mark("update"))

    def mark(self, what: str, index: int = -1) -> None:
        """Now."""
        now: Any = time.perf_counter()
        if self._is_device:
            now = torch.cuda.Event(enable_timing=True)
            now.record()
        self._marks.append((what, index, now))

    def _enter(self, index: int, *_: Any) -> None:
        self.mark("forward", index)

    def _leave(self, index: int, _module: Any, _inputs: Any, output: torch.Tensor) -> None:
        self.mark("loss", index)  # unless another block begins at once
        if output.requires_grad:
            output.register_hook(lambda _gradient: self.mark("backward", index))

    def take(self) -> dict[str, float]:
        """Seconds of `forward 0`, `backward 3`, `update`, `loss` ...; the marks are forgotten."""
        if self._is_device:
            torch.cuda.synchronize()
        spent: dict[str, float] = {}
        for (what, index, begin), (_, _, end) in zip(self._marks[:-1], self._marks[1:], strict=True):
            seconds = begin.elapsed_time(end) * 1e-3 if self._is_device else end - begin
            name = f"{what} {index}" if what in ("forward", "backward") else what
            spent[name] = spent.get(name, 0.0) + seconds
        self._marks.clear()
        return spent


def main(text: str) -> None:
    """Does what the settings say; `cpus` of a row: CPUs that the process had on average.

    Args:
        text: JSON of config (of `BenchConfig.to_json`), batches, seconds (per batch), threads, rank, size and
            store (a file that all copies can reach; "": one copy).
    """
    settings = json.loads(text)
    config = BenchConfig.from_json(settings["config"])
    torch.set_num_threads(settings["threads"])
    meet = _meeting(settings)
    device = torch.device("cuda", settings["rank"]) if config.device == "cuda" else torch.device("cpu")
    rows = [
        _timed(replace(config, batch=batch), device, settings["seconds"], meet)
        for batch in settings["batches"]
    ]
    calls = _all_reduces(settings["size"]) if settings["size"] > 1 and device.type == "cpu" else []
    sys.stdout.write(json.dumps({"rows": rows, "all_reduces": calls}) + "\n")
    sys.stdout.flush()
    if settings["size"] > 1:
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _meeting(settings: dict[str, Any]) -> Callable[[], Any]:
    if settings["size"] == 1:
        return lambda: None
    dist.init_process_group(
        "gloo",
        init_method=f"file://{settings['store']}",
        rank=settings["rank"],
        world_size=settings["size"],
        timeout=timedelta(seconds=_JOIN_S),
    )
    meet: Callable[[], Any] = dist.barrier
    return meet


def _timed(
    config: BenchConfig, device: torch.device, seconds: float, meet: Callable[[], Any]
) -> dict[str, Any]:
    """Mean seconds of each part of a step, over the middle half of the steps by their length."""
    job = Job(config=config, mesh=Mesh(), shape=describe_model(config))
    scheme = Serial(job, World(Alone(), 0, device))
    scheme.build(build_model(config).to(device))
    feed = open_feed(config, device)
    clock = _Clock(scheme.model, scheme.optimizer, device)

    def step(number: int) -> dict[str, float]:
        clock.mark("input")
        batch = feed.batch(number, 0, 1)
        clock.mark("reset")
        scheme.step(batch)
        clock.mark("end")
        return clock.take()

    for number in range(_WARM_UP):
        step(number)
    meet()
    steps: list[dict[str, float]] = []
    begin, begin_cpu = time.perf_counter(), time.process_time()
    while len(steps) < _FEWEST or (time.perf_counter() < begin + seconds and len(steps) < _MOST):
        steps.append(step(_WARM_UP + len(steps)))
    spent, spent_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    meet()
    steps.sort(key=lambda spent: sum(spent.values()))
    quarter = len(steps) // 4
    kept = steps[quarter : len(steps) - quarter]
    names = kept[0].keys()
    means = {name: sum(spent.get(name, 0.0) for spent in kept) / len(kept) for name in names}
    return {"seconds": means, "cpus": spent_cpu / spent}


def _all_reduces(size: int) -> list[dict[str, Any]]:
    """Seconds of calls of each size, by repetition."""
    calls = []
    for num_bytes in _SIZES:
        tensor = torch.zeros(num_bytes // 4)
        dist.all_reduce(tensor)
        dist.barrier()
        spent = []
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            spent.append(time.perf_counter() - begin)
        calls.append({"num_ranks": size, "bytes": num_bytes, "seconds": spent})
    return calls


if __name__ == "__main__":
    main(sys.argv[1])
