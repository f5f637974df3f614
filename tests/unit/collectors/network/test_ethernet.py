"""Network interfaces and TCP, in every namespace of the ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfscope.collectors.base import Reading
from perfscope.collectors.context import Context, KeptFile, captured_context, live_context
from perfscope.collectors.network.ethernet import QUIET_NS, EthernetCounters, TcpCounters
from tests.support import hardware

HEAD = "Inter-|   Receive       |  Transmit\n face |bytes    packets ...|bytes    packets ...\n"
TICK_NS = 100_000_000


class Machine:
    """A tree with processes in network namespaces, which a test moves along."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pids: list[int] = []
        self.now = 1_000

    def context(self) -> Context:
        return captured_context(self.root, pids=lambda: list(self.pids), clock=self.clock)

    def clock(self) -> int:
        self.now += 1_000
        return self.now

    def tick(self, collector: EthernetCounters | TcpCounters, ns: int = TICK_NS) -> list[Reading]:
        self.now += ns
        return list(collector.sample())

    def process(self, pid: int, namespace: int, interfaces: dict[str, str]) -> None:
        folder = self.root / "proc" / str(pid)
        (folder / "ns").mkdir(parents=True, exist_ok=True)
        (folder / "net").mkdir(exist_ok=True)
        link = folder / "ns/net"
        link.unlink(missing_ok=True)
        link.symlink_to(f"net:[{namespace}]")
        self.write(pid, interfaces)

    def write(self, pid: int, interfaces: dict[str, str]) -> None:
        lines = "".join(f"{name:>6}: {values}\n" for name, values in interfaces.items())
        (self.root / f"proc/{pid}/net/dev").write_text(HEAD + lines)


def line(rx: int, tx: int) -> str:
    """Packets are a tenth, errors 1 and 2, drops 3 and 4."""
    return f"{rx} {rx // 10} 1 3 0 0 0 0 {tx} {tx // 10} 2 4 0 0 0 0"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def opened(machine: Machine) -> Iterator[Callable[[], EthernetCounters]]:
    made: list[EthernetCounters] = []

    def make() -> EthernetCounters:
        collector = EthernetCounters()
        collector.open(machine.context())
        made.append(collector)
        return collector

    yield make
    for collector in made:
        collector.close()
        collector.close()


def values(readings: list[Reading], metric: str) -> dict[tuple[str, str], int | float | None]:
    return {
        (one.series.labels["netns"], one.series.labels["interface"]): one.value
        for one in readings
        if one.series.metric.name == metric
    }


def test_values_of_an_interface(machine: Machine, opened: Callable[[], EthernetCounters]) -> None:
    machine.process(7, 40, {"lo": line(0, 0), "eth0": line(1000, 2000)})
    machine.pids = [7]
    readings = machine.tick(opened())
    assert len(readings) == 12
    of_eth0 = {r.series.metric.name: r.value for r in readings if r.series.labels["interface"] == "eth0"}
    assert of_eth0 == {
        "net_rx_bytes": 1000,
        "net_tx_bytes": 2000,
        "net_rx_packets": 100,
        "net_tx_packets": 200,
        "net_errors": 3,
        "net_dropped": 7,
    }
    assert len({(r.t_begin_ns, r.t_end_ns) for r in readings}) == 1  # one read, one pair of times
    assert readings[0].t_begin_ns < readings[0].t_end_ns


def test_soft_rdma_bytes_of_a_real_machine(machine: Machine) -> None:
    deltas: dict[tuple[str, str], int] = {}
    for tree, sign in (("two-socket-before", -1), ("two-socket-after-rdma", 1)):
        root = hardware.tree(tree)
        (pid,) = [int(path.name) for path in (root / "proc").glob("[0-9]*")]
        collector = EthernetCounters()
        ctx = captured_context(root, pids=lambda pid=pid: [pid])
        assert collector.probe(ctx).available
        collector.open(ctx)
        for (_, name), value in values(list(collector.sample()), "net_tx_bytes").items():
            deltas["tx", name] = deltas.get(("tx", name), 0) + sign * int(value or 0)
        collector.close()
    told = hardware.expected("two-socket-results.json")["rdma"]["net_delta"]
    # Between the captures there was more than the transfer: address resolution, and the tools' handshakes.
    assert told["eth0/tx_bytes"] <= deltas["tx", "eth0"] < told["eth0/tx_bytes"] * 1.001


def test_a_captured_machine_without_known_ranks_shows_what_was_captured() -> None:
    capability = EthernetCounters().probe(captured_context(hardware.tree("two-socket-before")))
    assert (capability.available, capability.detail) == (True, "lo, eth0, eth1, dummy0")
    for name in ("skx-2s-hdr-before", "genoa-umc-before"):
        capability = EthernetCounters().probe(captured_context(hardware.tree(name)))
        assert (capability.available, capability.reason) == (False, "/proc/self/net/dev cannot be read")


