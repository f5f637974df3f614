"""Machines of several NUMA nodes, emulated: QEMU boots a Debian kernel and runs one command in it.

The machine's root is this machine's, read-only over 9p with a tmpfs over it, so the command finds the same
Python and the same tools under the same paths. One folder is shared for writing. No KVM: it works where
there is none, and is as slow everywhere.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.vm.kernel import Kernel, NoKernel, initrd, kernel

QEMU = "qemu-system-x86_64"
TOOLS = (QEMU, "busybox", "setpriv", "dpkg-deb", "apt-get", "apt-cache")  # to boot
LOAD_TOOLS = ("numactl", "ip", "tc", "rdma", "ib_write_bw", "lstopo-no-graphics")  # used inside
SHARED = "/perfscope-vm"  # where the machine sees the shared folder


@dataclass(frozen=True)
class Node:
    """One NUMA node; `cpus` "" for memory only."""

    mib: int
    cpus: str
    initiator: int  # the node whose CPUs are nearest


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a machine shall look like.

    Attributes:
        sockets, cores: cores are per socket.
        distances: the SLIT matrix.
        hmat: (initiator node, target node) -> (latency in ns, bandwidth in MB/s); empty = no such table.
        cpu: QEMU's words for the processor.
    """

    name: str
    sockets: int
    cores: int
    nodes: tuple[Node, ...]
    distances: tuple[tuple[int, ...], ...]
    hmat: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    cpu: str = "max,la57=off"


TWO_SOCKETS = Profile(
    name="two_sockets",
    sockets=2,
    cores=1,  # every one more makes it slower where other programs run
    nodes=(Node(640, "0", 0), Node(640, "1", 1), Node(256, "", 0)),
    distances=((10, 21, 31), (21, 10, 41), (31, 41, 10)),
    hmat={
        (0, 0): (100, 90000),
        (0, 1): (160, 40000),
        (0, 2): (140, 380000),
        (1, 0): (160, 40000),
        (1, 1): (100, 90000),
        (1, 2): (200, 180000),
    },
)
# Knights Landing in flat mode, quadrant: all CPUs and DDR4 are node 0, MCDRAM is node 1.
KNL_FLAT = Profile(
    name="knl_flat",
    sockets=1,
    cores=2,
    nodes=(Node(768, "0-1", 0), Node(256, "", 0)),
    distances=((10, 31), (31, 10)),
    cpu="max,la57=off,vendor=GenuineIntel,family=6,model=87,stepping=1,"
    "model-id=Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz",
)

PROFILES = (TWO_SOCKETS, KNL_FLAT)

# mac address of the NIC that hangs below node i
MACS = ("52:54:00:00:00:01", "52:54:00:00:00:02")
NIC_NODES = {TWO_SOCKETS.name: (0, 1), KNL_FLAT.name: (0, 0)}

_INIT = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /host /over /new
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for m in $(cat /modules.order); do insmod /modules/$m || echo "insmod $m failed"; done
nine=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o $nine,ro,cache=loose root /host || poweroff -f
mount -t tmpfs -o mode=755 over /over; mkdir /over/upper /over/work
mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work root /new || poweroff -f
mkdir -p /new{SHARED} /new/proc /new/sys /new/dev
mount -t 9p -o $nine,cache=none shared /new{SHARED} || poweroff -f
for m in proc sys dev; do mount --move /$m /new/$m; done
mkdir -p /new/dev/shm; mount -t tmpfs shm /new/dev/shm; mount -t tmpfs run /new/run
mount -t cgroup2 none /new/sys/fs/cgroup
ifconfig lo 127.0.0.1 up; hostname emulated
echo "command starts at $(cut -d' ' -f1 /new/proc/uptime) s"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
chroot /new /bin/sh {SHARED}/command </new/dev/null
echo $? >/new{SHARED}/exit-code
sync; poweroff -f
"""

# no_timer_check: on a busy host the emulated timer is late, and the kernel would give up on it.
_KERNEL_OPTIONS = (
    "console=ttyS0 quiet panic=-1 psi=1 nokaslr mitigations=off net.ifnames=0 random.trust_cpu=on "
    "no_timer_check"
)


class MachineDied(Exception):
    """The machine ended without the command having ended, or took too long."""


@dataclass(frozen=True)
class Ended:
    """exit_code is the command's; console is what it and the kernel printed; seconds from QEMU's start."""

    exit_code: int
    console: str
    seconds: float


def why_not() -> str:
    """Why no machine can be booted here; "" when one can, as far as can be seen without trying."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return "the emulated machines run this machine's programs, which must be for x86-64 Linux"
    missing = [tool for tool in (*TOOLS, *LOAD_TOOLS) if not shutil.which(tool)]
    if missing:
        return f"not installed: {', '.join(missing)} (as root: make test-vm installs them with apt-get)"
    return ""


