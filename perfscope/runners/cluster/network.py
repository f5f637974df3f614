"""Hosts as network and UTS namespaces without names, a bridge between them, and rates on every link.

    switch namespace          host namespace 0
      bridge: port0 ------------ wire0 10.77.0.1
              port1 ------------ wire0 10.77.0.2  (host namespace 1)

Nothing has a name that outlives its processes: a namespace is an open descriptor of ours and whatever lives
in it. When the last of them is gone, the kernel removes it with its interfaces and queues.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from perfscope.runners.cluster.spec import ClusterSpec
from perfscope.runners.config import BenchError
from perfscope.runners.starting import kernel

INTERFACE = "wire0"  # not eth0: /sys shows the machine's own interfaces, which that one might be
_NETWORK = "10.77.0"
_BURST_BYTES = 128 << 10  # two of the largest packets that a veth hands on (64 KiB)
_BURST_S = 0.001
# A queue as deep as TCP fills it, so that nothing is dropped and bytes stay those of the algorithm.
_QUEUE_BYTES = 256 << 20
_PACKET_BYTES = 1500
_SYSTEM_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class EmulatedHost:
    """One emulated host.

    Attributes:
        name: its host name.
        address: of its one interface.
        network, uts: open descriptors of its namespaces.
    """

    name: str
    address: str
    network: int
    uts: int

    def enter(self) -> None:
        """This process moves to the host."""
        kernel.enter(self.network)
        kernel.enter(self.uts)


def host_names(num_hosts: int, real_name: str) -> list[str]:
    """host0, host1, ...; another word where this machine is called like that itself."""
    stem = "host"
    while any(real_name == f"{stem}{index}" for index in range(num_hosts)):
        stem = f"emulated-{stem}"
    return [f"{stem}{index}" for index in range(num_hosts)]


def leave_machine() -> None:
    """Move this process into a network namespace of its own, the switch. It must have one thread.

    With the rights of root directly, else inside a user namespace, where the kernel lets every user have one.

    Raises:
        BenchError: neither is allowed.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        kernel.unshare(kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS)
        return
    except OSError as error:
        if error.errno != errno.EPERM:
            raise BenchError(_no_namespaces(error)) from error
    try:
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS)
        kernel.map_own_identity(uid, gid)
        kernel.keep_capabilities(kernel.CAP_NET_ADMIN, kernel.CAP_SYS_ADMIN)
    except OSError as error:
        raise BenchError(_no_namespaces(error)) from error


def require_tools() -> None:
    """Refuses early where `ip` or `tc` is not installed.

    Raises:
        BenchError: so it is.
    """
    missing = [name for name in ("ip", "tc") if _tool(name) is None]
    if missing:
        raise BenchError(
            f"an emulated cluster needs {' and '.join(missing)}, not installed here: "
            "install the package iproute2 (on Fedora iproute and iproute-tc)"
        )


def require_rights() -> None:
    """Refuses early where this user may not have network namespaces. Tried in a child, which ends with them.

    Raises:
        BenchError: so it is.
    """
    reader, writer = os.pipe()

    def attempt() -> int:
        try:
            leave_machine()
        except BenchError as error:
            os.write(writer, str(error).encode())
        return 0

    pid = kernel.run_as_child(attempt)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        problem = answer.read().decode()
    os.waitpid(pid, 0)
    if problem:
        raise BenchError(problem)


def build(spec: ClusterSpec) -> tuple[EmulatedHost, ...]:
    """Make the switch in this process's namespace and one namespace per host, linked and limited.

    Raises:
        BenchError: the kernel cannot; the line says what is missing.
    """
    switch = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _silence_ipv6()
    # A bridge that forwards from the first packet on and does not ask about groups.
    _ip("link add sw0 type bridge forward_delay 0 mcast_snooping 0", "link set lo up", "link set sw0 up")
    hosts = []
    for index, name in enumerate(host_names(spec.num_hosts, socket.gethostname())):
        host = _add_host(name, f"{_NETWORK}.{index + 1}", switch)
        hosts.append(host)
        _ip(f"link set port{index} master sw0", f"link set port{index} up")
    for index, host in enumerate(hosts):
        _limit(f"port{index}", spec, latency=True)
        with _inside(host.network, switch):
            _limit(INTERFACE, spec, latency=False)
    os.close(switch)
    _name_addresses(hosts)
    return tuple(hosts)


