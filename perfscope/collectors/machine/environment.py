"""Bug report information about the machine around a run: kernel, virtualisation, limits, rights, tools.

Everything is JSON-able, and None or left out where it cannot be read. Environment variables enter by the
allow-list of rundir.redact only; no serial number, user name or address is read.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from perfscope import __version__
from perfscope.collectors.context import Context
from perfscope.collectors.gpu.registry import PACKAGES as GPU_PACKAGES
from perfscope.collectors.gpu.registry import TOOLS as GPU_TOOLS
from perfscope.rundir.redact import allowed_environment, redact_text

PACKAGES = ("torch", "numpy", *GPU_PACKAGES, "py-spy", "mpi4py", "pyarrow", "msgspec", "click")
LAUNCHERS = ("torchrun", "mpirun", "mpiexec", "srun", "horovodrun", "deepspeed", "accelerate")
# Those that print a version at once; `torchrun --version` would import torch.
_QUICK = ("mpirun", "mpiexec", "srun")
TOOLS = (*GPU_TOOLS, "perf", "numactl", "lstopo", "rdma")
_TOOL_TIMEOUT_S = 3.0

# What the firmware of a virtual machine calls itself: a part of sys_vendor or product_name, lower case.
_VENDORS = {
    "qemu": "QEMU",
    "kvm": "KVM",
    "firecracker": "Firecracker",
    "vmware": "VMware",
    "virtualbox": "VirtualBox",
    "innotek": "VirtualBox",
    "xen": "Xen",
    "amazon ec2": "Amazon EC2",
    "google compute": "Google Compute Engine",
    "virtual machine": "Hyper-V",
    "openstack": "OpenStack",
    "bochs": "Bochs",
}
_DMI = "/sys/class/dmi/id"


def read_surroundings(ctx: Context) -> dict[str, object]:
    """The facts, by name. Of a captured tree only what its files tell; never raises."""
    facts: dict[str, object] = {"perfscope": __version__, **_system(ctx)}
    facts["virtual_machine"] = virtual_machine(ctx)
    facts["container"] = container(ctx)
    facts["cgroup"] = control_group(ctx)
    facts["kernel_settings"] = kernel_settings(ctx)
    if ctx.live:
        facts["python"] = f"{platform.python_implementation()} {platform.python_version()}"
        facts["packages"] = {name: installed_version(name) for name in PACKAGES}
        facts["launchers"] = {name: _tool(name) for name in LAUNCHERS}
        facts["tools"] = {name: shutil.which(name) is not None for name in TOOLS}
        facts["environment"] = allowed_environment(os.environ)
        facts["limits"] = limits()
    return facts


def installed_version(package: str) -> str | None:
    """Version of an installed package, without importing it; None = not installed here."""
    try:
        return version(package)
    except (PackageNotFoundError, OSError, ValueError):
        return None


def virtual_machine(ctx: Context) -> str | None:
    """What kind of virtual machine this is: a product, or "unknown kind"; None on bare metal."""
    names = " ".join(ctx.read_or(f"{_DMI}/{name}") for name in ("sys_vendor", "product_name")).lower()
    for word, product in _VENDORS.items():
        if word in names:
            return product
    kind = ctx.read_or("/sys/hypervisor/type") or ctx.read_or(
        "/proc/device-tree/hypervisor/compatible"
    ).strip("\0")
    if kind:
        return kind
    flags = re.search(r"^flags\s*:.*\bhypervisor\b", ctx.read_or("/proc/cpuinfo"), re.M)
    return "unknown kind" if flags else None


def container(ctx: Context) -> str | None:
    """Which container runtime we are in; None = none that left a sign."""
    for name, runtime in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if ctx.exists(name):
            return runtime
    runtime = ctx.read_or("/run/systemd/container")
    if runtime:
        return runtime[:40]
    groups = ctx.read_or("/proc/1/cgroup")
    for word in ("kubepods", "docker", "libpod", "lxc", "containerd"):
        if word in groups:
            return word
    if ctx.live and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if ctx.live and (os.environ.get("APPTAINER_NAME") or os.environ.get("SINGULARITY_NAME")):
        return "apptainer"
    return None


def control_group(ctx: Context) -> dict[str, object]:
    """Version and limits of our own control group, and of those above it: the tightest counts.

    `{"version": "v2"|"hybrid"|"v1"|None, "cpus": float|None, "memory_bytes": int|None, "cpuset": str|None}`
    """
    base, hybrid = "/sys/fs/cgroup", "/sys/fs/cgroup/unified"
    if ctx.exists(f"{base}/cgroup.controllers") or ctx.exists(f"{base}/cgroup.procs"):
        kind = "v2"
    elif ctx.exists(hybrid):
        kind = "hybrid"
    elif ctx.exists(f"{base}/cpu") or ctx.exists(f"{base}/memory"):
        kind = "v1"
    else:
        return {"version": None, "cpus": None, "memory_bytes": None, "cpuset": None}
    if kind == "v2":
        folders = _upwards(base, _own_group(ctx, ""))
        cpus = [_quota(ctx.read_or(f"{folder}/cpu.max")) for folder in folders]
        memory = [_number(ctx.read_or(f"{folder}/memory.max")) for folder in folders]
        cpuset = _innermost(ctx, folders, "cpuset.cpus.effective")
    else:
        cpus = [_old_quota(ctx, folder) for folder in _upwards(f"{base}/cpu", _own_group(ctx, "cpu"))]
        folders = _upwards(f"{base}/memory", _own_group(ctx, "memory"))
        memory = [_number(ctx.read_or(f"{folder}/memory.limit_in_bytes")) for folder in folders]
        folders = _upwards(f"{base}/cpuset", _own_group(ctx, "cpuset"))
        cpuset = _innermost(ctx, folders, "cpuset.cpus")
    # Version 1 writes "no limit" as the largest number of pages.
    return {
        "version": kind,
        "cpus": min((limit for limit in cpus if limit is not None), default=None),
        "memory_bytes": min(
            (limit for limit in memory if limit is not None and limit < 1 << 60), default=None
        ),
        "cpuset": cpuset or None,
    }


def kernel_settings(ctx: Context) -> dict[str, object]:
    """Switches that decide what can be measured, or how memory and CPUs behave; None = not there."""
    huge_pages = re.search(r"\[(\w+)\]", ctx.read_or("/sys/kernel/mm/transparent_hugepage/enabled"))
    scaling = ctx.read_or("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "perf_event_paranoid": ctx.read_int("/proc/sys/kernel/perf_event_paranoid"),
        "ptrace_scope": ctx.read_int("/proc/sys/kernel/yama/ptrace_scope"),
        "numa_balancing": ctx.read_int("/proc/sys/kernel/numa_balancing"),
        "numa_stat": ctx.read_int("/proc/sys/vm/numa_stat"),
        "transparent_hugepage": huge_pages[1] if huge_pages else None,
        "smt": ctx.read_or("/sys/devices/system/cpu/smt/control") or None,
        "pressure": ctx.exists("/proc/pressure/cpu"),
        "cpu_governor": scaling or None,
        "swappiness": ctx.read_int("/proc/sys/vm/swappiness"),
    }


def limits() -> dict[str, int | None]:
    """Limits of this process (soft), and the size of /dev/shm; None = unlimited or not known."""
    soft_limits: dict[str, int | None] = {}
    for name, number in (
        ("open_files", resource.RLIMIT_NOFILE),
        ("locked_memory_bytes", resource.RLIMIT_MEMLOCK),
        ("processes", resource.RLIMIT_NPROC),
        ("stack_bytes", resource.RLIMIT_STACK),
    ):
        soft = resource.getrlimit(number)[0]
        soft_limits[name] = None if soft == resource.RLIM_INFINITY else soft
    soft_limits["dev_shm_bytes"] = None
    with suppress(OSError):
        soft_limits["dev_shm_bytes"] = shutil.disk_usage("/dev/shm").total
    return soft_limits


def _system(ctx: Context) -> dict[str, object]:
    match = re.match(r"Linux version (\S+)", ctx.read_or("/proc/version"))
    kernel = match[1] if match else ctx.read_or("/proc/sys/kernel/osrelease") or None
    names = re.search(r'^PRETTY_NAME="?([^"\n]+)', ctx.read_or("/etc/os-release"), re.M)
    return {
        "kernel": kernel,
        "machine": platform.machine() if ctx.live else None,
        "distribution": names[1] if names else None,
    }


def _tool(name: str) -> str | None:
    """A launcher's version line, "found" where asking is not quick, None without it."""
    path = shutil.which(name)
    if path is None:
        return None
    if name not in _QUICK:
        return "found"
    try:
        answer = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TOOL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return "found, does not answer"
    return redact_text(version_line(answer.stdout.decode("utf-8", "replace"))[:120]) or "found"


