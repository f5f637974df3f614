"""Records what NVML answers on this machine, in the format of tests/support/nvml_stand_in.py.

    python -m tests.gpu.record_nvml nvml-h100-sxm.json

Into the repository goes tests/data/hardware/nvml-NAME.json: the unit tests replay every such file. Serial
parts of UUIDs are replaced; processes and their names are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfscope.collectors.gpu.nvidia.counters import THROTTLE_FIELDS
from perfscope.collectors.gpu.nvidia.devices import gpu_handles
from perfscope.collectors.gpu.nvidia.gpm import GPM_METRICS
from perfscope.collectors.gpu.nvidia.library import load_nvml
from perfscope.collectors.gpu.nvidia.parts import FUNCTION_NOT_FOUND

MAX_LINKS = 36
SCALARS = (83, 91, 185, 186, 197, 198, *THROTTLE_FIELDS)
PER_LINK = (138, 139, 164, 202, 204)
SIMPLE = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetMemoryBusWidth",
    "nvmlDeviceGetNumGpuCores",
)
WITH_ARGUMENT: dict[str, tuple[int, ...]] = {
    "nvmlDeviceGetClockInfo": (0, 1, 2),
    "nvmlDeviceGetMaxClockInfo": (0, 1, 2),
    "nvmlDeviceGetTemperature": (0,),
    "nvmlDeviceGetPcieThroughput": (0, 1),
    "nvmlDeviceGetNvLinkState": tuple(range(MAX_LINKS)),
    "nvmlDeviceGetNvLinkVersion": (0,),
    "nvmlDeviceGetNvLinkRemoteDeviceType": tuple(range(MAX_LINKS)),
}


def record(nvml: Any, origin: str) -> dict[str, Any]:
    """A description of every GPU, of each pair, and of every refusal."""
    handles = gpu_handles(nvml)
    return {
        "origin": origin,
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "gpus": [_gpu(nvml, index, handle) for index, handle in handles],
        "pairs": [_pair(nvml, a, b) for place, a in enumerate(handles) for b in handles[place + 1 :]],
        "names": {},
    }


def _answer(nvml: Any, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except nvml.NVMLError as error:
        return {"error": error.value}
    except (nvml.NVMLLibraryMismatchError, AttributeError):
        return {"error": FUNCTION_NOT_FOUND}


def _gpu(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    calls: dict[str, Any] = {
        name: _answer(nvml, lambda name=name: getattr(nvml, name)(handle))  # type: ignore[misc]
        for name in SIMPLE
    }
    calls["nvmlDeviceGetUUID"] = f"GPU-00000000-0000-0000-0000-{index:012d}"
    calls["nvmlDeviceGetPciInfo"] = _answer(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
    calls["nvmlDeviceGetMigMode"] = _answer(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    calls["nvmlDeviceGetMemoryInfo"] = _memory(nvml, handle, None, ("total", "free", "used"))
    calls["nvmlDeviceGetMemoryInfo_v2"] = _memory(
        nvml, handle, nvml.nvmlMemory_v2, ("total", "reserved", "free", "used")
    )
    calls["nvmlDeviceGetUtilizationRates"] = _struct(
        nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle), ("gpu", "memory")
    )
    calls["nvmlDeviceGetCpuAffinity"] = _answer(nvml, lambda: list(nvml.nvmlDeviceGetCpuAffinity(handle, 16)))
    calls["nvmlDeviceGetMemoryAffinity"] = _answer(
        nvml, lambda: list(nvml.nvmlDeviceGetMemoryAffinity(handle, 4, 0))
    )
    arguments = {
        name: {
            str(value): _answer(nvml, lambda name=name, value=value: getattr(nvml, name)(handle, value))  # type: ignore[misc]
            for value in values
        }
        for name, values in WITH_ARGUMENT.items()
    }
    arguments["nvmlDeviceGetNvLinkRemotePciInfo"] = {
        str(link): _answer(
            nvml,
            lambda link=link: nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId,  # type: ignore[misc]
        )
        for link in range(MAX_LINKS)
    }
    gpu = {"calls": calls, "arguments": arguments, "fields": _fields(nvml, handle), "processes": []}
    gpm = _gpm(nvml, handle)
    return {**gpu, "gpm": gpm} if gpm else gpu


def _struct(nvml: Any, call: Callable[[], Any], names: tuple[str, ...]) -> Any:
    found = _answer(nvml, call)
    return found if isinstance(found, dict) else {name: getattr(found, name) for name in names}


def _memory(nvml: Any, handle: Any, version: int | None, names: tuple[str, ...]) -> Any:
    return _struct(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version), names)


def _fields(nvml: Any, handle: Any) -> list[list[Any]]:
    wanted = [(field, 0) for field in SCALARS]
    wanted += [(field, link) for field in PER_LINK for link in range(MAX_LINKS)]
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return [
        [
            entry.fieldId,
            entry.scopeId,
            entry.nvmlReturn,
            entry.valueType,
            getattr(entry.value, members[entry.valueType]) if not entry.nvmlReturn else 0,
        ]
        for entry in nvml.nvmlDeviceGetFieldValues(handle, wanted)
    ]


def _gpm(nvml: Any, handle: Any) -> dict[str, float]:
    """What GPM says of 0.2 s."""
    import time

    try:
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return {}
        samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        nvml.nvmlGpmSampleGet(handle, samples[0])
        time.sleep(0.2)
        nvml.nvmlGpmSampleGet(handle, samples[1])
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM_METRICS)
        request.sample1, request.sample2 = samples
        for place, number in enumerate(GPM_METRICS):
            request.metrics[place].metricId = number
        nvml.nvmlGpmMetricsGet(request)
    except nvml.NVMLError:
        return {}
    entries = [request.metrics[place] for place in range(len(GPM_METRICS))]
    for sample in samples:
        nvml.nvmlGpmSampleFree(sample)
    return {str(entry.metricId): entry.value for entry in entries if entry.nvmlReturn == 0}


def _pair(nvml: Any, a: tuple[int, Any], b: tuple[int, Any]) -> dict[str, Any]:
    ancestor = _answer(nvml, lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(a[1], b[1]))
    p2p = {
        str(index): _answer(nvml, lambda index=index: nvml.nvmlDeviceGetP2PStatus(a[1], b[1], index))  # type: ignore[misc]
        for index in range(5)
    }
    return {
        "a": a[0],
        "b": b[0],
        "ancestor": ancestor if isinstance(ancestor, int) else None,
        "p2p": {index: status for index, status in p2p.items() if isinstance(status, int)},
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(json.dumps(record(load_nvml(), f"recorded: {target.stem}"), indent=1) + "\n")
