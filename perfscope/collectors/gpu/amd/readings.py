"""Where each metric of an AMD GPU comes from, in order of preference: fields of `gpu_metrics`, then files.

A unit that the kernel's header or its documentation does not state is not assumed: such a field is not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfscope.collectors.gpu.amd.cards import LINK_NAME
from perfscope.collectors.gpu.amd.metrics_table import REVISIONS, MetricsTable
from perfscope.collectors.gpu.amd.throttling import STATUS_BITS
from perfscope.collectors.gpu.base import metric
from perfscope.rundir.metrics import DERIVED, Metric
from perfscope.vocabulary import gpu as words
from perfscope.vocabulary.gpu import GpuMetric

Revision = tuple[int, int]
Value = int | float | None
_DISCRETE = frozenset(
    revision for revision in REVISIONS if revision[0] == 1
)  # v2 is of processors with graphics
_OLD = frozenset(revision for revision in _DISCRETE if revision[1] <= 3)
_SOCKET = _DISCRETE - _OLD
_CENTI = frozenset({(2, 4)})
_INDEPENDENT = frozenset({(1, 3), (2, 2), (2, 3), (2, 4)})
_MILLION = 1e6
_NUM_LINKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReading:
    """A metric from a field of the table.

    Attributes:
        row: of the catalogue.
        source: the field.
        pick: its raw value; None = the table does not give it.
        revisions: of the table that have the field in the unit that `more["scale"]` says.
        labels: beside the GPU's.
        more: fields of Metric.
    """

    row: GpuMetric
    source: str
    pick: Callable[[MetricsTable], Value]
    revisions: frozenset[Revision]
    labels: dict[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def metric(self, source: str) -> Metric:
        """As this source gives it."""
        return metric(self.row, source, **self.more)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReading:
    """A metric from a file of sysfs, below the card's folder."""

    row: GpuMetric
    pattern: str
    parse: Callable[[str], Value]
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.pattern

    def metric(self, source: str) -> Metric:
        """As this source gives it."""
        return metric(self.row, source, **self.more)


def _field(row: GpuMetric, name: str, revisions: frozenset[Revision], **more: Any) -> TableReading:
    return TableReading(
        row=row, source=name, pick=lambda table: table.one(name), revisions=revisions, more=more
    )


def _percent(row: GpuMetric, name: str, revisions: frozenset[Revision], unit: float = 1.0) -> TableReading:
    """A share in percent; what is above 100 % is no reading."""

    def pick(table: MetricsTable) -> Value:
        value = table.one(name)
        return value if value is not None and value * unit <= 100 else None

    return TableReading(row=row, source=name, pick=pick, revisions=revisions, more={"scale": 0.01 * unit})


def _mean_clock(table: MetricsTable) -> Value:
    """Of the compute dies that are there."""
    clocks = [clock for clock in table.array("current_gfxclk") if clock]
    return sum(clocks) / len(clocks) if clocks else None


def _xgmi(row: GpuMetric, name: str, link: int) -> TableReading:
    def pick(table: MetricsTable) -> Value:
        status, counts = table.array("xgmi_link_status"), table.array(name)
        is_up = not status or status[link] == 1
        return counts[link] if table.one("xgmi_link_width") and counts and is_up else None

    return TableReading(
        row=row,
        source=f"{name}[{link}]",
        pick=pick,
        revisions=_SOCKET,
        labels={"link": str(link), "kind": LINK_NAME},
        more={"scale": 1024.0, "resolution": "1 KiB"},
    )