def test_quiet_interfaces_are_written_now_and_then(
    machine: Machine, opened: Callable[[], EthernetCounters]
) -> None:
    machine.process(7, 40, {"eth0": line(10, 20), "eth1": line(0, 0)})
    machine.pids = [7]
    collector = opened()
    assert len(machine.tick(collector)) == 12
    assert machine.tick(collector) == []
    machine.write(7, {"eth0": line(110, 20), "eth1": line(0, 0)})
    began = machine.now
    readings = machine.tick(collector)
    rx = [r for r in readings if r.series.metric.name == "net_rx_bytes"]
    # The tick before is made up for, so that these 100 bytes are not spread over the quiet time.
    assert [r.value for r in rx] == [10, 110]
    assert rx[0].t_end_ns <= began < rx[1].t_begin_ns
    assert rx[0].series is rx[1].series
    assert len(machine.tick(collector)) == 6  # from now on at every tick, moving or not
    names = {r.series.labels["interface"] for r in machine.tick(collector, QUIET_NS)}
    assert names == {"eth0", "eth1"}


def test_interfaces_come_and_go(machine: Machine, opened: Callable[[], EthernetCounters]) -> None:
    machine.process(7, 40, {"eth0": line(1, 1), "ib0": line(5, 5)})
    machine.pids = [7]
    collector = opened()
    machine.tick(collector)
    machine.write(7, {"eth0": line(2, 2), "eth9": line(3, 3)})
    readings = machine.tick(collector)
    assert values(readings, "net_rx_bytes") == {("40", "eth0"): 2, ("40", "eth9"): 3}
    (fact,) = collector.facts()
    assert fact.name == "stopped"
    assert fact.labels == {"interface": "ib0", "netns": "40"}
    assert "no longer there" in str(fact.value["reason"])
    machine.write(7, {"eth0": line(2, 2), "eth9": line(3, 3), "ib0": line(0, 0)})
    assert values(machine.tick(collector), "net_rx_bytes")["40", "ib0"] == 0
    assert collector.facts() == []


def test_counters_that_go_backwards_are_handed_on_as_they_are(
    machine: Machine, opened: Callable[[], EthernetCounters]
) -> None:
    machine.process(7, 40, {"eth0": line(900, 900)})
    machine.pids = [7]
    collector = opened()
    machine.tick(collector)
    machine.write(7, {"eth0": line(5, 5)})  # a driver was loaded anew
    assert [r.value for r in machine.tick(collector) if r.series.metric.name == "net_rx_bytes"] == [900, 5]


def test_each_namespace_of_the_ranks_once(machine: Machine, opened: Callable[[], EthernetCounters]) -> None:
    machine.process(7, 40, {"eth0": line(10, 10)})
    machine.process(8, 41, {"eth0": line(20, 20)})
    machine.process(9, 41, {"eth0": line(20, 20)})
    machine.process(1, 1, {"eth0": line(99, 99)})
    machine.pids = [7, 8, 9]
    collector = opened()
    assert values(machine.tick(collector), "net_rx_bytes") == {("40", "eth0"): 10, ("41", "eth0"): 20}
    machine.pids = [7]
    assert values(machine.tick(collector, QUIET_NS), "net_rx_bytes") == {("40", "eth0"): 10}
    machine.pids = [7, 9]
    assert values(machine.tick(collector), "net_rx_bytes") == {("41", "eth0"): 20}


def test_a_last_reading_is_possible_when_the_ranks_have_gone(
    machine: Machine, opened: Callable[[], EthernetCounters]
) -> None:
    machine.process(7, 40, {"eth0": line(10, 10)})
    machine.pids = [7]
    collector = opened()
    machine.tick(collector)
    machine.pids = []
    machine.write(7, {"eth0": line(30, 10)})
    assert values(machine.tick(collector), "net_rx_bytes") == {("40", "eth0"): 30}
    assert collector.facts() == []


def test_a_rank_that_ends_between_two_looks_is_no_fault(
    machine: Machine, opened: Callable[[], EthernetCounters]
) -> None:
    machine.process(7, 40, {"eth0": line(10, 10)})
    machine.pids = [7, 8]  # 8 is not there any more
    collector = opened()
    assert values(machine.tick(collector), "net_rx_bytes") == {("40", "eth0"): 10}
    assert collector.facts() == []


def test_a_namespace_that_may_not_be_read_is_told_once(machine: Machine) -> None:
    machine.process(7, 40, {"eth0": line(10, 10)})
    machine.process(8, 41, {"eth0": line(20, 20)})
    ctx = captured_context(
        machine.root, pids=lambda: [7, 8], clock=machine.clock, errors={"proc/8/net/dev": "EACCES"}
    )
    collector = EthernetCounters()
    collector.open(ctx)
    for _ in range(3):
        machine.now += 20_000_000_000
        assert set(values(list(collector.sample()), "net_rx_bytes")) == {("40", "eth0")}
    (fact,) = collector.facts()
    assert (fact.labels, fact.value["reason"]) == ({"netns": "41"}, "/proc/PID/net/dev: Permission denied")
    collector.close()


