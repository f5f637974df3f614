"""The JSON report: what the analysis found, raw, in base units; docs/json.md explains every key.

The objects are those of `analysis.results` and of what it holds, under the names of their fields; what is put
together differently here is in the types of `reports.schema`, which tests compare with what is written.
`schema_version` counts changes that could break a reader; fields are only ever added within a version.
Missing figures are null, never NaN and never 0; `missing` says why, and `affects` of an entry names by dotted
paths the figures that are there but not what they would be (analysis/missing.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from perfscope import __version__
from perfscope.analysis.critical.results import (
    CriticalPath,
    entries,
    never_on_path,
    shares_by_kind,
    shares_by_layer,
    shares_by_rank,
)
from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.packed import Packed
from perfscope.analysis.results import Breakdown, Finding, LayerResult, RankResult, RunAnalysis
from perfscope.analysis.waits.results import WaitAnalysis
from perfscope.messages.missing import missing_document

REPORT_SCHEMA_VERSION = 3
MOST_PATH_ENTRIES = 200
MOST_WAIT_CALLS = 1000
_RANKS_TOGETHER = 64
_EXPONENTS = bytes.maketrans(b"123456789E", b"000000000e")  # then "0e" is in what has any
_NO_RANKS = '\n  "ranks": []'

Json = dict[str, object]
# Fields of the analysis that are not in the document, or are there in another form.
LEFT_OUT = (
    *("arrivals", "calls", "layer_times", "labeled_calls", "step_series", "in_calls_ns", "waiting_ns"),
    *("step_marks", "step_waits", "critical_paths", "tokens_per_s", "batch_range"),
)


def build_document(analysis: RunAnalysis) -> Json:
    """The report as JSON-ready data: str, int, finite float, bool, None, list and dict only."""
    return _finite(_document(analysis))


def _document(analysis: RunAnalysis) -> Json:
    return {
        "schema_version": REPORT_SCHEMA_VERSION,
        "perfscope_version": __version__,
        **_object(analysis, *LEFT_OUT),
        "run": analysis.run.document,
        "samples_per_step_range": analysis.batch_range,
        "throughput_tokens_per_s": analysis.tokens_per_s,
        "ranks": [_rank(rank) for rank in analysis.ranks],
        "layers": [_layer(layer) for layer in analysis.layers],
        "collectives": [
            {
                **_object(collective),
                "late_counts": [{"rank": rank, "count": count} for rank, count in collective.late_counts],
            }
            for collective in analysis.collectives
        ],
        "findings": [_finding(finding) for finding in analysis.findings],
        "missing": [missing_document(gap) for gap in analysis.missing],
        "machine": _machine(analysis.machine),
        "waits": _waits(analysis.waits),
        "critical_path": path_document(analysis.critical_paths),
        "clocks": _object(analysis.clocks, "at_ns", "islands"),
    }


def json_parts(analysis: RunAnalysis) -> Iterator[str]:
    """`render_json` of `build_document` in parts, of which only one is in memory: most of it is the ranks."""
    before, no_ranks, after = _rendered(_document(replace(analysis, ranks=()))).partition(_NO_RANKS)
    yield before
    if not analysis.ranks:
        yield no_ranks
    for begin in range(0, len(analysis.ranks), _RANKS_TOGETHER):
        ranks = [_rank(rank) for rank in analysis.ranks[begin : begin + _RANKS_TOGETHER]]
        text = _rendered({"ranks": ranks})
        yield "," if begin else _NO_RANKS.removesuffix("]")
        yield text.removeprefix('{\n  "ranks": [').removesuffix("\n  ]\n}\n")
    if analysis.ranks:
        yield "\n  ]"
    yield after


def _rendered(document: Json) -> str:
    """`render_json` of its plain values: at once where msgspec writes each of them as Python's encoder."""
    try:
        encoded = msgspec.json.encode(document, enc_hook=_plain)
    except UnicodeEncodeError:
        return render_json(_finite(document))
    if not encoded.isascii() or _is_written_otherwise(encoded):
        return render_json(_finite(document))
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def _is_written_otherwise(encoded: bytes) -> bool:
    """Exponents, small fractions (0.00001 and 1e-05), and the one ASCII character that is escaped or not.

    Not by a regular expression, which takes ten times as long.
    """
    # From the end: a search for two bytes takes half the time there.
    return b"0.0000" in encoded or b"\x7f" in encoded or encoded.translate(_EXPONENTS).rfind(b"0e") >= 0


