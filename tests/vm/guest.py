"""Runs inside an emulated machine: makes load, reads perfscope's collectors around it, writes all down.

    guest.py RESULT.json CASE...     each CASE is NAME:MIB:NUMACTL-OPTIONS, or "links"

It judges nothing: test_machines.py does, outside. A part that fails leaves its traceback in "errors", and the
other parts run.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from perfscope.collectors.base import Collector, Reading
from perfscope.collectors.context import Context, live_context
from perfscope.collectors.links.measure import Tools, measure_links
from perfscope.collectors.machine.topology import read_topology
from perfscope.collectors.registry import own_collectors

WORKER = Path(__file__).with_name("worker.py")
CGROUPS = Path("/sys/fs/cgroup")
PATIENCE_S = 5
RDMA_MESSAGES, RDMA_BYTES = 500, 65536
ADDRESSES = ("10.7.0.1", "10.7.0.2")
LINKS_S = 150.0  # parts that have ended leave the rest of it
PERFTEST_PORT = 18515  # where ib_write_bw exchanges addresses before it uses RDMA


def main(result: Path, cases: Sequence[str]) -> None:
    """Every part in turn; RESULT.json is written even when parts fail."""
    found: dict[str, Any] = {"numa": {}, "errors": {}, "seconds": {}}
    parts: list[tuple[str, Callable[[], None]]] = [
        ("machine", set_up_cgroups),
        ("network", lambda: found.update(macs=set_up_network())),
        ("topology", lambda: found.update(topology=read_topology(live_context(), "emulated"))),
        ("hwloc", lambda: found.update(hwloc=output("lstopo-no-graphics", "--of", "xml"))),
        ("probe", lambda: found.update(capabilities=probe_all())),
        ("rdma", lambda: found.update(rdma=rdma_writes())),
        *([("links", lambda: found.update(links=links()))] if "links" in cases else []),
        ("throttled", lambda: found.update(throttled=throttled())),
        ("lost packets", lambda: found.update(lost_packets=lost_packets())),
    ]
    for case in cases:
        if case == "links":
            continue
        name, mib, options = case.split(":")
        parts.append((name, partial(allocate, found["numa"], name, int(mib), options)))
    for name, part in parts:
        started = time.monotonic()
        print(f"{started:.0f} s: {name}", flush=True)  # on the console: where it stood, should it hang
        try:
            part()
        except Exception:  # noqa: BLE001 - one part must not hide the others; the tests show it
            found["errors"][name] = traceback.format_exc()
        found["seconds"][name] = round(time.monotonic() - started, 2)
    result.write_text(json.dumps(found, indent=1))


def output(*command: str) -> str:
    """What a command prints; its error output is in the exception."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def set_up_cgroups() -> None:
    """The load gets a cgroup of its own, as a batch system would give it."""
    (CGROUPS / "job").mkdir()
    (CGROUPS / "cgroup.subtree_control").write_text("+cpu +memory +io")
    Path("/proc/sys/kernel/numa_balancing").write_text("0")


def set_up_network() -> dict[str, str]:
    """Two NICs of one kernel that talk over the wire, with soft RDMA on each: name -> MAC.

    Neighbors are given and IPv6 is off, so that nothing but the load is on the wire.
    """
    macs = {
        path.parent.name: path.read_text().strip() for path in Path("/sys/class/net").glob("eth*/address")
    }
    names = sorted(macs)
    for name in ("all", *names):
        conf = Path("/proc/sys/net/ipv4/conf") / name
        (conf / "accept_local").write_text("1")
        (conf / "rp_filter").write_text("0")
    for number, name in enumerate(names):
        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
        output("ip", "addr", "add", f"{ADDRESSES[number]}/24", "dev", name)
        output("ip", "link", "set", name, "up")
        output("rdma", "link", "add", f"rxe{number}", "type", "rxe", "netdev", name)
    for number, name in enumerate(names):
        other = 1 - number
        output(*f"ip neigh replace {ADDRESSES[other]} lladdr {macs[names[other]]} dev {name}".split())
    return macs


def make(name: str) -> Collector:
    """A new instance of the built-in collector `name`."""
    return next(collector for collector in own_collectors() if collector.name == name)


def probe_all() -> dict[str, dict[str, Any]]:
    """What each built-in collector says of this machine."""
    ctx = live_context()
    found = {}
    for collector in own_collectors():
        capability = collector.probe(ctx)
        found[collector.name] = {
            "available": capability.available,
            "reason": capability.reason,
            "remedy": capability.remedy,
            "detail": capability.detail,
            "absent": [[part.what, part.reason] for part in capability.absent],
        }
    return found


class Sampled:
    """Collectors opened on one context, their readings and facts as JSON.

    Args:
        names: of collectors.
        seldom: of collectors that leave out what has not changed.
    """

    def __init__(self, ctx: Context, *names: str, seldom: Sequence[str] = ()) -> None:
        self.collectors = [make(name) for name in (*names, *seldom)]
        self.seldom = seldom
        self.series: set[int] = set()  # by identity: a collector makes each of its series once
        self.known: dict[str, Any] = {"samples": [], "facts": []}
        for collector in self.collectors:
            collector.open(ctx)

    def sample(self) -> None:
        """Read every series once.

        Dear parts are read less often than asked, and everything is dear here: ask until all have answered.
        """
        readings: dict[int, Reading] = {}
        awaited = set(self.series)
        give_up = time.monotonic() + PATIENCE_S
        while (not readings or not self.series <= readings.keys()) and time.monotonic() < give_up:
            for collector in self.collectors:
                new = {id(reading.series): reading for reading in collector.sample()}
                readings.update(new)
                awaited |= set() if collector.name in self.seldom else new.keys()
                facts = collector.facts()
                self.known["facts"] += [[fact.name, fact.labels, fact.value] for fact in facts]
            time.sleep(0.02)
        self.series = awaited
        self.known["samples"].append([as_json(reading) for reading in readings.values()])

    def close(self) -> dict[str, Any]:
        for collector in self.collectors:
            collector.close()
        return self.known


