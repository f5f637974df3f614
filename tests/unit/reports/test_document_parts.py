"""The JSON report in parts is the document as a whole."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.analysis.results import RunAnalysis
from perfscope.reports.document import build_document, json_parts, render_json
from tests.unit.reports.test_synthetic import synthetic_analysis


def of(num_ranks: int, host: str, ratio: float) -> RunAnalysis:
    base = synthetic_analysis(num_ranks=1)
    rank = replace(base.ranks[0], host=host, overlap_ratio=ratio)
    return replace(base, ranks=tuple(replace(rank, rank=number) for number in range(num_ranks)))


@pytest.mark.parametrize("num_ranks", [0, 1, 64, 65])
@pytest.mark.parametrize("host", ["node", "\x7f", "é", "\ud800"])
@pytest.mark.parametrize("ratio", [0.5, 1e-5, 1e16, float("nan")])
def test_parts_are_the_document_as_a_whole(num_ranks: int, host: str, ratio: float) -> None:
    analysis = of(num_ranks, host, ratio)
    assert "".join(json_parts(analysis)) == render_json(build_document(analysis))
