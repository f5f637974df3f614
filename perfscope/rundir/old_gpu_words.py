"""Readings and links of GPUs as earlier versions recorded them: in the words of NVIDIA's library.

A run directory is read through these tables, so that nothing behind the readers knows the old words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from perfscope.vocabulary import gpu
from perfscope.vocabulary.gpu import ThrottleBit, ThrottleReason

_LINK_NAME = "NVLink"
_VENDOR = {"vendor": "NVIDIA", "visibility": [["CUDA_VISIBLE_DEVICES"]]}
_METRICS = {
    "gpu_sm_clock": gpu.CLOCK,
    "gpm_sm_activity": gpu.COMPUTE_ACTIVITY,
    "gpm_sm_occupancy": gpu.OCCUPANCY,
    "gpm_tensor_activity": gpu.MATRIX_ACTIVITY,
    "gpm_dram_activity": gpu.DRAM_ACTIVITY,
    "gpm_pcie_tx_rate": gpu.PCIE_TX_RATE,
    "gpm_pcie_rx_rate": gpu.PCIE_RX_RATE,
    "gpm_nvlink_tx_rate": gpu.LINK_TX_RATE,
    "gpm_nvlink_rx_rate": gpu.LINK_RX_RATE,
    "nvlink_tx_bytes": gpu.LINK_TX,
    "nvlink_rx_bytes": gpu.LINK_RX,
}
_OF_LINKS = frozenset((gpu.LINK_TX, gpu.LINK_RX, gpu.LINK_TX_RATE, gpu.LINK_RX_RATE))


class _Reason(NamedTuple):
    reason: ThrottleReason
    name: str


# The label `reason` of gpu_throttle_time.
_REASONS = {
    "sw_power_cap": _Reason(ThrottleReason.POWER_CAP, "SW power cap"),
    "sync_boost": _Reason(ThrottleReason.SYNC, "sync boost"),
    "sw_thermal": _Reason(ThrottleReason.THERMAL, "SW thermal"),
    "hw_thermal": _Reason(ThrottleReason.THERMAL, "HW thermal"),
    "hw_power_brake": _Reason(ThrottleReason.POWER_BRAKE, "HW power brake"),
}
# Of gpu_throttle_reasons, where the series does not say it itself: nvmlClocksEventReasons of nvml.h.
_BITS = (
    ThrottleBit(0x1, ThrottleReason.IDLE, "idle"),
    ThrottleBit(0x2, ThrottleReason.CLOCK_SETTING, "application clocks"),
    ThrottleBit(0x4, ThrottleReason.POWER_CAP, "SW power cap"),
    ThrottleBit(0x8, ThrottleReason.HARDWARE, "HW slowdown"),
    ThrottleBit(0x10, ThrottleReason.SYNC, "sync boost"),
    ThrottleBit(0x20, ThrottleReason.THERMAL, "SW thermal"),
    ThrottleBit(0x40, ThrottleReason.THERMAL, "HW thermal"),
    ThrottleBit(0x80, ThrottleReason.POWER_BRAKE, "HW power brake"),
    ThrottleBit(0x100, ThrottleReason.CLOCK_SETTING, "display clocks"),
)


def collector(name: str) -> str:
    """A collector's name as it is now: ``nvml.links`` -> ``gpu.nvidia.links``."""
    first, dot, remainder = name.partition(".")
    return f"gpu.nvidia{dot}{remainder}" if first == "nvml" else name


def fact_value(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The value of a fact with the name of a collector or a metric as it is now."""
    what = value.get("what")
    if not isinstance(what, str):
        return value
    now = _METRICS[what].name if what in _METRICS else collector(what)
    return value if now == what else {**value, "what": now}


def series(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """The definition of a series in samples.jsonl as it would be written now."""
    name, labels = definition.get("metric"), definition.get("labels")
    labels = labels if isinstance(labels, dict) else {}
    metric = _METRICS.get(name) if isinstance(name, str) else None
    if metric is not None:
        kind = {"kind": _LINK_NAME} if metric in _OF_LINKS else {}
        return {**definition, "metric": metric.name, "labels": {**labels, **kind}}
    if name == gpu.THROTTLE_TIME.name and labels.get("reason") in _REASONS:
        reason, word = _REASONS[labels["reason"]]
        return {**definition, "labels": {**labels, "reason": reason.value, "name": word}}
    if name == gpu.THROTTLE_REASONS.name and "bits" not in definition:
        return {**definition, "bits": [[bit.mask, bit.reason.value, bit.name] for bit in _BITS]}
    return definition


def topology(document: dict[str, Any]) -> dict[str, Any]:
    """topology.json with GPUs that have a vendor, and with links of class ``gpu_link``."""
    gpus, links = document.get("gpus"), document.get("links")
    changed = dict(document)
    if isinstance(gpus, list):
        changed["gpus"] = [{**_VENDOR, **row} if isinstance(row, dict) else row for row in gpus]
    if isinstance(links, list):
        changed["links"] = [_link(row) if isinstance(row, dict) else row for row in links]
    return changed


def _link(row: dict[str, Any]) -> dict[str, Any]:
    if row.get("class") != "nvlink":
        return row
    count = str(row.get("path", "")).removeprefix("NV")
    number = {"num_links": int(count)} if count.isdecimal() else {}
    return {**row, "class": "gpu_link", "kind": _LINK_NAME, **number}
