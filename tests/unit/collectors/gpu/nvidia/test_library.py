"""NVML itself: loaded, not there, recorded, and replayed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from perfscope.collectors.context import Context
from perfscope.collectors.gpu.nvidia.counters import NvmlDevices
from perfscope.collectors.gpu.nvidia.devices import field_value, gpu_links, list_gpus
from perfscope.collectors.gpu.nvidia.gpm import NvmlGpm
from perfscope.collectors.gpu.nvidia.library import load_nvml
from perfscope.collectors.gpu.nvidia.links import NvmlLinks, NvmlPcieRate
from perfscope.collectors.gpu.nvidia.parts import NvmlCollector
from tests.gpu.record_nvml import record
from tests.support.nvml_readings import (
    ALL,
    FAKE_LIBRARY,
    RECORDED,
    Clock,
    clock,
    context,
    four,
    opened,
    two,
    values,
)
from tests.support.nvml_stand_in import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    StandIn,
    World,
    field_of,
    hopper,
    installed,
    load_world,
    machine,
    volta,
)

__all__ = ["clock", "four", "two"]


@pytest.mark.parametrize("kind", ALL)
def test_no_driver_is_a_reason(kind: type[NvmlCollector], clock: Clock) -> None:
    stand_in = StandIn(machine(hopper(0)))
    stand_in.init = DRIVER_NOT_LOADED
    with installed(stand_in):
        capability = kind().probe(context(clock))
    assert not capability.available
    assert "not loaded" in capability.reason and "modprobe nvidia" in capability.remedy


@pytest.mark.parametrize("kind", ALL)
def test_no_library_is_a_reason(kind: type[NvmlCollector], clock: Clock) -> None:
    with installed(None):
        capability = kind().probe(context(clock))
    assert not capability.available
    assert "libnvidia-ml.so.1 is not there" in capability.reason
    assert kind().probe(Context()).reason == "a captured tree holds no driver library"


@pytest.mark.parametrize("kind", ALL)
def test_no_gpu_is_a_reason(kind: type[NvmlCollector], clock: Clock) -> None:
    with installed(StandIn(machine())):
        assert kind().probe(context(clock)).reason == "NVML sees no GPU"


@pytest.mark.parametrize("kind", ALL)
def test_a_driver_that_only_fails_never_raises(kind: type[NvmlCollector], clock: Clock) -> None:
    stand_in = StandIn(machine({"calls": {}, "fields": []}, {"calls": {}, "fields": []}))
    with installed(stand_in):
        capability = kind().probe(context(clock))
        assert not capability.available
        assert capability.reason


@pytest.mark.parametrize("kind", ALL)
def test_a_library_that_goes_away_before_opening_is_an_os_error(
    kind: type[NvmlCollector], two: StandIn, clock: Clock
) -> None:
    two.init = DRIVER_NOT_LOADED
    with pytest.raises(OSError, match="not loaded"):
        kind().open(context(clock))


def test_the_p2p_index_of_pynvml_is_a_tuple_and_would_be_refused(four: StandIn) -> None:
    """The bug that nvml_devices steps around; when pynvml mends it, this fails and the comment can go."""
    assert pynvml.NVML_P2P_CAPS_INDEX_READ == (0,)
    first, second = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    with pytest.raises(Exception, match="argument 3"):
        pynvml.nvmlDeviceGetP2PStatus(first, second, pynvml.NVML_P2P_CAPS_INDEX_READ)


def test_a_description_survives_its_json(tmp_path: Path, clock: Clock) -> None:
    world = machine(hopper(0), volta(1))
    file = tmp_path / "world.json"
    file.write_text(json.dumps(world))
    again: World = load_world(file)

    def seen(description: World) -> list[tuple[str, str, int | float | None]]:
        with installed(StandIn(description)):
            return [
                (r.series.metric.name, r.series.labels["gpu"], r.value)
                for r in opened(NvmlDevices, clock).sample()
            ]

    assert seen(again) == seen(world)


def test_what_is_recorded_is_replayed_alike(two: StandIn, clock: Clock) -> None:
    """The recorder of tests/gpu, fed by a description: what it writes describes the same GPUs."""

    def seen() -> list[object]:
        ctx = context(clock)
        readings = [
            (r.series.metric.name, dict(r.series.labels), r.value)
            for kind in (NvmlDevices, NvmlLinks, NvmlPcieRate)
            for r in opened(kind, clock).sample()
        ]
        gpus = [{**gpu, "uuid": None} for gpu in list_gpus(load_nvml(), ctx)]
        return [readings, gpus, gpu_links(load_nvml(), ctx), NvmlGpm().probe(ctx).metrics]

    before = seen()
    recorded = json.loads(json.dumps(record(load_nvml(), "again")))
    assert recorded["gpus"][0]["gpm"] == two.world["gpus"][0]["gpm"] and "gpm" not in recorded["gpus"][1]
    with installed(StandIn(recorded)):
        assert seen() == before
    assert two.samples == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [(0, -2.5), (1, 4_294_967_295), (2, 1 << 40), (3, 1 << 63), (4, -(1 << 40)), (5, -7), (6, 65_535)],
)
def test_fields_of_every_type_are_read(two: StandIn, clock: Clock, kind: int, value: float) -> None:
    field_of(two.world, 0, 186)[3:] = [kind, value]
    assert values(opened(NvmlDevices, clock).sample(), "gpu_power", gpu="0") == [value]
    entries = pynvml.nvmlDeviceGetFieldValues(pynvml.nvmlDeviceGetHandleByIndex(0), [186])
    assert field_value(entries[0]) == value


def test_answers_recorded_on_hardware_are_read(clock: Clock) -> None:
    if not RECORDED:
        pytest.skip("no tests/data/hardware/nvml-*.json: `make test-gpu` writes one where there is a GPU")
    for path in RECORDED:
        world = load_world(path)
        with installed(StandIn(world)):
            readings = opened(NvmlDevices, clock).sample()
            gpus = list_gpus(load_nvml(), context(clock))
        assert len(gpus) == len(world["gpus"])
        for index in range(len(gpus)):
            used, total = (
                values(readings, f"gpu_memory_{what}", gpu=str(index)) for what in ("used", "total")
            )
            assert used[0] is not None and total[0] is not None and 0 < used[0] <= total[0]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not here to compile the fake library")
def test_the_real_loader_finds_a_library_at_the_c_interface(tmp_path: Path) -> None:
    """No object in between: a shared library found by LD_LIBRARY_PATH, in a process of its own."""
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(FAKE_LIBRARY)], check=True)
    script = """