def test_a_line_that_is_no_numbers_ends_that_interface_only(
    machine: Machine, opened: Callable[[], EthernetCounters]
) -> None:
    machine.process(7, 40, {"eth0": line(1, 1), "eth1": line(1, 1)})
    machine.pids = [7]
    collector = opened()
    machine.tick(collector)
    for _ in range(3):
        machine.write(7, {"eth0": "one two three", "eth1": line(2, 2)})
        assert values(machine.tick(collector), "net_rx_bytes") == {("40", "eth1"): 2}
    (fact,) = collector.facts()
    assert fact.labels == {"interface": "eth0", "netns": "40"}


def test_many_idle_interfaces_cost_one_read_and_no_readings(
    machine: Machine, opened: Callable[[], EthernetCounters], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.process(7, 40, {f"veth{number}": line(1, 1) for number in range(200)})
    machine.pids = [7]
    collector = opened()
    machine.tick(collector)
    reads: list[KeptFile] = []
    plain = KeptFile.read

    def counted(kept: KeptFile) -> bytes:
        reads.append(kept)
        return plain(kept)

    monkeypatch.setattr(KeptFile, "read", counted)
    assert machine.tick(collector) == []
    assert len(reads) == 1


def test_bytes_over_loopback_on_the_real_kernel() -> None:
    pid = os.getpid()
    collector = EthernetCounters()
    ctx = live_context(pids=lambda: [pid])
    if not collector.probe(ctx).available:
        pytest.skip("this kernel shows no /proc/self/net/dev")
    collector.open(ctx)
    before = values(list(collector.sample()), "net_tx_bytes")
    (lo,) = [key for key in before if key[1] == "lo"]
    assert lo[0] == Path(f"/proc/{pid}/ns/net").readlink().name[5:-1]
    payload = b"x" * 1400
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        try:
            receiver.bind(("127.0.0.1", 0))
            for _ in range(50):
                sender.sendto(payload, receiver.getsockname())
        except OSError as error:
            pytest.skip(f"no loopback interface here: {error}")
    after = {
        (r.series.labels["netns"], r.series.labels["interface"]): r.value
        for r in collector.sample()  # twice where it was quiet before: the last one counts
        if r.series.metric.name == "net_tx_bytes"
    }
    collector.close()
    # IP and UDP headers, 20 + 8; loopback alone counts no Ethernet header. Others may send here too.
    assert int(after[lo] or 0) - int(before[lo] or 0) >= 50 * (1400 + 28)


SNMP = "Ip: A B\nIp: 1 2\nTcp: RtoMin RetransSegs OutRsts\nTcp: 200 {} 5\nUdp: X\nUdp: 1\n"
NETSTAT = "TcpExt: SyncookiesSent TCPTimeouts\nTcpExt: 0 {}\nIpExt: InNoRoutes\nIpExt: 0\n"


def tcp_files(machine: Machine, snmp: str, netstat: str) -> None:
    machine.process(7, 40, {})
    (machine.root / "proc/7/net/snmp").write_text(snmp)
    (machine.root / "proc/7/net/netstat").write_text(netstat)
    machine.pids = [7]


def test_tcp_retransmissions_and_timeouts(machine: Machine) -> None:
    tcp_files(machine, SNMP.format(17), NETSTAT.format(3))
    collector = TcpCounters()
    collector.open(machine.context())
    readings = machine.tick(collector)
    assert {(r.series.metric.name, r.series.labels["netns"]): r.value for r in readings} == {
        ("tcp_retransmits", "40"): 17,
        ("tcp_timeouts", "40"): 3,
    }
    tcp_files(machine, SNMP.format(19), NETSTAT.format(3))
    assert [r.value for r in machine.tick(collector)] == [19, 3]
    collector.close()


def test_a_kernel_without_one_of_the_tcp_fields(machine: Machine) -> None:
    tcp_files(machine, SNMP.format(17), "TcpExt: SyncookiesSent\nTcpExt: 0\n")
    collector = TcpCounters()
    collector.open(machine.context())
    for _ in range(3):
        assert [r.series.metric.name for r in machine.tick(collector)] == ["tcp_retransmits"]
    (fact,) = collector.facts()
    assert "no TCPTimeouts" in str(fact.value["reason"])
    collector.close()


def test_tcp_of_a_real_machine_and_of_one_without_the_files() -> None:
    root = hardware.tree("two-socket-before")
    (pid,) = [int(path.name) for path in (root / "proc").glob("[0-9]*")]
    collector = TcpCounters()
    ctx = captured_context(root, pids=lambda: [pid])
    assert collector.probe(ctx).available
    collector.open(ctx)
    assert [r.value for r in collector.sample()] == [0, 0]
    collector.close()
    capability = TcpCounters().probe(captured_context(hardware.tree("genoa-umc-before")))
    assert (capability.available, capability.reason) == (False, "/proc/self/net/snmp is not there")