def as_json(reading: Reading) -> dict[str, Any]:
    """`value` is in the metric's unit."""
    metric = reading.series.metric
    return {
        "metric": metric.name,
        "labels": dict(reading.series.labels),
        "value": None if reading.value is None else reading.value * metric.scale,
        "quality": reading.quality or metric.quality,
    }


def allocate(found: dict[str, Any], name: str, mib: int, options: str) -> None:
    """A process under `numactl options` that touches `mib`: what the NUMA collectors see of it.

    "placement" is seen by a collector that has watched the process from its start, "placement_late" by one
    that meets it when it has its memory.
    """
    # numactl and the shell exec, so the id is the worker's all along.
    command = (
        f"echo $$ > {CGROUPS}/job/cgroup.procs; exec numactl {options} {sys.executable} -I -S {WORKER} {mib}"
    )
    with subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        if worker.stdout.readline() != "started\n":
            raise RuntimeError(f"numactl {options}: the worker did not start")
        ctx = live_context(pids=lambda: (worker.pid,))
        sampled, placement = Sampled(ctx, "numa", "numa.memory"), Sampled(ctx, "numa.placement")
        placement.sample()
        sampled.sample()
        worker.stdin.write("\n")
        worker.stdin.flush()
        if worker.stdout.readline() != "touched\n":
            raise RuntimeError(f"numactl {options}: the worker ended while it touched its memory")
        sampled.sample()
        placement.sample()
        late = Sampled(ctx, "numa.placement")
        late.sample()
        found[name] = {
            "pid": worker.pid,
            "counters": sampled.close(),
            "placement": placement.close(),
            "placement_late": late.close(),
        }
        worker.stdin.close()


def rdma_writes() -> dict[str, Any]:
    """RDMA_MESSAGES writes of RDMA_BYTES from rxe0 to rxe1, read by the fabric and Ethernet collectors."""
    sampled = Sampled(live_context(), "fabric", seldom=["ethernet"])
    # Patient: under emulation the default acknowledge timeout of the queue pair is too short.
    shape = f"-x 1 -s {RDMA_BYTES} -n {RDMA_MESSAGES} -F -t 8 -u 22".split()
    sampled.sample()
    with subprocess.Popen(
        ["ib_write_bw", "-d", "rxe1", *shape], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            await_listening(PERFTEST_PORT)
            client = output("ib_write_bw", "-d", "rxe0", *shape, "127.0.0.1")
            server.wait(timeout=30)
        finally:
            server.kill()
    sampled.sample()
    found = sampled.close()
    found["perftest"] = client
    return found


def await_listening(port: int) -> None:
    """Until somebody listens on a TCP port; how long a program takes to get there varies under emulation."""
    end = time.monotonic() + 40
    while time.monotonic() < end:
        for table in ("tcp", "tcp6"):
            rows = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
            if any(row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "0A" for row in rows):
                return
        time.sleep(0.1)
    raise RuntimeError(f"nobody listens on port {port}")


def links() -> dict[str, Any] | None:
    """What `perfscope doctor --links` measures, without torch, which takes a minute to import here."""
    tools = Tools(torch_python=None, no_mpi="left out")
    return measure_links(live_context(), "emulated", tools, budget_s=LINKS_S)


def throttled() -> dict[str, Any]:
    """A job that may use a fifth of a CPU and wants a whole one."""
    code = (
        "import sys, time; print('started', flush=True); sys.stdin.readline()\n"
        "end = time.process_time() + 0.3\n"
        "while time.process_time() < end: pass\n"
        "print('done', flush=True); sys.stdin.readline()\n"
    )
    command = [
        "sh",
        "-c",
        f'echo $$ > {CGROUPS}/job/cgroup.procs; exec $0 -I -S -c "$1"',
        sys.executable,
        code,
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdout.readline()
        (CGROUPS / "job/cpu.max").write_text("20000 100000")
        sampled = Sampled(live_context(pids=lambda: (worker.pid,)), "cpu", "cpu.pressure")
        sampled.sample()
        worker.stdin.write("\n")
        worker.stdin.flush()
        worker.stdout.readline()
        sampled.sample()
        worker.stdin.close()
    (CGROUPS / "job/cpu.max").write_text("max 100000")
    return sampled.close()


def lost_packets() -> dict[str, Any]:
    """A TCP connection over loopback, where for half a second everything is lost."""
    sampled = Sampled(live_context(), "ethernet.tcp")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as end,
    ):
        sampled.sample()
        output("tc", "qdisc", "add", "dev", "lo", "root", "netem", "loss", "100%")
        client.sendall(bytes(1000))
        time.sleep(0.5)  # the kernel sends again after 0.2 s
        output("tc", "qdisc", "del", "dev", "lo", "root")
        end.recv(1000, socket.MSG_WAITALL)
        sampled.sample()
    return sampled.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
