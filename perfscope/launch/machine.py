"""Facts about where a run happens: the host's CPUs, NUMA nodes, memory and GPUs, and the git state.

Everything but git is read from /proc and /sys, without root. What a machine does not tell is left out.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from perfscope.rundir import layout

_GIT_TIMEOUT_S = 2.0


def host_name() -> str:
    """The name under which this host's facts are kept; a directory name."""
    return socket.gethostname().replace("/", "_") or "localhost"


def read_topology(root: Path = Path("/")) -> dict[str, object]:
    """What hosts/<host>/topology.json holds; `root` stands for / in tests. A missing file is no error."""
    cpuinfo = _text(root / "proc/cpuinfo")
    model = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", cpuinfo, re.M)
    topology: dict[str, object] = {
        "schema_version": layout.SCHEMA_VERSION,
        "host": host_name(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu_model": model[1].strip() if model else None,
        "logical_cpus": os.cpu_count(),
        "online_cpus": _text(root / "sys/devices/system/cpu/online").strip() or None,
        "affinity": sorted(os.sched_getaffinity(0)),
        "sockets": _distinct(root, "physical_package_id"),
        "threads_per_core": _threads_per_core(root),
        "cpu_limit": _cpu_limit(root),
        "memory_bytes": _memory_bytes(_text(root / "proc/meminfo"), "MemTotal"),
        "numa_nodes": _numa_nodes(root),
        "gpus": _nvidia_gpus(root),
    }
    return topology


def read_git_state(directory: Path, environment: Mapping[str, str]) -> dict[str, object] | None:
    """`{"commit", "dirty"}` of the repository around `directory`.

    None without git, outside a repository, or before the first commit. `dirty` looks at tracked files
    only, and is None when git needs too long to tell.
    """
    commit = _git(directory, environment, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    status = _git(directory, environment, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit.strip(), "dirty": None if status is None else bool(status)}


def _git(directory: Path, environment: Mapping[str, str], *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            # No index refresh is written and no fsmonitor of the repository is started.
            ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments],
            cwd=directory,
            env={**environment, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.decode("utf-8", "replace")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _distinct(root: Path, name: str) -> int | None:
    values = {_text(path) for path in (root / "sys/devices/system/cpu").glob(f"cpu[0-9]*/topology/{name}")}
    return len(values - {""}) or None


def _threads_per_core(root: Path) -> int | None:
    siblings = _text(root / "sys/devices/system/cpu/cpu0/topology/thread_siblings_list").strip()
    return _count_list(siblings) if siblings else None


def _count_list(cpus: str) -> int:
    """Members of a kernel CPU list: `0-3,8` -> 5."""
    total = 0
    for part in cpus.split(","):
        low, dash, high = part.partition("-")
        total += int(high) - int(low) + 1 if dash else 1
    return total


def _cpu_limit(root: Path) -> float | None:
    """CPUs the control group grants, None without a limit."""
    quota, _, period = _text(root / "sys/fs/cgroup/cpu.max").strip().partition(" ")
    if quota.isdigit() and period.isdigit():
        return int(quota) / int(period)
    old_quota = _text(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
    old_period = _text(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    if old_quota.isdigit() and old_period.isdigit():
        return int(old_quota) / int(old_period)
    return None


def _memory_bytes(meminfo: str, name: str) -> int | None:
    found = re.search(rf"\b{name}:\s+(\d+) kB", meminfo)
    return int(found[1]) * 1024 if found else None


def _numa_nodes(root: Path) -> list[dict[str, object]]:
    paths = (root / "sys/devices/system/node").glob("node[0-9]*")
    numbered = sorted((int(path.name.removeprefix("node")), path) for path in paths)
    return [
        {
            "node": number,
            "cpus": _text(path / "cpulist").strip(),
            "memory_bytes": _memory_bytes(_text(path / "meminfo"), "MemTotal"),
            "distances": [int(word) for word in _text(path / "distance").split()],
        }
        for number, path in numbered
    ]


def _nvidia_gpus(root: Path) -> list[dict[str, object]]:
    gpus = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        text = _text(path)
        model = re.search(r"^Model:\s*(.+)$", text, re.M)
        node = _text(root / "sys/bus/pci/devices" / path.parent.name.lower() / "numa_node").strip()
        gpus.append(
            {
                "pci": path.parent.name,
                "name": model[1].strip() if model else None,
                "numa_node": int(node) if node.lstrip("-").isdigit() and int(node) >= 0 else None,
            }
        )
    return gpus
