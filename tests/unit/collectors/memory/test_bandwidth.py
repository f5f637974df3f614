"""Memory traffic counted by the memory controllers."""

from __future__ import annotations

import errno
import fnmatch
import time
from pathlib import Path

import pytest

from perfscope.collectors.context import Context, captured_context, live_context
from perfscope.collectors.memory.bandwidth import MemoryBandwidth
from perfscope.collectors.memory.perf_stat import PerfStat
from perfscope.collectors.memory.uncore import (
    PMUS,
    READ,
    WRITE,
    UncoreEvent,
    encode,
    find_uncore,
    read_formats,
)
from tests.support import hardware
from tests.support.uncore_stand_in import (
    INTEL,
    Kernel,
    context,
    cpu,
    msr_counters,
    pmu,
    put,
    rates,
    software_counters,
)

# Encodings


@pytest.mark.parametrize(
    ("terms", "formats", "config"),
    [
        ("event=0x04,umask=0x03", INTEL, (0x304, 0, 0)),
        ("event=0x4,umask=12", INTEL, (0xC04, 0, 0)),
        (
            "event=0x1c7,umask=0x38",
            {"event": "config:0-7,32-35", "umask": "config:8-15"},
            (0x1000038C7, 0, 0),
        ),
        ("event=0x0a,rdwrmask=2", {"event": "config:0-7", "rdwrmask": "config:8-9"}, (0x20A, 0, 0)),
        (
            "event=1,edge,ch_mask=0xf",
            {**INTEL, "edge": "config:18", "ch_mask": "config1:0-3"},
            (0x40001, 0xF, 0),
        ),
        ("config=0x304", {}, (0x304, 0, 0)),
    ],
)
def test_events_are_encoded_as_the_kernel_wants(
    terms: str, formats: dict[str, str], config: tuple[int, int, int]
) -> None:
    assert encode(terms, formats) == config


@pytest.mark.parametrize("terms", ["event=0x104", "unknown=1", "event=many"])
def test_what_does_not_fit_is_refused(terms: str) -> None:
    with pytest.raises(ValueError, match=r"large|field|literal"):
        encode(terms, INTEL)


def decoded(event: UncoreEvent, ctx: Context) -> dict[str, int]:
    """Fields of config by the PMU's own formats: the other way round, one place each."""
    fields = {}
    for name, place in read_formats(ctx, event.pmu).items():
        low, _, high = place.partition(":")[2].partition("-")
        fields[name] = event.config >> int(low) & ((1 << (int(high or low) - int(low) + 1)) - 1)
    return fields


@pytest.mark.parametrize("machine", ["knl-opa", "genoa-umc"])
def test_raw_codes_where_the_kernel_offers_no_names(machine: str) -> None:
    ctx = captured_context(hardware.tree(f"{machine}-before"))
    metrics = {
        "read": "dram_read_bytes",
        "write": "dram_write_bytes",
        "ddr_read": "dram_read_bytes",
        "ddr_write": "dram_write_bytes",
        "mcdram_read": "mcdram_read_bytes",
        "mcdram_write": "mcdram_write_bytes",
    }
    found = find_uncore(ctx)
    seen = 0
    for key, told in hardware.expected(f"{machine}-expected.json")["perf"].items():
        pmus = sorted(
            path.name for path in (ctx.path(PMUS)).iterdir() if fnmatch.fnmatch(path.name, told["pmus"])
        )
        events = [e for e in found.events if e.metric == metrics[key] and e.pmu in pmus]
        assert sorted(event.pmu for event in events) == pmus
        for event in events:
            fields = decoded(event, ctx)
            assert all(fields[name] == told[name] for name in ("event", "umask", "rdwrmask") if name in told)
            assert event.bytes_per_count == told["bytes"]
            assert event.kind == ctx.read_int(f"{PMUS}/{event.pmu}/type")
        seen += len(events)
    assert seen == len(found.events)  # nothing else is opened: uncore_imc_uclk is no channel


