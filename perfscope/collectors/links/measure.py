"""What the links of a host, or of several, carry: NUMA nodes, devices, TCP, RDMA, collectives. Gives links.

Measured in processes of their own, each within a limit: what has not ended by then is killed, and what it had
printed is kept. Times of calls are kept as they are; latency and bandwidth are fitted where they are used.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.collectors.ceilings.child import ChildResult, run_child
from perfscope.collectors.ceilings.host import LocalHost, LocalNode, last_level_bytes, read_host
from perfscope.collectors.context import Context
from perfscope.collectors.gpu.registry import driver_names
from perfscope.collectors.links import cache, rdma
from perfscope.collectors.machine.pci import read_fabric_ports
from perfscope.rundir import layout
from perfscope.vocabulary.links import LinkClass, Transport

# Wall time of each part at most; the parts that apply make the whole.
PART_S = {
    "collectives": 25.0,
    "MPI": 12.0,
    "loopback": 4.0,
    "NUMA": 20.0,
    "RDMA": 15.0,
    "copies": 30.0,
    "NCCL": 30.0,
}
# Of that, what starting takes on a busy machine, however little is measured then: torch is imported.
_START_S = {
    "collectives": 9.0,
    "MPI": 4.0,
    "loopback": 1.0,
    "NUMA": 2.5,
    "RDMA": 2.0,
    "copies": 9.0,
    "NCCL": 10.0,
}
_HERE = Path(__file__).parent
_CEILINGS = _HERE.parent / "ceilings"
_LEAST_SCALE = 0.1
_PER_SIZE_S, _CELL_S = 0.15, 0.12
_MARGIN_S = 2.0  # to end
_MOST_RANKS = 4
_LEAST_BYTES, _MOST_BYTES = 32 << 20, 256 << 20  # of one array, and of what latencies walk through
_MEMORY_SHARE = 6
_NAMES = {Transport.GLOO: "gloo", Transport.MPI: "MPI", Transport.NCCL: "NCCL"}

Document = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRanks:
    """This process is one of several that a launcher has started, and so are its peers on other hosts.

    Attributes:
        rank: of this process.
        size: of them all.
        environment: RANK, WORLD_SIZE, MASTER_ADDR ... for torch.
    """

    rank: int
    size: int
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What measuring may use.

    Attributes:
        torch_python: a Python that may have torch; None = there is none.
        mpiexec: command and options; () = MPI cannot be used.
        no_mpi: why it cannot.
        joined: the ranks that this process is one of; None = it is alone.
    """

    torch_python: str | None
    mpiexec: tuple[str, ...] = ()
    no_mpi: str = "no mpiexec was found"
    joined: JoinedRanks | None = None


class Measurement:
    """What is gathered on the way.

    Args:
        wanted: parts, in order.
        budget_s: wall time for all of them; None = as they need.
    """

    def __init__(self, wanted: Sequence[str], budget_s: float | None) -> None:
        whole, start = (sum(times[part] for part in wanted) for times in (PART_S, _START_S))
        self._start = 1.0  # share of _START_S that every part has
        self.scale = 1.0  # of the measuring itself
        if budget_s is not None:
            self.scale = min((budget_s - start) / (whole - start), 4.0)
            if self.scale < _LEAST_SCALE:
                self._start = self.scale = budget_s / whole
        self.calls: list[Row] = []
        self.numa: list[Row] = []
        self.missing: list[Row] = []
        self.how: list[str] = []
        self.hosts: list[str] = []

    def budget_s(self, part: str) -> float:
        start = _START_S[part]
        return start * self._start + (PART_S[part] - start) * self.scale

    def seconds(self, usual: float) -> float:
        """Of one size, or one cell of the matrix."""
        return usual * min(self.scale, 1.0)

    def lacks(self, what: str, reason: str) -> None:
        self.missing.append({"what": what, "reason": reason})

    def take(self, answer: ChildResult, what: str, label: Row) -> list[str]:
        """A child's lines as calls; the hosts of its ranks, if it named them."""
        hosts: list[str] = []
        for line in answer.lines:
            if "how" in line:
                self.how.append(str(line["how"]))
                hosts = list(line.get("hosts", ()))
                label = {**label, **({"hosts": hosts} if hosts else {})}
            elif "missing" in line:
                self.lacks(f"{what}: {line['missing']}", str(line["reason"]))
            else:
                self.calls.append({**label, **line})
        if answer.failure:
            self.lacks(what, answer.failure)
        return hosts