TABLE_READINGS: tuple[TableReading, ...] = (
    _percent(words.UTILIZATION, "average_gfx_activity", _DISCRETE),
    _percent(words.UTILIZATION, "average_gfx_activity", _CENTI, 0.01),
    _percent(words.MEMORY_UTILIZATION, "average_umc_activity", _DISCRETE),
    TableReading(
        row=words.CLOCK,
        source="current_gfxclk, mean over the compute dies",
        pick=_mean_clock,
        revisions=_SOCKET,
        more={"scale": _MILLION},
    ),
    _field(words.CLOCK, "current_gfxclk", _OLD | _CENTI, scale=_MILLION),
    _field(words.MEMORY_CLOCK, "current_uclk", _DISCRETE | _CENTI, scale=_MILLION),
    _field(words.TEMPERATURE, "temperature_hotspot", _DISCRETE),
    _field(words.TEMPERATURE, "temperature_edge", _OLD),
    _field(words.TEMPERATURE, "temperature_gfx", _CENTI, scale=0.01),
    _field(words.MEMORY_TEMPERATURE, "temperature_mem", _DISCRETE),
    _field(words.POWER, "curr_socket_power", _SOCKET),
    _field(words.POWER, "average_socket_power", _OLD),
    _field(words.POWER, "average_socket_power", _CENTI, scale=1e-3),
    _field(words.ENERGY, "energy_accumulator", _SOCKET, scale=2.0**-16),
    _field(words.PCIE_RATE, "pcie_bandwidth_inst", _SOCKET, scale=1e9, resolution="1 GB/s", quality=DERIVED),
    _field(words.THROTTLE_REASONS, "indep_throttle_status", _INDEPENDENT, bits=STATUS_BITS),
    *(_xgmi(words.LINK_TX, "xgmi_write_data_acc", link) for link in range(_NUM_LINKS)),
    *(_xgmi(words.LINK_RX, "xgmi_read_data_acc", link) for link in range(_NUM_LINKS)),
)


_MILLI, _MICRO = {"scale": 1e-3}, {"scale": 1e-6}


def _whole(text: str) -> Value:
    stripped = text.strip()
    return int(stripped) if re.fullmatch(r"-?\d+", stripped) else None


def _current_level(text: str) -> Value:
    """MHz of the level in use: ``1: 1700Mhz *``."""
    match = re.search(r"^\w+:\s*(\d+)\s*Mhz\s*\*", text, re.M | re.I)
    return int(match[1]) if match else None


FILE_READINGS: tuple[FileReading, ...] = (
    FileReading(row=words.MEMORY_USED, pattern="mem_info_vram_used", parse=_whole),
    FileReading(row=words.MEMORY_TOTAL, pattern="mem_info_vram_total", parse=_whole),
    FileReading(row=words.UTILIZATION, pattern="gpu_busy_percent", parse=_whole, more={"scale": 0.01}),
    FileReading(row=words.MEMORY_UTILIZATION, pattern="mem_busy_percent", parse=_whole, more={"scale": 0.01}),
    FileReading(row=words.POWER, pattern="hwmon/hwmon*/power1_input", parse=_whole, more=_MICRO),
    FileReading(row=words.POWER, pattern="hwmon/hwmon*/power1_average", parse=_whole, more=_MICRO),
    FileReading(row=words.CLOCK, pattern="hwmon/hwmon*/freq1_input", parse=_whole),
    FileReading(row=words.CLOCK, pattern="pp_dpm_sclk", parse=_current_level, more={"scale": _MILLION}),
    FileReading(row=words.MEMORY_CLOCK, pattern="hwmon/hwmon*/freq2_input", parse=_whole),
    FileReading(
        row=words.MEMORY_CLOCK, pattern="pp_dpm_mclk", parse=_current_level, more={"scale": _MILLION}
    ),
    FileReading(row=words.TEMPERATURE, pattern="hwmon/hwmon*/temp2_input", parse=_whole, more=_MILLI),
    FileReading(row=words.TEMPERATURE, pattern="hwmon/hwmon*/temp1_input", parse=_whole, more=_MILLI),
    FileReading(row=words.MEMORY_TEMPERATURE, pattern="hwmon/hwmon*/temp3_input", parse=_whole, more=_MILLI),
)
