"""`--label KEY=VALUE`, for every command that makes a run."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfscope.errors import UsageError

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_MAX_VALUE = 256


def parse_labels(labels: Iterable[str]) -> dict[str, str]:
    """Labels as given on the command line, by key.

    Raises:
        UsageError: one is not KEY=VALUE, a value is too long or not printable, or a key comes twice.
    """
    parsed: dict[str, str] = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise UsageError(f"--label {label!r} is not KEY=VALUE (KEY: letters, digits, `_`, `.`, `-`)")
        if len(value) > _MAX_VALUE or not value.isprintable():
            raise UsageError(
                f"--label {key}: the value is longer than {_MAX_VALUE} characters or not printable"
            )
        if key in parsed:
            raise UsageError(f"--label {key} is given twice")
        parsed[key] = value
    return parsed
