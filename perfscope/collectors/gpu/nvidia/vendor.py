"""NVIDIA: NVML where it can be loaded, else the files of the driver."""

from __future__ import annotations

import re

from perfscope.collectors.context import Context
from perfscope.collectors.gpu.base import Entry, Vendor
from perfscope.collectors.gpu.data_sheets import peaks_of
from perfscope.collectors.gpu.nvidia import devices
from perfscope.collectors.gpu.nvidia.library import load_nvml
from perfscope.collectors.library import LibraryAbsent
from perfscope.collectors.machine.pci import normal_address
from perfscope.collectors.peak import TheoreticalPeak


class Nvidia(Vendor):
    """See the module."""

    name = "NVIDIA"
    visibility = (("CUDA_VISIBLE_DEVICES",),)

    def is_usable(self, ctx: Context) -> bool:
        """See Vendor."""
        try:
            ctx.library(load_nvml)
        except LibraryAbsent:
            return False
        return True

    def driver_devices(self, ctx: Context) -> list[Entry]:
        """See Vendor: in the order of the bus addresses, which is NVML's, and CUDA's for GPUs of one kind."""
        gpus: list[Entry] = []
        for name in ctx.glob("/proc/driver/nvidia/gpus/*/information"):
            text = ctx.read_or(name)
            model = re.search(r"^Model:\s*(.+)$", text, re.M)
            uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)", text, re.M)
            gpus.append(
                {
                    "pci": normal_address(name.split("/")[-2]),
                    "name": model[1].strip() if model else None,
                    "uuid": uuid[1] if uuid else None,
                }
            )
        return sorted(gpus, key=lambda gpu: str(gpu["pci"]))

    def devices(self, ctx: Context, notes: list[str]) -> list[Entry]:
        """See Vendor."""
        try:
            nvml = ctx.library(load_nvml)
        except LibraryAbsent as absent:
            if not absent.is_expected:
                notes.append(f"NVML: {absent.reason}")
            return self.driver_devices(ctx)
        return devices.list_gpus(nvml, ctx)

    def links(self, ctx: Context) -> list[Entry]:
        """See Vendor."""
        try:
            nvml = ctx.library(load_nvml)
        except LibraryAbsent:
            return []
        return devices.gpu_links(nvml, ctx)

    def num_usable(self, ctx: Context) -> int:
        """See Vendor."""
        return sum(1 for path in ctx.glob("/dev/nvidia*") if re.fullmatch(r"/dev/nvidia\d+", path))

    def peaks(self, name: str) -> tuple[TheoreticalPeak, ...]:
        """See Vendor."""
        from perfscope.collectors.gpu.nvidia.peaks import DATA_SHEETS

        return peaks_of(DATA_SHEETS, devices.LINK_NAME, name)
