"""What of a run may be in a file that others read, and how it is written there.

A baseline is committed and a history is cached by CI, so absolute paths (home directories, mount points) are
reduced to their last part wherever they stand. Which variables of the environment there are at all, and that
no secrets are among them, was settled when the run was recorded.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import msgspec

from perfscope.gate.records import RunFigures, Surroundings
from perfscope.gate.store.errors import BaselineError, shown

# An absolute path of two parts or more inside a text; "n/a", "samples/s" and URLs are none.
_PATH = re.compile(r"""(?<![^\s=:,;'"(\[{])~?/(?:[^\s/:,;'"()]+/)+([^\s/:,;'"()]*)""")
_SURROGATE = re.compile("[\ud800-\udfff]")
CHECKSUM = "checksum"  # a key of a run's JSON: of the text without it, as json.dumps writes it
_START_LIMIT = 1 << 63  # SQLite's integers


def shareable(run: RunFigures) -> RunFigures:
    """`run` without absolute paths; what is shareable already comes back equal.

    Raises:
        BaselineError: a value of it is of a kind that no file takes.
    """
    around = run.surroundings
    try:
        reduced = replace(
            run,
            name=PurePath(run.name).name or "run",
            absent={key: _without_paths(text) for key, text in run.absent.items()},
            clean_reason=_without_paths(run.clean_reason),
            problem=_without_paths(run.problem),
            surroundings=replace(
                around,
                command=tuple(_word(word) for word in around.command),
                environment={key: _word(value) for key, value in around.environment.items()},
                options=_options(around),
            ),
        )
        return msgspec.convert(_plain(msgspec.to_builtins(reduced)), RunFigures)
    except (TypeError, ValueError, OverflowError) as error:
        raise _unfit(run, error) from error


def encode_run(run: RunFigures) -> str:
    """A shareable run as one line of ASCII JSON, its checksum in it, that `decode_run` makes the same run of.

    ASCII, so that neither a direction mark nor a line separator in a name can disguise a line of a diff.

    Raises:
        BaselineError: it cannot be kept without loss (a figure that is not a number, an integer too large).
    """
    start = run.surroundings.start_unix_ns
    try:
        if start is not None and not -_START_LIMIT <= start < _START_LIMIT:
            raise ValueError(f"its start, {start} ns, is no time")
        text = json.dumps(msgspec.to_builtins(run), allow_nan=False, separators=(",", ":"))
        text = _sealed(text)
        if decode_run(text) != run:
            raise ValueError("it would not be read back as it is")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _unfit(run, error) from error
    return text


def decode_run(text: str | bytes) -> RunFigures:
    """The run in a line of `encode_run`, or in one of an older perfscope, which has no checksum.

    White space and escapes may have been changed (a formatter), but no key, value or order.

    Raises:
        ValueError: no run, or not what was written.
    """
    run = msgspec.json.decode(text, type=RunFigures)
    line = text if isinstance(text, str) else text.decode()
    end = len(line) - len(_sealed("{}")) + len("{")
    if _sealed(line[:end] + "}") != line:  # not as it was written: older, damaged or only formatted
        document = json.loads(line)
        checksum = document.pop(CHECKSUM, None)
        plain = json.dumps(document, separators=(",", ":"))
        if checksum is not None and checksum != _checksum(plain):
            raise ValueError("a run is not what was written: its checksum does not match")
    return run


def _sealed(text: str) -> str:
    """A JSON object's text with the checksum of it as the last key."""
    return f'{text[:-1]},"{CHECKSUM}":"{_checksum(text)}"}}'


def _checksum(text: str) -> str:
    return f"crc32:{zlib.crc32(text.encode()):08x}"


def _unfit(run: RunFigures, error: Exception) -> BaselineError:
    return BaselineError(f"run {shown(run.name)} cannot be stored: {shown(str(error))}")


def _plain(value: Any) -> Any:
    """Dictionaries in the order of their keys, so equal runs are equal lines; half surrogates spelled out."""
    if isinstance(value, str):
        return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", value)
    if isinstance(value, dict):
        return {_plain(key): _plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _options(around: Surroundings) -> dict[str, Any]:
    """Options are texts; what was recorded as numbers or lists becomes its JSON."""
    values: dict[str, Any] = dict(around.options)
    return {
        name: _word(value if isinstance(value, str) else json.dumps(value, sort_keys=True))
        for name, value in values.items()
    }


def _word(word: str) -> str:
    """A word of a command line or a value: a path, `--option=PATH` or `PATH:PATH` (spaces may be in them)."""
    before, equals, value = word.partition("=")
    if "://" in word:
        return _without_paths(word)
    if not equals:
        before, value = "", word
    parts = [PurePath(part).name if part.startswith(("/", "~/")) else part for part in value.split(":")]
    return _without_paths(before + equals + ":".join(parts))


def _without_paths(text: str) -> str:
    previous = None
    while text != previous:  # every replacement shortens the text, so this ends
        previous, text = text, _PATH.sub(lambda match: match[1], text)
    return text
