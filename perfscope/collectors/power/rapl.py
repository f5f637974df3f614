"""Energy of CPU packages and memory (RAPL), from powercap.

Domains overlap: core-N and uncore-N are inside package-N, psys holds the whole board with its packages, and
only dram-N is beside package-N. So a sum takes package-N and dram-N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.collectors.base import (
    SECOND_NS,
    Absent,
    BaseCollector,
    Capability,
    Reading,
    reason_of,
    words_of,
)
from perfscope.collectors.context import Context, KeptFile
from perfscope.collectors.pace import Pace
from perfscope.rundir.metrics import COUNTER, Metric, Series

POWERCAP = "/sys/class/powercap"
PERF_POWER = "/sys/bus/event_source/devices/power"
NOTHING = f"no {POWERCAP}/intel-rapl:*: virtual machines have none, nor have CPUs without RAPL"
_ROOT_ONLY = (
    "run as root, or `chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj` as root (only root may read it "
    "since Linux 5.10, CVE-2020-8694)"
)
_OR_PERF = ", or let perf read power/energy-pkg/: sysctl kernel.perf_event_paranoid=0, or CAP_PERFMON"
DESCRIPTION = "energy used since the counter's last wrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """One RAPL domain of powercap.

    Attributes:
        folder: below /sys/class/powercap.
        domain: label that is unique on the machine: package-0, dram-0, core-0, psys.
        limit: raw value (µJ) at which it wraps; None = not known.
    """

    folder: str
    domain: str
    limit: int | None


@dataclass(slots=True)
class _Domain:
    series: Series
    file: KeptFile


class RaplEnergy(BaseCollector):
    """Energy counters of powercap, in µJ."""

    name = "power"
    min_interval_ns = SECOND_NS // 5  # counters lose nothing by it

    def __init__(self) -> None:
        super().__init__()
        self._domains: list[_Domain] = []
        self._pace = Pace()

    def probe(self, ctx: Context) -> Capability:
        zones = rapl_zones(ctx)
        refused = {zone.domain: why for zone in zones if (why := _why_not(ctx, zone))}
        remedy = (_ROOT_ONLY + (_OR_PERF if ctx.exists(PERF_POWER) else "")) if refused else ""
        readable = [zone.domain for zone in zones if zone.domain not in refused]
        return self.capability(
            metrics=(_metric(None),) if readable else (),
            source=f"{POWERCAP}/intel-rapl:*/energy_uj",
            reason="" if readable else next((f"energy_uj: {why}" for why in refused.values()), NOTHING),
            remedy="" if readable else remedy,
            absent=tuple(
                Absent(what=f"rapl_energy of {domain}", reason=why, remedy=remedy)
                for domain, why in refused.items()
                if readable
            ),
            detail=", ".join(readable),
        )

    def open(self, ctx: Context) -> None:
        self._clock = ctx.clock
        for zone in rapl_zones(ctx):
            if _why_not(ctx, zone):
                continue
            series = Series(_metric(zone.limit), {"domain": zone.domain})
            self._domains.append(_Domain(series, ctx.keep(f"{zone.folder}/energy_uj")))

    def sample(self) -> Sequence[Reading]:
        begin = self._clock()
        if begin < self._pace.next_ns:
            return ()
        values = [(domain, self._energy(domain)) for domain in self._domains]
        end = self._clock()
        self._pace.took(begin, end)
        if any(value is None for _, value in values):
            self._domains = [domain for domain, value in values if value is not None]
        return [Reading(domain.series, value, begin, end) for domain, value in values if value is not None]

    def close(self) -> None:
        for domain in self._domains:
            domain.file.close()
        self._domains.clear()

    def _energy(self, domain: _Domain) -> int | None:
        """µJ; None where it fails, which ends the domain."""
        try:
            return int(domain.file.read())
        except (OSError, ValueError) as error:
            domain.file.close()
            self.stopped("rapl_energy", dict(domain.series.labels), words_of(error))
            return None


def rapl_zones(ctx: Context) -> list[Zone]:
    """Domains of powercap, packages first. The same packages through MMIO (intel-rapl-mmio) are left out."""
    zones: list[Zone] = []
    parents: dict[str, str] = {}
    for folder in ctx.glob(f"{POWERCAP}/intel-rapl:*"):
        name = ctx.read_or(f"{folder}/name")
        if not name:
            continue
        number = folder.rpartition("/")[2].removeprefix("intel-rapl:")
        parents[number] = name
        parent = parents.get(number.rpartition(":")[0], "")
        domain = f"{name}-{parent.removeprefix('package-')}" if parent else name
        limit = ctx.read_int(f"{folder}/max_energy_range_uj")
        zones.append(Zone(folder=folder, domain=domain, limit=limit or None))
    return zones


def rapl_readable(ctx: Context) -> bool:
    """Whether powercap gives any energy to this user."""
    return any(not _why_not(ctx, zone) for zone in rapl_zones(ctx))


def _metric(limit: int | None) -> Metric:
    return Metric(
        name="rapl_energy",
        unit="joules",
        kind=COUNTER,
        source=f"{POWERCAP}/intel-rapl:*/energy_uj",
        description=DESCRIPTION,
        limit=limit,
        scale=1e-6,
        resolution="the hardware counts on about every millisecond",
    )


def _why_not(ctx: Context, zone: Zone) -> str:
    try:
        int(ctx.read(f"{zone.folder}/energy_uj"))
    except OSError as error:
        return reason_of(error)
    except ValueError:
        return "no number in it"
    return ""
