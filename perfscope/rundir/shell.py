"""Words for bash, so that a command perfscope prints or writes names the very file that is there."""

from __future__ import annotations

import re
import shlex

# Control characters, which a terminal or sbatch would take for something else, and bytes that are no UTF-8.
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\udc80-\udcff\u2028\u2029\u200b-\u200f\u202a-\u202e\u2060-\u206f]")
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def quote(word: str) -> str:
    """One word for bash, on one line and in printable characters."""
    if not _HIDDEN.search(word):
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if not _HIDDEN.match(letter):
        return letter
    return "".join(f"\\{byte:03o}" for byte in letter.encode("utf-8", "surrogateescape"))
