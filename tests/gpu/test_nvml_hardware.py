"""NVML on a real GPU against what torch knows it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perfscope.collectors.base import Reading
from perfscope.collectors.context import Context, live_context
from perfscope.collectors.gpu.nvidia.counters import NvmlDevices
from perfscope.collectors.gpu.nvidia.devices import gpu_links, list_gpus
from perfscope.collectors.gpu.nvidia.gpm import NvmlGpm
from perfscope.collectors.gpu.nvidia.library import load_nvml
from perfscope.collectors.gpu.nvidia.links import NvmlLinks
from perfscope.collectors.gpu.nvidia.parts import NvmlCollector
from perfscope.collectors.gpu.nvidia.processes import NvmlProcesses
from perfscope.collectors.library import this_machines
from tests.gpu.record_nvml import record
from tests.support.nvml_stand_in import StandIn, installed

pytestmark = pytest.mark.gpu

TOLERANCE = 0.15


def opened(kind: type[NvmlCollector], ctx: Context | None = None) -> NvmlCollector:
    collector, ctx = kind(), ctx or live_context()
    capability = collector.probe(ctx)
    if not capability.available:
        pytest.skip(f"{kind.name}: {capability.reason}")
    collector.open(ctx)
    return collector


def of(readings: list[Reading], metric: str, gpu: int) -> list[float]:
    """Values in units, in order."""
    return [
        reading.value * reading.series.metric.scale
        for reading in readings
        if reading.series.metric.name == metric
        and reading.series.labels["gpu"] == str(gpu)
        and reading.value is not None
    ]


def sampled(collector: NvmlCollector, work: Callable[[], None], seconds: float) -> list[Reading]:
    """Readings every 50 ms while `work` is done again and again."""
    readings = list(collector.sample())
    end = time.monotonic() + seconds
    due = time.monotonic()
    while time.monotonic() < end:
        work()
        if time.monotonic() >= due:
            readings += collector.sample()
            due += 0.05
    readings += collector.sample()
    return readings


def test_answers_are_sane_and_agree_with_torch(nvml: Any, cuda: Any, gpu_index: int) -> None:
    readings = list(opened(NvmlDevices).sample())
    (used,), (total,) = (of(readings, f"gpu_memory_{what}", gpu_index) for what in ("used", "total"))
    free, whole = cuda.cuda.mem_get_info(0)
    assert total == pytest.approx(whole, rel=0.05)
    assert 0 < used <= total and used == pytest.approx(whole - free, abs=2 << 30)
    (temperature,) = of(readings, "gpu_temperature", gpu_index)
    assert 5 < temperature < 120
    for utilization in of(readings, "gpu_utilization", gpu_index):
        assert 0 <= utilization <= 1
    gpu = list_gpus(nvml, live_context())[gpu_index]
    assert gpu["name"] == cuda.cuda.get_device_name(0)
    json.dumps([gpu, gpu_links(nvml, live_context())])


def test_recorded_answers_are_replayed_alike(nvml: Any, tmp_path: Path) -> None:
    """Writes the file that the unit tests replay: PERFSCOPE_NVML_RECORD names where to."""
    target = Path(os.environ.get("PERFSCOPE_NVML_RECORD") or tmp_path / "nvml-here.json")
    target.write_text(json.dumps(record(nvml, f"recorded: {target.stem}"), indent=1) + "\n")
    real = [(gpu["name"], gpu["memory_bytes"], gpu["pcie"]) for gpu in list_gpus(nvml, Context())]
    real_metrics = {metric.name for metric in NvmlDevices().probe(live_context()).metrics}
    with installed(StandIn(json.loads(target.read_text()))):
        ctx = Context(library=this_machines)
        replayed = [(gpu["name"], gpu["memory_bytes"]) for gpu in list_gpus(load_nvml(), ctx)]
        metrics = {metric.name for metric in NvmlDevices().probe(ctx).metrics}
    assert replayed == [entry[:2] for entry in real]
    assert metrics == real_metrics


def test_energy_is_power_over_time(cuda: Any, gpu_index: int) -> None:
    a = cuda.randn(8192, 8192, device="cuda", dtype=cuda.bfloat16)

    def work() -> None:
        cuda.mm(a, a)
        cuda.cuda.synchronize()

    collector = opened(NvmlDevices)
    sampled(collector, work, 2.0)  # power is the mean of the last second or so
    readings = sampled(collector, work, 4.0)
    energy = [
        r
        for r in readings
        if r.series.metric.name == "gpu_energy" and r.series.labels["gpu"] == str(gpu_index)
    ]
    if not energy or energy[0].value is None or energy[-1].value is None:
        pytest.skip("this GPU does not count energy")
    joules = (energy[-1].value - energy[0].value) * energy[0].series.metric.scale
    watts = joules / ((energy[-1].t_begin_ns - energy[0].t_begin_ns) / 1e9)
    polled = of(readings, "gpu_power", gpu_index)
    assert watts == pytest.approx(sum(polled) / len(polled), rel=TOLERANCE)
    assert max(of(readings, "gpu_utilization", gpu_index), default=1.0) > 0.5


def test_gpm_sees_the_bandwidth_of_a_known_copy(nvml: Any, cuda: Any, gpu_index: int) -> None:
    """A copy reads and writes each byte once: GPM's share of the peak, times the peak, is that."""
    collector = opened(NvmlGpm)
    source = cuda.empty(2 << 30, dtype=cuda.uint8, device="cuda")
    target = cuda.empty_like(source)
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu_index)
    peak = (
        2e6
        * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
        * nvml.nvmlDeviceGetMemoryBusWidth(handle)
        / 8
    )
    moved = 0

    def work() -> None:
        nonlocal moved
        for _ in range(10):
            target.copy_(source)
        cuda.cuda.synchronize()
        moved += 10 * 2 * source.numel()

    work()
    moved, began = 0, time.monotonic()
    readings = sampled(collector, work, 3.0)
    rate = moved / (time.monotonic() - began)
    shares = of(readings, "gpu_dram_activity", gpu_index)
    assert len(shares) >= 10
    middle = sorted(shares)[len(shares) // 2]
    assert middle * peak == pytest.approx(rate, rel=TOLERANCE)
    collector.close()


def test_pcie_counters_see_a_known_copy_from_the_host(cuda: Any, gpu_index: int) -> None:
    collector = opened(NvmlLinks)
    host = cuda.empty(256 << 20, dtype=cuda.uint8, pin_memory=True)
    device = cuda.empty_like(host, device="cuda")
    moved = 0

    def work() -> None:
        nonlocal moved
        device.copy_(host, non_blocking=True)
        cuda.cuda.synchronize()
        moved += host.numel()

    work()
    moved = 0
    readings = [
        r
        for r in sampled(collector, work, 2.0)
        if r.series.metric.name == "pcie_rx_bytes" and r.series.labels["gpu"] == str(gpu_index)
    ]
    if not readings:
        pytest.skip("this GPU does not count PCIe bytes")
    if any(reading.quality for reading in readings):
        pytest.skip("a reading came too late to be sure of the number of wraps")
    values = [int(reading.value or 0) for reading in readings]
    counted = sum((after - before) % (1 << 32) for before, after in pairwise(values))
    assert moved <= counted * 1.02 and counted <= 1.3 * moved  # packet headers may be counted too


FOREIGN = (
    "import torch, time; x = torch.ones(1 << 28, device='cuda'); print('ready', flush=True); time.sleep(60)"
)


def test_a_process_of_somebody_else_is_seen(cuda: Any, gpu_index: int) -> None:
    """The child is nobody's rank here; this process, which uses the GPU as well, stands for the rank."""
    cuda.ones(1, device="cuda")
    with subprocess.Popen([sys.executable, "-c", FOREIGN], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            alone = opened(NvmlProcesses, live_context(pids=lambda: [child.pid]))
            together = opened(NvmlProcesses, live_context(pids=lambda: [os.getpid()]))
            foreign = of(list(alone.sample()), "gpu_foreign_processes", gpu_index)
            ours = of(list(together.sample()), "gpu_foreign_processes", gpu_index)
        finally:
            child.kill()
    if not foreign or not ours:
        pytest.skip("the GPU's pids cannot be matched in this container")
    assert foreign[0] == ours[0] + 1  # this process; the child is below it
