"""The critical path in the JSON report: what it is made of per step, and its entries over all steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from perfscope.analysis.critical.results import (
    CriticalPath,
    entries,
    never_on_path,
    shares_by_kind,
    shares_by_layer,
    shares_by_rank,
)

MOST_ENTRIES = 200

Json = dict[str, object]


def path_document(paths: Sequence[CriticalPath]) -> Json | None:
    """Times in ns, shares of the path; None where no step was traced.

    `steps[].kinds_ns` adds up to `steps[].total_ns`; `entries` are the longest over all steps together.
    """
    if not paths:
        return None
    found = entries(paths)
    return {
        "steps": [_step(path) for path in paths],
        "ranks": [dataclasses.asdict(share) for share in shares_by_rank(paths)],
        "layers": [dataclasses.asdict(share) for share in shares_by_layer(paths)],
        "entries": [dataclasses.asdict(entry) for entry in found[:MOST_ENTRIES]],
        "num_entries": len(found),
        "never_on_path": list(never_on_path(paths)),
    }


def _step(path: CriticalPath) -> Json:
    return {
        "window": path.window,
        "step": path.step,
        "begin_ns": path.begin_ns,
        "end_ns": path.end_ns,
        "total_ns": path.total_ns,
        "kinds_ns": {share.key: share.ns for share in shares_by_kind([path])},
        "num_hops": path.num_hops,
        "num_uncertain": path.num_uncertain,
        "off_path": list(path.off_path),
        "complete": path.complete,
    }
