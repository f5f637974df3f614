"""Text of a Prometheus exporter, scraped once or many times: values of GPUs with their times.

A time is, in this order: the one behind a value (milliseconds); the comment line above it that is a time
(`# 1700000000.5`, `# 2026-11-27T15:31:50+00:00`); for one scrape without any, when the file was written.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from msgspec import Struct

from perfscope.errors import TraceError
from perfscope.rundir.opening import open_regular

_VALUE = re.compile(r"([A-Za-z_:][\w:]*)\{([^}]*)\}\s+(\S+)(?:\s+(-?\d{1,19}(?:\.\d+)?))?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_COMMENT_TIME = re.compile(
    r"#\s*(?:[A-Za-z_]\w*(?:\s*[:=]\s*|\s+))?(\d{9,11}(?:\.\d+)?|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*)\s*$"
)
_LONGEST_LINE, _MOST_VALUES, _MOST_SERIES = 1 << 16, 5_000_000, 50_000
_LATEST_NS = 1 << 62
_BLANK = float(1 << 62)  # DCGM's values for "not available" lie above


class ScrapedSeries(Struct):
    """Values of one metric of one GPU as the exporter labels it; times in ns since the Unix epoch."""

    name: str
    labels: Mapping[str, str]
    times: array[int]
    values: array[float]


class Scrapes(Struct):
    """A file. `num_dropped`: values that cannot be read or have no time."""

    series: dict[tuple[str, str], ScrapedSeries] = {}
    num_values: int = 0
    num_dropped: int = 0
    by_file_time: bool = False


def read_scrapes(path: Path, names: frozenset[str]) -> Scrapes:
    """The values of `names` in a file.

    Raises:
        TraceError: it cannot be read, has none of them, or has several scrapes without times.
    """
    scrapes = Scrapes()
    moment: int | None = None
    untimed: list[tuple[str, str, float]] = []
    try:
        with open_regular(path) as file:
            status = path.stat()
            while line := file.readline(_LONGEST_LINE):
                text = line.decode("utf-8", "replace")
                if text.startswith("#"):
                    moment = _comment_time(text, moment)
                elif match := _VALUE.match(text):
                    _take(scrapes, match, names, moment, untimed)
    except OSError as error:
        raise TraceError(
            f"{path}: cannot be read: {getattr(error, 'reason', None) or error.strerror}"
        ) from None
    _date(scrapes, untimed, status.st_mtime_ns, path)
    if not scrapes.num_values:
        raise TraceError(f"{path}: {_why_none(scrapes, is_empty=status.st_size == 0)}")
    return scrapes


def _why_none(scrapes: Scrapes, *, is_empty: bool) -> str:
    if is_empty:
        return "the file is empty"
    if scrapes.num_dropped:
        return (
            f"none of its {scrapes.num_dropped:,} values of DCGM exporter can be used: "
            "no number, not available on that GPU, or with a time that is none"
        )
    return "holds no metric of DCGM exporter that perfscope knows (DCGM_FI_...)"


def _take(
    scrapes: Scrapes,
    match: re.Match[str],
    names: frozenset[str],
    moment: int | None,
    untimed: list[tuple[str, str, float]],
) -> None:
    name, labels, text, stamp = match.groups()
    if name not in names:
        return
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    time_ns = moment if stamp is None else round(float(stamp) * 1e6)
    if not math.isfinite(value) or abs(value) >= _BLANK or scrapes.num_values >= _MOST_VALUES:
        scrapes.num_dropped += 1
    elif time_ns is None:
        if len(untimed) < _MOST_SERIES:
            untimed.append((name, labels, value))
    elif 0 < time_ns < _LATEST_NS:
        _add(scrapes, name, labels, time_ns, value)
    else:
        scrapes.num_dropped += 1


def _add(scrapes: Scrapes, name: str, labels: str, time_ns: int, value: float) -> None:
    key = (name, labels)
    series = scrapes.series.get(key)
    if series is None:
        if len(scrapes.series) >= _MOST_SERIES:
            scrapes.num_dropped += 1
            return
        series = ScrapedSeries(name, dict(_LABEL.findall(labels)), array("q"), array("d"))
        scrapes.series[key] = series
    series.times.append(time_ns)
    series.values.append(value)
    scrapes.num_values += 1


def _date(scrapes: Scrapes, untimed: list[tuple[str, str, float]], written_ns: int, path: Path) -> None:
    """Values without a time have that of the file, if it is one scrape."""
    if scrapes.num_values:
        scrapes.num_dropped += len(untimed)
        return
    if len({(name, labels) for name, labels, _ in untimed}) < len(untimed):
        raise TraceError(
            f"{path}: several scrapes without times: write a line like `# 1700000000.5` (date '+# %s.%N') "
            "before each scrape"
        )
    for name, labels, value in untimed:
        _add(scrapes, name, labels, written_ns, value)
    scrapes.by_file_time = bool(untimed)


def _comment_time(text: str, before: int | None) -> int | None:
    match = _COMMENT_TIME.match(text)
    if match is None:
        return before
    try:
        if "-" not in match[1]:
            return round(float(match[1]) * 1e9)
        moment = datetime.fromisoformat(match[1].replace(",", ".").replace("Z", "+00:00"))
    except (ValueError, OverflowError):
        return before
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return round(moment.timestamp() * 1e9)
