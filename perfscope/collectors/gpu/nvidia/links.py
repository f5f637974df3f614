"""Bytes over a GPU's PCIe port and NVLinks, from the counters of NVML.

The PCIe counters have 32 bits: at 63 GB/s (generation 5, x16) one wraps every 68 ms, so what is read less
often than that may have lost a whole turn and is marked `ambiguous`. Where the counters are missing, the
driver's own 20 ms measurement is all there is: it blocks, and sees nothing between two calls.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from perfscope.collectors.base import SECOND_NS
from perfscope.collectors.gpu.base import metric
from perfscope.collectors.gpu.nvidia.devices import LINK_NAME, active_links, max_pcie, one_field, pcie_peak
from perfscope.collectors.gpu.nvidia.parts import FieldQuery, NvidiaGpu, NvmlCollector, Query, Value
from perfscope.rundir.metrics import AMBIGUOUS, DERIVED, Series
from perfscope.vocabulary import gpu as words

_WORD = 1 << 32
_UNKNOWN_PEAK = 63.0e9  # generation 5, x16
_FIELD_TX, _FIELD_RX = 197, 198


PCIE_TX = metric(words.PCIE_TX, f"NVML field {_FIELD_TX}", limit=_WORD)
PCIE_RX = metric(words.PCIE_RX, f"NVML field {_FIELD_RX}", limit=_WORD)
NVLINK_TX = metric(words.LINK_TX, "NVML field 138", scale=1024.0, resolution="1 KiB")
NVLINK_RX = metric(words.LINK_RX, "NVML field 139", scale=1024.0, resolution="1 KiB")
# Blackwell and later may count bytes only.
NVLINK_TX_BYTES = metric(words.LINK_TX, "NVML field 202")
NVLINK_RX_BYTES = metric(words.LINK_RX, "NVML field 204")
_LOOK = {"scale": 1000.0, "quality": DERIVED, "resolution": "20 ms of each second"}
PCIE_TX_RATE = metric(words.PCIE_TX_SAMPLED, "nvmlDeviceGetPcieThroughput(0)", **_LOOK)
PCIE_RX_RATE = metric(words.PCIE_RX_SAMPLED, "nvmlDeviceGetPcieThroughput(1)", **_LOOK)


class NvmlLinks(NvmlCollector):
    """PCIe and NVLink counters. See the module."""

    name = "gpu.nvidia.links"
    source = "NVML fields 197, 198 (PCIe), 138, 139 (NVLink)"

    def __init__(self) -> None:
        super().__init__()
        self._wrap_ns: dict[Series, float] = {}  # in what time the link could turn the counter once
        self._read_at: dict[Series, int] = {}

    def groups(self, nvml: Any, gpu: NvidiaGpu) -> list[list[Query]]:
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
            gpu.refused.append((f"{words.LINK_TX.name}, {words.LINK_RX.name}", "no NVLink is up"))
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


def _nvlinks(nvml: Any, gpu: NvidiaGpu, links: list[int]) -> FieldQuery:
    """Every link in both directions, one call. Where KiB are not counted, whole bytes are used."""
    fields: dict[Series, tuple[int, int]] = {}
    instead: dict[Series, Query] = {}
    for link in links:
        labels = {**gpu.labels, "link": str(link), "kind": LINK_NAME}
        for counter, field, other, other_field in (
            (NVLINK_TX, 138, NVLINK_TX_BYTES, 202),
            (NVLINK_RX, 139, NVLINK_RX_BYTES, 204),
        ):
            series = Series(counter, labels)
            fields[series] = (field, link)
            instead[series] = FieldQuery(nvml, gpu.handle, {Series(other, labels): (other_field, link)})
    return FieldQuery(nvml, gpu.handle, fields, instead=instead)


class NvmlPcieRate(NvmlCollector):
    """The driver's 20 ms look at PCIe, for GPUs without byte counters. See the module."""

    name = "gpu.nvidia.pcie_rate"
    source = "nvmlDeviceGetPcieThroughput"
    min_interval_ns = SECOND_NS

    def groups(self, nvml: Any, gpu: NvidiaGpu) -> list[list[Query]]:
        handle = gpu.handle
        if one_field(nvml, handle, _FIELD_TX) is not None and one_field(nvml, handle, _FIELD_RX) is not None:
            gpu.refused.append(("pcie_tx_rate, pcie_rx_rate", "not needed: PCIe bytes are counted"))
            return []
        # A group each: a call blocks 20 ms, and the reading belongs to its own.
        return [
            [Query([Series(rate, gpu.labels)], partial(_throughput, nvml, handle, counter))]
            for counter, rate in enumerate((PCIE_TX_RATE, PCIE_RX_RATE))
        ]


def _throughput(nvml: Any, handle: Any, counter: int) -> list[Value]:
    """KB/s, in a list of one."""
    return [nvml.nvmlDeviceGetPcieThroughput(handle, counter)]
