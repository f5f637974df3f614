"""What NVML says about the GPUs of this host and the paths between them: entries of topology.json.

Every answer is asked for once and may be missing; nothing here raises for a GPU that does not know one.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from perfscope.collectors.context import Context
from perfscope.collectors.gpu.base import PCIE
from perfscope.kernel_text import format_cpulist
from perfscope.vocabulary.links import LinkClass

LINK_NAME = "NVLink"
# Per lane and direction: signalling rate (GT/s) and the share that is data (8b/10b, 128b/130b, FLIT).
_PCIE = {
    1: (2.5, 8 / 10),
    2: (5.0, 8 / 10),
    3: (8.0, 128 / 130),
    4: (16.0, 128 / 130),
    5: (32.0, 128 / 130),
    6: (64.0, 242 / 256),
}
# nvmlDeviceGetTopologyCommonAncestor, in the words of `nvidia-smi topo -m`.
_ANCESTORS = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# Index of nvmlDeviceGetP2PStatus. pynvml's own NVML_P2P_CAPS_INDEX_READ is the tuple (0,) by mistake.
_P2P_INDEXES = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3}
_P2P_STATES = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled in the registry",
    5: "not supported",
    6: "unknown",
}
# nvmlDeviceGetNvLinkVersion counts 1.0, 2.0, 2.2, ...: an enum, not a version (an A100 answers 5).
NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
_FIELD_LINK_COUNT, _FIELD_LINK_SPEED = 91, 164
_MAX_LINKS = 36
_REMOTE_SWITCH = 2


def asked(nvml: Any, function: str, *arguments: Any) -> Any:
    """What an NVML function answers; None when it fails, or this pynvml does not have it."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError, AttributeError):
        return None