def test_names_of_the_kernel_on_every_channel_and_socket() -> None:
    kernel = Kernel()
    collector = MemoryBandwidth()
    told = hardware.expected("skx-2s-hdr-expected.json")["perf"]["uncore_imc_0/cas_count_read/"]
    ctx = context(hardware.tree("skx-2s-hdr-before"), kernel)
    capability = collector.probe(ctx)
    assert (capability.available, capability.detail) == (True, "uncore_imc: 6 on each of 2 sockets")
    kernel.opened.clear()
    collector.open(ctx)
    first = [row for row in kernel.opened if row[:2] == (told["type"], told["config"])]
    assert [row[2] for row in first] == told["cpus"]
    assert len(kernel.opened) == 2 * 6 * 2  # directions, channels, sockets
    kernel.count(*[(100 + number, 10, 10) for number in range(24)])
    readings = list(collector.sample())
    assert {r.series.metric.scale for r in readings} == {told["scale_bytes"]}
    labels = [tuple(r.series.labels.values()) for r in readings if r.series.metric.name == READ]
    assert labels[:2] == [("0", "0", "uncore_imc_0"), ("1", "0", "uncore_imc_0")]
    assert {r.value for r in readings} == set(range(100, 124))
    assert len({(r.t_begin_ns, r.t_end_ns) for r in readings}) == 1
    collector.close()
    collector.close()
    kernel.close()


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name", "codes"),
    [
        ("GenuineIntel", 6, 63, "uncore_imc_0", {0x304, 0xC04}),  # Haswell
        ("GenuineIntel", 6, 85, "uncore_imc_0", {0x304, 0xC04}),  # Skylake, Cascade Lake
        ("GenuineIntel", 6, 106, "uncore_imc_0", {0x0F04, 0x3004}),  # Ice Lake
        ("GenuineIntel", 6, 143, "uncore_imc_0", {0xCF05, 0xF005}),  # Sapphire Rapids
        ("GenuineIntel", 6, 173, "uncore_imc_0", {0xCF05, 0xF005, 0xCF06, 0xF006}),  # Granite Rapids
        ("GenuineIntel", 6, 87, "uncore_imc_0", {0x103, 0x203}),  # Knights Landing
    ],
)
def test_intel_generations_without_names(
    tmp_path: Path, vendor: str, family: int, model: int, name: str, codes: set[int]
) -> None:
    cpu(tmp_path, vendor, family, model)
    pmu(tmp_path, name, 14, **INTEL)
    found = find_uncore(captured_context(tmp_path))
    assert {event.config for event in found.events} == codes
    assert len({(event.metric, event.channel) for event in found.events}) == len(codes)


def test_granite_rapids_names_of_the_kernel(tmp_path: Path) -> None:
    cpu(tmp_path, "GenuineIntel", 6, 173)
    pmu(tmp_path, "uncore_imc_3", 14, **INTEL)
    for half, code in enumerate(("0x05", "0x06")):
        base = f"{PMUS}/uncore_imc_3/events/cas_count_read_sch{half}"
        put(tmp_path, {base: f"event={code},umask=0xcf\n", f"{base}.unit": "MiB\n"})
        put(tmp_path, {f"{base}.scale": "6.103515625e-5\n"})
    events = find_uncore(captured_context(tmp_path)).events
    assert [(e.metric, e.channel, e.config, e.bytes_per_count) for e in events] == [
        (READ, "3.0", 0xCF05, 64.0),
        (READ, "3.1", 0xCF06, 64.0),
    ]


def test_on_package_memory_of_xeon_max_counts_half_lines(tmp_path: Path) -> None:
    cpu(tmp_path, "GenuineIntel", 6, 143)
    pmu(tmp_path, "uncore_mchbm_0", 40, **INTEL)
    events = find_uncore(captured_context(tmp_path)).events
    assert {(e.metric, e.bytes_per_count) for e in events} == {
        ("mcdram_read_bytes", 32.0),
        ("mcdram_write_bytes", 32.0),
    }


