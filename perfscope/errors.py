"""The errors a user can meet, each with an exit code.

    PerfscopeError            exit 1   something about the user's input or machine
      UsageError              exit 2   the command line itself is wrong
      RunDirectoryError       exit 1   a run directory cannot be read or written
        UnreadableFileError   exit 1   a file of it cannot be used: damaged, too large, no regular file
      TraceError              exit 1   a trace file cannot be used

A message is one line, says what is wrong with which file, and what to do about it.
"""

from __future__ import annotations

EXIT_USER = 1
EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_OWN_FAILURE = 125  # `perfscope run` itself failed; the child's own codes pass through.


class PerfscopeError(Exception):
    """Root of every error perfscope raises on purpose; its message is one line for the user."""

    exit_code: int = EXIT_USER


class UsageError(PerfscopeError):
    """The command line is wrong."""

    exit_code = EXIT_USAGE


class RunDirectoryError(PerfscopeError):
    """A run directory cannot be read, or must not be written."""


class UnreadableFileError(RunDirectoryError, ValueError):
    """One file of a run directory cannot be used. A ValueError, as what parses of a broken file raises.

    Attributes:
        reason: why, without the path; the message has both.
    """

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}")
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[type[UnreadableFileError], tuple[object, str]]:
        return type(self), (self.path, self.reason)  # to be raised in the process that asked another


class TraceError(PerfscopeError):
    """A trace file holds nothing that can be used."""