def parts(ctx: Context, tools: Tools) -> list[str]:
    """What would be measured here, in order: keys of PART_S."""
    gpus = len(driver_names(ctx))
    wanted = ["collectives"]
    if tools.joined is None or tools.joined.rank == 0:
        wanted += ["MPI"] if tools.mpiexec and tools.joined is None else []
        wanted += ["loopback", "NUMA"]
        wanted += ["RDMA"] if rdma.pairs(read_fabric_ports(ctx)) and shutil.which(rdma.TOOL) else []
        wanted += ["copies"] if gpus else []
        wanted += ["NCCL"] if gpus > 1 and tools.joined is None else []
    return wanted


def most_seconds(ctx: Context, tools: Tools) -> float:
    """How long `measure_links` takes at most, without a budget."""
    return sum(PART_S[part] for part in parts(ctx, tools))


def measure_links(
    ctx: Context,
    host: str,
    tools: Tools,
    *,
    budget_s: float | None = None,
    say: Callable[[str], None] = lambda text: None,
    cache_dir: Path | None = None,
) -> Document | None:
    """Measure and keep. Never raises for what the machine lacks: that is in `missing`, with the reason.

    Args:
        ctx: must be live.
        host: its name.
        tools: what to use.
        budget_s: wall time for everything; None = as the parts need.
        say: called with what is being measured.
        cache_dir: None = below $XDG_CACHE_HOME.

    Returns:
        The document; None for ranks other than 0 of several, which have done their part.
    """
    began, machine, wanted = time.monotonic(), read_host(ctx), parts(ctx, tools)
    so_far = Measurement(wanted, budget_s)
    for number, part in enumerate(wanted, 1):
        if tools.joined is None or tools.joined.rank == 0:
            say(f"measuring links, {number} of {len(wanted)}: {part}, at most {so_far.budget_s(part):.0f} s")
        _MEASURE[part](so_far, ctx, machine, host, tools)
    if tools.joined is not None and tools.joined.rank != 0:
        return None
    _say_what_is_left_out(so_far, ctx, tools, wanted)
    names = sorted({name for name in so_far.hosts or [host]})
    document = {
        "schema_version": layout.SCHEMA_VERSION,
        "host": host,
        "hosts": names if host in names else [host],
        "emulated": os.environ.get(cache.ENV_EMULATED, ""),
        "measured_unix_ns": time.time_ns(),
        "took_ns": int((time.monotonic() - began) * 1e9),
        "how": "; ".join(dict.fromkeys(so_far.how)),
        "cached": False,
        "fingerprints": {host: cache.own_fingerprint(ctx)},
        "calls": so_far.calls,
        "numa": so_far.numa,
        "missing": so_far.missing,
    }
    cache.store(document, cache_dir)
    return document


def numa_plan(ctx: Context, machine: LocalHost) -> list[Row]:
    """Tasks of kernels_numpy: bandwidth and latency of every node's CPUs with every node's memory."""
    with_cores = [node for node in machine.nodes if node.cores]
    pairs = [(source, target) for source in with_cores for target in machine.nodes]
    tasks = []
    for source, target in pairs:
        cpus = source.cores[: machine.threads]
        cell = {"cpu_node": source.number, "memory_node": target.number}
        memory = target.number if len(machine.nodes) > 1 else None
        size = _array_bytes(ctx, machine, target, cpus)
        triad = {"kind": "stream_triad", "label": {**cell, "kind": "stream_triad", "threads": len(cpus)}}
        tasks.append({**triad, "workers": [(cpu, memory) for cpu in cpus], "bytes": size, "seconds": _CELL_S})
        chase = {"kind": "latency", "label": {**cell, "kind": "latency", "threads": 1}}
        tasks.append({**chase, "worker": (cpus[0], memory), "bytes": size, "seconds": _CELL_S})
    return tasks


