"""What the NVML collectors share: series of a GPU that are read together, and what becomes of failures.

A failure is decided once. "Not supported" ends a series before it began, a lost GPU ends all of its own
series and no others, and anything else is tried again until it has failed too often.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from perfscope.collectors.base import FAST_NS, Absent, BaseCollector, Capability, Fact, Reading
from perfscope.collectors.context import Context
from perfscope.collectors.gpu.base import absent_metrics, count_text
from perfscope.collectors.gpu.nvidia.devices import gpu_handles
from perfscope.collectors.gpu.nvidia.library import load_nvml
from perfscope.collectors.library import LibraryAbsent
from perfscope.rundir.metrics import Series

Value = int | float
MAX_FAILURES = 10  # in a row, of one series

# Error codes of nvml.h, so that nothing here depends on a loaded pynvml.
NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND = 4, 6, 13
GONE = {1, 15, 16, 28}  # uninitialized, GPU is lost, reset required, GPU not found
# Invalid argument (how old drivers greet a field they do not know), not supported, no permission,
# function not found, argument version mismatch, deprecated.
NEVER = {2, 3, NO_PERMISSION, FUNCTION_NOT_FOUND, 25, 26}


class Failed(NamedTuple):
    """Stands for a value that was not to be had: NVML's code."""

    code: int


class Query:
    """Series of one GPU that one call gives.

    Args:
        series: in the order of the values.
        read: gives for each series a value, None (nothing to tell now) or Failed; raises NVMLError when
            the whole call fails.
        instead: what to read where a series is refused.
    """

    def __init__(
        self,
        series: Sequence[Series],
        read: Callable[[], Sequence[Value | Failed | None]],
        instead: Mapping[Series, Query] | None = None,
    ) -> None:
        self.series = list(series)
        self.instead = dict(instead or {})
        self._order = tuple(series)
        self._read = read

    def pairs(self, nvml: Any) -> list[tuple[Series, Value | Failed | None]]:
        """Every series that is still read, with its value or failure. Never raises NVMLError."""
        try:
            values = self._read()
        except nvml.NVMLError as error:
            return [(series, Failed(error.value)) for series in self.series]
        except (nvml.NVMLLibraryMismatchError, AttributeError):
            return [(series, Failed(FUNCTION_NOT_FOUND)) for series in self.series]
        if len(self.series) == len(self._order):
            return list(zip(self._order, values, strict=True))
        return [(item, value) for item, value in zip(self._order, values, strict=True) if item in self.series]

    def drop(self, series: Series) -> None:
        """Read it no more."""
        self.series.remove(series)


class FieldQuery(Query):
    """Fields of nvmlDeviceGetFieldValues: one call for all, one return code each.

    The array of the call is kept, and read as plain bytes: pynvml's structs take some 3 µs a field, of which
    a GPU with 18 NVLinks has more than 40.

    Args:
        nvml, handle: the GPU.
        fields: series -> (field id, scope id).
        convert: what is done to a raw value.
        instead: what to read where a series is refused.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        fields: Mapping[Series, tuple[int, int]],
        convert: Callable[[Value], Value] | None = None,
        instead: Mapping[Series, Query] | None = None,
    ) -> None:
        super().__init__(list(fields), self._ask, instead)
        self._nvml, self._handle, self._convert = nvml, handle, convert or _as_it_is
        self._fields = dict(fields)
        self._array = self._new_array()

    def _new_array(self) -> Any:
        array = (self._nvml.c_nvmlFieldValue_t * len(self._fields))()
        for entry, (field, scope) in zip(array, self._fields.values(), strict=True):
            entry.fieldId, entry.scopeId = field, scope
        self._order = tuple(self.series)
        return array

    def _ask(self) -> list[Value | Failed]:
        array, convert = self._array, self._convert
        call = self._nvml.nvmlLib.nvmlDeviceGetFieldValues
        code = call(self._handle, ctypes.c_int32(len(array)), ctypes.byref(array))
        if code:
            raise self._nvml.NVMLError(code)
        return [
            Failed(refused) if refused else convert(_value(kind, raw))
            for kind, refused, raw in _FIELD.iter_unpack(array)
        ]

    def drop(self, series: Series) -> None:
        super().drop(series)
        del self._fields[series]
        self._array = self._new_array()

    def take_over(self, other: FieldQuery) -> None:
        """Read the other's series too; of the same GPU, converted alike."""
        self._fields.update(other._fields)
        self.series = list(self._fields)
        self.instead.update(other.instead)
        self._array = self._new_array()