import json
from perfscope.collectors.context import live_context
from perfscope.collectors.gpu.nvidia.counters import NvmlDevices
from perfscope.collectors.gpu.nvidia.devices import list_gpus
from perfscope.collectors.gpu.nvidia.library import load_nvml
collector, ctx = NvmlDevices(), live_context()
capability = collector.probe(ctx)
collector.open(ctx)
first = collector.sample()
second = collector.sample()
told = collector.facts()
print(json.dumps({
    "available": capability.available,
    "absent": sorted(entry.what for entry in capability.absent),
    "names": [gpu["name"] for gpu in list_gpus(ctx.library(load_nvml), ctx)],
    "first": [[r.series.metric.name, r.series.labels["gpu"], r.value] for r in first],
    "second": sorted({r.series.labels["gpu"] for r in second}),
    "stopped": [[fact.labels, fact.value["reason"]] for fact in told if fact.name == "stopped"],
}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"LD_LIBRARY_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    seen = json.loads(done.stdout)
    assert seen["available"] and seen["names"] == ["Fake GPU", "Fake GPU"]
    assert ["gpu_utilization", "0", 55] in seen["first"]
    assert ["gpu_power", "1", 301_000] in seen["first"]
    assert ["gpu_energy", "0", 9_000_000_000] in seen["first"]
    assert "gpu_memory_clock" in seen["absent"]  # the function is not in that library
    assert seen["second"] == ["0"]
    assert seen["stopped"] == [[{"gpu": "1"}, "GPU is lost"]]


def test_lost_is_what_nvml_calls_15() -> None:
    assert pynvml.NVML_ERROR_GPU_IS_LOST == GPU_IS_LOST