def default_cache() -> Path:
    """Where the kernel is kept: PERFSCOPE_VM_CACHE, else build/vm-cache of this checkout."""
    named = os.environ.get("PERFSCOPE_VM_CACHE")
    return Path(named) if named else Path(__file__).parents[2] / "build" / "vm-cache"


def boot(profile: Profile, command: Sequence[str], *, shared: Path, cache: Path, limit_s: float) -> Ended:
    """Boot, run `command` (which sees `shared` as SHARED), power off.

    Raises:
        NoKernel: no kernel can be had.
        MachineDied: the command did not end within `limit_s`, or the kernel died.
    """
    unpacked = kernel(cache)
    busybox = shutil.which("busybox")
    if busybox is None:
        raise NoKernel("busybox is not installed")
    shared.mkdir(parents=True, exist_ok=True)
    exit_code, console = shared / "exit-code", shared / "console.log"
    exit_code.unlink(missing_ok=True)
    (shared / "command").write_text(f"exec {shlex.join(command)}\n")
    ramdisk = shared / "initrd.cpio"
    ramdisk.write_bytes(initrd(unpacked, Path(busybox), _INIT))
    arguments = qemu_arguments(profile, unpacked, ramdisk, shared, console)
    started = time.monotonic()
    with (shared / "qemu.log").open("w+") as log:
        # The machine must not outlive the tests, however these end.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            process.wait(limit_s)
            ended = f"ended by itself with {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"was still running after {limit_s:.0f} s"
        finally:
            process.kill()
            process.wait()
            ramdisk.unlink()
        log.seek(0)
        said = log.read().strip()
    seconds = time.monotonic() - started
    printed = console.read_text(errors="replace") if console.exists() else ""
    if not exit_code.exists():
        raise MachineDied(f"machine {profile.name} {ended}; its last words:\n{printed[-3000:]}\n{said}")
    return Ended(int(exit_code.read_text()), printed, seconds)


def qemu_arguments(
    profile: Profile, unpacked: Kernel, ramdisk: Path, shared: Path, console: Path
) -> list[str]:
    """The whole command line."""
    return [
        *(QEMU, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none"),
        *("-serial", f"file:{console}", "-accel", "tcg,thread=multi", "-cpu", profile.cpu),
        *("-machine", "q35,hmat=on" if profile.hmat else "q35"),
        *("-smp", f"{profile.sockets * profile.cores},sockets={profile.sockets},cores={profile.cores}"),
        *("-m", f"{sum(node.mib for node in profile.nodes)}M"),
        *_memory(profile),
        *_folder("root", "/", read_only=True),
        *_folder("shared", str(shared), read_only=False),
        *_nics(profile),
        *("-kernel", str(unpacked.image), "-initrd", str(ramdisk)),
        *("-append", _KERNEL_OPTIONS),
    ]


def _memory(profile: Profile) -> list[str]:
    arguments: list[str] = []
    for number, node in enumerate(profile.nodes):
        arguments += ["-object", f"memory-backend-ram,id=m{number},size={node.mib}M"]
        cpus = f",cpus={node.cpus}" if node.cpus else ""
        initiator = f",initiator={node.initiator}" if profile.hmat else ""
        arguments += ["-numa", f"node,nodeid={number},memdev=m{number}{cpus}{initiator}"]
    for source, row in enumerate(profile.distances):
        for target, distance in enumerate(row):
            if source != target:
                arguments += ["-numa", f"dist,src={source},dst={target},val={distance}"]
    for (source, target), (latency, bandwidth) in profile.hmat.items():
        where = f"hmat-lb,initiator={source},target={target},hierarchy=memory"
        arguments += ["-numa", f"{where},data-type=access-latency,latency={latency}"]
        arguments += ["-numa", f"{where},data-type=access-bandwidth,bandwidth={bandwidth}M"]
    return arguments


def _folder(tag: str, path: str, *, read_only: bool) -> list[str]:
    mode = ",readonly=on" if read_only else ""
    return [
        *("-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{mode}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    ]


def _nics(profile: Profile) -> list[str]:
    """One NIC below each of the nodes of NIC_NODES, both on one hub inside QEMU: nothing leaves it.

    A PCI expander bus with a node number gives the NIC a numa_node in sysfs.
    """
    arguments: list[str] = []
    for number, node in enumerate(NIC_NODES[profile.name]):
        arguments += [
            *("-device", f"pxb-pcie,id=bus{number},bus_nr={64 * (number + 1)},bus=pcie.0,numa_node={node}"),
            *(
                "-device",
                f"pcie-root-port,id=port{number},bus=bus{number},chassis={number + 1},slot={number}",
            ),
            *("-netdev", f"hubport,id=net{number},hubid=0"),
            *("-device", f"virtio-net-pci,netdev=net{number},bus=port{number},mac={MACS[number]}"),
        ]
    return arguments