def test_old_epycs_take_turns_at_four_counters(tmp_path: Path) -> None:
    cpu(tmp_path, "AuthenticAMD", 23, 49)
    pmu(tmp_path, "amd_df", 13, "0,64", event="config:0-7,32-35,59-60", umask="config:8-15")
    put(
        tmp_path,
        {f"/sys/devices/system/cpu/cpu{n}/topology/physical_package_id": f"{n // 64}" for n in (0, 64)},
    )
    found = find_uncore(captured_context(tmp_path))
    assert [event.channel for event in found.events] == [str(channel) for channel in range(8)]
    assert {event.metric for event in found.events} == {"dram_total_bytes"}
    assert found.events[7].config == 0x1000038C7
    assert found.sockets == {0: "0", 64: "1"}
    cpu(tmp_path, "AuthenticAMD", 25, 17)  # Genoa before Linux 6.9: other events under the same name
    found = find_uncore(captured_context(tmp_path))
    assert (found.events, found.remedy) == ((), "Linux 6.9 or newer")


def test_mcdram_as_a_cache_is_counted_and_labelled(tmp_path: Path) -> None:
    root = hardware.copy("knl-opa-before", tmp_path / "tree")
    put(root, {"/sys/devices/system/node/node0/cpulist": "0-271\n"})
    kernel = Kernel()
    collector = MemoryBandwidth()
    collector.open(context(root, kernel))
    (fact,) = collector.facts()
    assert "MCDRAM is used as a cache" in str(fact.value["text"])
    kernel.count(*[(1, 1, 1)] * len(kernel.writers))
    metrics = {r.series.metric.name: r.series.metric for r in collector.sample()}
    assert {"mcdram_cache_hits", "mcdram_cache_misses"} <= set(metrics)
    assert (metrics["mcdram_read_bytes"].quality, metrics["dram_read_bytes"].quality) == ("derived", "exact")
    collector.close()
    kernel.close()
    put(root, {"/sys/devices/system/node/node1/cpulist": "\n"})
    put(root, {"/sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:       16777216 kB\n"})
    assert find_uncore(captured_context(root)).notes == ()  # all of it is memory


def test_desktop_counters_only_where_there_is_nothing_better(tmp_path: Path) -> None:
    cpu(tmp_path, "GenuineIntel", 6, 151)
    for number in range(2):
        name = f"uncore_imc_free_running_{number}"
        pmu(tmp_path, name, 30 + number, **INTEL)
        base = f"{PMUS}/{name}/events/data_read"
        put(tmp_path, {base: "event=0xff,umask=0x20\n", f"{base}.unit": "MiB\n"})
        put(tmp_path, {f"{base}.scale": "6.103515625e-5\n"})
    assert [e.channel for e in find_uncore(captured_context(tmp_path)).events] == ["0", "1"]


# Reading


@pytest.fixture
def one_counter(tmp_path: Path) -> tuple[MemoryBandwidth, Kernel]:
    cpu(tmp_path, "GenuineIntel", 6, 85)
    base = f"{PMUS}/uncore_imc_0/events/cas_count_read"
    pmu(tmp_path, "uncore_imc_0", 14, **INTEL)
    put(tmp_path, {base: "event=0x04,umask=0x03", f"{base}.scale": "6.103515625e-5", f"{base}.unit": "MiB"})
    kernel, collector = Kernel(), MemoryBandwidth()
    collector.open(context(tmp_path, kernel))
    return collector, kernel


def sampled(
    collector: MemoryBandwidth, kernel: Kernel, *record: int
) -> tuple[int | float | None, str | None]:
    kernel.count((record[0], record[1], record[2]))
    (reading,) = collector.sample()
    return reading.value, reading.quality


def test_counters_that_took_turns_are_extrapolated(one_counter: tuple[MemoryBandwidth, Kernel]) -> None:
    collector, kernel = one_counter
    assert sampled(collector, kernel, 1000, 100, 100) == (1000, None)
    assert sampled(collector, kernel, 1500, 300, 200) == (2000, "scaled")  # 500 in half of the time
    assert sampled(collector, kernel, 1500, 400, 200) == (None, None)  # had no turn: not known
    assert sampled(collector, kernel, 1600, 500, 300) == (2100, "scaled")  # and it never falls
    collector.close()
    kernel.close()


