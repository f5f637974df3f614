"""Makes any string safe and honest to look at, before a renderer sees it.

Names in a trace are someone else's input: they may hold escape sequences that repaint a terminal,
direction overrides that show a text backwards, half surrogates that no encoder takes, or a hundred
thousand characters.
"""

from __future__ import annotations

import re

LONGEST = 240

# C0, DEL and C1 controls; line and paragraph separators; direction marks, overrides and isolates;
# zero-width characters and the byte order mark; interlinear anchors; half surrogates.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def _spell(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def path_end(text: str, longest: int) -> str:
    """A long path's end, which tells it from its neighbors: ``…BasicBlock_7.Conv2d_19``."""
    return text if len(text) <= longest else f"…{text[-longest + 1 :]}"


def beginning(text: str, longest: int) -> str:
    """A long sentence's beginning: ``python (9 processes, one …``."""
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"


def visible(text: object, longest: int = LONGEST) -> str:
    """`text` on one line with nothing hidden in it, cut in the middle beyond `longest` characters.

    The cut says how long the whole was: ``conv.conv … (100,000 characters) … conv``.
    """
    full = str(text)
    if len(full) > longest:
        head, tail = longest * 2 // 3, longest // 6
        full = f"{full[:head]} … ({len(full):,} characters) … {full[len(full) - tail :]}"
    return _INVISIBLE.sub(_spell, full)
