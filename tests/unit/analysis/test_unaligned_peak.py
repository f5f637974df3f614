"""What unaligned products would save at a measured peak, and when no measured peak applies to them."""

from __future__ import annotations

import pytest

from perfscope.analysis.findings.kernels import below_peak
from perfscope.analysis.machine.results import Roofline, RooflinePoint

PLACE = ("head", "forward")


def roofline(dtype: str, peak: float) -> Roofline:
    point = RooflinePoint(
        layer=PLACE[0],
        phase=PLACE[1],
        time_ns=10_000_000,
        flops=10**12,
        bytes=10**9,
        intensity=1000.0,
        flops_per_s=1e14,
        bytes_per_s=1e11,
        attainable_flops_per_s=peak,
        fraction=1e14 / peak,
        bound="compute",
    )
    return Roofline(
        host="a",
        device="gpu",
        dtype=dtype,
        peak_flops_per_s=peak,
        bandwidth_bytes_per_s=3e12,
        ranks_sharing=1,
        points=(point,),
        ceilings_source="measured",
    )


def test_products_save_the_difference_from_the_peak_of_their_type() -> None:
    assert below_peak([roofline("bfloat16", 5e14)], 8, {PLACE: 10e6}) == pytest.approx(8e6)


def test_of_different_hosts_the_highest_peak_counts() -> None:
    rooflines = [roofline("bfloat16", 2e14), roofline("bfloat16", 5e14)]
    assert below_peak(rooflines, 8, {PLACE: 10e6}) == pytest.approx(8e6)


@pytest.mark.parametrize(("dtype", "aligned"), [("float32", 8), ("tf32", 8), ("float32", 4)])
def test_the_peak_of_another_type_says_nothing(dtype: str, aligned: int) -> None:
    assert below_peak([roofline(dtype, 5e13)], aligned, {PLACE: 10e6}) is None


def test_places_without_flops_save_an_unknown_time() -> None:
    assert below_peak([roofline("bfloat16", 5e14)], 8, {("other", "forward"): 10e6}) is None