# nvmlFieldValue_t: field and scope id (2 x 4), times (2 x 8), value type, return code, value.
_FIELD = struct.Struct("=24xIIQ")
_BITS = {1: 32, 5: 32, 6: 16}  # NVML_VALUE_TYPE_* with less than 64
_SIGNED = (4, 5)


def _value(kind: int, raw: int) -> Value:
    """The member of the union that is in use, out of its eight bytes."""
    if not kind:
        number: float = struct.unpack("=d", raw.to_bytes(8, sys.byteorder))[0]
        return number
    bits = _BITS.get(kind, 64)
    value = raw & ((1 << bits) - 1)
    return value - (1 << bits) if kind in _SIGNED and value >> (bits - 1) else value


def _as_it_is(value: Value) -> Value:
    return value


class NvidiaGpu:
    """One GPU: groups of queries, each group read at one go.

    Attributes:
        refused: (metric, reason) of what it does not give.
        gone: why nothing of it is read any more; "" = it is read.
    """

    def __init__(self, index: int, handle: Any) -> None:
        self.index = index
        self.handle = handle
        self.labels = {"gpu": str(index)}
        self.groups: list[list[Query]] = []
        self.refused: list[tuple[str, str]] = []
        self.gone = ""

    def series(self) -> list[Series]:
        return [series for group in self.groups for query in group for series in query.series]


