"""Which counters of the memory controllers this machine has, and how they are asked for.

Event codes come from sysfs where the kernel offers names for them, else from a table by processor. Numbers
in the table: the kernel's uncore driver (arch/x86/events/intel/uncore_snbep.c), its event lists
(tools/perf/pmu-events/arch/x86), and for Xeon Max the bytes per access from VTune's HBM metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from perfscope.collectors.context import Context
from perfscope.collectors.cpu.identity import CpuIdentity, read_cpu_identity
from perfscope.kernel_text import parse_cpulist

PMUS = "/sys/bus/event_source/devices"
READ, WRITE, TOTAL = "dram_read_bytes", "dram_write_bytes", "dram_total_bytes"
FAST_READ, FAST_WRITE = "mcdram_read_bytes", "mcdram_write_bytes"
CACHE_HITS, CACHE_MISSES = "mcdram_cache_hits", "mcdram_cache_misses"
LINE = 64.0
_UNITS = {"bytes": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
_WORDS = ("config", "config1", "config2")
MCDRAM_BYTES = 15 << 30  # a Knights Landing has 16 GiB; what is missing from its nodes is used as a cache


@dataclass(frozen=True, slots=True, kw_only=True)
class UncoreEvent:
    """One event of one PMU (one memory channel, usually).

    Attributes:
        metric: what it counts.
        pmu: its name below /sys/bus/event_source/devices.
        channel: number of the channel, as text.
        kind: perf_event_attr.type.
        config, config1, config2: perf_event_attr.
        bytes_per_count: 1.0 for events that are not bytes.
        cpus: one CPU per instance (socket); to be opened on each.
        how: the event as perf writes it: "event=0x04,umask=0x03".
    """

    metric: str
    pmu: str
    channel: str
    kind: int
    config: int
    config1: int = 0
    config2: int = 0
    bytes_per_count: float
    cpus: tuple[int, ...]
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UncoreMap:
    """What was found.

    Attributes:
        events: to be opened; () = none.
        reason, remedy: why there are none.
        notes: what has to be known about the figures.
        sockets: CPU of a `cpus` -> socket number.
    """

    events: tuple[UncoreEvent, ...] = ()
    reason: str = ""
    remedy: str = ""
    notes: tuple[str, ...] = ()
    sockets: Mapping[int, str]


class _Raw(NamedTuple):
    """A row of the table: event codes for PMUs whose whole name matches."""

    pmu: str
    metric: str
    terms: str
    channel: str = ""
    bytes_per_count: float = LINE


class _Alias(NamedTuple):
    """Names under events/ that kernels have used; {scale} and {unit} are beside them."""

    pmu: str
    event: str
    metric: str
    bytes_per_count: float | None = None  # where the kernel gives no scale


_ALIASES = (
    _Alias(r"uncore_imc_\d+", r"cas_count_read(?:_sch(\d))?", READ),
    _Alias(r"uncore_imc_\d+", r"cas_count_write(?:_sch(\d))?", WRITE),
    _Alias(r"nvidia_scf_pmu_\d+", r"cmem_rd_data", READ, 32.0),
    _Alias(r"nvidia_scf_pmu_\d+", r"cmem_wr_total_bytes", WRITE, 1.0),
)
_CLIENT_ALIASES = (  # desktop processors; only where there is nothing better
    _Alias(r"uncore_imc(?:_free_running_\d+)?", r"data_reads?", READ),
    _Alias(r"uncore_imc(?:_free_running_\d+)?", r"data_writes?", WRITE),
)


def _pair(pmu: str, read: str, write: str, metrics: tuple[str, str] = (READ, WRITE)) -> tuple[_Raw, _Raw]:
    return _Raw(pmu, metrics[0], read), _Raw(pmu, metrics[1], write)


_IMC = r"uncore_imc_\d+"
_SANDY_BRIDGE_TO_CASCADE_LAKE = _pair(_IMC, "event=0x04,umask=0x03", "event=0x04,umask=0x0c")
_ICE_LAKE = _pair(_IMC, "event=0x04,umask=0x0f", "event=0x04,umask=0x30")
_HBM = tuple(
    row._replace(bytes_per_count=32.0)
    for row in _pair(
        r"uncore_mchbm_\d+", "event=0x05,umask=0xcf", "event=0x05,umask=0xf0", (FAST_READ, FAST_WRITE)
    )
)
_SAPPHIRE_RAPIDS = (*_pair(_IMC, "event=0x05,umask=0xcf", "event=0x05,umask=0xf0"), *_HBM)
_GRANITE_RAPIDS = tuple(
    row._replace(channel=str(half))
    for half, code in enumerate(("0x05", "0x06"))
    for row in _pair(_IMC, f"event={code},umask=0xcf", f"event={code},umask=0xf0")
)
_KNIGHTS = (
    *_pair(_IMC, "event=0x03,umask=0x01", "event=0x03,umask=0x02"),
    *_pair(r"uncore_edc_eclk_\d+", "event=0x01,umask=0x01", "event=0x02,umask=0x01", (FAST_READ, FAST_WRITE)),
)
_KNIGHTS_CACHE = (  # EDC_ACCESS: clean and dirty hits; clean, dirty, invalid and garbage misses
    _Raw(r"uncore_edc_uclk_\d+", CACHE_HITS, "event=0x02,umask=0x03", bytes_per_count=1.0),
    _Raw(r"uncore_edc_uclk_\d+", CACHE_MISSES, "event=0x02,umask=0x3c", bytes_per_count=1.0),
)
_ZEN4 = _pair(r"amd_umc_\d+", "event=0x0a,rdwrmask=0x1", "event=0x0a,rdwrmask=0x2")
_ZEN1 = tuple(  # one counter per channel and no more than four at a time: the kernel takes turns
    _Raw(r"amd_df(?:_\d+)?", TOTAL, f"event=0x{0x07 + 0x40 * channel:x},umask=0x38", str(channel))
    for channel in range(8)
)
_INTEL_MODELS = {
    **dict.fromkeys((45, 62, 63, 79, 86, 85), _SANDY_BRIDGE_TO_CASCADE_LAKE),
    **dict.fromkeys((106, 108, 134), _ICE_LAKE),
    **dict.fromkeys((143, 207), _SAPPHIRE_RAPIDS),
    **dict.fromkeys((173, 174, 175), _GRANITE_RAPIDS),
}


def find_uncore(ctx: Context) -> UncoreMap:
    """Look for the counters. Never raises."""
    pmus = [name.rpartition("/")[2] for name in ctx.glob(f"{PMUS}/*")]
    cpu = read_cpu_identity(ctx)
    knights = cpu.is_knights or "uncore_edc_eclk_0" in pmus  # no other processor has that unit
    rows = _rows(cpu, knights)
    notes: list[str] = []
    if knights:
        rows += _knights_cache(ctx, notes)
    events = [event for pmu in pmus for event in _events_of(ctx, pmu, rows, _ALIASES)]
    if not events:
        events = [event for pmu in pmus for event in _events_of(ctx, pmu, (), _CLIENT_ALIASES)]
    cpus = {number for event in events for number in event.cpus}
    reason, remedy = ("", "") if events else _why_none(pmus, cpu)
    return UncoreMap(
        events=tuple(events),
        reason=reason,
        remedy=remedy,
        notes=tuple(notes),
        sockets={cpu: _socket(ctx, cpu, sorted(cpus)) for cpu in cpus},
    )


def encode(terms: str, formats: Mapping[str, str]) -> tuple[int, int, int]:
    """(config, config1, config2) of ``event=0x04,umask=0x03``.

    Args:
        terms: `name=value` or a bare name (1), joined by commas.
        formats: content of the PMU's format/ files: {"umask": "config:8-15"}. A field may be in
            several places, ``config:0-7,32-35``: its low bits go to the first.

    Raises:
        ValueError: a field that the PMU does not have, or a value that does not fit.
    """
    config_words = dict.fromkeys(_WORDS, 0)
    for term in terms.split(","):
        name, _, text = term.strip().partition("=")
        value = int(text, 0) if text else 1
        if name in config_words:
            config_words[name] |= value
            continue
        if name not in formats:
            raise ValueError(f"no field {name}")
        word, _, bit_ranges = formats[name].strip().partition(":")
        for bit_range in bit_ranges.split(","):
            low, _, high = bit_range.partition("-")
            width = int(high or low) - int(low) + 1
            config_words[word] |= (value & ((1 << width) - 1)) << int(low)
            value >>= width
        if value:
            raise ValueError(f"{name} is too large")
    return config_words["config"], config_words["config1"], config_words["config2"]


def read_formats(ctx: Context, pmu: str) -> dict[str, str]:
    """{field: place} of a PMU."""
    return {name.rpartition("/")[2]: ctx.read_or(name) for name in ctx.glob(f"{PMUS}/{pmu}/format/*")}


def _rows(cpu: CpuIdentity, knights: bool) -> tuple[_Raw, ...]:
    if knights:
        return _KNIGHTS
    intel = cpu.vendor == "GenuineIntel" and cpu.family == 6
    # AMD's units have the same events wherever they exist: on families 25 and 26, and where the family is not
    # known.
    return (_INTEL_MODELS.get(cpu.model, ()) if intel else ()) + _ZEN4 + (_ZEN1 if _is_zen1(cpu) else ())


def _is_zen1(cpu: CpuIdentity) -> bool:
    """Zen 1 to 3, whose data fabric counts per DRAM channel; Zen 4 renumbered the events."""
    if cpu.vendor not in ("AuthenticAMD", "HygonGenuine"):
        return False
    zen3 = cpu.family == 25 and (cpu.model <= 0x0F or 0x20 <= cpu.model <= 0x5F)
    return cpu.family in (23, 24) or zen3


def _events_of(ctx: Context, pmu: str, rows: Sequence[_Raw], aliases: Sequence[_Alias]) -> list[UncoreEvent]:
    own_rows = [row for row in rows if re.fullmatch(row.pmu, pmu)]
    own_aliases = [alias for alias in aliases if re.fullmatch(alias.pmu, pmu)]
    kind = ctx.read_int(f"{PMUS}/{pmu}/type") if own_rows or own_aliases else None
    if kind is None:
        return []
    number = re.search(r"\d+$", pmu)
    bare = UncoreEvent(
        metric="",
        pmu=pmu,
        channel=number[0] if number else "0",
        kind=kind,
        config=0,
        bytes_per_count=LINE,
        cpus=_cpumask(ctx, pmu),
        how="",
    )
    formats = read_formats(ctx, pmu)
    named = [event for alias in own_aliases for event in _named(ctx, bare, alias, formats)]
    return named or [event for row in own_rows if (event := _raw(bare, row, formats)) is not None]


def _named(ctx: Context, bare: UncoreEvent, alias: _Alias, formats: Mapping[str, str]) -> list[UncoreEvent]:
    events = []
    for name in ctx.glob(f"{PMUS}/{bare.pmu}/events/*"):
        match = re.fullmatch(alias.event, name.rpartition("/")[2])
        if match is None:
            continue
        half = match[1] if match.re.groups else None
        size = alias.bytes_per_count or _bytes_per_count(ctx, name)
        terms = ctx.read_or(name)
        row = _Raw("", alias.metric, terms, half or "", size or LINE)
        event = _raw(bare, row, formats) if size else None
        if event is not None:
            events.append(event)
    return events


def _raw(bare: UncoreEvent, row: _Raw, formats: Mapping[str, str]) -> UncoreEvent | None:
    try:
        config, config1, config2 = encode(row.terms, formats)
    except ValueError:  # another generation's unit under the same name
        return None
    if bare.pmu.startswith("amd_df"):
        channel = row.channel
    else:
        channel = f"{bare.channel}.{row.channel}" if row.channel else bare.channel
    return replace(
        bare,
        metric=row.metric,
        channel=channel,
        config=config,
        config1=config1,
        config2=config2,
        bytes_per_count=row.bytes_per_count,
        how=row.terms,
    )


def _bytes_per_count(ctx: Context, event: str) -> float | None:
    """From the event's .scale and .unit: 6.103515625e-5 MiB -> 64.0; None = not a number of bytes."""
    unit = _UNITS.get(ctx.read_or(f"{event}.unit").lower())
    try:
        return float(ctx.read_or(f"{event}.scale")) * unit if unit else None
    except ValueError:
        return None