def queue_commands(interface: str, spec: ClusterSpec, *, latency: bool) -> list[str]:
    """The arguments of `tc` with which `interface` sends as the cluster's links do.

    Args:
        latency: this end of the link delays, too.
    """
    commands = []
    parent = "root"
    if latency and spec.latency_us:
        rate = spec.bits_per_s or 10**11
        packets = max(10_000, math.ceil(4 * rate / 8 * spec.latency_us / 1e6 / _PACKET_BYTES))
        commands.append(
            f"qdisc add dev {interface} root handle 1: netem delay {spec.latency_us:g}us limit {packets}"
        )
        parent = "parent 1:1 handle 10:"
    if spec.bits_per_s is not None:
        burst = max(_BURST_BYTES, int(spec.bits_per_s / 8 * _BURST_S))
        limits = f"rate {spec.bits_per_s}bit burst {burst} limit {_QUEUE_BYTES}"
        commands.append(f"qdisc add dev {interface} {parent} tbf {limits}")
    return commands


def _add_host(name: str, address: str, switch: int) -> EmulatedHost:
    index = int(address.rpartition(".")[2]) - 1
    kernel.unshare(kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS)
    try:
        network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        uts = os.open("/proc/self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
        kernel.set_host_name(name)
        _silence_ipv6()
        _ip(
            f"link add {INTERFACE} type veth peer name port{index}",
            f"link set port{index} netns /proc/self/fd/{switch}",
            f"addr add {address}/24 dev {INTERFACE}",
            "link set lo up",
            f"link set {INTERFACE} up",
            keep=switch,
        )
    finally:
        kernel.enter(switch)
    return EmulatedHost(name, address, network, uts)


def _name_addresses(hosts: Sequence[EmulatedHost]) -> None:
    """Have /etc/hosts know the hosts, for this process and its children only.

    Not all kernels let us; then names are not found, which torch complains about and lives with.
    """
    hosts_file = Path("/etc/hosts")
    # The second form is how a socket for both protocols knows its IPv4 peers.
    lines = [f"{form}{host.address}\t{host.name}" for host in hosts for form in ("", "::ffff:")]
    with suppress(OSError), tempfile.NamedTemporaryFile("w", prefix="perfscope-hosts-") as file:
        file.write("\n".join([hosts_file.read_text().rstrip(), *lines]) + "\n")
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        kernel.leave_mounts()
        kernel.cover_file(str(hosts_file), file.name)  # stays when the file's own name has gone


@contextmanager
def _inside(network: int, back: int) -> Iterator[None]:
    kernel.enter(network)
    try:
        yield
    finally:
        kernel.enter(back)


def _silence_ipv6() -> None:
    """No neighbor discovery on the wires: what is counted there is the training's."""
    setting = Path("/proc/sys/net/ipv6/conf")
    for name in ("all", "default"):
        if (setting / name).is_dir():
            (setting / name / "disable_ipv6").write_text("1")


def _limit(interface: str, spec: ClusterSpec, *, latency: bool) -> None:
    for command in queue_commands(interface, spec, latency=latency):
        problem = _call(["tc", *command.split()])
        if not problem:
            continue
        if "netem" in command:
            raise BenchError(
                f"this kernel cannot delay packets ({problem}): load its module sch_netem, "
                f"or leave the latency out of {spec}"
            )
        raise BenchError(
            f"this kernel cannot limit a link's rate ({problem}): load its module sch_tbf, "
            f"or leave the rate out: {spec.num_hosts}x{spec.ranks_per_host}"
        )


def _ip(*commands: str, keep: int | None = None) -> None:
    """`ip` with these commands in the namespace this process is in; `keep` is a descriptor it needs."""
    text = "".join(f"{command}\n" for command in commands)
    problem = _call(["ip", "-batch", "-"], text, () if keep is None else (keep,))
    if problem:
        raise BenchError(
            f"this kernel cannot link emulated hosts ({problem}); it needs the modules bridge and veth"
        )


def _call(argv: Sequence[str], text: str = "", keep: Sequence[int] = ()) -> str:
    """Run `ip` or `tc`; what it complains about, on one line, "" when it does not."""
    tool = _tool(argv[0])
    if tool is None:
        return f"{argv[0]} is not installed"
    done = subprocess.run(
        [tool, *argv[1:]], input=text, capture_output=True, text=True, check=False, pass_fds=tuple(keep)
    )
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return (
        lines[0].removeprefix("Error: ").rstrip(".") if lines else f"{argv[0]} ended with {done.returncode}"
    )


def _tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_SYSTEM_PATH)  # a user's PATH often lacks sbin


def _no_namespaces(error: OSError) -> str:
    return (
        f"an emulated cluster needs network namespaces, and the kernel refuses them ({error.strerror}): "
        "run as root, or give the container CAP_NET_ADMIN and CAP_SYS_ADMIN, "
        "or allow user namespaces (sysctl user.max_net_namespaces, kernel.unprivileged_userns_clone, "
        "kernel.apparmor_restrict_unprivileged_userns=0)"
    )
