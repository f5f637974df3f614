"""The binary table `gpu_metrics` of amdgpu: its layouts, by revision.

The layouts are `struct gpu_metrics_vF_C` of the kernel's drivers/gpu/drm/amd/include/kgd_pp_interface.h (in
commit 2be02a7c996a), in native byte order and alignment. Revisions are not extensions of each other, so only
known ones are read. A field of ones alone was not filled in by the driver.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

Field = int | None | tuple[int | None, ...]
_HEADER = struct.Struct("=HBB")  # structure_size, format_revision, content_revision
_SIZES = {"B": 1, "H": 2, "I": 4, "Q": 8}

# Fields after the header: a name is a uint16_t, `name:I` a uint32_t, `name:8Q` eight uint64_t.
_TEMPERATURES = """temperature_edge temperature_hotspot temperature_mem temperature_vrgfx
    temperature_vrsoc temperature_vrmem"""
_CLOCKS = """average_gfxclk_frequency average_socclk_frequency average_uclk_frequency
    average_vclk0_frequency average_dclk0_frequency average_vclk1_frequency average_dclk1_frequency
    current_gfxclk current_socclk current_uclk current_vclk0 current_dclk0 current_vclk1 current_dclk1"""
_ACTIVITY = "average_gfx_activity average_umc_activity average_mm_activity average_socket_power"
_V1_0 = f"""system_clock_counter:Q {_TEMPERATURES} {_ACTIVITY} energy_accumulator:I {_CLOCKS}
    throttle_status:I current_fan_speed pcie_link_width:B pcie_link_speed:B"""
_V1_1 = f"""{_TEMPERATURES} {_ACTIVITY} energy_accumulator:Q system_clock_counter:Q {_CLOCKS}
    throttle_status:I current_fan_speed pcie_link_width pcie_link_speed padding gfx_activity_acc:I
    mem_activity_acc:I temperature_hbm:4H"""
_V1_2 = f"{_V1_1} firmware_timestamp:Q"
_V1_3 = f"{_V1_2} voltage_soc voltage_gfx voltage_mem padding1 indep_throttle_status:Q"
_SOCKET = """temperature_hotspot temperature_mem temperature_vrsoc curr_socket_power
    average_gfx_activity average_umc_activity"""
_LINKS = """pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed gfx_activity_acc:I
    mem_activity_acc:I pcie_bandwidth_acc:Q pcie_bandwidth_inst:Q pcie_l0_to_recov_count_acc:Q
    pcie_replay_count_acc:Q pcie_replay_rover_count_acc:Q"""
_NAKS = "pcie_nak_sent_count_acc:I pcie_nak_rcvd_count_acc:I"
_XGMI = "xgmi_read_data_acc:8Q xgmi_write_data_acc:8Q"
_NOW = """firmware_timestamp:Q current_gfxclk:8H current_socclk:4H current_vclk0:4H current_dclk0:4H
    current_uclk"""
_STATUS = "energy_accumulator:Q system_clock_counter:Q throttle_status:I gfxclk_lock_status:I"
_RESIDENCIES = """energy_accumulator:Q system_clock_counter:Q accumulation_counter:I
    prochot_residency_acc:I ppt_residency_acc:I socket_thm_residency_acc:I vr_thm_residency_acc:I
    hbm_thm_residency_acc:I gfxclk_lock_status:I"""
_V1_4 = f"{_SOCKET} vcn_activity:4H {_STATUS} {_LINKS} {_XGMI} {_NOW} padding"
_V1_5 = f"{_SOCKET} vcn_activity:4H jpeg_activity:32H {_STATUS} {_LINKS} {_NAKS} {_XGMI} {_NOW} padding"
# What follows is of partitions, and is not read.
_V1_6 = f"{_SOCKET} {_RESIDENCIES} {_LINKS} {_NAKS} {_XGMI} {_NOW} num_partition"
_V1_7 = f"""{_SOCKET} mem_max_bandwidth:Q {_RESIDENCIES} {_LINKS} {_NAKS} {_XGMI} xgmi_link_status:8H
    padding {_NOW} num_partition"""
_APU_CLOCKS = """average_gfxclk_frequency average_socclk_frequency average_uclk_frequency
    average_fclk_frequency average_vclk_frequency average_dclk_frequency current_gfxclk current_socclk
    current_uclk current_fclk current_vclk current_dclk current_coreclk:8H current_l3clk:2H
    throttle_status:I fan_pwm"""
_APU_TEMPERATURES = "temperature_gfx temperature_soc temperature_core:8H temperature_l3:2H"
_APU_ACTIVITY = "average_gfx_activity average_mm_activity"
_APU_POWER = """average_socket_power average_cpu_power average_soc_power average_gfx_power
    average_core_power:8H"""
_V2_0 = f"""system_clock_counter:Q {_APU_TEMPERATURES} {_APU_ACTIVITY} {_APU_POWER} {_APU_CLOCKS}
    padding"""
_V2_1 = (
    f"""{_APU_TEMPERATURES} {_APU_ACTIVITY} system_clock_counter:Q {_APU_POWER} {_APU_CLOCKS} padding:3H"""
)
_V2_2 = f"{_V2_1} indep_throttle_status:Q"
_V2_3 = f"""{_V2_2} average_temperature_gfx average_temperature_soc average_temperature_core:8H
    average_temperature_l3:2H"""
_V2_4 = f"""{_V2_3} average_cpu_voltage average_soc_voltage average_gfx_voltage average_cpu_current
    average_soc_current average_gfx_current"""
_LAYOUTS = {
    (1, 0): _V1_0,
    (1, 1): _V1_1,
    (1, 2): _V1_2,
    (1, 3): _V1_3,
    (1, 4): _V1_4,
    (1, 5): _V1_5,
    (1, 6): _V1_6,
    (1, 7): _V1_7,
    (1, 8): _V1_7,  # differs in its partitions only
    (2, 0): _V2_0,
    (2, 1): _V2_1,
    (2, 2): _V2_2,
    (2, 3): _V2_3,
    (2, 4): _V2_4,
}
REVISIONS = tuple(_LAYOUTS)


class UnknownTableError(ValueError):
    """The table has a revision that is not known, or is shorter than its revision says."""


@dataclass(frozen=True, slots=True)
class MetricsTable:
    """One reading.

    Attributes:
        revision: (format, content).
        fields: by name; None where the driver filled nothing in, a tuple where it is an array.
    """

    revision: tuple[int, int]
    fields: Mapping[str, Field]

    def one(self, name: str) -> int | None:
        """A field that is no array; None also where the revision does not have it."""
        value = self.fields.get(name)
        return value if isinstance(value, int) else None

    def array(self, name: str) -> tuple[int | None, ...]:
        """An array; () where the revision does not have it."""
        value = self.fields.get(name)
        return value if isinstance(value, tuple) else ()


class _Layout:
    """A revision as a struct: names with their numbers of values."""

    def __init__(self, text: str) -> None:
        self.fields: list[tuple[str, int, str]] = []
        form = "@HBB"
        for word in text.split():
            match = re.fullmatch(r"(\w+)(?::(\d*)([BHIQ]))?", word)
            assert match is not None, word
            count, code = int(match[2] or 1), match[3] or "H"
            self.fields.append((match[1], count, code))
            form += f"{count}{code}"
        self.struct = struct.Struct(form)

    def decode(self, data: bytes) -> dict[str, Field]:
        values = self.struct.unpack_from(data)[3:]
        fields: dict[str, Field] = {}
        offset = 0
        for name, count, code in self.fields:
            nothing = (1 << 8 * _SIZES[code]) - 1
            values_present = tuple(
                None if item == nothing else item for item in values[offset : offset + count]
            )
            fields[name] = values_present if count > 1 else values_present[0]
            offset += count
        return fields


_decoders: dict[tuple[int, int], _Layout] = {}


def layout_of(revision: tuple[int, int]) -> _Layout:
    """The layout of a known revision, made once. Raises KeyError."""
    if revision not in _decoders:
        _decoders[revision] = _Layout(_LAYOUTS[revision])
    return _decoders[revision]


def read_table(data: bytes) -> MetricsTable:
    """The table that `gpu_metrics` holds.

    Raises:
        UnknownTableError: another revision than REVISIONS, or cut short.
    """
    if len(data) < _HEADER.size:
        raise UnknownTableError(f"gpu_metrics holds {len(data)} bytes")
    size, *revision = _HEADER.unpack_from(data)
    key = (revision[0], revision[1])
    if key not in _LAYOUTS:
        raise UnknownTableError(f"gpu_metrics {key[0]}.{key[1]} is not known to this perfscope")
    layout = layout_of(key)
    if min(size, len(data)) < layout.struct.size:
        raise UnknownTableError(f"gpu_metrics {key[0]}.{key[1]} has {min(size, len(data))} bytes only")
    return MetricsTable(key, layout.decode(data))
