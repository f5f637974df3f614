"""`N.counters.json` to what a summary says of it: per phase and layer, summed over the complete steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscope.errors import TraceError, UnreadableFileError
from perfscope.ingest.files import WindowFile
from perfscope.ingest.inflate import read_whole
from perfscope.rundir import layout
from perfscope.rundir.documents import parse_document
from perfscope.rundir.schema import PHASES
from perfscope.rundir.window_records import CountedLayers
from perfscope.vocabulary.causes import Cause

_WHOLE = 1 << 62  # more is no count
_FIXED = len(layout.COUNTER_COLUMNS)


def counted_layers(file: WindowFile, renamed: Mapping[str, str]) -> CountedLayers | None:
    """What the window's counters add up to; None where no file of them is there.

    Args:
        file: the window.
        renamed: names that layers were given after they were marked.
    """
    if file.counters is None:
        return None
    try:
        document = parse_document(read_whole(file.counters), file.counters)[0]
        if document.get("version") != 1:
            return CountedLayers(problem="was made by a newer perfscope; upgrade perfscope to read it")
        return _summed(document, renamed)
    except TraceError as error:
        return CountedLayers(problem=str(error).removeprefix(f"{file.counters}: "))
    except UnreadableFileError as error:
        return CountedLayers(problem=error.reason)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return CountedLayers(problem=f"is no record of counters: {type(error).__name__}")


def _summed(document: Mapping[str, Any], renamed: Mapping[str, str]) -> CountedLayers:
    columns = [str(name) for name in document["columns"]]
    if tuple(columns[:_FIXED]) != layout.COUNTER_COLUMNS:
        raise ValueError(columns)
    sums: dict[tuple[str, str], list[int]] = {}
    rows, steps = document["rows"], document["steps"]
    for _, begin, end in steps:
        if not 0 <= begin <= end <= len(rows):
            raise ValueError(end)
        for _, _, phase, layer, *values in rows[begin:end]:
            if phase not in PHASES or len(values) != len(columns) - _FIXED or not all(map(_is_count, values)):
                raise ValueError(phase)
            key = (phase, renamed.get(str(layer), str(layer)))
            sums[key] = [a + b for a, b in zip(sums.get(key, [0] * len(values)), values, strict=True)]
    ended = document["ended"]
    return CountedLayers(
        num_steps=len(steps),
        columns=tuple(columns[_FIXED:]),
        rows=tuple((phase, layer, tuple(values)) for (phase, layer), values in sums.items()),
        software_source=str(document["software_source"]),
        user_only=bool(document["user_only"]),
        refused={str(name): _reason(reason) for name, reason in document["refused"].items()},
        ended=None if ended is None else _reason(ended),
    )


def _reason(value: Any) -> tuple[Cause, str]:
    cause, detail = value
    return Cause(cause), str(detail)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _WHOLE
