"""The few Linux calls that Python 3.11 does not have: namespaces, capabilities, who dies with whom.

Everything here raises OSError as the call does.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from perfscope.errors import EXIT_BUG

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE = 1 << 12, 1 << 14, 1 << 19
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
_CAPABILITY_VERSION_3 = 0x20080522
_MPOL_PREFERRED, _MAX_NODES = 1, 1024
# set_mempolicy(2): arch/*/syscall*.tbl, include/uapi/asm-generic/unistd.h
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "loongarch64": 237, "ppc64le": 261}


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` name for new ones."""
    _checked(_libc().unshare(ctypes.c_int(flags)))


def enter(descriptor: int) -> None:
    """Move into the namespace that `descriptor` (an open /proc/PID/ns/...) shows."""
    _checked(_libc().setns(ctypes.c_int(descriptor), ctypes.c_int(0)))


def die_with_parent(number: int, parent: int) -> None:
    """Have the kernel send us `number` when our parent's thread ends; at once if `parent` is gone already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_host_name(name: str) -> None:
    """Of this UTS namespace."""
    encoded = name.encode()
    _checked(_libc().sethostname(encoded, ctypes.c_size_t(len(encoded))))


def leave_mounts() -> None:
    """A mount namespace of our own: what others mount appears here, what we mount does not appear there."""
    unshare(CLONE_NEWNS)
    _checked(_libc().mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None))


def cover_file(path: str, by: str) -> None:
    """Have the file `by` appear at `path` in this mount namespace."""
    _checked(_libc().mount(by.encode(), path.encode(), None, ctypes.c_ulong(_MS_BIND), None))


def map_own_identity(uid: int, gid: int) -> None:
    """In a new user namespace: be the same user as outside of it, and no other."""
    Path("/proc/self/setgroups").write_text("deny")  # the kernel wants that before the next two
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def keep_capabilities(*capabilities: int) -> None:
    """Let programs that we start (`ip`, `tc`) have these too, though we are not root. They must be ours."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice, 32 capabilities each
    libc = _libc()
    _checked(libc.capget(header, sets))
    for capability in capabilities:
        sets[3 * (capability // 32) + 2] |= 1 << capability % 32
    _checked(libc.capset(header, sets))
    for capability in capabilities:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)


def forget_capabilities() -> None:
    """The programs that this process starts from now on have no more than the user's own rights."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)


def prefer_memory_of(node: int) -> None:
    """Memory that this thread and its later children touch comes from NUMA domain `node` while it lasts.

    Raises:
        OSError: the kernel refuses (containers often may not), or its call number is not known here.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    word = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (_MAX_NODES // word))()
    mask[node // word] = 1 << node % word
    _checked(
        _libc().syscall(
            ctypes.c_long(number), ctypes.c_long(_MPOL_PREFERRED), mask, ctypes.c_ulong(_MAX_NODES + 1)
        )
    )


def run_as_child(work: Callable[[], int]) -> int:
    """Fork; the child does `work` and exits with what it returns. The pid of the child."""
    pid = os.fork()
    if pid:
        return pid
    code = EXIT_BUG
    try:
        code = work()
    except BaseException:  # noqa: BLE001 - the child must never return into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def block(numbers: frozenset[int]) -> frozenset[int]:
    """Hold these signals back, for `signal.sigtimedwait`. The mask as it was before."""
    return frozenset(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, numbers))


def _prctl(option: int, *arguments: int) -> None:
    c_arguments = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    _checked(_libc().prctl(ctypes.c_int(option), *c_arguments))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