def field_value(entry: Any) -> int | float:
    """The value of one c_nvmlFieldValue_t, from the member of its union that is in use."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    kind = entry.valueType
    value: int | float = getattr(entry.value, members[kind] if kind < len(members) else "ullVal")
    return value


def one_field(nvml: Any, handle: Any, field: int, scope: int = 0) -> int | float | None:
    """One field of a GPU; None when it is not to be had."""
    entries = asked(nvml, "nvmlDeviceGetFieldValues", handle, [(field, scope)])
    return None if entries is None or entries[0].nvmlReturn != 0 else field_value(entries[0])


def gpu_handles(nvml: Any) -> list[tuple[int, Any]]:
    """(index, handle) of every GPU that answers. Costs milliseconds a GPU: keep them.

    Raises:
        nvml.NVMLError: the GPUs cannot even be counted.
    """
    handles = [
        (index, asked(nvml, "nvmlDeviceGetHandleByIndex", index))
        for index in range(nvml.nvmlDeviceGetCount())
    ]
    return [(index, handle) for index, handle in handles if handle is not None]


def pci_address(bus_id: str) -> str:
    """``00000000:3B:00.0`` -> ``0000:3b:00.0``, the name in /sys/bus/pci/devices."""
    domain, _, remainder = bus_id.partition(":")
    try:
        return f"{int(domain, 16):04x}:{remainder.lower()}"
    except ValueError:
        return bus_id.lower()


def pcie_peak(generation: int | None, width: int | None) -> float | None:
    """Bytes per second and direction that a PCIe link can carry at most, before packet headers."""
    if generation not in _PCIE or not width:
        return None
    speed, data = _PCIE[generation]
    return speed * 1e9 * data * width / 8


def list_gpus(nvml: Any, ctx: Context) -> list[dict[str, object]]:
    """The `gpus` of topology.json, in NVML's order (by PCI address).

    Args:
        nvml: what `load_nvml` gave.
        ctx: for /sys/bus/pci/devices.
    """
    try:
        handles = gpu_handles(nvml)
    except nvml.NVMLError:
        return []
    return [_gpu(nvml, ctx, index, handle) for index, handle in handles]


def _gpu(nvml: Any, ctx: Context, index: int, handle: Any) -> dict[str, object]:
    info = asked(nvml, "nvmlDeviceGetPciInfo", handle)
    address = pci_address(info.busId) if info is not None else None
    memory = asked(nvml, "nvmlDeviceGetMemoryInfo", handle)
    mig = asked(nvml, "nvmlDeviceGetMigMode", handle)
    return {
        "id": f"gpu:{index}",
        "index": index,
        "pci": address,
        "name": asked(nvml, "nvmlDeviceGetName", handle),
        "uuid": asked(nvml, "nvmlDeviceGetUUID", handle),
        "memory_bytes": memory.total if memory is not None else None,
        "numa_node": _numa_node(nvml, ctx, address, handle),
        "cpus": _cpus(nvml, ctx, address, handle),
        "pcie": _pcie_link(nvml, handle),
        "mig": bool(mig and mig[0]),
        "nvlinks": len(active_links(nvml, handle)),
        "nvlink_version": _nvlink_version(nvml, handle),
    }


def _numa_node(nvml: Any, ctx: Context, address: str | None, handle: Any) -> int | None:
    """The CPU's node beside the GPU. nvmlDeviceGetNumaNodeId is another: a Grace GPU's own memory."""
    node = ctx.read_int(f"/sys/bus/pci/devices/{address}/numa_node") if address else None
    if node is not None and node >= 0:
        return node
    masks = asked(nvml, "nvmlDeviceGetMemoryAffinity", handle, 4, 0)
    nodes = _bits(masks) if masks is not None else []
    return nodes[0] if len(nodes) == 1 else None


def _cpus(nvml: Any, ctx: Context, address: str | None, handle: Any) -> str | None:
    if address:
        listed = ctx.read_or(f"/sys/bus/pci/devices/{address}/local_cpulist")
        if listed:
            return listed
    masks = asked(nvml, "nvmlDeviceGetCpuAffinity", handle, 16)
    return format_cpulist(_bits(masks)) if masks is not None else None


def _bits(masks: Any) -> list[int]:
    """Numbers of the bits set in an array of 64-bit words."""
    return [
        64 * mask_index + bit for mask_index, word in enumerate(masks) for bit in range(64) if word >> bit & 1
    ]


def _pcie_link(nvml: Any, handle: Any) -> dict[str, object]:
    """Speed now (an idle GPU lowers it to save power), speed at most, and the peak by the latter."""
    now = asked(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle)
    width = asked(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle)
    top, top_width = max_pcie(nvml, handle)
    return {
        "speed_gt_s": _PCIE[now][0] if now in _PCIE else None,
        "width": width,
        "max_speed_gt_s": _PCIE[top][0] if top in _PCIE else None,
        "max_width": top_width,
        "peak_bytes_per_s": pcie_peak(top, top_width),
    }


def max_pcie(nvml: Any, handle: Any) -> tuple[int | None, int | None]:
    """Highest generation and width that GPU and slot allow together."""
    return (
        asked(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        asked(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
    )


def active_links(nvml: Any, handle: Any) -> list[int]:
    """Numbers of the NVLinks that are up; [] without NVLink."""
    count = one_field(nvml, handle, _FIELD_LINK_COUNT)
    if count == 0:
        return []
    links = range(min(int(count), _MAX_LINKS) if count else _MAX_LINKS)
    active: list[int] = []
    for link in links:
        state = asked(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None and count is None:
            break  # the number of links is unknown: the first that gives an error is one too many
        if state == 1:
            active.append(link)
    return active


def _nvlink_version(nvml: Any, handle: Any) -> str | None:
    number = asked(nvml, "nvmlDeviceGetNvLinkVersion", handle, 0)
    return NVLINK_VERSIONS.get(number) if number is not None else None


def gpu_links(nvml: Any, ctx: Context) -> list[dict[str, object]]:
    """The GPU-to-GPU `links` of topology.json: for each pair, its NVLinks or else its path over PCIe.

    `peak_bytes_per_s` is per direction. `p2p` says what the driver allows between the two.
    """
    try:
        handles = gpu_handles(nvml)
    except nvml.NVMLError:
        return []
    ends = {index: _NvLinkEnds(nvml, handle) for index, handle in handles}
    return [
        _link(nvml, first, second, (ends[first[0]], ends[second[0]]))
        for first, second in combinations(handles, 2)
    ]


class _NvLinkEnds:
    """Where the NVLinks of one GPU lead."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        info = asked(nvml, "nvmlDeviceGetPciInfo", handle)
        self.address = pci_address(info.busId) if info is not None else None
        self.to_switch = 0
        self.to_gpu: dict[str, int] = {}  # PCI address -> number of links
        self.link_peak: float | None = None  # bytes/s of one link and direction
        links = active_links(nvml, handle)
        for link in links:
            self._follow(nvml, handle, link)
        if links:
            speed = one_field(nvml, handle, _FIELD_LINK_SPEED, links[0])  # MB/s
            self.link_peak = speed * 1e6 if speed else None

    def _follow(self, nvml: Any, handle: Any, link: int) -> None:
        kind = asked(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        if kind == _REMOTE_SWITCH:
            self.to_switch += 1
            return
        remote = asked(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        if remote is not None:
            address = pci_address(remote.busId)
            self.to_gpu[address] = self.to_gpu.get(address, 0) + 1


def _link(
    nvml: Any, first: tuple[int, Any], second: tuple[int, Any], ends: tuple[_NvLinkEnds, _NvLinkEnds]
) -> dict[str, object]:
    """One pair. Links that meet in switches count for every pair of GPUs behind them."""
    a, b = ends
    states = {
        word: _P2P_STATES.get(asked(nvml, "nvmlDeviceGetP2PStatus", first[1], second[1], index))
        for word, index in _P2P_INDEXES.items()
    }
    direct = a.to_gpu.get(b.address or "", 0)
    through = min(a.to_switch, b.to_switch) if states["nvlink"] in ("ok", None) else 0
    entry: dict[str, object] = {"a": f"gpu:{first[0]}", "b": f"gpu:{second[0]}", "p2p": states}
    if direct or through:
        number = direct or through
        entry["class"], entry["kind"], entry["path"] = LinkClass.GPU_LINK, LINK_NAME, f"NV{number}"
        entry["num_links"] = number
        entry["peak_bytes_per_s"] = a.link_peak * number if a.link_peak else None
        entry["switch"] = not direct
        return entry
    level = asked(nvml, "nvmlDeviceGetTopologyCommonAncestor", first[1], second[1])
    peaks = [pcie_peak(*max_pcie(nvml, handle)) for _, handle in (first, second)]
    entry["class"], entry["path"] = PCIE, _ANCESTORS.get(level)
    entry["peak_bytes_per_s"] = _smaller(*peaks)
    return entry


def _smaller(first: float | None, second: float | None) -> float | None:
    return min(first, second) if first and second else first or second
