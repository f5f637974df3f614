"""The types of the JSON report, and docs/json.md, which is written from them.

    python -m perfscope.reports.schema docs/json.md        (or: make json-doc)

The meaning of a key is written where its result is defined: in the comment at the field, or under
"Attributes" of the class; `Meta` has it for what `reports.document` composes itself. No report imports this
module.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.critical.results import PATH_KINDS, CriticalPath, PathEntry, PathShare
from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.results import (
    Breakdown,
    CollectiveResult,
    Finding,
    LayerResult,
    RankResult,
    RunAnalysis,
)
from perfscope.analysis.waits.results import WaitAnalysis, WaitCall
from perfscope.reports.document import LEFT_OUT, MOST_PATH_ENTRIES, MOST_WAIT_CALLS, REPORT_SCHEMA_VERSION

_BASE: dict[type, type] = {}  # object of the document -> the result that it is made of
_WITHOUT_SOURCE: set[type] = set()  # objects that are described here alone


def _object(name: str, base: type[Struct], *left_out: str, **changed: Any) -> Any:
    """The result `base` as it is in the document: without some fields, with others changed or added."""
    hints = get_type_hints(base, include_extras=True)
    names = [name for name in base.__struct_fields__ if name not in left_out]
    rows = {**{item: hints[item] for item in names}, **changed}
    made = msgspec.defstruct(name, list(rows.items()), kw_only=True, forbid_unknown_fields=True)
    _BASE[made] = base
    return made


def _struct(name: str, text: str, **fields: Any) -> Any:
    made = msgspec.defstruct(name, list(fields.items()), kw_only=True, forbid_unknown_fields=True)
    made.__doc__ = text
    _WITHOUT_SOURCE.add(made)
    return made


def _said(kind: Any, text: str) -> Any:
    return Annotated[kind, Meta(description=text)]


def _list(kind: Any) -> Any:
    return types.GenericAlias(tuple, (kind, ...))


_Missing = _struct(
    "Missing",
    "A value that is missing or affected.",
    what=_said(str, "the metric, in words"),
    reason=_said(str, "why it is missing, in words"),
    affects=_said(
        tuple[str, ...],
        "dotted paths in this document of values that are present but affected; a path"
        " covers all below it, `ranks.3` is the entry of rank 3, `ranks.*` those of all ranks; empty: only"
        " what is null",
    ),
    figure=_said(str, "its code, see vocabulary/figures.py"),
    cause=_said(str, "code of the reason, see vocabulary/causes.py"),
)
_Parts = _struct(
    "Parts",
    "The parts of the mean analyzed step; null: not observable in the trace.",
    **{part: _said(int | None, f"{part.replace('_', ' ')}, ns") for part in Breakdown.PARTS},
)
_Rank = _object(
    "Rank",
    RankResult,
    "unknown",
    breakdown_ns=_said(
        _Parts | None, "parts of the mean analyzed step; those that are known add up to `breakdown_step_ns`"
    ),
    breakdown_step_ns=_said(int | None, "the mean analyzed step"),
    breakdown_num_steps=_said(int | None, "steps that the mean is taken over"),
)
_Layer = _object(
    "Layer",
    LayerResult,
    "module_type",
    type=_said(str | None, "class of the module"),
    flops_per_s=_said(float | None, "`flops` over forward and backward time"),
    bytes_per_s=_said(float | None, "`bytes` over forward and backward time"),
)
_Finding = _object(
    "Finding",
    Finding,
    "facts",
    "basis",
    id=_said(str, "code of the kind of finding, see vocabulary/findings.py"),
    symptoms=_said(tuple[str, ...], "codes of findings that are consequences of this one; they come next"),
    symptom_of=_said(str | None, "code of the finding that it is a consequence of; null: of none"),
    title=_said(str, "one sentence with figures"),
    detail=_said(str, "evidence, in sentences"),
    action=_said(str, "what to do about it; empty for a symptom"),
)
_Late = _struct("Late", "", rank=int, count=_said(int, "times it entered last"))
_Collective = _object("Collective", CollectiveResult, late_counts=_said(_list(_Late), "most often first"))
_Window = _struct("Window", "A traced window.", window=int, start_ns=int, end_ns=int)
_Machine = _object(
    "Machine",
    MachineAnalysis,
    topologies=_said(dict[str, dict[str, Any]], "host -> topology.json"),
    windows=_said(_list(_Window), "traced windows, Unix ns"),
    missing=_said(_list(_Missing), "what is missing of the machine, and why"),
)
_Call = _object("Call", WaitCall, "ranks", "start_ns", num_ranks=_said(int, "ranks that took part"))
_Waits = _object(
    "Waits",
    WaitAnalysis,
    "missing",
    num_calls=_said(int, "calls in all"),
    calls=_said(_list(_Call), f"the {MOST_WAIT_CALLS:,} with the longest waits, by window and start"),
)
_PathKind = Literal[PATH_KINDS]  # type: ignore[valid-type]  # a tuple of a constant's
_PathStep = _object(
    "PathStep",
    CriticalPath,
    "segments",
    "ranks",
    total_ns=_said(int, "`end_ns` - `begin_ns`"),
    kinds_ns=_said(dict[_PathKind, int], "what the time is spent on; adds up to `total_ns`"),
    num_hops=_said(int, "times the path goes from one rank to another"),
    num_uncertain=_said(int, "times it went to a late rank that the clocks do not surely name"),
    off_path=_said(tuple[int, ...], "ranks that it does not touch: making them faster changes nothing"),
)
_Path = _struct(
    "Path",
    "Critical path of the traced steps.",
    steps=_said(_list(_PathStep), "one per traced step"),
    ranks=_said(tuple[PathShare, ...], "by rank, transfers left out, most first"),
    layers=_said(tuple[PathShare, ...], "by layer, most first"),
    entries=_said(tuple[PathEntry, ...], f"the {MOST_PATH_ENTRIES} longest over all steps together"),
    num_entries=_said(int, "entries in all"),
    never_on_path=_said(tuple[int, ...], "traced ranks that are on no critical path"),
)
# Of keys that say the same wherever they stand, and of which their results say nothing more.
_COMMON = {
    "rank": "number of the rank",
    "rank?": "number of the rank; null: of no single rank",
    "host": "name of the host",
    "hosts": "names of the hosts",
    "layer": "path of the layer",
    "layer?": "path of the layer; null: of none, or not known",
    "phase": "forward or backward",
    "phase?": "forward or backward; null: neither, or not known",
    "collective": "name of the collective",
    "collective?": "name of the collective; null: of none",
    "group": "process group",
    "group?": "process group; null: of none",
    "window": "number of the traced window",
    "step": "number of the step",
    "seq": "position among the calls of its kind and group in the window",
    "start_ns": "beginning",
    "end_ns": "end",
    "start_ns?": "beginning",
    "end_ns?": "end",
    "sentence": "the same in words",
    "num_ranks": "ranks that took part",
    "num_steps": "steps that the values are averaged over",
    "num_calls": "calls",
    "calls": "calls",
    "total_ns": "sum over all calls",
    "mean_ns": "of one call",
    "share": "of the whole",
    "wait_ns": "waiting",
    "transfer_ns": "transfer",
    "exposed_comm_ns": "communication not overlapped with compute",
}


Report = _object(
    "Report",
    RunAnalysis,
    *LEFT_OUT,
    schema_version=_said(int, f"{REPORT_SCHEMA_VERSION}; counts changes that could break a reader"),
    perfscope_version=_said(str, "of the perfscope that made the report"),
    run=_said(dict[str, Any], "run.json as recorded, see run-directory.md"),
    samples_per_step_range=_said(
        tuple[int, int] | None, "fewest and most samples of a rank and step, where they vary"
    ),
    throughput_tokens_per_s=_said(float | None, "of all ranks; null: not known, or no model of tokens"),
    ranks=_said(_list(_Rank), "by rank"),
    layers=_said(_list(_Layer), "in the order of first execution"),
    collectives=_said(_list(_Collective), "by collective and process group"),
    findings=_said(_list(_Finding), "the verdict first, then by gain"),
    missing=_said(_list(_Missing), "what is missing, and why"),
    machine=_said(_Machine | None, "null: nothing of the machine was recorded"),
    waits=_said(_Waits | None, "null: no step was traced"),
    critical_path=_said(_Path | None, "null: no step was traced"),
    clocks=_said(_object("Clocks", ClockFit, "at_ns", "islands"), "the hosts' clocks"),
)


# -- docs/json.md ----

_UNITS = (
    (r"_per_s$", "per second"),
    (r"_per_sample$", "per sample"),
    (r"_ns(_|$)|^ns$", "ns"),
    (r"bytes$", "bytes"),
    (r"flops$", "FLOP"),
    (r"_s$", "s"),
    (r"ppm$", "parts per million"),
    (r"joules$", "J"),
    (r"watts$", "W"),
    (r"ratio$|^share$|^fraction$|^p_value$", "ratio"),
)
_NAMES = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    dict: "object",
    Any: "anything",
    object: "anything",
}


def document() -> str:
    """docs/json.md."""
    parts = [_HEAD]
    seen: dict[Any, str] = {Report: "the document"}
    todo: list[tuple[Any, str]] = [(Report, "")]
    while todo:
        kind, path = todo.pop(0)
        rows = ["| key | type | unit | meaning |", "|---|---|---|---|"]
        for key, (hint, text) in keys_of(kind).items():
            inner = f"{path}.{key}".lstrip(".")
            for nested, where in _objects(hint, inner):
                if nested not in seen:
                    seen[nested] = where
                    todo.append((nested, where))
            rows.append(f"| `{key}` | {_shown(hint, seen)} | {_unit(key, hint)} | {text} |")
        title = f"## `{path}`" if path else "## The document"
        parts.append("\n\n".join(part for part in (title, _first_of(kind), "\n".join(rows)) if part))
    return "\n\n".join(parts) + "\n"


def listing() -> str:
    """The version, then every key of the document with its type, sorted: what a test pins."""
    lines = []
    seen: set[Any] = set()
    todo = [(Report, "")]
    while todo:
        kind, path = todo.pop()
        if kind in seen:
            continue
        seen.add(kind)
        for key, (hint, _) in keys_of(kind).items():
            inner = f"{path}.{key}".lstrip(".")
            children = _objects(hint, inner)
            todo += children
            lines.append(f"{inner}: {_shown(hint, {nested: nested.__name__ for nested, _ in children})}")
    return "\n".join([f"schema_version {REPORT_SCHEMA_VERSION}", *sorted(lines)]) + "\n"


def keys_of(kind: Any) -> dict[str, tuple[Any, str]]:
    """Key -> its type and meaning; "" where nothing says it."""
    base = _BASE.get(kind, kind)
    texts = {} if base in _WITHOUT_SOURCE else _texts(base)
    keys = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        stated = (
            next((meta.description for meta in get_args(hint)[1:] if isinstance(meta, Meta)), "")
            if get_origin(hint) is Annotated
            else ""
        )
        is_null = type(None) in get_args(_bare(hint))
        text = stated or texts.get(name) or _COMMON.get(f"{name}?" if is_null else name, "")
        keys[name] = (_bare(hint), text.replace("|", "\\|"))
    return keys


def _texts(result: type) -> dict[str, str]:
    """Field -> what its class says of it: the comment at it, or an entry under "Attributes"."""
    source = textwrap.dedent(inspect.getsource(result))
    lines = source.splitlines()
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    texts_: dict[str, str] = {}
    attributes = "\n" + (ast.get_docstring(body) or "").partition("Attributes:\n")[2]
    for entry in re.split(r"\n {4}(?=[a-z_, ]+: )", attributes)[1:]:
        names, _, text = entry.partition(": ")
        for name in names.split(", "):
            texts_[name.strip()] = _as_json(" ".join(text.split())).rstrip(".")
    for node in body.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        trailing = [lines[at].partition("  # ")[2] for at in range(node.lineno - 1, node.end_lineno or 0)]
        at = node.lineno - 2
        above: list[str] = []
        while lines[at].lstrip().startswith("# "):
            above.insert(0, lines[at].lstrip()[2:])
            at -= 1
        text = " ".join([*above, *filter(None, trailing)])
        if text:
            texts_[node.target.id] = _as_json(text).rstrip(".")
    return texts_


def _as_json(text: str) -> str:
    """A comment on Python's values, as a reader of JSON knows them."""
    return re.sub(r"\bNone\b", "null", re.sub(r"\bTrue\b", "true", re.sub(r"\bFalse\b", "false", text)))


