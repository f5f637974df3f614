"""Rates of links as `perfscope doctor --links` measured them, without the fits of `measured_links`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.analysis.predict.costs import algorithms
from perfscope.rundir.host_records import LinkCall


def largest_rate(rows: Sequence[LinkCall]) -> float | None:
    """Bytes/s of the largest size, by the median of its repetitions; None without rows.

    Smaller ones may be faster, from a cache or a queue; a training's traffic lasts.
    """
    usable = [row for row in rows if is_usable(row)]
    largest = max(usable, key=lambda row: row.bytes, default=None)
    return None if largest is None else largest.bytes / float(np.median(largest.seconds))


def is_usable(row: LinkCall) -> bool:
    """Whether a row is a series of calls with times, of a collective that has a formula."""
    return bool(
        row.num_ranks > 1
        and row.bytes
        and row.seconds
        and min(row.seconds) > 0
        and algorithms(row.collective)
        and len(row.hosts) in (0, row.num_ranks)
    )
