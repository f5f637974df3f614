"""AMD: the files of amdkfd and amdgpu, and AMD SMI for names that they lack."""

from __future__ import annotations

from perfscope.collectors.context import Context
from perfscope.collectors.gpu.amd.cards import KFD, LINK_NAME, describe, list_cards, xgmi_links
from perfscope.collectors.gpu.base import Entry, Vendor
from perfscope.collectors.gpu.data_sheets import peaks_of
from perfscope.collectors.library import LibraryAbsent
from perfscope.collectors.peak import TheoreticalPeak

_DEVICE = "/dev/kfd"


class Amd(Vendor):
    """See the module."""

    name = "AMD"
    visibility = (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))

    def is_usable(self, ctx: Context) -> bool:
        """See Vendor."""
        return bool(self.num_usable(ctx))

    def driver_devices(self, ctx: Context) -> list[Entry]:
        """See Vendor."""
        return [describe(ctx, card) for card in list_cards(ctx)]

    def devices(self, ctx: Context, notes: list[str]) -> list[Entry]:
        """See Vendor."""
        cards = self.driver_devices(ctx)
        if any(card.get("is_partition") for card in cards):
            notes.append(
                "AMD GPUs are partitioned: what is read of one has the number of its first partition"
            )
        if all(card["name"] for card in cards):
            return cards
        from perfscope.collectors.gpu.amd.library import load_amdsmi, market_names

        try:
            names = market_names(ctx.library(load_amdsmi))
        except LibraryAbsent as absent:
            if not absent.is_expected:
                notes.append(absent.reason)
            names = {}
        return [{**card, "name": card["name"] or names.get(str(card["pci"]))} for card in cards]

    def links(self, ctx: Context) -> list[Entry]:
        """See Vendor."""
        return xgmi_links(ctx)

    def num_usable(self, ctx: Context) -> int | None:
        """See Vendor."""
        if not ctx.exists(_DEVICE):
            return 0
        if not ctx.exists(f"{KFD}/topology/nodes"):
            return None
        minors = (card.render_minor for card in list_cards(ctx))
        return sum(ctx.exists(f"/dev/dri/renderD{minor}") for minor in minors if minor)

    def peaks(self, name: str) -> tuple[TheoreticalPeak, ...]:
        """See Vendor."""
        from perfscope.collectors.gpu.amd.peaks import DATA_SHEETS

        return peaks_of(DATA_SHEETS, LINK_NAME, name)
