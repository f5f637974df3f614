"""NVML without a GPU: an object in place of `pynvml.nvmlLib`, answering from a plain description.

pynvml itself is the real one: its structs, its error mapping and its bugs are part of what is tested. A
description (`world`) is JSON: made up here, or recorded on real hardware by `tests/gpu/record_nvml.py`.

    {"origin": "synthetic: ...", "driver": "570.86", "gpus": [
      {"calls": {"nvmlDeviceGetTemperature": 41, "nvmlDeviceGetMemoryInfo_v2": {"total": .., "used": ..},
                 "nvmlDeviceGetUtilizationRates": {"error": 3}, ..},
       "arguments": {"nvmlDeviceGetClockInfo": {"1": 1980, "2": 2619}, ..},      answers by first argument
       "fields": [[field, scope, nvmlReturn, valueType, value], ..],
       "processes": [{"pid": 1, "usedGpuMemory": 1 or null}], "gpm": {"2": 87.5, ..}}, ..],
     "pairs": [{"a": 0, "b": 1, "ancestor": 50, "p2p": {"0": 0, ..}}]}

What is not in the description is "not supported" (3).
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml

NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, UNKNOWN = 3, 6, 13, 15, 999
DRIVER_NOT_LOADED, INSUFFICIENT_SIZE = 9, 7
_FIRST_HANDLE = 0x1000
_UNSIGNED, _ULONGLONG = 1, 3  # NVML_VALUE_TYPE_*
_NO_MEMORY_FIGURE = (1 << 64) - 1

World = dict[str, Any]

# Calls of the form f(handle, &out) and f(handle, argument, &out).
PLAIN = (
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
WITH_ARGUMENT = (
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPcieThroughput",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkVersion",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
)
STRUCTS = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
STRINGS = ("nvmlDeviceGetName", "nvmlDeviceGetUUID")


class StandIn:
    """Functions of libnvidia-ml.so.1, as attributes.

    Attributes:
        world: the description; tests change it while a collector reads.
        init: what nvmlInitWithFlags returns.
        missing: functions that an old driver does not have.
        lost: indexes of GPUs that have fallen off the bus.
        calls: how often each function was called.
        samples: live GPM samples (allocated, not freed).
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.init = 0
        self.missing: set[str] = set()
        self.lost: set[int] = set()
        self.calls: dict[str, int] = {}
        self.samples = 0
        self.on_call: Callable[[str], None] = lambda name: None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name in self.__dict__.get("missing", ()):
            raise AttributeError(name)
        body = self._body(name)

        def function(*arguments: Any) -> int:
            self.calls[name] = self.calls.get(name, 0) + 1
            self.on_call(name)
            answer: int = body(*arguments)
            return answer

        return function

    def _body(self, name: str) -> Callable[..., Any]:
        own = getattr(type(self), "_" + name.removeprefix("nvml"), None)
        if own is not None:
            return lambda *arguments: own(self, *arguments)
        kinds: tuple[tuple[tuple[str, ...], Callable[..., int]], ...] = (
            (PLAIN, self._plain),
            (WITH_ARGUMENT, self._with_argument),
            (STRUCTS, self._struct),
            (STRINGS, self._string),
        )
        for names, body in kinds:
            if name in names:
                return lambda *arguments, body=body: body(name, *arguments)
        raise AttributeError(name)

    # -- the library

    def _InitWithFlags(self, flags: int) -> int:
        return self.init

    def _Shutdown(self) -> int:
        return 0

    def _ErrorString(self, code: int) -> bytes:
        return b"error %d" % code

    def _SystemGetDriverVersion(self, buffer: Any, size: Any) -> int:
        buffer.value = str(self.world.get("driver", "")).encode()
        return 0

    def _SystemGetProcessName(self, pid: Any, buffer: Any, size: Any) -> int:
        number = getattr(pid, "value", pid)
        name = self.world.get("names", {}).get(str(number))
        if name is None:
            return NOT_FOUND
        buffer.value = name.encode()
        return 0

    def _DeviceGetCount_v2(self, out: Any) -> int:
        out._obj.value = len(self.world["gpus"])
        return 0

    def _DeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:
        if index.value in self.lost:
            return GPU_IS_LOST
        _set_pointer(out._obj, _FIRST_HANDLE + index.value)
        return 0

    # -- one GPU

    def _gpu(self, handle: Any) -> tuple[dict[str, Any], int]:
        index = (ctypes.cast(handle, ctypes.c_void_p).value or 0) - _FIRST_HANDLE
        return self.world["gpus"][index], GPU_IS_LOST if index in self.lost else 0

    def _answer(self, name: str, handle: Any, argument: int | None = None) -> tuple[int, Any]:
        gpu, error = self._gpu(handle)
        if error:
            return error, None
        answer = gpu.get("calls", {}).get(name)
        if argument is not None and answer is None:
            answer = gpu.get("arguments", {}).get(name, {}).get(str(argument))
        if answer is None:
            return NOT_SUPPORTED, None
        if isinstance(answer, dict) and "error" in answer:
            return int(answer["error"]), None
        return 0, answer

    def _plain(self, name: str, handle: Any, out: Any) -> int:
        error, answer = self._answer(name, handle)
        if not error:
            out._obj.value = answer
        return error

    def _with_argument(self, name: str, handle: Any, argument: Any, out: Any) -> int:
        error, answer = self._answer(name, handle, getattr(argument, "value", argument))
        if not error:
            out._obj.value = answer
        return error

    def _struct(self, name: str, handle: Any, out: Any) -> int:
        error, answer = self._answer(name, handle)
        if not error:
            for key, value in answer.items():
                setattr(out._obj, key, value)
        return error

    def _string(self, name: str, handle: Any, buffer: Any, size: Any) -> int:
        error, answer = self._answer(name, handle)
        if not error:
            buffer.value = answer.encode()
        return error

    def _DeviceGetPciInfo_v3(self, handle: Any, out: Any) -> int:
        error, answer = self._answer("nvmlDeviceGetPciInfo", handle)
        if not error:
            out._obj.busId = answer.encode()
        return error

    def _DeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: int, out: Any) -> int:
        error, answer = self._answer("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        if not error:
            out._obj.busId = answer.encode()
        return error

    def _DeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        error, answer = self._answer("nvmlDeviceGetMigMode", handle)
        if not error:
            current._obj.value = pending._obj.value = answer
        return error

    def _DeviceGetCpuAffinity(self, handle: Any, size: int, out: Any) -> int:
        error, answer = self._answer("nvmlDeviceGetCpuAffinity", handle)
        for place, word in enumerate(answer or ()):
            out._obj[place] = word
        return error

    def _DeviceGetMemoryAffinity(self, handle: Any, size: int, out: Any, scope: Any) -> int:
        error, answer = self._answer("nvmlDeviceGetMemoryAffinity", handle)
        for place, word in enumerate(answer or ()):
            out._obj[place] = word
        return error

    def _DeviceGetFieldValues(self, handle: Any, count: Any, out: Any) -> int:
        gpu, error = self._gpu(handle)
        if error:
            return error
        known = {(entry[0], entry[1]): entry for entry in gpu.get("fields", ())}
        for entry in out._obj[: count.value]:
            answer = known.get((entry.fieldId, entry.scopeId))
            entry.nvmlReturn = NOT_SUPPORTED if answer is None else answer[2]
            if answer is not None and not answer[2]:
                entry.valueType = answer[3]
                member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[answer[3]]
                setattr(entry.value, member, answer[4])
        return 0

    def _DeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, out: Any) -> int:
        gpu, error = self._gpu(handle)
        processes = gpu.get("processes")
        if error or processes is None:
            return error or NOT_SUPPORTED
        if isinstance(processes, dict):
            return int(processes["error"])
        room = count._obj.value
        count._obj.value = len(processes)
        if len(processes) > room:
            return INSUFFICIENT_SIZE
        for place, process in enumerate(processes):
            out[place].pid = process["pid"]
            used = process.get("usedGpuMemory")
            out[place].usedGpuMemory = _NO_MEMORY_FIGURE if used is None else used
        return 0

    _DeviceGetComputeRunningProcesses_v2 = _DeviceGetComputeRunningProcesses_v3

    # -- pairs

    def _pair(self, first: Any, second: Any) -> dict[str, Any]:
        handles = (first, second)
        a, b = sorted((ctypes.cast(h, ctypes.c_void_p).value or 0) - _FIRST_HANDLE for h in handles)
        found = [pair for pair in self.world.get("pairs", ()) if (pair["a"], pair["b"]) == (a, b)]
        return found[0] if found else {}

    def _DeviceGetTopologyCommonAncestor(self, first: Any, second: Any, out: Any) -> int:
        level = self._pair(first, second).get("ancestor")
        if level is None:
            return NOT_SUPPORTED
        out._obj.value = level
        return 0

    def _DeviceGetP2PStatus(self, first: Any, second: Any, index: Any, out: Any) -> int:
        if not isinstance(index, int):  # ctypes would refuse a tuple: pynvml's NVML_P2P_CAPS_INDEX_READ
            raise ctypes.ArgumentError(f"argument 3: don't know how to convert {index!r}")
        status = self._pair(first, second).get("p2p", {}).get(str(index))
        if status is None:
            return NOT_SUPPORTED
        out._obj.value = status
        return 0

    # -- GPM

    def _GpmQueryDeviceSupport(self, handle: Any, out: Any) -> int:
        gpu, error = self._gpu(handle)
        out._obj.isSupportedDevice = int("gpm" in gpu)
        return error

    def _GpmSampleAlloc(self, out: Any) -> int:
        self.samples += 1
        _set_pointer(out._obj, 0x9000 + self.samples)
        return 0

    def _GpmSampleFree(self, sample: Any) -> int:
        self.samples -= 1
        return 0

    def _GpmSampleGet(self, handle: Any, sample: Any) -> int:
        gpu, error = self._gpu(handle)
        self.sampled = gpu
        return error

    def _GpmMetricsGet(self, request: Any) -> int:
        asked, known = request._obj, self.sampled["gpm"]
        if asked.version != 1 or not asked.sample1 or not asked.sample2:
            return 2
        for place in range(asked.numMetrics):
            entry = asked.metrics[place]
            value = known.get(str(entry.metricId))
            entry.nvmlReturn = NOT_SUPPORTED if value is None else 0
            entry.value = 0.0 if value is None else value
        return 0


