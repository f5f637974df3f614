"""The scheme that docs/bench.md writes in one file: it must train, equal serial and send what it predicts."""

from __future__ import annotations

import pytest

from perfscope.runners.config import BenchConfig
from tests.runners.own_scheme_case import shown_in_the_guide
from tests.runners.ranks import run_ranks


@pytest.mark.torch
def test_the_scheme_shown_in_the_guide_equals_serial_and_sends_what_it_predicts() -> None:
    assert len(shown_in_the_guide().splitlines()) <= 50
    config = BenchConfig(
        scheme="dp.reduce_broadcast",
        num_ranks=2,
        batch=8,
        steps=5,
        input_shape=(3, 16, 16),
        dtype="float64",
        momentum=0.9,
        device="cpu",
    )
    found = run_ranks(2, "tests.runners.own_scheme_case:train_it", config=config)
    for rank in found:
        (entry,) = rank.values()
        assert entry["calls"] == entry["predicted"] and len(entry["calls"]) == 2
    assert found[0]["dp.reduce_broadcast smallcnn"]["difference"] < 1e-12
