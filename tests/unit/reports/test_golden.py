"""The JSON and the text report of the synthetic run, kept whole.

Update after a wanted change:  PERFSCOPE_UPDATE_GOLDEN=1 python -m pytest tests/unit/reports/test_golden.py
and read the diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from perfscope import __version__
from perfscope.reports.build import build_report
from perfscope.reports.document import render_json
from perfscope.reports.text import render_text
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

GOLDEN = Path(__file__).parents[2] / "golden" / "report"
ACTUAL = Path(__file__).parents[2] / "golden" / "actual"


def scrub(text: str) -> str:
    """What changes with every release, not with the report."""
    return text.replace(__version__, "<version>")


def check(name: str, actual: str) -> None:
    path = GOLDEN / name
    if os.environ.get("PERFSCOPE_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(actual, encoding="utf-8")
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if actual != expected:
        ACTUAL.mkdir(parents=True, exist_ok=True)
        (ACTUAL / name).write_text(actual, encoding="utf-8")
        pytest.fail(f"{path} differs from {ACTUAL / name}; see this file's docstring for how to update it")


def test_text_report_is_as_kept() -> None:
    check("text.txt", scrub(render_text(build_report(synthetic_analysis(), synthetic_timeline()), width=100)))


def test_json_report_is_as_kept() -> None:
    check("report.json", scrub(render_json(build_report(synthetic_analysis(), None).document)))


def test_json_holds_everything_the_contract_names() -> None:
    document = json.loads(render_json(build_report(synthetic_analysis(), None).document))
    top = (
        "schema_version run ranks layers collectives throughput_samples_per_s overhead_ratio findings missing"
    )
    assert set(top.split()) <= set(document)
    rank = document["ranks"][0]
    names = "rank num_steps step_ns breakdown_ns comm_ns overlap_ratio device_ns"
    assert set(names.split()) <= set(rank)
    assert {"median", "p10", "p90"} <= set(rank["step_ns"])
    parts = {"compute", "exposed_comm", "copy", "input_wait", "optimizer", "idle"}
    assert set(rank["breakdown_ns"]) == parts
    assert sum(rank["breakdown_ns"].values()) == rank["breakdown_step_ns"]
    assert rank["breakdown_num_steps"] > 0
    assert {"layer", "forward_ns", "backward_ns", "flops", "bytes"} <= set(document["layers"][0])
    collective = "collective group_size count bytes transfer_ns wait_ns busbw_bytes_per_s"
    assert set(collective.split()) <= set(document["collectives"][0])
    assert {"what", "reason"} <= set(document["missing"][0])


def test_json_says_null_where_a_figure_is_not_a_number() -> None:
    from msgspec import structs

    analysis = synthetic_analysis()
    layers = (structs.replace(analysis.layers[0], calls=float("nan")),)
    ranks = (structs.replace(analysis.ranks[0], overlap_ratio=float("inf"), breakdown_ns=None),)
    broken = structs.replace(
        analysis, layers=layers, ranks=ranks, throughput_samples_per_s=float("-inf"), overhead_ratio=None
    )
    text = render_json(build_report(broken, None).document)
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["layers"][0]["calls"] is None
    assert document["ranks"][0]["overlap_ratio"] is None
    assert document["ranks"][0]["breakdown_ns"] is None
    assert document["ranks"][0]["breakdown_step_ns"] is None
    assert document["throughput_samples_per_s"] is None
    assert document["overhead_ratio"] is None