def _set_pointer(pointer: Any, address: int) -> None:
    ctypes.memmove(ctypes.addressof(pointer), ctypes.byref(ctypes.c_void_p(address)), 8)


@contextmanager
def installed(stand_in: object | None) -> Iterator[None]:
    """`stand_in` is the library as long as the block lasts; None: there is no library to be found."""
    library, cache, loader = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache), pynvml.CDLL
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = stand_in
    if stand_in is None:
        pynvml.CDLL = _no_library
    try:
        yield
    finally:
        pynvml.nvmlLib, pynvml.CDLL = library, loader
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(cache)


def _no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file: No such file or directory")


def load_world(path: Path) -> World:
    """A recorded description."""
    world: World = json.loads(path.read_text())
    return world


def hopper(index: int, links: int = 18) -> dict[str, Any]:
    """A GPU like an H100 SXM: figures made up, formats real."""
    kib = [[138, link, 0, _ULONGLONG, 1000 * link + 7] for link in range(links)]
    kib += [[139, link, 0, _ULONGLONG, 2000 * link + 9] for link in range(links)]
    return {
        "calls": {
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetUUID": f"GPU-00000000-0000-0000-0000-00000000000{index}",
            "nvmlDeviceGetPciInfo": f"00000000:{0x3B + index:02X}:00.0",
            "nvmlDeviceGetMinorNumber": index,
            "nvmlDeviceGetMigMode": 0,
            "nvmlDeviceGetMemoryInfo_v2": {"total": 80 << 30, "used": 5 << 30, "reserved": 600 << 20},
            "nvmlDeviceGetMemoryInfo": {"total": 80 << 30, "used": (5 << 30) + (600 << 20)},
            "nvmlDeviceGetUtilizationRates": {"gpu": 97, "memory": 41},
            "nvmlDeviceGetCurrPcieLinkGeneration": 1,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetCurrentClocksEventReasons": 4,
            "nvmlDeviceGetTotalEnergyConsumption": 123_456_789,
            "nvmlDeviceGetPowerUsage": 412_000,
            "nvmlDeviceGetNvLinkState": 1,
            "nvmlDeviceGetNvLinkVersion": 6,
            "nvmlDeviceGetNvLinkRemoteDeviceType": 2,
            "nvmlDeviceGetCpuAffinity": [0xFF00],
            "nvmlDeviceGetMemoryAffinity": [0b10],
        },
        "arguments": {
            "nvmlDeviceGetClockInfo": {"1": 1980, "2": 2619},
            "nvmlDeviceGetTemperature": {"0": 61},
        },
        "fields": [
            [91, 0, 0, _UNSIGNED, links],
            *[[164, link, 0, _UNSIGNED, 26_562] for link in range(links)],
            [197, 0, 0, _UNSIGNED, 4_294_000_000],
            [198, 0, 0, _UNSIGNED, 17],
            [186, 0, 0, _UNSIGNED, 415_250],
            [83, 0, 0, _ULONGLONG, 123_456_789],
            [74, 0, 0, _ULONGLONG, 5_000_000_000],
            [76, 0, 0, _ULONGLONG, 0],
            [269, 0, 0, _ULONGLONG, 1],
            [270, 0, 0, _ULONGLONG, 2],
            [271, 0, 0, _ULONGLONG, 3],
            *kib,
        ],
        "processes": [],
        "gpm": {"2": 91.5, "3": 40.25, "5": 33.0, "10": 62.5, "20": 10.0, "21": 20.0, "60": 30.0, "61": 40.0},
    }


