"""RAPL: powercap of an invented two-socket machine, its faults, and perf instead of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfscope.collectors.base import Reading
from perfscope.collectors.context import Context, captured_context
from perfscope.collectors.power.perf import PerfEnergy
from perfscope.collectors.power.rapl import RaplEnergy, rapl_zones
from tests.support.hardware import by_series, copy, expected, faulty, machine, names, tree, write

CLASS = "sys/class/powercap"


def raw(ctx: Context) -> dict[str, Reading]:
    collector = RaplEnergy()
    collector.open(ctx)
    readings = {reading.series.labels["domain"]: reading for reading in collector.sample()}
    collector.close()
    return readings


def test_watts_of_every_domain_across_a_wrap() -> None:
    """package-0 wraps between the two reads: energy modulo the limit is what was used."""
    figures = expected("skx-2s-hdr-expected.json")
    before, after = raw(machine("skx-2s-hdr-before")), raw(machine("skx-2s-hdr-after"))
    watts = {}
    for domain, reading in before.items():
        metric = reading.series.metric
        assert metric.limit is not None
        gained = ((after[domain].value or 0) - (reading.value or 0)) % metric.limit
        watts[domain.replace("-", "_")] = gained * metric.scale / figures["interval_s"]
    assert watts == pytest.approx(figures["rapl_w"])
    assert (after["package-0"].value or 0) < (before["package-0"].value or 0)


def test_domains_of_two_sockets_have_different_names() -> None:
    assert [zone.domain for zone in rapl_zones(machine("skx-2s-hdr-before"))] == [
        "package-0",
        "dram-0",
        "package-1",
        "dram-1",
    ]


def test_subdomains_board_and_second_interface(tmp_path: Path) -> None:
    """A client machine: core and uncore inside the package, psys around it, MMIO the same package again."""
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "uncore",
        "intel-rapl:1": "psys",
        "intel-rapl-mmio:0": "package-0",
    }
    for folder, name in zones.items():
        write(tmp_path, {f"{CLASS}/{folder}/name": f"{name}\n", f"{CLASS}/{folder}/energy_uj": "5\n"})
    assert list(raw(captured_context(tmp_path))) == ["package-0", "core-0", "uncore-0", "psys"]


def test_joules() -> None:
    collector = RaplEnergy()
    collector.open(machine("skx-2s-hdr-before"))
    assert by_series(collector.sample())["rapl_energy{domain=dram-1}"] == pytest.approx(7.0)
    collector.close()


def refused(name: str) -> dict[str, str]:
    zones = ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1", "intel-rapl:1:0")
    return {f"{CLASS}/{zone}/energy_uj": name for zone in zones}


def test_root_only_counters_name_what_to_do() -> None:
    capability = RaplEnergy().probe(machine("skx-2s-hdr-before", errors=refused("EACCES")))
    assert not capability.available
    assert "Permission denied" in capability.reason
    assert "chmod a+r" in capability.remedy
    assert "perf_event_paranoid" not in capability.remedy, "that machine has no such PMU"


def test_a_machine_without_rapl_says_so() -> None:
    capability = RaplEnergy().probe(machine("vm-nothing-available"))
    assert not capability.available
    assert "virtual machines" in capability.reason


def test_a_domain_that_vanishes_ends_alone() -> None:
    ctx = faulty(machine("skx-2s-hdr-before"))
    collector = RaplEnergy()
    collector.open(ctx)
    assert len(collector.sample()) == 4
    ctx.fail(f"/{CLASS}/intel-rapl:1:0/energy_uj", "ENODATA")
    for _ in range(2):
        assert {reading.series.labels["domain"] for reading in collector.sample()} == {
            "package-0",
            "dram-0",
            "package-1",
        }
    assert [fact.labels for fact in collector.facts()] == [{"domain": "dram-1"}]
    collector.close()
    collector.close()


def test_text_in_place_of_energy_is_left_out(tmp_path: Path) -> None:
    root = copy("skx-2s-hdr-before", tmp_path / "tree")
    write(root, {f"{CLASS}/intel-rapl:0/energy_uj": "N/A\n"})
    ctx = captured_context(root)
    assert list(raw(ctx)) == ["dram-0", "package-1", "dram-1"]
    assert [absent.what for absent in RaplEnergy().probe(ctx).absent] == ["rapl_energy of package-0"]


# perf


class Counters:
    """perf_event_open that gives files of 24 bytes: value, time enabled, time running."""

    def __init__(self, folder: Path, error: int = 0) -> None:
        self.folder, self.error = folder, error
        self.opened: list[tuple[int, int, int]] = []

    def perf_event_open(self, kind: int, config: int, cpu: int, **_: int) -> int:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        self.opened.append((kind, config, cpu))
        place = self.folder / f"{config}-{cpu}"
        words = (config * 1000 + cpu, 1, 1)
        place.write_bytes(b"".join(word.to_bytes(8, "little") for word in words))
        return os.open(place, os.O_RDONLY)

    def move_pages(self, pid: int, addresses: list[int]) -> list[int]:
        raise NotImplementedError


def power_pmu(root: Path) -> None:
    """Two sockets with package and memory energy, as perf shows them."""
    pmu = "sys/bus/event_source/devices/power"
    write(
        root,
        {
            f"{pmu}/type": "21\n",
            f"{pmu}/cpumask": "0,20\n",
            f"{pmu}/events/energy-pkg": "event=0x02\n",
            f"{pmu}/events/energy-pkg.scale": "2.3283064365386962890625e-10\n",
            f"{pmu}/events/energy-ram": "event=0x03\n",
            f"{pmu}/events/energy-ram.scale": "2.3283064365386962890625e-10\n",
            f"{pmu}/events/energy-psys": "event=0x05\n",
            f"{pmu}/events/energy-psys.scale": "2.3283064365386962890625e-10\n",
            "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
            "sys/devices/system/cpu/cpu20/topology/physical_package_id": "1\n",
        },
    )


def perf_machine(tmp_path: Path, error: int = 0, **changes: object) -> tuple[Context, Counters]:
    root = copy("skx-2s-hdr-before", tmp_path / "tree")
    power_pmu(root)
    (tmp_path / "counters").mkdir()
    counters = Counters(tmp_path / "counters", error)
    return captured_context(root, syscalls=counters, **changes), counters


def test_perf_stands_in_where_powercap_is_for_root(tmp_path: Path) -> None:
    ctx, counters = perf_machine(tmp_path, errors=refused("EACCES"))
    assert PerfEnergy().probe(ctx).available
    assert "kernel.perf_event_paranoid=0" in RaplEnergy().probe(ctx).remedy
    counters.opened.clear()
    collector = PerfEnergy()
    collector.open(ctx)
    readings = {reading.series.labels["domain"]: reading for reading in collector.sample()}
    assert counters.opened == [(21, 2, 0), (21, 2, 20), (21, 3, 0), (21, 3, 20), (21, 5, 0)]
    assert {domain: reading.value for domain, reading in readings.items()} == {
        "package-0": 2000,
        "package-1": 2020,
        "dram-0": 3000,
        "dram-1": 3020,
        "psys": 5000,
    }
    assert readings["dram-1"].series.metric.scale == pytest.approx(2**-32)
    collector.close()


def test_perf_is_not_opened_where_powercap_can_be_read(tmp_path: Path) -> None:
    ctx, counters = perf_machine(tmp_path)
    capability = PerfEnergy().probe(ctx)
    assert not capability.available
    assert "not needed" in capability.reason
    assert counters.opened == []


def test_perf_that_is_refused_names_the_sysctl(tmp_path: Path) -> None:
    ctx, _ = perf_machine(tmp_path, error=13, errors=refused("EACCES"))
    capability = PerfEnergy().probe(ctx)
    assert not capability.available
    assert "Permission denied" in capability.reason
    assert "kernel.perf_event_paranoid" in capability.remedy


def test_a_perf_counter_whose_cpu_went_offline_ends_alone(tmp_path: Path) -> None:
    ctx, counters = perf_machine(tmp_path, errors=refused("EACCES"))
    collector = PerfEnergy()
    collector.open(ctx)
    (counters.folder / "2-20").write_bytes(b"")
    assert {reading.series.labels["domain"] for reading in collector.sample()} == {
        "package-0",
        "dram-0",
        "dram-1",
        "psys",
    }
    assert [fact.labels for fact in collector.facts()] == [{"domain": "package-1"}]
    collector.close()


@pytest.mark.parametrize("name", names())
def test_every_tree_can_be_probed(name: str) -> None:
    for collector in (RaplEnergy(), PerfEnergy()):
        capability = collector.probe(captured_context(tree(name)))
        assert capability.available or capability.reason