def _cpumask(ctx: Context, pmu: str) -> tuple[int, ...]:
    try:
        return tuple(parse_cpulist(ctx.read_or(f"{PMUS}/{pmu}/cpumask"))) or (0,)
    except ValueError:
        return (0,)


def _socket(ctx: Context, cpu: int, cpus: Sequence[int]) -> str:
    """The socket of a CPU; where the topology is not known, its place among the CPUs of the masks."""
    package = ctx.read_int(f"/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id")
    return str(cpus.index(cpu) if package is None else package)


def _knights_cache(ctx: Context, notes: list[str]) -> tuple[_Raw, ...]:
    """The extra events of a Knights Landing whose MCDRAM is, in part at least, a cache."""
    nodes = ctx.glob("/sys/devices/system/node/node[0-9]*")
    if not nodes:
        notes.append(
            "the mode of the MCDRAM is unknown: if it is a cache, reads include misses, writes fills"
        )
        return ()
    memory = 0
    for node in nodes:
        if not ctx.read_or(f"{node}/cpulist"):
            total = re.search(r"MemTotal:\s+(\d+) kB", ctx.read_or(f"{node}/meminfo"))
            memory += int(total[1]) * 1024 if total else 0
    if memory >= MCDRAM_BYTES:
        return ()
    notes.append(
        "MCDRAM is used as a cache: its reads count hits and misses, its writes also fills; "
        "see mcdram_cache_hits and mcdram_cache_misses"
    )
    return _KNIGHTS_CACHE


def _why_none(pmus: Sequence[str], cpu: CpuIdentity) -> tuple[str, str]:
    if "amd_df" in pmus and cpu.family in (25, 26):
        return "the kernel does not know this processor's memory controllers (amd_umc)", "Linux 6.9 or newer"
    if any(pmu.startswith("uncore_imc") for pmu in pmus):
        return f"the memory controllers' events of family {cpu.family} model {cpu.model} are not known", ""
    if "hypervisor" in cpu.flags:
        return "this is a virtual machine: it shows no counters of the memory controllers", ""
    return f"no counters of memory controllers (uncore_imc, amd_umc) in {PMUS}", ""