def test_a_counter_that_is_switched_off_ends(one_counter: tuple[MemoryBandwidth, Kernel]) -> None:
    collector, kernel = one_counter
    assert sampled(collector, kernel, 5, 1, 1) == (5, None)
    kernel.close()  # reads give nothing from now on
    assert [r.value for r in collector.sample()] == [None]
    assert list(collector.sample()) == []
    (fact,) = collector.facts()
    assert "switched off" in str(fact.value["reason"])
    collector.close()


def test_no_permission_names_the_ways_out() -> None:
    kernel = Kernel(refuse=dict.fromkeys(range(14, 20), errno.EACCES))
    ctx = context(hardware.tree("skx-2s-hdr-before"), kernel)
    collector = MemoryBandwidth()
    capability = collector.probe(ctx)
    assert not capability.available
    assert "kernel.perf_event_paranoid is 2" in capability.reason
    assert "modeled from tensor shapes" in capability.reason
    for way in ("sysctl kernel.perf_event_paranoid=0", "setcap cap_perfmon=ep", "--cap-add PERFMON"):
        assert way in capability.remedy
    assert capability.detail == "uncore_imc: 6 on each of 2 sockets"
    with pytest.raises(OSError, match="perf_event_paranoid"):
        collector.open(ctx)


def test_one_channel_that_is_refused_does_not_cost_the_others() -> None:
    kernel = Kernel(refuse={15: errno.ENODEV})
    collector = MemoryBandwidth()
    collector.open(context(hardware.tree("skx-2s-hdr-before"), kernel))
    assert len(kernel.opened) == 20
    facts = collector.facts()
    assert {fact.labels["pmu"] for fact in facts} == {"uncore_imc_1"}
    assert {str(fact.value["what"]) for fact in facts} == {READ, WRITE}
    collector.close()
    kernel.close()


def test_many_channels_are_read_less_often(tmp_path: Path) -> None:
    for number in range(24):
        pmu(tmp_path, f"amd_umc_{number}", 30 + number, event="config:0-7", rdwrmask="config:8-9")
    kernel, collector = Kernel(), MemoryBandwidth()
    collector.open(context(tmp_path, kernel))
    assert len(kernel.opened) == 48
    assert collector.min_interval_ns == 250_000_000
    collector.close()
    kernel.close()


def test_a_virtual_machine_is_told_that_it_has_none() -> None:
    for collector in (MemoryBandwidth(), PerfStat()):
        capability = collector.probe(captured_context(hardware.tree("vm-nothing-available")))
        assert not capability.available
    capability = MemoryBandwidth().probe(captured_context(hardware.tree("vm-nothing-available")))
    assert "this is a virtual machine" in capability.reason
    assert "modeled from tensor shapes" in capability.reason


@pytest.mark.parametrize("text", ["", "garbage", "config:", "-1"])
def test_sysfs_that_holds_something_else(tmp_path: Path, text: str) -> None:
    root = hardware.copy("skx-2s-hdr-before", tmp_path / "tree")
    for path in (root / PMUS.lstrip("/")).rglob("*"):
        if path.is_file() and path.name != "type":
            path.write_text(text)
    kernel = Kernel()
    capability = MemoryBandwidth().probe(context(root, kernel))
    assert (capability.available, kernel.opened) == (False, [])


@pytest.mark.parametrize("find", [msr_counters, software_counters])
def test_a_dynamic_pmu_of_the_real_kernel(find: object) -> None:
    ctx = live_context()
    collector = MemoryBandwidth(find)  # type: ignore[arg-type]
    capability = collector.probe(ctx)
    if not capability.available:
        pytest.skip(f"not allowed here: {capability.reason}")
    collector.open(ctx)
    first = list(collector.sample())
    time.sleep(0.2)
    second = list(collector.sample())
    collector.close()
    assert {r.quality for r in first + second} == {None}
    if find is software_counters:
        assert rates(first, second) == pytest.approx([1.0], rel=0.1)  # a ns of clock per ns
    else:
        speeds = rates(first, second)  # GHz, and the same on every CPU
        assert all(0.5 < speed < 10 for speed in speeds)
        assert max(speeds) == pytest.approx(min(speeds), rel=0.1)