def _finite(document: Json) -> Json:
    """Plain values, those that are not finite as None: in C, where JSON has a place for every value."""
    try:
        finite = msgspec.json.decode(msgspec.json.encode(document, enc_hook=_plain))
    except UnicodeEncodeError:  # half of a surrogate pair
        finite = without_nan(to_plain(document))
    assert isinstance(finite, dict)
    return finite


def to_plain(value: object) -> object:
    """`value` of strings, numbers, None, lists, tuples and dicts: records by their fields' names.

    Raises:
        TypeError: something in it is no JSON, such as a number of numpy's: analyses give Python's own.
    """
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)


def render_json(document: Mapping[str, object]) -> str:
    """`document` as indented ASCII JSON with a newline at the end. Raises ValueError on NaN."""
    try:  # Python's encoder in C does not indent
        return msgspec.json.format(json.dumps(document, allow_nan=False), indent=2) + "\n"
    except msgspec.DecodeError:  # a name with half of a surrogate pair
        return json.dumps(document, indent=2, allow_nan=False) + "\n"


def without_nan(value: object) -> object:
    """`value` with NaN and infinities as None, tuples as lists and every key a string."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value
    return str(value)


def per_second(amount: int | None, duration_ns: int) -> float | None:
    """`amount` per second, or None where either side is missing."""
    return None if amount is None or duration_ns <= 0 else amount * 1e9 / duration_ns


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Packed):
        return list(value)
    raise TypeError(f"{type(value)} in a report")


def _object(result: Any, *left_out: str) -> dict[str, Any]:
    """A result's fields by name; what they hold is converted with the whole document."""
    return {name: getattr(result, name) for name in result.__struct_fields__ if name not in left_out}


def _rank(rank: RankResult) -> Json:
    """`breakdown_ns` has the parts alone, so that the sum of those that are known is `breakdown_step_ns`."""
    breakdown = rank.breakdown_ns
    parts = {
        part: None if part in rank.unknown else getattr(breakdown, part, None) for part in Breakdown.PARTS
    }
    return {
        **_object(rank, "unknown"),
        "breakdown_ns": breakdown and parts,
        "breakdown_step_ns": breakdown and breakdown.step,
        "breakdown_num_steps": breakdown and breakdown.num_steps,
    }


def _layer(layer: LayerResult) -> Json:
    busy_ns = layer.forward_ns + layer.backward_ns
    return {
        **_object(layer, "module_type"),
        "type": layer.module_type,
        "flops_per_s": per_second(layer.flops, busy_ns),
        "bytes_per_s": per_second(layer.bytes, busy_ns),
    }


def _finding(finding: Finding) -> Json:
    text = finding.text
    sentences = {"title": text.title, "detail": text.detail, "action": text.action}
    return {**_object(finding, "facts", "basis"), **sentences}


def _machine(machine: MachineAnalysis | None) -> Json | None:
    if machine is None:
        return None
    return {
        **_object(machine),
        "topologies": {host: topology.document for host, topology in machine.topologies.items()},
        "windows": [
            {"window": window, "start_ns": start, "end_ns": end} for window, start, end in machine.windows
        ],
        "missing": [missing_document(gap) for gap in machine.missing],
    }


def _waits(waits: WaitAnalysis | None) -> Json | None:
    """The calls with the longest waits, in time order; missing figures are listed with the run's."""
    if waits is None:
        return None
    worst = sorted(waits.calls, key=lambda call: -call.max_wait_ns)[:MOST_WAIT_CALLS]
    return {
        **_object(waits, "missing"),
        "num_calls": len(waits.calls),
        "calls": [
            {**_object(call, "ranks", "start_ns"), "num_ranks": len(call.ranks)}
            for call in sorted(worst, key=lambda call: (call.window, call.start_ns))
        ],
    }


def path_document(paths: Sequence[CriticalPath]) -> Json | None:
    """`steps[].kinds_ns` adds up to `steps[].total_ns`; `entries` are the longest over all steps together."""
    if not paths:
        return None
    path_entries = entries(paths)
    return {
        "steps": [
            {
                **_object(path, "segments", "ranks"),
                "total_ns": path.total_ns,
                "kinds_ns": {share.key: share.ns for share in shares_by_kind([path])},
                "num_hops": path.num_hops,
                "num_uncertain": path.num_uncertain,
                "off_path": path.off_path,
            }
            for path in paths
        ],
        "ranks": shares_by_rank(paths),
        "layers": shares_by_layer(paths),
        "entries": path_entries[:MOST_PATH_ENTRIES],
        "num_entries": len(path_entries),
        "never_on_path": never_on_path(paths),
    }
