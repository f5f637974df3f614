"""PCIe traffic of AMD GPUs whose firmware does not report it: the estimate `pcie_bw` of amdgpu.

The driver counts packets for one second, in which the read blocks, and gives the largest payload that a
packet may have. Packets x that size is at most what was transferred, not what was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from perfscope.collectors.base import SECOND_NS, BaseCollector, Capability, Reading, reason_of
from perfscope.collectors.context import Context, KeptFile
from perfscope.collectors.gpu.amd.cards import list_cards
from perfscope.collectors.gpu.amd.counters import NO_GPU
from perfscope.collectors.gpu.base import count_text, metric
from perfscope.collectors.gpu.registry import first_index
from perfscope.rundir.metrics import DERIVED, Series
from perfscope.vocabulary import gpu as words

_MORE = {"quality": DERIVED, "resolution": "packets of the last second x the largest payload: at most this"}
TX = metric(words.PCIE_TX_SAMPLED, "pcie_bw: sent", **_MORE)
RX = metric(words.PCIE_RX_SAMPLED, "pcie_bw: received", **_MORE)


class AmdPcieRate(BaseCollector):
    """See the module."""

    name = "gpu.amd.pcie_rate"
    slow = True
    min_interval_ns = SECOND_NS
    source = "/sys/class/drm/cardN/device/pcie_bw"

    def __init__(self) -> None:
        super().__init__()
        self._files: list[tuple[KeptFile, Series, Series]] = []
        self._clock: Callable[[], int] = lambda: 0

    def probe(self, ctx: Context) -> Capability:
        cards = [card for card in list_cards(ctx) if card.pci and not card.is_part]
        cards_with_rate = [card for card in cards if ctx.exists(f"{card.folder}/pcie_bw")]
        return self.capability(
            metrics=(TX, RX) if cards_with_rate else (),
            source=self.source,
            reason="" if cards_with_rate else "these GPUs have no pcie_bw" if cards else NO_GPU,
            detail=count_text(len(cards_with_rate)) if cards_with_rate else "",
        )

    def open(self, ctx: Context) -> None:
        """Open the files. Raises OSError."""
        first = first_index(ctx, "AMD")
        self._clock = ctx.clock
        for card in list_cards(ctx):
            path = f"{card.folder}/pcie_bw"
            if card.pci and not card.is_part and ctx.exists(path):
                labels = {"gpu": str(first + card.index)}
                self._files.append((ctx.keep(path), Series(TX, labels), Series(RX, labels)))

    def sample(self) -> Sequence[Reading]:
        readings: list[Reading] = []
        for entry in list(self._files):
            file, sent, received = entry
            begin = self._clock()
            try:
                values = parse_pcie_bw(file.read().decode("utf-8", "replace"))
            except OSError as error:
                self._files.remove(entry)
                file.close()
                self.stopped(f"{TX.name}, {RX.name}", dict(sent.labels), reason_of(error))
                continue
            end = self._clock()
            readings += [Reading(sent, values[0], begin, end), Reading(received, values[1], begin, end)]
        return readings

    def close(self) -> None:
        for file, _, _ in self._files:
            file.close()
        self._files = []


def parse_pcie_bw(text: str) -> tuple[int | None, int | None]:
    """(sent, received) in bytes/s from ``RECEIVED SENT LARGEST_PAYLOAD``: packets of a second, and bytes."""
    match = re.fullmatch(r"(\d+)\s+(\d+)\s+(\d+)", text.strip())
    if match is None:
        return None, None
    received, sent, payload = (int(number) for number in match.groups())
    return sent * payload, received * payload
