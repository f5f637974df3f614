"""Texts of a run that may be published: no user's name, and no path that shows where files are."""

from __future__ import annotations

import getpass
import os
import pwd
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from perfscope.rundir.redact import as_utf8, redact_text

USER = "USER"  # in place of a user's name
_BEGIN = r"(?:/|~[\w.-]*/|\.\./)"  # of a path that leads out of the working directory
_PATH = re.compile(rf"(?:(?<![\w.~/])|(?<=\s-[A-Za-z])){_BEGIN}[^\s'\"=,;:()<>|]*")
# An argument that is a path, or has one behind `=` or `-X`: all of the rest, spaces and `=` too.
_ARGUMENT = re.compile(rf"(?:-[A-Za-z]|.*?=)?(?={_BEGIN})", re.DOTALL)
_NEXT = re.compile(rf"(?<=[,;:])(?={_BEGIN})")  # in a list of paths
_OWNER = re.compile(r"/(?:home|Users)/([^\s/'\"\\]+)")
_NO_PERSON = frozenset(("root", "user", "nobody", "runner", "ubuntu"))


class Publisher:
    """Replaces users' names and paths in texts, or keeps them where the user allows that.

    Args:
        keep_users: leave both as they are. Secrets are replaced all the same.
    """

    def __init__(self, *, keep_users: bool = False) -> None:
        self._keep = keep_users
        self._users = {name for name in (own_user(),) if name}

    @property
    def users(self) -> frozenset[str]:
        """The names that are replaced."""
        return frozenset(self._users - _NO_PERSON)

    def learn(self, folder: Path, texts: Iterable[str]) -> None:
        """Notes who owns a run's directory, and whose home directories its texts name."""
        with suppress(OSError, KeyError):  # an owner without a name has none to replace
            self._users.add(pwd.getpwuid(folder.stat().st_uid).pw_name)
        for text in texts:
            self._users.update(_OWNER.findall(text))

    def text(self, text: str) -> str:
        """`text` without secrets, users' names and the folders of paths: `/home/ann/t.py` -> `…/t.py`."""
        safe = redact_text(text)
        if self._keep:
            return safe
        safe = _PATH.sub(_last_part, safe)
        for name in sorted(self.users, key=lambda name: (-len(name), name)):
            safe = re.sub(
                rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", USER, safe, flags=re.IGNORECASE
            )
        return safe

    def argument(self, text: str) -> str:
        """`text` of one argument, label or name; a path in it may have spaces."""
        return self.text(self._without_folders(text))

    def command(self, argv: Iterable[str]) -> str:
        """A command line, its arguments separated by spaces: `-o/srv/x/out` -> `-o…/out`."""
        return self.text(" ".join(map(self._without_folders, argv)))

    def shows(self, text: str) -> bool:
        """Whether `text` may be published as it is; bytes that are not UTF-8 show nothing."""
        return self.text(text) == as_utf8(text)

    def _without_folders(self, argument: str) -> str:
        match = None if self._keep else _ARGUMENT.match(argument)
        if match is None:
            return argument
        paths = _NEXT.split(argument[match.end() :])
        return match[0] + "".join(_short(path) for path in paths)


def own_user() -> str:
    """The name of the user of this process; "" where the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def _last_part(match: re.Match[str]) -> str:
    return _short(match.group())


def _short(path: str) -> str:
    parts = [part for part in path.split("/") if part]
    # A folder of a single name, such as /data, says nothing of a person.
    if len(parts) < 2 and not path.startswith("~"):
        return path
    is_home = len(parts) == 2 and parts[0] in ("home", "Users")
    return "…" if is_home else f"…/{os.path.basename(path.rstrip('/'))}"  # noqa: PTH119 - text, no file
