"""The JSON of a check: everything of `gate.results.CheckResult`, raw, in base units.

`schema_version` counts changes that could break a reader; fields are only ever added within a version.
Times are nanoseconds (`elapsed_s`: seconds), sizes bytes, shares ratios (0.05 = 5 %), rates per second. A
missing figure is null, never NaN and never 0.

    schema_version     1
    kind               "check"
    perfscope_version  of the perfscope that judged
    outcome            "pass", "regression", "inconclusive", "no_baseline" or "failed"
    exit_code          0, 1, 3, 4 or 5: what `perfscope check` exits with
    name               the benchmark's name
    headline, reasons  the verdict in one sentence, and further sentences, weightiest first
    metrics[]          id, title, unit (ns, per_s, bytes, ratio, joules), better (lower, higher), threshold,
                       severity (error, warn, off), scale (itself, step: what the threshold is a share of),
                       hint; state (ok, worse, unproven, better, unknown), base, head (medians over runs),
                       worse (share by which head is worse; negative = better), low, high (its 95 %
                       interval), p (one-sided), num_base, num_head (runs), paired, fails (whether this
                       alone makes a regression), reason, in_reasons (headline or reasons state it)
    base, head         label; runs[]: name, fingerprint, metrics and absent (both by metric id), num_steps,
                       phases, composition, layers[], collectives[], surroundings, clean, clean_reason,
                       disturbed_ratio, problem, side, pair: as in `gate.records`
    pairs[]            share by which step_p10 is worse in each judged pair, in the order they ran
    planned, stopped   pairs (or runs a side) asked for, and why there are fewer
    alpha              p value below which a difference is proven
    noise              spread (of step_p10 over runs of the same side), visible (smallest slow-down found
                       four times out of five); null if there were too few runs
    left_out[]         name, side, reason
    explanation        cause, headline, action, parts[], layers[], collectives[] (kind, what, title,
                       base_ns, head_ns, change_ns, low_ns, high_ns, is_certain, note), surroundings[]
                       (what, base, head, weighty, text), notes[]; null if nothing was explained
    fingerprint        cpu, num_cpus, gpus[], num_hosts, torch, perfscope, world_size, batch, scheme, key
    warnings[]         sentences
    settings           how the check was made
    elapsed_s          seconds that the measurement took; null for runs made before

Strings are as they were recorded, but that a half surrogate, which strict readers refuse, is spelled out
(`\\udc80`).
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections.abc import Mapping

from msgspec import Struct

from perfscope import __version__
from perfscope.gate.records import Fingerprint
from perfscope.gate.results import CheckResult, MetricVerdict, Moved
from perfscope.reports.gate.wording import key_of

SCHEMA_VERSION = 1

Json = dict[str, object]
_HALF = re.compile("[\ud800-\udfff]")


def check_document(result: CheckResult) -> Json:
    """`result` as JSON-ready data: str, int, finite float, bool, None, list and dict only."""
    document: Json = {
        "schema_version": SCHEMA_VERSION,
        "kind": "check",
        "perfscope_version": __version__,
        "outcome": result.outcome.word,
        "exit_code": result.outcome.value,
    }
    for field in dataclasses.fields(result):
        if field.name != "outcome":
            document[field.name] = _plain(getattr(result, field.name))
    return document


def render_json(result: CheckResult) -> str:
    """The document as indented ASCII JSON with a newline at the end."""
    return json_text(check_document(result))


def json_text(value: object) -> str:
    r"""`value` as indented ASCII JSON; `##[`, a command to a CI runner in a log, is written `#\u0023[`.

    Raises:
        ValueError: there is a NaN in it.
    """
    return json.dumps(value, indent=2, allow_nan=False).replace("##[", "#\\u0023[") + "\n"


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Struct):  # what the analysis found
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _record(value)
    if isinstance(value, Mapping):
        return {_text(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [_plain(item) for item in items]
    return _text(value)


def _record(value: object) -> Json:
    """A dataclass by its fields, with the properties that a reader would otherwise have to work out."""
    fields: Json = {
        field.name: _plain(getattr(value, field.name))
        for field in dataclasses.fields(value)  # type: ignore[arg-type]  # its caller asked
    }
    if isinstance(value, MetricVerdict):
        del fields["metric"]
        return {**_record(value.metric), **fields, "fails": value.fails}
    if isinstance(value, Moved):
        return {**fields, "is_certain": value.is_certain}
    if isinstance(value, Fingerprint):
        return {**fields, "key": key_of(value) or None}
    return fields


def _text(value: object) -> str:
    return _HALF.sub(lambda match: f"\\u{ord(match.group()):04x}", str(value))
