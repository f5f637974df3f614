"""Counters as a sampler writes them: what fails is left out, named, and never turned into a rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfscope.analysis.machine.counters import Rates, rates, thin
from perfscope.analysis.machine.lines import rate_line
from perfscope.kernel_text import cpu_set, format_cpulist
from tests.support.synthetic_samples import BOOT, READ_NS, SECOND, SampleFile, ticks


def one(folder: Path, *add: object, peak: float | None = None, **more: object) -> Rates:
    file = SampleFile()
    file.add(*add, **more)  # type: ignore[arg-type]
    return rates(file.read(folder).series[0], peak_per_s=peak)


def test_scale_is_applied_once_and_times_are_the_middle_of_readings(tmp_path: Path) -> None:
    found = one(tmp_path, "cpu_busy", [0.0, 0.5, 1.0], [100, 150, 175], scale=1e7)
    assert found.delta.tolist() == [50e7, 25e7]
    assert found.per_s.tolist() == [1e9, 5e8]
    assert found.start_ns.tolist() == [BOOT, BOOT + SECOND // 2]
    assert found.doubt_ns.tolist() == [READ_NS, READ_NS]


def test_a_last_reading_a_moment_after_the_one_before_counts_but_draws_no_spike(tmp_path: Path) -> None:
    found = one(tmp_path, "net_tx_bytes", [0.0, 0.1, 0.2, 0.3, 0.301], [0, 100, 200, 300, 350], unit="bytes")
    line = rate_line(found)
    assert found.total == 350
    assert line.values.tolist() == pytest.approx([1000.0] * 3)  # not 50 kB/s at the end


def test_a_power_counter_wraps_where_its_file_says(tmp_path: Path) -> None:
    top = 262_143_328_850
    found = one(
        tmp_path,
        "rapl_energy",
        [0.0, 1.0],
        [top - 40_000_000, 65_000_000],
        limit=top,
        scale=1e-6,
        unit="joules",
    )
    assert found.total == pytest.approx(105.0)


def test_a_power_counter_that_starts_again_is_no_wrap(tmp_path: Path) -> None:
    """Modulo its limit it would be 162 kJ in a second."""
    top = 262_143_328_850
    file = SampleFile()
    values = [100_000_000_000, 100_100_000_000, 5_000_000, 105_000_000]
    file.add("rapl_energy", ticks(0, 3, 1), values, limit=top, scale=1e-6, unit="joules")
    series = file.read(tmp_path).series[0]
    found = rates(series, peak_per_s=20_000.0)
    assert found.num_resets == 1
    assert found.total == pytest.approx(200.0)


def test_an_interval_long_enough_for_two_wraps_is_ambiguous(tmp_path: Path) -> None:
    """32 bits at 63 GB/s pass in 68 ms."""
    values = [0, 4_000_000_000, 3_700_000_000]
    found = one(tmp_path, "pcie_tx_bytes", [0.0, 0.05, 0.25], values, limit=2**32, unit="bytes", peak=63e9)
    assert found.quality.tolist() == [0, 4]
    assert found.worst_quality == "ambiguous"
    assert one(tmp_path, "pcie_tx_bytes", [0.0, 0.2], [0, 9], limit=2**32, peak=1e9).worst_quality == "exact"


def test_a_reading_said_to_be_ambiguous_or_scaled_stays_so(tmp_path: Path) -> None:
    found = one(tmp_path, "x", [0, 1, 2, 3], [1, 2, 3, 4], quality={1: "scaled", 3: "ambiguous"})
    assert found.quality.tolist() == [1, 1, 4]


def test_a_saturated_port_is_not_an_idle_one(tmp_path: Path) -> None:
    top = 2**32 - 1
    values = [top - 300, top - 100, top, top, top]
    found = one(tmp_path, "fabric_tx_bytes", [0, 1, 2, 3, 4], values, kind="saturating", limit=top, scale=4)
    assert found.delta.tolist() == [800.0]
    assert (found.num_saturated, found.worst_quality) == (3, "saturated")


def test_a_counter_is_not_differenced_across_two_samplers(tmp_path: Path) -> None:
    file = SampleFile()
    file.add("x", [0, 1], [10, 20])
    file.sampler()
    file.add("x", [5, 6], [1000, 1007])
    found = rates(file.read(tmp_path).series[0])
    assert found.delta.tolist() == [10.0, 7.0]
    assert found.num_split == 1 and found.num_resets == 0


def test_a_reading_that_failed_makes_one_longer_interval(tmp_path: Path) -> None:
    found = one(tmp_path, "x", [0, 1, 2, 3], [0, None, 30, 40])
    assert found.per_s.tolist() == [15.0, 10.0]


def test_two_readings_at_one_time_give_no_infinite_rate(tmp_path: Path) -> None:
    found = one(tmp_path, "x", [0, 1, 1, 2], [0, 1, 5, 6])
    assert np.isfinite(found.per_s).all()


def test_sampling_that_becomes_slower_leaves_no_gaps() -> None:
    """100 ms, then 400 ms, then 1.6 s; and a real gap of 20 s in the last part."""
    steps = [100] * 60 + [400] * 15 + [1600] * 6 + [20_000] + [1600] * 6
    at = np.cumsum([0, *steps])
    found = thin(at, np.ones(len(at)), np.ones(len(at)), 400)
    (gap,) = np.flatnonzero(np.isnan(found.mean))
    assert found.t_ns[gap] == at[81] + 10_000


def test_a_gap_in_the_readings_is_a_gap_in_the_line() -> None:
    at = np.array([*range(10), *range(100, 110)], dtype=np.int64) * SECOND
    found = thin(at, np.ones(20), np.ones(20), 400)
    gap = np.flatnonzero(np.isnan(found.mean))
    assert len(gap) == 1 and at[9] < found.t_ns[gap[0]] < at[10]


def test_lists_of_cpus_are_read_as_the_kernel_writes_them() -> None:
    assert cpu_set("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
    assert cpu_set("") == frozenset() and cpu_set("none") == frozenset()
    assert format_cpulist([3, 1, 2, 8, 0]) == "0-3,8"
