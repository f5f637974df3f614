"""How ranks end: which of several endings was the cause, and how to say it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from perfscope.messages.lists import plural

EXIT_LOST_PEER = 3  # a rank's exit code when another rank has gone or does not answer
# Launchers do not send these to a rank because another rank has failed.
_OF_ITS_OWN = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})


@dataclass(frozen=True, slots=True)
class RankEnding:
    """A rank that has ended.

    Attributes:
        rank: global rank.
        code: exit code; minus the signal's number when one ended it (as subprocess says it).
        was_stopped: it ended only after its launcher had begun to end all ranks.
    """

    rank: int
    code: int
    was_stopped: bool = False

    @property
    def did_not_answer(self) -> bool:
        """Its launcher had to kill it: it did not even heed SIGTERM."""
        return self.was_stopped and -self.code == signal.SIGKILL

    @property
    def exit_code(self) -> int:
        """As a shell says it: 128+N for signal N."""
        return 128 - self.code if self.code < 0 else self.code

    @property
    def how(self) -> str:
        """ "was killed by signal 9 (SIGKILL)"."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            name = f" ({signal.Signals(-self.code).name})"
        except ValueError:
            name = ""
        return f"was killed by signal {-self.code}{name}"

    def __str__(self) -> str:
        return f"rank {self.rank} {self.how}"


def cause(endings: Sequence[RankEnding]) -> RankEnding | None:
    """Of endings that were seen at the same time, the one that the others followed from; None = none failed.

    A rank that loses its peer ends itself with an error, or is ended by its launcher, and both may be seen
    together with the peer's own end. So a signal that no rank sends goes first, a launcher's SIGTERM last.
    """
    failed = [ending for ending in endings if ending.code != 0]
    return min(failed, key=_order, default=None)


def silent(endings: Sequence[RankEnding]) -> list[int]:
    """Ranks that did not answer, when that was what made the others end; none when those had another reason.

    Ranks that wait for a silent one give up first (EXIT_LOST_PEER), and only then is it killed.
    """
    first = cause(endings)
    if first is None or first.code != EXIT_LOST_PEER:
        return []
    return sorted(ending.rank for ending in endings if ending.did_not_answer)


def say_silent(ranks: Sequence[int]) -> str:
    """`rank 1 did not answer`."""
    return f"{plural('rank', len(ranks))} {', '.join(map(str, ranks))} did not answer"


def from_wait_status(rank: int, status: int) -> RankEnding:
    """The ending behind what os.waitpid says."""
    return RankEnding(rank, os.waitstatus_to_exitcode(status))


def say(text: str) -> None:
    """One line for the user. A closed stderr is no reason to fail."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"perfscope bench: {text}\n")
        sys.stderr.flush()


def _order(ending: RankEnding) -> int:
    if ending.was_stopped:
        return 4
    if -ending.code in _OF_ITS_OWN:
        return 0
    if ending.code == EXIT_LOST_PEER:
        return 2
    return 3 if -ending.code == signal.SIGTERM else 1
