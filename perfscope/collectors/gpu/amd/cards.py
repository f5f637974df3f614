"""Which AMD GPUs there are, and the links between them: by amdkfd's topology, else by the cards of amdgpu.

amdkfd numbers devices as the ROCm runtime does, before ROCR_VISIBLE_DEVICES. A GPU in a partition mode (CPX,
DPX) is several devices there with one PCI address; its sensors are those of the whole GPU and are read once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import combinations

from perfscope.collectors.context import Context
from perfscope.collectors.gpu.base import Entry
from perfscope.vocabulary.links import LinkClass

LINK_NAME = "XGMI"
KFD = "/sys/class/kfd/kfd"
_NODES = f"{KFD}/topology/nodes"
_PCI_DEVICES = "/sys/bus/pci/devices"
_AMD = "0x1002"
_XGMI = 11  # CRAT_IOLINK_TYPE_XGMI of kfd_crat.h
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One device.

    Attributes:
        index: in the runtime's order.
        pci: address; "" = not known.
        node: of amdkfd; None where only the display driver knows the GPU.
        gpu_id: amdkfd's; 0 = none.
        render_minor: N of /dev/dri/renderDN; None = not known.
        unique_id: serial number of the chip; 0 = the driver does not give it.
        is_part: another device before it is the same GPU.
    """

    index: int
    pci: str
    node: int | None = None
    gpu_id: int = 0
    render_minor: int | None = None
    unique_id: int = 0
    is_part: bool = False

    @property
    def folder(self) -> str:
        """Where amdgpu's files are; what /sys/class/drm/cardN/device leads to."""
        return f"{_PCI_DEVICES}/{self.pci}"


def list_cards(ctx: Context) -> list[Card]:
    """Every GPU, in the order of the runtime. [] = none, or no driver."""
    result = _of_kfd(ctx) or _of_display(ctx)
    seen: set[str] = set()
    cards = []
    for index, card in enumerate(result):
        cards.append(replace(card, index=index, is_part=card.pci in seen))
        seen.add(card.pci)
    return cards


def _of_kfd(ctx: Context) -> list[Card]:
    cards = []
    for name in ctx.glob(f"{_NODES}/*/properties"):
        facts = properties(ctx, name)
        number = name.split("/")[-2]
        if not facts.get("simd_count") or not number.isdecimal():
            continue  # a CPU
        folder = f"{_NODES}/{number}"
        cards.append(
            Card(
                index=0,
                pci=_address(facts.get("domain", 0), facts.get("location_id", 0)),
                node=int(number),
                gpu_id=ctx.read_int(f"{folder}/gpu_id") or 0,
                render_minor=facts.get("drm_render_minor") or None,
                unique_id=facts.get("unique_id", 0),
            )
        )
    return cards


def _of_display(ctx: Context) -> list[Card]:
    """By PCI address."""
    folders = {ctx.real(name) for name in ctx.glob("/sys/class/drm/card*/device") if _is_amd(ctx, name)}
    return [Card(index=0, pci=folder.rpartition("/")[2]) for folder in sorted(folders)]


def _is_amd(ctx: Context, folder: str) -> bool:
    return bool(re.search(r"/card\d+/device$", folder)) and ctx.read_or(f"{folder}/vendor") == _AMD


def _address(domain: int, location: int) -> str:
    """``location_id`` is bus and function as in PCI configuration space: 8 bits bus, 5 device, 3 function."""
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7:x}"


def properties(ctx: Context, name: str) -> dict[str, int]:
    """A `properties` file of amdkfd: a name and a number a line."""
    pairs = (line.split() for line in ctx.read_or(name).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def describe(ctx: Context, card: Card) -> Entry:
    """The card as topology.json has it; sysfs adds the rest."""
    unique = card.unique_id or _hexadecimal(ctx.read_or(f"{card.folder}/unique_id"))
    return {
        "index": card.index,
        "pci": card.pci or None,
        "name": ctx.read_or(f"{card.folder}/product_name") or None,
        "uuid": f"GPU-{unique:016x}" if unique else None,
        "memory_bytes": ctx.read_int(f"{card.folder}/mem_info_vram_total"),
        "is_partition": card.is_part or None,
    }


def _hexadecimal(text: str) -> int:
    return int(text, 16) if re.fullmatch(r"(?:0x)?[0-9a-fA-F]+", text) else 0


def xgmi_links(ctx: Context) -> list[Entry]:
    """Pairs of GPUs that XGMI joins, with amdkfd's bandwidth per direction. Others are joined by PCIe."""
    cards = [card for card in list_cards(ctx) if card.node is not None]
    peaks: dict[tuple[int, int], int] = {}
    for card in cards:
        for name in ctx.glob(f"{_NODES}/{card.node}/*_links/*/properties"):
            facts = properties(ctx, name)
            if facts.get("type") == _XGMI:
                peaks[facts.get("node_from", -1), facts.get("node_to", -1)] = facts.get("max_bandwidth", 0)
    links: list[Entry] = []
    for first, other in combinations(cards, 2):
        assert first.node is not None and other.node is not None
        ways = [way for way in ((first.node, other.node), (other.node, first.node)) if way in peaks]
        if ways:
            peak = min(peaks[way] for way in ways)
            links.append(
                {
                    "a": f"gpu:{first.index}",
                    "b": f"gpu:{other.index}",
                    "class": LinkClass.GPU_LINK,
                    "kind": LINK_NAME,
                    "path": LINK_NAME,
                    "peak_bytes_per_s": peak * _MEGABYTE if peak else None,
                }
            )
    return links
