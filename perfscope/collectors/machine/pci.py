"""Devices on PCI Express: where they are, how fast their link is, and what lies between two of them.

Part of `topology`: network interfaces and fabric ports (InfiniBand, Omni-Path, RoCE, iWARP).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfscope.collectors.context import Context

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
_LOOPBACK = 772  # ARPHRD_LOOPBACK
MAX_VIRTUAL_NICS = 16  # a container host has hundreds of veth pairs


@dataclass(frozen=True, slots=True)
class PciLocation:
    """Where a device is plugged in.

    Attributes:
        pci: address of the nearest PCI device above it, "0000:3b:00.0"; None = not on PCI.
        folder: sysfs folder of that device; "" = not on PCI.
        numa_node: None = the firmware does not say (-1).
        cpus: those near it; "" = not known, or all the same.
    """

    pci: str | None = None
    folder: str = ""
    numa_node: int | None = None
    cpus: str = ""


def normal_address(text: str) -> str:
    """A driver's spelling to sysfs': ``00000000:3B:00.0`` -> ``0000:3b:00.0``."""
    domain, colon, remainder = text.strip().lower().partition(":")
    if not colon:
        return text.strip().lower()
    return f"{domain[-4:] if set(domain[:-4]) <= {'0'} else domain}:{remainder}"


def place_of(ctx: Context, name: str) -> PciLocation:
    """Walk up from a device's folder to its PCI device and to the first folder that tells a NUMA node.

    Between the two may be others: an interface of a virtual machine hangs below a virtio or VMBus device.
    """
    path = ctx.real(name)
    parts = path.split("/")
    pci, folder, node, cpus = None, "", None, ""
    for length in range(len(parts), 3, -1):
        here = "/".join(parts[:length])
        if pci is None and _ADDRESS.fullmatch(parts[length - 1]):
            pci, folder = parts[length - 1], here
        if node is None and ctx.exists(f"{here}/numa_node"):
            node_file = ctx.read_int(f"{here}/numa_node")
            node = node_file if node_file is not None else -1
            cpus = ctx.read_or(f"{here}/local_cpulist")
    has_node = node is not None and node >= 0
    return PciLocation(pci, folder, node if has_node else None, cpus if has_node else "")


def pcie_link(ctx: Context, folder: str) -> dict[str, object] | None:
    """Speed and width of a PCI device's link, now and at most; None = it has none (or is not PCIe).

    `peak_bytes_per_s` is per direction, before packet overhead: the slower of the two ends' top speeds
    (links of idle devices run slow to save power) times the width now (which does not change by itself).
    """
    speed, width = _speed(ctx, f"{folder}/current_link_speed"), _width(ctx, f"{folder}/current_link_width")
    top, widest = _speed(ctx, f"{folder}/max_link_speed"), _width(ctx, f"{folder}/max_link_width")
    above = _speed(ctx, f"{folder.rpartition('/')[0]}/max_link_speed")
    speeds = [speed_value for speed_value in (top or speed, above) if speed_value]
    lanes = width or widest
    if not lanes or not speeds:
        return None
    return {
        "speed_gt_s": speed,
        "width": width,
        "max_speed_gt_s": top,
        "max_width": widest,
        "peak_bytes_per_s": round(lanes * lane_bytes_per_s(min(speeds))),
    }


def lane_bytes_per_s(gt_s: float) -> float:
    """Payload of one lane in one direction: 8b/10b up to 5 GT/s, 128b/130b up to 32, flits above."""
    coding = 8 / 10 if gt_s <= 5 else 128 / 130 if gt_s <= 32 else 242 / 256
    return gt_s * 1e9 * coding / 8


def path_between(first_device: PciLocation, other: PciLocation, num_nodes: int) -> str:
    """What two PCI devices have between them, in the words that vendors' tools print.

    PIX at most one bridge or switch · PXB several · PHB the same host bridge · NODE several host bridges
    of one NUMA node · SYS the link between sockets (also where the nodes are not known).
    """
    first, second = _below_root(first_device.folder), _below_root(other.folder)
    if not first or not second or first[0] != second[0]:
        same = first_device.numa_node == other.numa_node and first_device.numa_node is not None
        return "NODE" if same or num_nodes == 1 else "SYS"
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    if common == 1:
        return "PHB"
    return "PIX" if max(len(first), len(second)) - common <= 2 else "PXB"


def read_nics(ctx: Context) -> tuple[list[dict[str, object]], list[str]]:
    """Entries `nics`, without loopback, and notes on what was left out."""
    nics: list[dict[str, object]] = []
    num_virtual = 0
    for folder in ctx.glob("/sys/class/net/*"):
        name = folder.rpartition("/")[2]
        if not ctx.exists(f"{folder}/ifindex") or ctx.read_int(f"{folder}/type") == _LOOPBACK:
            continue
        location = place_of(ctx, folder)
        virtual = "/devices/virtual/" in ctx.real(folder)
        num_virtual += virtual
        if virtual and num_virtual > MAX_VIRTUAL_NICS:
            continue
        nics.append(
            {
                "id": f"nic:{name}",
                "name": name,
                "pci": location.pci,
                "numa_node": location.numa_node,
                "cpus": location.cpus,
                "speed_bits_per_s": _net_speed(ctx, folder),
                "mtu": ctx.read_int(f"{folder}/mtu"),
                "state": ctx.read_or(f"{folder}/operstate") or None,
                "virtual": virtual,
                "mac": ctx.read_or(f"{folder}/address") or None,
                "pcie": pcie_link(ctx, location.folder) if location.folder else None,
            }
        )
    left_out = num_virtual - MAX_VIRTUAL_NICS
    return nics, [f"{left_out} more virtual network interfaces"] if left_out > 0 else []


def read_fabric_ports(ctx: Context) -> list[dict[str, object]]:
    """Entries `fabric_ports`."""
    ports: list[dict[str, object]] = []
    for folder in ctx.glob("/sys/class/infiniband/*/ports/*"):
        device, number = folder.split("/")[-3], folder.split("/")[-1]
        base = f"/sys/class/infiniband/{device}"
        netdev = port_netdev(ctx, device, number)
        location = place_of(ctx, f"{base}/device") if ctx.exists(f"{base}/device") else place_of(ctx, base)
        if not location.folder and netdev:  # a software device sits on an interface
            location = place_of(ctx, f"/sys/class/net/{netdev}")
        kind = port_kind(ctx, device, number)
        ports.append(
            {
                "id": f"port:{device}/{number}",
                "device": device,
                "port": number,
                "kind": kind,
                "link_layer": ctx.read_or(f"{folder}/link_layer") or None,
                "rate_bits_per_s": port_rate(ctx, device, number) if not is_software(ctx, device) else None,
                "state": ctx.read_or(f"{folder}/state").partition(":")[2].strip() or None,
                "pci": location.pci,
                "numa_node": location.numa_node,
                "cpus": location.cpus,
                "netdev": netdev,
                "pcie": pcie_link(ctx, location.folder) if location.folder else None,
            }
        )
    return ports


def is_software(ctx: Context, device: str) -> bool:
    """rxe and siw: RDMA made by the kernel over an ordinary interface. Their `rate` is made up."""
    return "/devices/virtual/" in ctx.real(f"/sys/class/infiniband/{device}")


def port_kind(ctx: Context, device: str, number: str) -> str:
    """infiniband, omnipath, roce, rxe, iwarp, or efa."""
    base = f"/sys/class/infiniband/{device}"
    layer = ctx.read_or(f"{base}/ports/{number}/link_layer")
    driver = ctx.real(f"{base}/device/driver").rpartition("/")[2]
    # udev renames hfi1_0 to opap1s0: the driver and the board say more than the name.
    if driver == "hfi1" or device.startswith("hfi1") or "Omni-Path" in ctx.read_or(f"{base}/board_id"):
        return "omnipath"
    if driver == "efa" or device.startswith("efa"):
        return "efa"
    if "RNIC" in ctx.read_or(f"{base}/node_type"):
        return "iwarp"
    if layer == "Ethernet":
        return "rxe" if is_software(ctx, device) else "roce"
    return "infiniband"


def port_rate(ctx: Context, device: str, number: str) -> int | None:
    """Bits per second from ``200 Gb/sec (4X HDR)``."""
    text = ctx.read_or(f"/sys/class/infiniband/{device}/ports/{number}/rate")
    match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", text)
    return round(float(match[1]) * 1e9) if match else None


def port_netdev(ctx: Context, device: str, number: str) -> str | None:
    """The network interface of a port: of the same adapter, or under a software device."""
    base = f"/sys/class/infiniband/{device}"
    for name in (f"{base}/parent", f"{base}/ports/{number}/gid_attrs/ndevs/0"):
        text = ctx.read_or(name)
        if text:
            return text
    names = ctx.glob(f"{base}/device/net/*")
    return names[0].rpartition("/")[2] if names else None


def _below_root(folder: str) -> list[str]:
    """Path components from the host bridge (``pci0000:3a``) down; [] = not on PCI."""
    parts = folder.split("/")
    for index, part in enumerate(parts):
        if _ROOT.fullmatch(part):
            return parts[index:]
    return []


def _speed(ctx: Context, name: str) -> float | None:
    """GT/s from ``16.0 GT/s PCIe``; None for ``Unknown speed``."""
    match = re.match(r"(\d+(?:\.\d+)?) GT/s", ctx.read_or(name))
    return float(match[1]) if match else None


def _width(ctx: Context, name: str) -> int | None:
    width = ctx.read_int(name)
    return width if width in _WIDTHS else None  # 0, 63 and 255 mean "no link"


def _net_speed(ctx: Context, folder: str) -> int | None:
    """Bits per second. -1 (a virtual NIC), 2**32-1 (old drivers) and EINVAL (down) mean unknown."""
    speed = ctx.read_int(f"{folder}/speed")
    return speed * 1_000_000 if speed is not None and 0 < speed < 2**31 - 1 else None
