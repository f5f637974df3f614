"""InfiniBand, Omni-Path, RoCE and soft RDMA ports."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from perfscope.collectors.base import Reading
from perfscope.collectors.context import Context, KeptFile, captured_context
from perfscope.collectors.network.fabric import FabricErrors, FabricTraffic
from tests.support import hardware

BASE = "sys/class/infiniband"
COUNTERS = f"{BASE}/mlx5_0/ports/1/counters"
SECOND = 1_000_000_000


class Clock:
    """Stands still but for a microsecond a look; tests move it."""

    def __init__(self) -> None:
        self.now = SECOND

    def __call__(self) -> int:
        self.now += 1_000
        return self.now


def opened(root: Path, collector: FabricTraffic | FabricErrors, clock: Clock | None = None) -> None:
    ctx = captured_context(root, clock=clock or Clock())
    assert collector.probe(ctx).available
    collector.open(ctx)


def by_metric(readings: list[Reading], port: str) -> dict[str, Reading]:
    return {r.series.metric.name: r for r in readings if r.series.labels["port"] == port}


def move_on(root: Path, later: str, tmp_path: Path) -> None:
    """Give every counter the value of another capture, in place, as the kernel does."""
    after = hardware.copy(later, tmp_path / later)
    for path in after.glob("sys/devices/**/*counters/*"):
        (root / path.relative_to(after)).write_bytes(path.read_bytes())


@pytest.mark.parametrize(
    ("machine", "port"), [("skx-2s-hdr", "mlx5_0/1"), ("knl-opa", "hfi1_0/1")], ids=["infiniband", "omnipath"]
)
def test_bytes_are_in_the_adapters_own_unit(tmp_path: Path, machine: str, port: str) -> None:
    expected = hardware.expected(f"{machine}-expected.json")
    told = expected["ib"][port]
    root = hardware.copy(f"{machine}-before", tmp_path / "tree")
    clock, collector = Clock(), FabricTraffic()
    opened(root, collector, clock)
    first = by_metric(list(collector.sample()), port)
    move_on(root, f"{machine}-after", tmp_path)
    clock.now += int(expected["interval_s"] * SECOND)
    second = by_metric(list(collector.sample()), port)
    for metric, key in (("fabric_tx_bytes", "xmit_B_per_s"), ("fabric_rx_bytes", "rcv_B_per_s")):
        one, other = first[metric], second[metric]
        definition = one.series.metric
        assert definition.scale == told["unit_bytes"]
        assert (definition.kind, definition.limit, definition.unit) == ("counter", None, "bytes")
        counted = (int(other.value or 0) - int(one.value or 0)) * definition.scale
        assert counted / expected["interval_s"] == told[key]
    assert second["fabric_xmit_wait"].series.metric.kind == "saturating"
    assert collector.facts() == []  # 10 GB/s is less than the link carries
    collector.close()


def test_an_adapter_without_the_query_says_so_and_the_other_goes_on() -> None:
    collector = FabricTraffic()
    capability = collector.probe(captured_context(hardware.tree("skx-2s-hdr-before")))
    assert capability.available
    (absent,) = capability.absent
    assert (absent.what, absent.reason) == ("bytes of mlx4_0/1", 'the adapter says "N/A (no PMA)"')
    opened(hardware.tree("skx-2s-hdr-before"), collector)
    assert {r.series.labels["port"] for r in collector.sample()} == {"mlx5_0/1"}
    assert collector.facts() == []
    collector.close()


def test_soft_rdma_bytes_are_those_of_the_interface_below() -> None:
    deltas: dict[str, int] = {}
    for name, sign in (("two-socket-before", -1), ("two-socket-after-rdma", 1)):
        collector = FabricTraffic()
        opened(hardware.tree(name), collector)
        found = by_metric(list(collector.sample()), "rxe0/1")
        for metric, reading in found.items():
            deltas[metric] = deltas.get(metric, 0) + sign * int(reading.value or 0)
        collector.close()
    told = hardware.expected("two-socket-results.json")["rdma"]
    assert told["net_delta"]["eth0/tx_bytes"] <= deltas["fabric_tx_bytes"] < 34_700_000
    assert told["hw_delta"]["rxe0/sent_pkts"] <= deltas["fabric_tx_packets"] < 32_100
    series = found["fabric_tx_bytes"].series
    assert (series.metric.quality, series.metric.scale) == ("derived", 1.0)
    assert series.labels["of"] == "interface eth0"


def test_named_driver_counters_only() -> None:
    collector = FabricErrors()
    opened(hardware.tree("two-socket-after-rdma"), collector)
    readings = [r for r in collector.sample() if r.series.labels["port"] == "rxe0/1"]
    found = {r.series.labels["counter"]: r.value for r in readings}
    assert {r.series.metric.name for r in readings} == {"fabric_hw"}
    assert "lifespan" not in found
    assert found["sent_pkts"] == 32_021
    assert found["completer_retry_err"] == 0
    collector.close()


def test_names_with_commas_and_thousands_of_files(tmp_path: Path) -> None:
    root = hardware.copy("knl-opa-before", tmp_path / "tree")
    folder = root / f"{BASE}/hfi1_0/ports/1/hw_counters"
    for number in range(2000):
        (folder / f"SendCtxt{number}").write_text("1\n")
    of_device = root / f"{BASE}/hfi1_0/hw_counters"
    of_device.mkdir()
    (of_device / "RcTimeOut").write_text("4\n")
    collector = FabricErrors()
    opened(root, collector)
    found = {
        r.series.labels["counter"]: r.value for r in collector.sample() if r.series.metric.name == "fabric_hw"
    }
    assert found == {"DmaWait": 0, "RcResend": 0, "SwLinkUp": 1, "RcTimeOut": 4}
    collector.close()


def test_error_counters_stick_at_their_own_widths(tmp_path: Path) -> None:
    root = hardware.copy("skx-2s-hdr-before", tmp_path / "tree")
    (root / COUNTERS / "local_link_integrity_errors").write_text("15\n")
    (root / COUNTERS / "link_downed").write_text("254\n")
    (root / COUNTERS / "symbol_error").write_text("65535\n")
    collector = FabricErrors()
    opened(root, collector)
    errors = {
        r.series.labels["counter"]: (r.value, r.series.metric.limit, r.quality)
        for r in collector.sample()
        if r.series.metric.name == "fabric_errors"
    }
    assert errors["local_link_integrity_errors"] == (15, 15, "saturated")
    assert errors["link_downed"] == (254, 255, None)
    assert errors["symbol_error"] == (65535, 65535, "saturated")
    assert len(errors) == 12  # those of the port without the query are left out
    collector.close()


def without_extended_counters(root: Path) -> None:
    for path in (root / COUNTERS).glob("*icast_*"):
        path.unlink()


def test_counters_of_32_bits_stick_and_are_called_saturated(tmp_path: Path) -> None:
    root = hardware.copy("skx-2s-hdr-before", tmp_path / "tree")
    without_extended_counters(root)
    clock, collector = Clock(), FabricTraffic()
    opened(root, collector, clock)
    first = by_metric(list(collector.sample()), "mlx5_0/1")["fabric_tx_bytes"]
    assert (first.series.metric.kind, first.series.metric.limit) == ("saturating", 2**32 - 1)
    assert (first.value, first.quality) == (1000, None)
    (root / COUNTERS / "port_xmit_data").write_text("4294967295\n")
    clock.now += SECOND
    second = by_metric(list(collector.sample()), "mlx5_0/1")["fabric_tx_bytes"]
    assert (second.value, second.quality) == (2**32 - 1, "saturated")
    assert second.series is first.series
    collector.close()


def test_a_value_beyond_32_bits_proves_the_counter_wider(tmp_path: Path) -> None:
    root = hardware.copy("skx-2s-hdr-after", tmp_path / "tree")  # 5.4e9 words have been sent
    without_extended_counters(root)
    collector = FabricTraffic()
    opened(root, collector)
    assert by_metric(list(collector.sample()), "mlx5_0/1")["fabric_tx_bytes"].series.metric.kind == "counter"
    collector.close()


def test_a_counter_that_outgrows_32_bits_goes_on_as_a_wider_one(tmp_path: Path) -> None:
    root = hardware.copy("skx-2s-hdr-before", tmp_path / "tree")
    without_extended_counters(root)
    collector = FabricTraffic()
    opened(root, collector)
    first = by_metric(list(collector.sample()), "mlx5_0/1")["fabric_tx_bytes"]
    (root / COUNTERS / "port_xmit_data").write_text(f"{2**32 + 5}\n")
    second = by_metric(list(collector.sample()), "mlx5_0/1")["fabric_tx_bytes"]
    assert (first.series.metric.kind, second.series.metric.kind) == ("saturating", "counter")
    assert (second.value, second.quality, second.series.metric.limit) == (2**32 + 5, None, None)
    assert first.series.labels != second.series.labels  # readers tell series apart by their labels
    collector.close()


def test_faster_than_the_link_is_told_once_per_port(tmp_path: Path) -> None:
    root = hardware.copy("skx-2s-hdr-before", tmp_path / "tree")
    clock, collector = Clock(), FabricTraffic()
    opened(root, collector, clock)
    for second in range(4):  # 8e9 words a second: 32 GB/s on a link of 25
        (root / COUNTERS / "port_xmit_data").write_text(f"{second * 8_000_000_000}\n")
        collector.sample()
        clock.now += SECOND
    (fact,) = collector.facts()
    assert (fact.name, fact.labels) == ("note", {"port": "mlx5_0/1"})
    assert "32.0 GB/s on a link of 25.0 GB/s" in str(fact.value["text"])
    collector.close()


@pytest.mark.parametrize("folder", ["counters", "hw_counters"])
def test_either_folder_may_be_missing(tmp_path: Path, folder: str) -> None:
    root = hardware.copy("skx-2s-hdr-before", tmp_path / "tree")
    for device in ("mlx5_0", "mlx4_0"):
        shutil.rmtree(root / f"{BASE}/{device}/ports/1/{folder}", ignore_errors=True)
    ctx = captured_context(root)
    traffic, errors = FabricTraffic().probe(ctx), FabricErrors().probe(ctx)
    if folder == "counters":
        assert not traffic.available
        assert "no counters folder" in traffic.reason
        assert [metric.name for metric in errors.metrics] == ["fabric_hw"]
    else:
        assert traffic.available
        assert [metric.name for metric in errors.metrics] == ["fabric_errors"]


def test_a_machine_without_a_fabric_says_so() -> None:
    for collector in (FabricTraffic(), FabricErrors()):
        capability = collector.probe(captured_context(hardware.tree("vm-nothing-available")))
        assert not capability.available
        assert "no InfiniBand, Omni-Path or RoCE adapter" in capability.reason
        collector.close()


def test_an_adapter_that_vanishes_ends_its_series_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = hardware.copy("two-socket-before", tmp_path / "tree")
    collector = FabricTraffic()
    opened(root, collector)
    assert {r.series.labels["port"] for r in collector.sample()} == {"rxe0/1", "rxe1/1"}
    (port,) = [one for one in collector._ports if one.label == "rxe0/1"]
    gone = {source.kept for source in port.sources}
    plain = KeptFile.read

    def read(kept: KeptFile) -> bytes:
        if kept in gone:
            raise OSError(19, "No such device")
        return plain(kept)

    monkeypatch.setattr(KeptFile, "read", read)
    for _ in range(3):
        assert {r.series.labels["port"] for r in collector.sample()} == {"rxe1/1"}
    facts = collector.facts()
    assert sorted(str(fact.value["what"]) for fact in facts) == [
        *("fabric_rx_bytes", "fabric_rx_packets", "fabric_tx_bytes", "fabric_tx_packets")
    ]
    assert all("No such device" in str(fact.value["reason"]) for fact in facts)
    collector.close()
    collector.close()


def test_text_in_place_of_a_number_later_on(tmp_path: Path) -> None:
    root = hardware.copy("skx-2s-hdr-before", tmp_path / "tree")
    collector = FabricTraffic()
    opened(root, collector)
    assert len(list(collector.sample())) == 5
    (root / COUNTERS / "port_xmit_wait").write_text("N/A (no PMA)\n")
    assert len(list(collector.sample())) == 4
    (fact,) = collector.facts()
    assert 'the file says "N/A (no PMA)"' in str(fact.value["reason"])
    collector.close()


def test_files_that_may_not_be_read() -> None:
    errors = {f"{COUNTERS}/{name}": "EACCES" for name in ("port_xmit_data", "symbol_error")}
    ctx = captured_context(hardware.tree("skx-2s-hdr-before"), errors=errors)
    capability = FabricTraffic().probe(ctx)
    assert not capability.available  # the other port has no counters at all
    assert "bytes of mlx5_0/1: Permission denied" in capability.reason
    collector = FabricErrors()
    collector.open(ctx)
    assert "symbol_error" not in {r.series.labels["counter"] for r in collector.sample()}
    collector.close()


def test_slow_firmware_is_asked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, collector = Clock(), FabricTraffic()
    opened(hardware.tree("skx-2s-hdr-before"), collector, clock)
    plain = KeptFile.read

    def slow(kept: KeptFile) -> bytes:
        clock.now += 20_000_000  # 20 ms each
        return plain(kept)

    monkeypatch.setattr(KeptFile, "read", slow)
    assert len(list(collector.sample())) == 5
    taken = 0
    for _ in range(20):  # two seconds, in which reading would take 100 ms each time
        clock.now += 100_000_000
        taken += bool(collector.sample())
    assert 1 <= taken <= 5
    collector.close()


def test_renamed_omnipath_adapters_are_known_by_their_board(tmp_path: Path) -> None:
    root = hardware.copy("knl-opa-before", tmp_path / "tree")
    old = root / "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/infiniband/hfi1_0"
    old.rename(old.with_name("opap1s0"))
    (root / f"{BASE}/hfi1_0").unlink()
    (root / f"{BASE}/opap1s0").symlink_to(
        f"../../devices/{str(old).rpartition('sys/devices/')[2][:-6]}opap1s0"
    )
    collector = FabricTraffic()
    opened(root, collector)
    scales = {r.series.metric.scale for r in collector.sample() if r.series.metric.unit == "bytes"}
    assert scales == {8.0}
    collector.close()


def test_a_large_machine_is_read_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = hardware.copy("skx-2s-hdr-before", tmp_path / "tree")
    for number in range(1, 9):
        shutil.copytree(root / f"{BASE}/mlx5_0", root / f"{BASE}/mlx5_1{number}", symlinks=True)
    collector = FabricTraffic()
    ctx: Context = captured_context(root)
    collector.open(ctx)
    reads: list[KeptFile] = []
    plain = KeptFile.read

    def counted(kept: KeptFile) -> bytes:
        reads.append(kept)
        return plain(kept)

    monkeypatch.setattr(KeptFile, "read", counted)
    assert len(list(collector.sample())) == 9 * 5
    assert len(reads) == 9 * 5
    collector.close()