def version_line(answer: str) -> str:
    """The line of an answer to `--version` that tells which program and version it is.

    MPICH's mpirun begins with a title (`HYDRA build details:`), and its version is on a line of its own.
    """
    first, _, more = answer.strip().partition("\n")
    if not first.endswith(":"):
        return first.strip()
    found = re.search(r"^\s*Version:\s*(\S+)", more, re.M)
    name = first.removesuffix(":").removesuffix("build details").strip()
    return f"{name} {found[1]}" if found else name


def _own_group(ctx: Context, controller: str) -> str:
    """Our path below the mount point of a version 1 controller, or "" for version 2; "/" when not known."""
    for line in ctx.read_or("/proc/self/cgroup").splitlines():
        _, _, remainder = line.partition(":")
        names, _, path = remainder.partition(":")
        if controller in names.split(","):
            return path
    return "/"


def _upwards(base: str, path: str) -> list[str]:
    """The folder of a group and of all above it, the innermost first."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return ["/".join([base, *parts[:count]]) for count in range(len(parts), -1, -1)]


def _innermost(ctx: Context, folders: list[str], name: str) -> str:
    """The file of the innermost group that has it."""
    return next((text for folder in folders if (text := ctx.read_or(f"{folder}/{name}"))), "")


def _quota(text: str) -> float | None:
    quota, _, period = text.partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _old_quota(ctx: Context, folder: str) -> float | None:
    quota = ctx.read_or(f"{folder}/cpu.cfs_quota_us")
    return _quota(f"{quota} {ctx.read_or(f'{folder}/cpu.cfs_period_us')}")


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
