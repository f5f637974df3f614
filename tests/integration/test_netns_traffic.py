"""Two hosts that train over a rate-limited wire, as two network namespaces: what `ethernet` counts.

Ring all_reduce of S bytes among n ranks: every rank sends and receives 2(n-1)/n x S, which is S for two.
Around it lie Ethernet (14), IP (20) and TCP with timestamps (32): 66 bytes a packet. A veth counts what the
kernel hands it, packets of up to 64 KiB, so that bytes = payload + 66 x packets; pure acknowledgements are
packets too. (On a wire with 1500-byte frames the same payload would make 1514/1448 as many bytes.)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from perfscope.collectors.base import Collector
from tests.integration.collector_support import Readings, ip, opened

RING = Path(__file__).with_name("netns_ring.py")
REPEATS, BYTES, RANKS = 6, 16 << 20, 2
FRAME_BYTES = 66
RATE_MBIT = 1000  # what a veth of any machine keeps up with
pytestmark = pytest.mark.torch


class Host(NamedTuple):
    """A network namespace with one end of the wire."""

    namespace: str
    interface: str
    address: str


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    pair = (
        Host(f"perfscope-a-{os.getpid()}", "wire0", "10.9.0.1"),
        Host(f"perfscope-b-{os.getpid()}", "wire1", "10.9.0.2"),
    )
    try:
        yield joined(*pair)
    finally:
        for host in pair:
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True, check=False)


def joined(a: Host, b: Host) -> tuple[Host, Host]:
    try:
        for host in (a, b):
            ip("netns", "add", host.namespace)
        ip(
            *f"link add {a.interface} netns {a.namespace} type veth".split(),
            "peer",
            "name",
            b.interface,
            "netns",
            b.namespace,
        )
    except OSError as error:
        pytest.skip(f"network namespaces need root and iproute2: {error}")
    if not shutil.which("tc"):
        pytest.skip("tc (iproute2) is not installed")
    for host in (a, b):
        quiet = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"  # no neighbor discovery on the wire
        subprocess.run(["ip", "netns", "exec", host.namespace, "sh", "-c", quiet], check=False)
        ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", host.interface)
        for name in ("lo", host.interface):
            ip("-n", host.namespace, "link", "set", name, "up")
        limit = f"qdisc add dev {host.interface} root tbf rate {RATE_MBIT}mbit burst 131072 latency 50ms"
        done = subprocess.run(
            ["tc", "-n", host.namespace, *limit.split()], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"this kernel cannot limit a link's rate: {done.stderr.strip()}")
    return a, b


@contextmanager
def ranks(hosts: tuple[Host, Host]) -> Iterator[list[subprocess.Popen[str]]]:
    """One rank on each host, connected and waiting."""
    with ExitStack() as stack:
        started = []
        for rank, host in enumerate(hosts):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "MASTER_ADDR": hosts[0].address,
                "MASTER_PORT": "29500",  # of a namespace of its own
                "GLOO_SOCKET_IFNAME": host.interface,
                "OMP_NUM_THREADS": "1",
            }
            # ip becomes the program it starts: the process id is the rank's.
            process = subprocess.Popen(
                ["ip", "netns", "exec", host.namespace, sys.executable, str(RING), str(REPEATS), str(BYTES)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            expect(process, "ready")
        yield started


def expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == word


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def settled(ethernet: Collector) -> Readings:
    """The counters when the last acknowledgement has been sent."""
    last = Readings(ethernet)
    for _ in range(50):
        time.sleep(0.1)
        now = Readings(ethernet).over(last)
        if now.values == last.values:
            return now
        last = now
    raise AssertionError("the wire does not become quiet")


def test_bytes_on_the_wire_are_those_of_the_ring(hosts: tuple[Host, Host]) -> None:
    pytest.importorskip("torch")
    with ranks(hosts) as processes, opened("ethernet", [process.pid for process in processes]) as ethernet:
        before = settled(ethernet)
        for process in processes:
            tell(process)
        during: list[Readings] = []
        while len(during) < 5:
            time.sleep(0.02)
            during.append(Readings(ethernet).over(during[-1] if during else before))
        for process in processes:
            expect(process, "done")
        after = settled(ethernet)
        for process in processes:
            tell(process)
            process.wait(timeout=60)

    def grown(metric: str, host: Host) -> float:
        return after.grown(before, metric, interface=host.interface)

    ring = REPEATS * BYTES * 2 * (RANKS - 1) / RANKS
    a, b = hosts
    for host in hosts:
        sent, packets = grown("net_tx_bytes", host), grown("net_tx_packets", host)
        assert sent == pytest.approx(ring, rel=0.01)
        assert sent - FRAME_BYTES * packets == pytest.approx(ring, rel=0.001)
    # Nothing is lost between the two ends, and each host's counters show its own bytes only.
    assert grown("net_tx_bytes", a) == grown("net_rx_bytes", b) > 0
    assert grown("net_tx_bytes", b) == grown("net_rx_bytes", a) > 0
    for host in hosts:
        key = before.key("net_tx_bytes", interface=host.interface)
        course = [sample.values[key] for sample in (before, *during, after)]
        assert course == sorted(course)