def _array_bytes(ctx: Context, machine: LocalHost, node: LocalNode, cpus: Sequence[int]) -> int:
    """Beyond the caches, and within what is free."""
    wanted = max(2 * last_level_bytes(ctx, tuple(cpus)), _LEAST_BYTES)
    free = min(machine.free_bytes, machine.free_bytes if node.free_bytes is None else node.free_bytes)
    return min(wanted, _MOST_BYTES, free // _MEMORY_SHARE) // 4096 * 4096


def numa_cells(lines: Sequence[Row]) -> list[Row]:
    """A row per (node of the CPUs, node of the memory) of what kernels_numpy printed."""
    cells: dict[tuple[int, int], Row] = {}
    for line in lines:
        if "value" not in line:
            continue
        key = line["cpu_node"], line["memory_node"]
        none = {"threads": None, "bytes_per_s": None, "latency_s": None}
        cell = cells.setdefault(key, {"cpu_node": key[0], "memory_node": key[1], **none})
        if line["kind"] == "latency":
            cell["latency_s"] = line["value"]
        else:
            cell["bytes_per_s"], cell["threads"] = line["value"], line["threads"]
    return list(cells.values())


def _numa(so_far: Measurement, ctx: Context, machine: LocalHost, host: str, tools: Tools) -> None:
    deadline = time.monotonic() + so_far.budget_s("NUMA")
    plan = {"deadline": deadline - 0.5, "tasks": numa_plan(ctx, machine)}
    answer = run_child(sys.executable, _CEILINGS / "kernels_numpy.py", plan, {}, deadline)
    so_far.numa += numa_cells(answer.lines)
    for line in answer.lines:
        if "missing" in line:
            label = line["missing"]
            where = f"CPUs of node {label['cpu_node']}, memory of node {label['memory_node']}"
            kind = "latency" if label["kind"] == "latency" else "bandwidth"
            so_far.lacks(f"NUMA {kind}, {where}", str(line["reason"]))
    if answer.failure:
        so_far.lacks("NUMA matrix", answer.failure)


def _loopback(so_far: Measurement, ctx: Context, machine: LocalHost, host: str, tools: Tools) -> None:
    deadline = time.monotonic() + so_far.budget_s("loopback")
    plan = {"deadline": deadline - 0.5, "seconds": so_far.seconds(_PER_SIZE_S)}
    label = {
        "transport": Transport.TCP.value,
        "collective": "send",
        "num_ranks": 2,
        "hosts": [host, host],
        "interfaces": ["lo", "lo"],
        "link_class": LinkClass.LOOPBACK.value,
    }
    answer = run_child(sys.executable, _HERE / "kernels_tcp.py", plan, {}, deadline)
    so_far.take(answer, "loopback TCP", label)


def _collectives(so_far: Measurement, ctx: Context, machine: LocalHost, host: str, tools: Tools) -> None:
    if tools.torch_python is None:
        so_far.lacks("collectives of gloo", "no Python with torch was found")
        return
    joined = tools.joined
    local = None if joined else max(2, min(machine.threads, _MOST_RANKS))
    environment = dict(joined.environment) if joined else {}
    so_far.hosts = _run_ranks(so_far, Transport.GLOO, "collectives", tools, local, environment)


def _mpi(so_far: Measurement, ctx: Context, machine: LocalHost, host: str, tools: Tools) -> None:
    num = max(2, min(machine.threads, _MOST_RANKS))
    prefix = (*tools.mpiexec, "-n", str(num))
    _run_ranks(so_far, Transport.MPI, "MPI", tools, None, {}, prefix)


def _nccl(so_far: Measurement, ctx: Context, machine: LocalHost, host: str, tools: Tools) -> None:
    _run_ranks(so_far, Transport.NCCL, "NCCL", tools, len(driver_names(ctx)), {})


def _run_ranks(
    so_far: Measurement,
    transport: Transport,
    part: str,
    tools: Tools,
    local: int | None,
    environment: Mapping[str, str],
    prefix: Sequence[str] = (),
) -> list[str]:
    """Collectives over one transport; the hosts of the ranks in their order."""
    budget = so_far.budget_s(part)
    plan = {
        "backend": transport.value,
        "budget_s": max(budget - _MARGIN_S, 1.0),
        "seconds": so_far.seconds(_PER_SIZE_S),
        "local": local,
    }
    python = sys.executable if transport is Transport.MPI else str(tools.torch_python)
    answer = run_child(
        python,
        _HERE / "kernels_collectives.py",
        plan,
        {"OMP_NUM_THREADS": "1", **environment},
        time.monotonic() + budget,
        prefix,
    )
    if "No module named 'torch'" in answer.failure:
        answer.failure = f"{python} has no torch"
    hosts: list[str] = next((line["hosts"] for line in answer.lines if "hosts" in line and "how" in line), [])
    for line in answer.lines:
        if "collective" not in line:
            continue
        ends = line.get("hosts", hosts)
        line["num_ranks"] = len(ends)
        line["hosts"] = ends
        line["transport"] = (Transport.TCP if line["collective"] == "send" else transport).value
        line["link_class"] = _class_of(transport, ends).value
    so_far.take(answer, f"collectives of {_NAMES[transport]}", {})
    return hosts


def _class_of(transport: Transport, hosts: Sequence[str]) -> LinkClass:
    if len(set(hosts)) > 1:
        return LinkClass.ETHERNET
    return LinkClass.GPU_LINK if transport is Transport.NCCL else LinkClass.LOOPBACK


def _copies(so_far: Measurement, ctx: Context, machine: LocalHost, host: str, tools: Tools) -> None:
    if tools.torch_python is None:
        so_far.lacks("copies of GPUs", "no Python with torch was found")
        return
    budget = so_far.budget_s("copies")
    plan = {"budget_s": budget - _MARGIN_S, "seconds": so_far.seconds(_PER_SIZE_S)}
    script, deadline = _HERE / "kernels_copies.py", time.monotonic() + budget
    answer = run_child(tools.torch_python, script, plan, {}, deadline)
    classes = {"d2d": LinkClass.MEMORY, "p2p": LinkClass.GPU_LINK}
    for line in answer.lines:
        if "direction" in line:
            line["link_class"] = classes.get(line["direction"], LinkClass.PCIE).value
    label = {"transport": Transport.COPY.value, "collective": "send", "num_ranks": 2, "hosts": [host, host]}
    so_far.take(answer, "copies of GPUs", label)


def _say_what_is_left_out(so_far: Measurement, ctx: Context, tools: Tools, wanted: Sequence[str]) -> None:
    gpus = len(driver_names(ctx))
    if "MPI" not in wanted:
        reason = "a launcher has started these ranks; without it, mpiexec starts its own"
        so_far.lacks("collectives of MPI", reason if tools.joined else tools.no_mpi)
    if not gpus:
        so_far.lacks("copies of GPUs, collectives of NCCL", "no GPU was found")
    elif "NCCL" not in wanted:
        reason = "one GPU has no other to talk to" if gpus == 1 else "not measured between hosts"
        so_far.lacks("collectives of NCCL", reason)
    if len(set(so_far.hosts)) < 2:
        reason = "one host takes part; let srun, mpiexec or torchrun start perfscope doctor --links on each"
        so_far.lacks("links between hosts", reason)
    _say_what_rdma_lacks(so_far, ctx, wanted)


def _rdma(so_far: Measurement, ctx: Context, machine: LocalHost, host: str, tools: Tools) -> None:
    """Between ports of this host; those of several hosts need the tool on each of them."""
    pairs = rdma.pairs(read_fabric_ports(ctx))
    tool = shutil.which(rdma.TOOL)
    assert tool is not None, "parts() asks for it"
    deadline = time.monotonic() + so_far.budget_s("RDMA")
    for number, ends in enumerate(pairs):
        what = " to ".join(f"{port['device']} port {port['port']}" for port in ends)
        until = deadline - (deadline - time.monotonic()) * (1 - 1 / (len(pairs) - number))
        label = {
            "transport": Transport.RDMA.value,
            "what": what,
            "collective": "send",
            "num_ranks": 2,
            "hosts": [host, host],
            "link_class": LinkClass.FABRIC.value,
        }
        lines = rdma.measure_writes(ctx, tool, ends, until, so_far.seconds(_PER_SIZE_S))
        so_far.take(ChildResult(list(lines)), f"RDMA, {what}", label)


def _say_what_rdma_lacks(so_far: Measurement, ctx: Context, wanted: Sequence[str]) -> None:
    ports = read_fabric_ports(ctx)
    if not ports:
        so_far.lacks("RDMA", "no RDMA device: /sys/class/infiniband is missing or empty")
    measured = [port["id"] for pair in rdma.pairs(ports) for port in pair] if "RDMA" in wanted else []
    for port in ports:
        if port["id"] in measured:
            continue
        state = str(port["state"] or "state not known").lower()
        reason = (
            f"{rdma.TOOL} of the package perftest is not installed" if state == "active" else "not active"
        )
        so_far.lacks(f"RDMA over {port['device']} port {port['port']} ({port['kind']}, {state})", reason)


_MEASURE = {
    "collectives": _collectives,
    "MPI": _mpi,
    "loopback": _loopback,
    "NUMA": _numa,
    "RDMA": _rdma,
    "copies": _copies,
    "NCCL": _nccl,
}
