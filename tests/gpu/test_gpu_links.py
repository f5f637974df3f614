"""Copies of a real GPU as `perfscope doctor --links` measures them."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from perfscope.analysis.predict.measured_links import FittedSeries, fitted_series
from perfscope.collectors.context import live_context
from perfscope.collectors.gpu.registry import driver_names
from perfscope.collectors.links.kernels_copies import SIZES
from perfscope.collectors.links.measure import Tools, measure_links
from perfscope.rundir.host_records import LinksRecord
from perfscope.rundir.typed import read_as

pytestmark = pytest.mark.gpu

FASTEST_PCIE = 130e9  # B/s: 16 lanes of PCIe 6, more than any GPU of today has


@pytest.fixture(scope="module")
def measured(cuda: Any, tmp_path_factory: pytest.TempPathFactory) -> LinksRecord:
    document = measure_links(
        live_context(),
        "gpu-host",
        Tools(torch_python=sys.executable),
        say=lambda text: print(text, file=sys.stderr),
        cache_dir=tmp_path_factory.mktemp("links"),
    )
    assert document is not None
    return read_as(LinksRecord, document)


def of(record: LinksRecord, *words: str) -> FittedSeries:
    copies = [series for series in fitted_series(record) if series.transport == "copy"]
    print([(series.what, f"{series.largest_bytes_per_s / 1e9:.1f} GB/s") for series in copies])
    (chosen,) = [series for series in copies if all(word in series.what for word in ("cuda:0", *words))]
    return chosen


@pytest.mark.parametrize("direction", ["host to device", "device to host"])
def test_pinned_memory_is_copied_faster_than_pageable_memory(measured: LinksRecord, direction: str) -> None:
    pinned, pageable = of(measured, direction, "pinned"), of(measured, direction, "pageable")
    assert pinned.link_class == pageable.link_class == "pcie"
    assert pinned.largest_bytes == pageable.largest_bytes == SIZES[-1]
    assert 1e9 < pageable.largest_bytes_per_s < pinned.largest_bytes_per_s < FASTEST_PCIE


def test_one_latency_and_one_bandwidth_describe_pinned_copies(measured: LinksRecord) -> None:
    pinned = of(measured, "host to device", "pinned")
    assert pinned.bytes_per_s == pytest.approx(pinned.largest_bytes_per_s, rel=0.25)
    assert 1e-7 < pinned.alpha_s < 1e-3
    assert pinned.residual_ratio < 0.3


def test_memory_of_the_device_is_faster_than_its_link(measured: LinksRecord) -> None:
    within, link = of(measured, "within the device"), of(measured, "host to device", "pinned")
    assert within.link_class == "memory"
    assert within.largest_bytes_per_s > 2 * link.largest_bytes_per_s


def test_one_gpu_has_no_collective_and_says_so(measured: LinksRecord) -> None:
    if len(driver_names(live_context())) > 1:
        assert any(series.transport == "nccl" for series in fitted_series(measured))
        return
    reasons = {gap.what: gap.reason for gap in measured.missing}
    assert reasons["collectives of NCCL"] == "one GPU has no other to talk to"


def test_no_copy_of_the_gpu_is_missing(measured: LinksRecord) -> None:
    assert not [gap for gap in measured.missing if "copies" in gap.what]