def _first_of(kind: Any) -> str:
    """What the class says of itself, without its attributes."""
    if kind is Report:
        return ""
    base = _BASE.get(kind, kind)
    text = inspect.cleandoc(base.__doc__ or "").partition("Attributes:")[0].strip()
    if text.startswith(f"{base.__name__}("):
        return ""
    paragraphs = re.split(r"\n\s*\n", _as_json(text))
    return "\n\n".join(
        textwrap.fill(" ".join(paragraph.split()), 100, break_on_hyphens=False) for paragraph in paragraphs
    )


def _bare(hint: Any) -> Any:
    return _bare(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def _objects(hint: Any, path: str) -> list[tuple[Any, str]]:
    """The objects in a value of that type, and where they stand."""
    hint = _bare(hint)
    if hasattr(hint, "__struct_fields__"):
        return [(hint, path)]
    inner = (
        f"{path}[]"
        if get_origin(hint) in (tuple, Sequence)
        else f"{path}.*"
        if get_origin(hint) in (dict, Mapping)
        else path
    )
    return [
        nested for argument in get_args(hint) if argument is not ... for nested in _objects(argument, inner)
    ]


def _shown(hint: Any, seen: Mapping[Any, str]) -> str:
    hint = _bare(hint)
    arguments = get_args(hint)
    if hint in seen:
        return f"object `{seen[hint]}`"
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(
            "null" if argument is type(None) else _shown(argument, seen) for argument in arguments
        )
    if get_origin(hint) in (tuple, Sequence):
        inner = arguments[:1] if arguments[-1] is ... else arguments
        return f"list of {', '.join(_shown(argument, seen) for argument in inner)}"
    if get_origin(hint) in (dict, Mapping):
        return f"object of {_shown(arguments[1], seen)} by key"
    if get_origin(hint) is Literal:
        return " or ".join(str(literal) for literal in arguments)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(f"`{member.value}`" for member in hint)
    return _NAMES.get(hint, str(hint))


def _unit(key: str, hint: Any) -> str:
    if "float" not in str(hint) and "int" not in str(hint):
        return ""
    return next((unit for pattern, unit in _UNITS if re.search(pattern, key)), "")


_HEAD = """<!-- Written by `make json-doc` from perfscope/reports/schema.py; do not edit. -->

# The JSON report

`perfscope report RUN --json` prints it, and `--json -o FILE` writes it to a file. Values are raw,
in base units. A value that was not measured is null, never 0, and `missing` has the reason. Within
one `schema_version` keys and words are only added; removing one or changing a type needs a new
version. Keys are named by their path: `ranks[]` is each entry of the list `ranks`, `.*` each value
of an object."""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), encoding="utf-8")
