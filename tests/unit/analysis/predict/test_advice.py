"""Advice by published lemmas against values computed by hand."""

from __future__ import annotations

import pytest
from msgspec import structs

from perfscope.analysis.predict.advice import AdviceFigures, DeviceMemory, advise, runs_beside
from perfscope.vocabulary.lemmas import Gap

# 4 workers, 32 samples: 10 ms of compute each and 4 ms of overhead, so R = 4 / 40 = 0.1
RUN = AdviceFigures(
    num_workers=4,
    batch=32.0,
    compute_ns=10e6,
    overhead_ns=4e6,
    weight_bytes=4e6,
    bandwidth_bytes_per_s=1e9,
    parallel_efficiency=0.7,
    on_device=True,
    memory=DeviceMemory(peak_bytes=12 * 10**9, kept_bytes=2 * 10**9, limit_bytes=80 * 10**9, samples=8.0),
)


def test_quantities_are_those_of_the_lemmas() -> None:
    advice = advise(RUN, 0.8)
    workers, minibatch, servers, fitting = advice.items
    assert advice.overhead_ratio == pytest.approx(0.1)
    assert advice.efficiency == pytest.approx(1.1 / 1.4)
    assert workers.value == 3  # (1.1 - 0.8) / 0.08 = 3.75
    # allowed R = 0.2 / 2.2 = 1/11; 40 ms / 32 samples = 1.25 ms; 4 / (1.25 / 11) = 35.2
    assert minibatch.value == 36
    assert fitting.value == 4 * 57  # ((0.92 x 80 GB - 2 GB) / ((12 GB - 2 GB) / 8) = 57.3
    assert servers.value == 4  # 2 x 4 MB x 4 / (1 GB/s x 10 ms) = 3.2


def test_the_minibatch_advised_reaches_the_efficiency() -> None:
    batch = advise(RUN, 0.8).items[1].value or 0
    larger = structs.replace(RUN, batch=float(batch), compute_ns=10e6 * batch / 32)
    assert (advise(larger, 0.8).efficiency or 0) >= 0.8


@pytest.mark.parametrize(
    ("changes", "gaps"),
    [
        ({"compute_ns": None, "overhead_ns": None}, [*[Gap.NOT_TRACED] * 3, None]),
        ({"data_parallel": False}, [Gap.NOT_DATA_PARALLEL] * 4),
        ({"overhead_ns": 0.0}, [Gap.NO_OVERHEAD, Gap.NO_OVERHEAD, None, None]),
        ({"num_workers": 1}, [None, Gap.ONE_WORKER, None, None]),
        ({"batch": None}, [None, Gap.BATCH_NOT_KNOWN, None, None]),
        ({"weight_bytes": None}, [None, None, Gap.WEIGHTS_NOT_KNOWN, None]),
        ({"bandwidth_bytes_per_s": None}, [None, None, Gap.NO_BANDWIDTH, None]),
        ({"memory": None}, [None, None, None, Gap.MEMORY_NOT_KNOWN]),
        ({"memory": None, "on_device": False}, [None, None, None, Gap.NO_DEVICE]),
    ],
)
def test_what_was_not_measured_is_missing_with_its_reason(
    changes: dict[str, object], gaps: list[Gap | None]
) -> None:
    items = advise(structs.replace(RUN, **changes), 0.8).items
    assert [item.gap for item in items] == gaps
    assert [item.value is None for item in items] == [gap is not None for gap in gaps]


def test_runs_with_the_same_batch_are_beside_the_lemma() -> None:
    alone = structs.replace(RUN, num_workers=1, samples_per_s=800.0)
    run = structs.replace(RUN, samples_per_s=32 / 14e-3)
    first, second = runs_beside([("four", run), ("one", alone)], 0.1)
    assert (first.name, second.name) == ("one", "four")
    assert second.samples_per_s == pytest.approx(32 / 14e-3)
    assert second.efficiency == pytest.approx(40 / 14 / 4)
    assert second.by_lemma == pytest.approx(1.1 / 1.4)