class NvmlCollector(BaseCollector):
    """A collector of GPU series; subclasses say which.

    Slow by nature: most calls take microseconds, but some take milliseconds, and a driver in trouble longer.
    """

    slow = True
    min_interval_ns = FAST_NS
    source = "NVML"

    def __init__(self) -> None:
        super().__init__()
        self._nvml: Any = None
        self._gpus: list[NvidiaGpu] = []
        self._clock: Callable[[], int] = lambda: 0
        self._failures: dict[Series, int] = {}

    def groups(self, nvml: Any, gpu: NvidiaGpu) -> list[list[Query]]:
        """What to read of one GPU, supported or not; may add to `gpu.refused`."""
        raise NotImplementedError

    def quality(self, series: Series, begin: int, end: int) -> str | None:
        """Of a reading, where it is not the metric's own."""
        return None

    def probe(self, ctx: Context) -> Capability:
        try:
            gpus = self._decide(ctx.library(load_nvml))
        except LibraryAbsent as error:
            return self.capability(source=self.source, reason=error.reason, remedy=error.remedy)
        except Exception as error:  # noqa: BLE001 - a driver's fault of any kind must not end the survey
            return self.capability(source=self.source, reason=f"NVML failed: {error}")
        absent = _absent(gpus)
        metrics = {series.metric.name: series.metric for gpu in gpus for series in gpu.series()}
        reasons = sorted({refusal.reason for refusal in absent}) or ["nothing of it is supported"]
        if metrics:
            return self.capability(
                metrics=tuple(metrics.values()),
                source=self.source,
                absent=absent,
                detail=count_text(len(gpus)),
            )
        reason = "; ".join(reasons) if gpus else "NVML sees no GPU"
        return self.capability(source=self.source, reason=reason)

    def open(self, ctx: Context) -> None:
        """Fetch handles and decide what is read.

        Raises:
            OSError: NVML, which `probe` saw, is gone.
        """
        try:
            nvml = ctx.library(load_nvml)
            gpus = self._decide(nvml)
        except LibraryAbsent as error:
            raise OSError(error.reason) from None
        self._nvml, self._gpus, self._clock = nvml, gpus, ctx.clock
        for absent in _absent(gpus):
            self._facts.append(Fact("note", {}, {"text": f"{absent.what}: {absent.reason}"}))

    def _decide(self, nvml: Any) -> list[NvidiaGpu]:
        """Every GPU with the queries that answer now."""
        gpus = [NvidiaGpu(index, handle) for index, handle in gpu_handles(nvml)]
        for gpu in gpus:
            for group in self.groups(nvml, gpu):
                kept = [query for query in _settled(nvml, gpu, group) if query.series]
                if kept:
                    gpu.groups.append(kept)
        return gpus

    def sample(self) -> Sequence[Reading]:
        readings: list[Reading] = []
        for gpu in self._gpus:
            for group in gpu.groups:
                if not gpu.gone:
                    self._read(gpu, group, readings)
        self._gpus = [gpu for gpu in self._gpus if not gpu.gone]
        return readings

    def _read(self, gpu: NvidiaGpu, group: list[Query], readings: list[Reading]) -> None:
        begin = self._clock()
        answers = [(query, query.pairs(self._nvml)) for query in group]
        end = self._clock()
        for query, pairs in answers:
            for series, value in pairs:
                if not isinstance(value, Failed):
                    self._failures.pop(series, None)
                    readings.append(Reading(series, value, begin, end, self.quality(series, begin, end)))
                elif not gpu.gone and not self._ends(gpu, query, series, value.code):
                    readings.append(Reading(series, None, begin, end))

    def _ends(self, gpu: NvidiaGpu, query: Query, series: Series, code: int) -> bool:
        """Judge a failure; say, once, what ends by it."""
        reason = error_words(self._nvml, code)
        if code in GONE:
            gpu.gone = reason
            self.stopped("everything read of this GPU", gpu.labels, reason)
            return True
        count = self._failures[series] = self._failures.get(series, 0) + 1
        if code not in NEVER and count < MAX_FAILURES:
            return False
        query.drop(series)
        times = f" ({count} times in a row)" if count > 1 else ""
        self.stopped(series.metric.name, dict(series.labels), reason + times)
        return True

    def close(self) -> None:
        self._gpus = []


def _settled(nvml: Any, gpu: NvidiaGpu, group: list[Query]) -> list[Query]:
    """A group without what the GPU refuses, and with what replaces it."""
    settled: list[Query] = []
    waiting = list(group)
    while waiting:
        query = waiting.pop(0)
        settled.append(query)
        distinct: dict[int, Query] = {}
        for series, value in query.pairs(nvml):
            if not isinstance(value, Failed) or value.code not in NEVER | GONE:
                continue
            query.drop(series)
            other = query.instead.get(series)
            if other is None:
                gpu.refused.append((series.metric.name, error_words(nvml, value.code)))
            else:
                distinct[id(other)] = other
        waiting = _merged(distinct.values()) + waiting
    return settled


def _merged(queries: Collection[Query]) -> list[Query]:
    """Fields of the same GPU in one call."""
    plain_queries = [query for query in queries if not isinstance(query, FieldQuery)]
    fields = [query for query in queries if isinstance(query, FieldQuery)]
    for query in fields[1:]:
        fields[0].take_over(query)
    return [*plain_queries, *fields[:1]]


def _absent(gpus: Sequence[NvidiaGpu]) -> tuple[Absent, ...]:
    return absent_metrics({gpu.index: gpu.refused for gpu in gpus})


def error_words(nvml: Any, code: int) -> str:
    """NVML's words for an error, which are in capitals, as part of a sentence."""
    if code == FUNCTION_NOT_FOUND:
        return "this driver does not have the call"
    text = str(nvml.NVMLError(code)).rstrip(".")
    return text if text.startswith("GPU") else text.lower()
