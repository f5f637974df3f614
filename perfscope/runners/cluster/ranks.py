"""Starts the ranks of the emulated hosts and watches over them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from perfscope.runners.cluster.network import INTERFACE, EmulatedHost
from perfscope.runners.cluster.spec import ClusterSpec
from perfscope.runners.starting import kernel
from perfscope.runners.starting.endings import (
    EXIT_LOST_PEER,
    RankEnding,
    cause,
    from_wait_status,
    say,
    say_silent,
)
from perfscope.runners.starting.guard import STOPPING, WATCHED

MASTER_PORT = 29500  # of a namespace of its own: nothing else is there
ENV_CLUSTER = "PERFSCOPE_CLUSTER"  # tells the ranks that their hosts are one machine
SAY_S = 1.0  # for ranks that lose a peer, to say so themselves
STOP_S = 4.0  # from SIGTERM to SIGKILL
_EXIT_NOT_FOUND = 127
_EXIT_NOT_EXECUTABLE = 126


def rank_environment(
    spec: ClusterSpec, hosts: Sequence[EmulatedHost], rank: int, environment: Mapping[str, str], num_cpus: int
) -> dict[str, str]:
    """The environment of rank `rank`: torchrun's variables, and the settings to talk through the emulated
    interface.

    Args:
        num_cpus: CPUs of the machine, shared by all ranks.
    """
    host, local_rank = divmod(rank, spec.ranks_per_host)
    values = {
        "RANK": rank,
        "WORLD_SIZE": spec.num_ranks,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": spec.ranks_per_host,
        "GROUP_RANK": host,
        "GROUP_WORLD_SIZE": spec.num_hosts,
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": MASTER_PORT,
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
        "TP_SOCKET_IFNAME": INTERFACE,
        "HOSTNAME": hosts[host].name,
        ENV_CLUSTER: spec,
    }
    threads = {"OMP_NUM_THREADS": str(max(num_cpus // spec.num_ranks, 1))}
    return {**threads, **environment, **{name: str(value) for name, value in values.items()}}


class RankProcesses:
    """The running ranks. Its process must hold WATCHED back, adopt orphans, and have no other children.

    Args:
        spec: of the cluster.
        hosts: as they were built.
        command: what every rank runs.
        environment: common to all.
        mask: of signals, for the ranks.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        hosts: Sequence[EmulatedHost],
        command: Sequence[str],
        environment: Mapping[str, str],
        mask: frozenset[int],
    ) -> None:
        self._spec = spec
        self._hosts = hosts
        self._command = command
        self._environment = environment
        self._mask = mask
        self._alive: dict[int, int] = {}  # pid -> rank
        self._code = 0
        self._silent: list[int] = []

    def start(self) -> None:
        """Start every rank on its host."""
        num_cpus = len(os.sched_getaffinity(0))
        for rank in range(self._spec.num_ranks):
            environment = rank_environment(self._spec, self._hosts, rank, self._environment, num_cpus)
            host = self._hosts[rank // self._spec.ranks_per_host]
            pid = kernel.run_as_child(partial(self._become_rank, host, environment, os.getpid()))
            self._alive[pid] = rank

    def watch(self, parent: int) -> int:
        """Wait for all of them; the code to exit with.

        Args:
            parent: the one who started us; without it the ranks end at once.
        """
        kill_at: float | None = None
        term_at: float | None = None
        while self._alive:
            now = time.monotonic()
            if term_at is not None and now >= term_at:
                self._send(signal.SIGTERM)
                term_at = None
            if kill_at is not None and now >= kill_at:
                self._kill_silent()
            waits = [
                deadline - now for deadline in (term_at, kill_at) if deadline is not None and deadline > now
            ]
            received = signal.sigtimedwait(WATCHED, min(waits, default=60.0))
            if os.getppid() != parent:
                self._send(signal.SIGKILL)
                return 128 + signal.SIGKILL
            if received is not None and received.si_signo in STOPPING:
                if kill_at is None or term_at is not None:
                    # What the kernel sent (Ctrl-C) went to every process of the terminal, so to the ranks.
                    if received.si_code <= 0:
                        self._send(received.si_signo)
                    term_at, kill_at = None, time.monotonic() + STOP_S
                self._code = self._code or 128 + received.si_signo
            failed = self._reap()
            if failed is not None and self._code == 0:
                self._code = failed.exit_code
                consequence = "; stopping the others" if self._alive else ""
                say(f"{failed} on {self._hosts[failed.rank // self._spec.ranks_per_host].name}{consequence}")
                term_at = time.monotonic() + SAY_S
                kill_at = term_at + STOP_S
        return self._code

    def _become_rank(self, host: EmulatedHost, environment: Mapping[str, str], parent: int) -> int:
        """In the child: move to the host, become the command. Returns only when that fails."""
        try:
            kernel.die_with_parent(signal.SIGKILL, parent)
            host.enter()
            kernel.forget_capabilities()
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python has them ignored
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            os.execvpe(self._command[0], list(self._command), dict(environment))
        except FileNotFoundError:
            say(f"{self._command[0]}: command not found")
            return _EXIT_NOT_FOUND
        except OSError as error:
            say(f"{self._command[0]}: {error.strerror}")
        return _EXIT_NOT_EXECUTABLE

    def _reap(self) -> RankEnding | None:
        """Take every child that has ended, ours and adopted ones; the cause, if a rank failed."""
        endings = []
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in self._alive:
                    endings.append(from_wait_status(self._alive.pop(pid), status))
        return cause(endings)

    def _kill_silent(self) -> None:
        if self._code == EXIT_LOST_PEER and not self._silent:  # the others have waited for these
            self._silent = sorted(self._alive.values())
            say(say_silent(self._silent))
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for pid in self._alive:  # only _reap frees a pid, so these are still ours
            with suppress(ProcessLookupError):
                os.kill(pid, number)
