"""Bytes over a GPU's PCIe port and NVLinks, from the counters of NVML.

The PCIe counters have 32 bits: at 63 GB/s (generation 5, x16) one wraps every 68 ms, so what is read less
often than that may have lost a whole turn and is marked `ambiguous`. Where the counters are missing, the
driver's own 20 ms measurement is all there is: it blocks, and sees nothing between two calls.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from perfscope.collectors.base import SECOND_NS
from perfscope.collectors.gpu.nvidia.devices import active_links, max_pcie, one_field, pcie_peak
from perfscope.collectors.gpu.nvidia.parts import FieldQuery, Gpu, NvmlCollector, Query, Value
from perfscope.collectors.gpu.nvidia.parts import metric_of as _metric
from perfscope.rundir.metrics import AMBIGUOUS, COUNTER, DERIVED, GAUGE, Metric, Series

_WORD = 1 << 32
_UNKNOWN_PEAK = 63.0e9  # generation 5, x16
_FIELD_TX, _FIELD_RX = 197, 198


def _pcie(direction: str, field: int) -> Metric:
    return _metric(
        f"pcie_{direction}_bytes",
        "bytes",
        COUNTER,
        f"NVML field {field}",
        f"bytes {'sent' if direction == 'tx' else 'received'} by the GPU over PCIe",
        limit=_WORD,
    )


def _nvlink(direction: str, field: int, scale: float) -> Metric:
    return _metric(
        f"nvlink_{direction}_bytes",
        "bytes",
        COUNTER,
        f"NVML field {field}",
        f"payload {'sent' if direction == 'tx' else 'received'} by the GPU over one NVLink",
        scale=scale,
        resolution="1 KiB" if scale != 1 else "",
    )


def _rate(direction: str, counter: int) -> Metric:
    return _metric(
        f"pcie_{direction}_rate",
        "bytes_per_s",
        GAUGE,
        f"nvmlDeviceGetPcieThroughput({counter})",
        f"bytes/s {'sent' if direction == 'tx' else 'received'} by the GPU over PCIe during 20 ms",
        scale=1000.0,
        quality=DERIVED,
        resolution="20 ms of each second",
    )


PCIE_TX, PCIE_RX = _pcie("tx", _FIELD_TX), _pcie("rx", _FIELD_RX)
NVLINK_TX, NVLINK_RX = _nvlink("tx", 138, 1024.0), _nvlink("rx", 139, 1024.0)
# Blackwell and later may count bytes only.
NVLINK_TX_BYTES, NVLINK_RX_BYTES = _nvlink("tx", 202, 1.0), _nvlink("rx", 204, 1.0)
PCIE_TX_RATE, PCIE_RX_RATE = _rate("tx", 0), _rate("rx", 1)


class NvmlLinks(NvmlCollector):
    """PCIe and NVLink counters. See the module."""

    name = "nvml.links"
    source = "NVML fields 197, 198 (PCIe), 138, 139 (NVLink)"

    def __init__(self) -> None:
        super().__init__()
        self._wrap_ns: dict[Series, float] = {}  # in what time the link could turn the counter once
        self._read_at: dict[Series, int] = {}

    def groups(self, nvml: Any, gpu: Gpu) -> list[list[Query]]:
        pcie = {
            Series(PCIE_TX, gpu.labels): (_FIELD_TX, 0),
            Series(PCIE_RX, gpu.labels): (_FIELD_RX, 0),
        }
        peak = pcie_peak(*max_pcie(nvml, gpu.handle)) or _UNKNOWN_PEAK
        for series in pcie:
            self._wrap_ns[series] = _WORD / peak * 1e9
        groups: list[list[Query]] = [[FieldQuery(nvml, gpu.handle, pcie, _low_word)]]
        links = active_links(nvml, gpu.handle)
        if links:
            groups.append([_nvlinks(nvml, gpu, links)])
        else:
            gpu.refused.append(("nvlink_tx_bytes, nvlink_rx_bytes", "no NVLink is up"))
        return groups

    def quality(self, series: Series, begin: int, end: int) -> str | None:
        wrap_ns = self._wrap_ns.get(series)
        if wrap_ns is None:
            return None
        before = self._read_at.get(series)
        self._read_at[series] = begin
        return AMBIGUOUS if before is not None and end - before >= wrap_ns else None


def _low_word(value: Value) -> Value:
    """The lower 32 bits: should a driver give 64, differences modulo 2**32 stay right."""
    return int(value) % _WORD


def _nvlinks(nvml: Any, gpu: Gpu, links: list[int]) -> FieldQuery:
    """Every link in both directions, one call. Where KiB are not counted, whole bytes stand in."""
    fields: dict[Series, tuple[int, int]] = {}
    instead: dict[Series, Query] = {}
    for link in links:
        labels = {**gpu.labels, "link": str(link)}
        for metric, field, other, other_field in (
            (NVLINK_TX, 138, NVLINK_TX_BYTES, 202),
            (NVLINK_RX, 139, NVLINK_RX_BYTES, 204),
        ):
            series = Series(metric, labels)
            fields[series] = (field, link)
            instead[series] = FieldQuery(nvml, gpu.handle, {Series(other, labels): (other_field, link)})
    return FieldQuery(nvml, gpu.handle, fields, instead=instead)


class NvmlPcieRate(NvmlCollector):
    """The driver's 20 ms look at PCIe, for GPUs without byte counters. See the module."""

    name = "nvml.pcie_rate"
    source = "nvmlDeviceGetPcieThroughput"
    min_interval_ns = SECOND_NS

    def groups(self, nvml: Any, gpu: Gpu) -> list[list[Query]]:
        handle = gpu.handle
        if one_field(nvml, handle, _FIELD_TX) is not None and one_field(nvml, handle, _FIELD_RX) is not None:
            gpu.refused.append(("pcie_tx_rate, pcie_rx_rate", "not needed: PCIe bytes are counted"))
            return []
        # A group each: a call blocks 20 ms, and the reading belongs to its own.
        return [
            [Query([Series(metric, gpu.labels)], partial(_throughput, nvml, handle, counter))]
            for counter, metric in enumerate((PCIE_TX_RATE, PCIE_RX_RATE))
        ]


def _throughput(nvml: Any, handle: Any, counter: int) -> list[Value]:
    """KB/s, in a list of one."""
    return [nvml.nvmlDeviceGetPcieThroughput(handle, counter)]
