"""Calling Slurm's programs. Whatever they refuse becomes one line that says what to do.

call(["squeue", "-h"])        its stdout, or SlurmError
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

from perfscope.errors import PerfscopeError

TIMEOUT_S = 60.0  # Slurm's programs give up by themselves after some multiples of MessageTimeout
_LONGEST = 300
_SAID_BY = re.compile(r"^(?:\w+: )?(?:error|fatal): ", re.MULTILINE)
_UNREACHABLE = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Zero Bytes were transmitted or received",
    "Slurm backup controller in standby mode",
    "Unable to establish control",
)
_NOT_SET_UP = (
    "Could not establish a configuration source",
    "Unable to process configuration file",
    "slurm.conf",
)
# Filters that users keep in their environment would hide the very job that is asked for.
_FILTERS = ("SQUEUE_", "SACCT_", "SINFO_")


class SlurmError(PerfscopeError):
    """Slurm refused something, or a job went another way than asked."""


class Unreachable(SlurmError):
    """The controller does not answer at the moment: asking again later may help."""


class NotKnown(SlurmError):
    """Slurm does not know the job, or no longer."""


class Caller(Protocol):
    """`call`, or a stand-in for it."""

    def __call__(self, argv: Sequence[str], /) -> str: ...


def call(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """stdout of a program of Slurm.

    It leads a session of its own: the terminal's Ctrl-C is for perfscope, which then detaches in good order.

    Raises:
        Unreachable: no answer.
        NotKnown: there is no such job.
        SlurmError: the program is not there, or refuses; the message is what it said, without its prefixes.
    """
    done = _run(argv, os.environ if environment is None else environment)
    if done.returncode != 0:
        raise _failure(argv[0], done.stderr.decode("utf-8", "replace"), done.returncode)
    return done.stdout.decode("utf-8", "replace")


def mpi_types() -> set[str]:
    """What `srun --mpi` can be here: pmix, pmi2 ...; empty where srun does not tell.

    Raises:
        SlurmError: see call.
    """
    done = _run(["srun", "--mpi=list"], os.environ)  # which some versions answer on stderr
    output = (done.stdout + done.stderr).decode("utf-8", "replace")
    if _SAID_BY.search(output):
        raise _failure("srun", output, done.returncode)
    # `pmi2`, `srun: pmi2`, `specific pmix plugin versions available: pmix_v4,pmix_v5`
    lists = (line.rpartition(":")[2].strip().split(",") for line in output.splitlines())
    return {word.removeprefix("mpi/") for types in lists for word in types if word.isidentifier()}


def _run(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    kept = {name: value for name, value in environment.items() if not name.startswith(_FILTERS)}
    program = argv[0]
    try:
        return subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**kept, "SLURM_TIME_FORMAT": "standard"},
            timeout=TIMEOUT_S,
            start_new_session=True,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmError(
            f"{program} is not on PATH: go to a login node of the cluster, or load Slurm's module"
        ) from None
    except OSError as error:
        raise SlurmError(f"{program} cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise Unreachable(
            f"{program} did not come back within {TIMEOUT_S:.0f} s: Slurm's controller (slurmctld) is down "
            "or overloaded; try again later"
        ) from None


def plain(text: str) -> str:
    """What a program said on stderr as one line, without `sbatch: error: ` before every part of it."""
    lines = (_SAID_BY.sub("", line).strip() for line in text.splitlines())
    return "; ".join(dict.fromkeys(line for line in lines if line))[:_LONGEST]


def _failure(program: str, stderr_text: str, code: int) -> SlurmError:
    text = plain(stderr_text) or f"it ended with exit code {code} and said nothing"
    if any(phrase in stderr_text for phrase in _UNREACHABLE):
        return Unreachable(
            f"Slurm's controller (slurmctld) does not answer ({text}); try again later, or ask who runs the "
            "cluster"
        )
    if "Invalid job id specified" in stderr_text:
        return NotKnown(f"Slurm does not know this job, or no longer ({text})")
    if any(phrase in stderr_text for phrase in _NOT_SET_UP):
        return SlurmError(f"Slurm is not set up on this host ({text}); go to a login node of the cluster")
    return SlurmError(f"{program}: {text}")