def volta(index: int) -> dict[str, Any]:
    """A PCIe GPU with an old driver: no byte counters, no GPM, no NVLink, no instant power."""
    gpu = hopper(index, 0)
    gpu["calls"]["nvmlDeviceGetName"] = "Tesla V100-PCIE-32GB"
    for name in ("NvLinkState", "NvLinkVersion", "NvLinkRemoteDeviceType"):
        del gpu["calls"][f"nvmlDeviceGet{name}"]
    gpu["calls"]["nvmlDeviceGetMaxPcieLinkGeneration"] = 3
    gpu["arguments"]["nvmlDeviceGetPcieThroughput"] = {"0": 1500, "1": 2500}
    gpu["fields"] = [[74, 0, 0, _ULONGLONG, 8], [76, 0, 0, _ULONGLONG, 9]]
    del gpu["gpm"]
    return gpu


def machine(*gpus: dict[str, Any], ancestor: int = 50) -> World:
    """A world of these GPUs, every pair alike."""
    number = len(gpus)
    pairs = [
        {"a": a, "b": b, "ancestor": ancestor, "p2p": {"0": 0, "1": 0, "2": 0, "3": 0, "4": 0}}
        for a in range(number)
        for b in range(a + 1, number)
    ]
    return {"origin": "synthetic", "driver": "570.86.15", "gpus": list(gpus), "pairs": pairs, "names": {}}


def field_of(world: World, gpu: int, field: int, scope: int = 0) -> list[Any]:
    """The entry of a field, to be changed in place."""
    found: list[Any] = next(e for e in world["gpus"][gpu]["fields"] if (e[0], e[1]) == (field, scope))
    return found
