"""The JSON of a comparison: the study's own records, raw, in base units.

Fields and units are those of `analysis/study/results.py`. Missing figures are null, never NaN and never 0;
the reason is in a field beside them or in `missing`. Fields are only ever added within a
`schema_version`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from perfscope import __version__
from perfscope.analysis.study.results import Problem, StudyAnalysis
from perfscope.messages.missing import missing_document
from perfscope.reports.document import without_nan
from perfscope.vocabulary.missing import Missing

STUDY_SCHEMA_VERSION = 1

Json = dict[str, object]


def build_study_document(study: StudyAnalysis, started: Mapping[str, int]) -> Json:
    """The comparison as JSON-ready data: str, int, finite float, bool, None, list and dict only.

    `started`: name of a run -> when it started, Unix time in ns.
    """
    document: Json = {
        "schema_version": STUDY_SCHEMA_VERSION,
        "kind": "study",
        "perfscope_version": __version__,
    }
    for name in study.__struct_fields__:
        document[name] = plain(getattr(study, name))
    runs = document["runs"]
    assert isinstance(runs, list)
    for run in runs:
        run["start_unix_ns"] = started.get(run["name"])
    finite = without_nan(document)
    assert isinstance(finite, dict)
    return finite


def plain(value: object) -> object:
    """Records as dicts and mappings of any kind as dicts, all the way down."""
    if isinstance(value, Missing):
        return missing_document(value)
    if isinstance(value, Problem):
        return {**_fields(value), "affects": ", ".join(part.value for part in value.affects)}
    if isinstance(value, Struct):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def _fields(record: Struct) -> dict[str, object]:
    return {name: plain(getattr(record, name)) for name in record.__struct_fields__}
