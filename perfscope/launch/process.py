"""Starting the command and standing in front of it: signals, job control, exit code.

All signals are handled by waiting for them (`sigwaitinfo` with the signals blocked), never by
handlers, so nothing can be lost between a check and a wait. The command itself starts with the
signal mask and dispositions perfscope was started with, in the same process group, and with our
stdin, stdout and stderr.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from perfscope.launch.signal_probe import Witness

EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127

_FORWARDED = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGCONT,
        signal.SIGTSTP,
        signal.SIGWINCH,
        signal.SIGXCPU,
        *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
    }
)
_STOPPING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
_JOB_CONTROL_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})


class CommandNotStarted(Exception):
    """The command could not be executed; `exit_code` is 126 or 127 as a shell would say."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Ending:
    """How the command ended.

    Attributes:
        code: its exit code, or 128+N when signal N ended it: what perfscope exits with.
        signal: N, or None.
    """

    code: int
    signal: int | None


@dataclass(frozen=True)
class SignalGate:
    """The signals held back in this process, and the mask it had before."""

    held: frozenset[int]
    original_mask: frozenset[int]

    def stop_requested(self) -> int | None:
        """A signal that asks us to stop and waits for delivery, or None."""
        waiting = signal.sigpending() & self.held & _STOPPING
        return min(waiting, default=None)

    def drain(self) -> None:
        """Forget signals that were meant for the command, which has ended."""
        while signal.sigtimedwait(self.held, 0) is not None:
            pass


@contextmanager
def hold_signals() -> Iterator[SignalGate]:
    """Hold back every signal that is forwarded, and SIGCHLD, until the block ends.

    Signals the caller had ignored (nohup, a shell's background job) stay ignored, for the command too.
    """
    forwarded = {number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
    held = frozenset(forwarded | {signal.SIGCHLD})
    previous = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored SIGCHLD would lose the exit status
    original = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, held))
    gate = SignalGate(held, original)
    try:
        yield gate
    finally:
        gate.drain()
        signal.pthread_sigmask(signal.SIG_SETMASK, original)
        signal.signal(signal.SIGCHLD, previous if previous is not None else signal.SIG_DFL)


def require_command(name: str, environment: Mapping[str, str]) -> None:
    """Refuse a command that cannot start before anything is written for it.

    Raises:
        CommandNotStarted: 127 not found, 126 found but not executable.
    """
    path = environment.get("PATH", os.defpath)
    if shutil.which(name, path=path) is not None:
        return
    if shutil.which(name, mode=os.F_OK, path=path) is None and not os.path.lexists(name):
        raise CommandNotStarted(f"{name}: command not found", EXIT_NOT_FOUND)
    if os.sep not in name and shutil.which(name, mode=os.F_OK, path=path) is None:
        raise CommandNotStarted(f"{name}: command not found (did you mean ./{name}?)", EXIT_NOT_FOUND)
    reason = "is a directory" if os.path.isdir(name) else "not executable"  # noqa: PTH112 - argv text, not a path of ours
    raise CommandNotStarted(f"{name}: {reason}", EXIT_NOT_EXECUTABLE)


def spawn(argv: Sequence[str], environment: Mapping[str, str], gate: SignalGate) -> int:
    """Start the command; returns its pid.

    Raises:
        CommandNotStarted: it is missing, not executable, or its arguments are too long.
    """
    # Python ignores these two at start-up, so the original disposition can no longer be read;
    # `subprocess` resets the same ones for the same reason.
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]
    try:
        try:
            return os.posix_spawnp(
                argv[0], list(argv), environment, setsigmask=gate.original_mask, setsigdef=defaults
            )
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without a `#!` line: execvp, and with it every shell, runs it with sh.
            script = shutil.which(argv[0], path=environment.get("PATH")) or argv[0]
            return os.posix_spawn(
                "/bin/sh",
                ["/bin/sh", script, *argv[1:]],
                environment,
                setsigmask=gate.original_mask,
                setsigdef=defaults,
            )
    except OSError as error:
        code = EXIT_NOT_FOUND if error.errno == errno.ENOENT else EXIT_NOT_EXECUTABLE
        raise CommandNotStarted(f"{argv[0]}: {error.strerror}", code) from error


def supervise(pid: int, gate: SignalGate, witness: Witness) -> Ending:
    """Wait for the command, passing signals on.

    A signal that the kernel itself sent (`si_code > 0`: Ctrl-C, Ctrl-Z, a closed terminal) went to
    the whole process group, and so did one that the witness got too: the command has it already.
    Anything else came to us alone.
    """
    while True:
        received = signal.sigwaitinfo(gate.held)
        if received.si_signo == signal.SIGCHLD:
            ending = _reap(pid)
            if ending is not None:
                return ending
        elif received.si_code <= 0 and not witness.saw(received.si_signo):
            if received.si_signo == signal.SIGCONT and _stopped_again(pid):
                continue
            # Only this function reaps, so the pid is still the command's, alive or a zombie.
            with suppress(OSError):  # a set-uid command may not be ours to signal
                os.kill(pid, received.si_signo)


def replace_process(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Become the command (never returns).

    Raises:
        CommandNotStarted: it cannot be executed.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), dict(environment))
    except OSError as error:
        code = EXIT_NOT_FOUND if error.errno == errno.ENOENT else EXIT_NOT_EXECUTABLE
        raise CommandNotStarted(f"{argv[0]}: {error.strerror}", code) from error


def _stopped_again(pid: int) -> bool:
    """Whether Ctrl-Z came after the SIGCONT in hand: passing that on would wake the command once more.

    The kernel drops a SIGCONT that still waits when a stop signal comes, so the witness may never say of it.
    """
    if signal.SIGTSTP in signal.sigpending():
        return True
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _reap(pid: int) -> Ending | None:
    """Take every state change of the command; its ending, if it has ended."""
    while True:
        reaped, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        if reaped == 0:
            return None
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return Ending(128 + number, number)
        if os.WIFEXITED(status):
            return Ending(os.WEXITSTATUS(status), None)
        if os.WIFSTOPPED(status) and os.WSTOPSIG(status) in _JOB_CONTROL_STOPS:
            # The shell watches us, not the command: stop as well, so that it sees a stopped job.
            # Execution goes on here after `fg`; the pending SIGCONT is then forwarded.
            os.kill(os.getpid(), signal.SIGSTOP)
