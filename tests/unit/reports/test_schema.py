"""The JSON report has the types of `reports.schema`, and docs/json.md describes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from perfscope.reports import schema
from perfscope.reports.document import build_document, render_json
from tests.unit.reports.test_synthetic import synthetic_analysis

DOCS = Path(__file__).parents[3] / "docs" / "json.md"
PINNED = Path(__file__).parents[2] / "golden" / "report" / "schema.txt"


def test_a_document_has_exactly_the_keys_and_types_of_the_schema() -> None:
    document = json.loads(render_json(build_document(synthetic_analysis())))
    msgspec.convert(document, schema.Report, str_keys=True)
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({**document, "surprise": 1}, schema.Report, str_keys=True)
    with pytest.raises(msgspec.ValidationError, match=r"\$\.overhead_ratio"):
        msgspec.convert({**document, "overhead_ratio": "0.5"}, schema.Report, str_keys=True)


def test_the_page_is_what_the_types_give() -> None:
    assert DOCS.read_text(encoding="utf-8") == schema.document(), "docs/json.md is stale: make json-doc"


def _parts(line: str) -> tuple[str, str, str]:
    return line.partition(": ")


def _is_kept(line: str, words: dict[str, set[str]]) -> bool:
    """Whether the key is there with the same type, or with one more of the words that it may be."""
    key, _, kind = _parts(line)
    pinned = set(kind.split(" or "))
    is_of_words = all(word.startswith("`") for word in pinned - {"null"})
    return words.get(key) == pinned or (is_of_words and pinned < words.get(key, set()))


def test_no_key_changes_within_a_schema_version() -> None:
    """A removed key, type or word needs a new REPORT_SCHEMA_VERSION, also to update the golden file."""
    actual = schema.listing()
    pinned = PINNED.read_text(encoding="utf-8") if PINNED.exists() else ""
    version, *keys = pinned.splitlines() or [""]
    if version == actual.splitlines()[0]:
        words = {key: set(kind.split(" or ")) for key, _, kind in map(_parts, actual.splitlines())}
        gone = [line for line in keys if not _is_kept(line, words)]
        assert not gone, "gone or changed: raise the version"
    if os.environ.get("PERFSCOPE_UPDATE_GOLDEN"):
        PINNED.write_text(actual, encoding="utf-8")
        pinned = actual
    assert pinned == actual, "new keys: PERFSCOPE_UPDATE_GOLDEN=1 pytest tests/unit/reports/test_schema.py"
