"""samples.jsonl: what the sampler writes is what analysis reads, whatever happened in between."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfscope.collectors.base import Fact, Reading
from perfscope.collectors.sample_log import SampleLog
from perfscope.rundir.metrics import COUNTER, GAUGE, QUALITIES, SATURATED, Metric, Series
from perfscope.rundir.sample_facts import Gap, SamplerUse
from perfscope.rundir.samples import read_samples

BYTES = Metric(
    name="fabric_tx_bytes",
    unit="bytes",
    kind=COUNTER,
    source="counters/port_xmit_data",
    description="sent",
    limit=1 << 32,
    scale=4.0,
)
LEVEL = Metric(name="gpu_power", unit="watts", kind=GAUGE, source="NVML", description="power")


def test_readings_come_back_with_all_that_is_known_of_them(tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "s", "node1", 100)
    sent, power = Series(BYTES, {"port": "mlx5_0/1"}), Series(LEVEL, {"gpu": "0"})
    log.readings("fabric", [Reading(sent, 7, 10, 12), Reading(power, 2.5, 11, 13)])
    log.readings("fabric", [Reading(sent, (1 << 32) - 1, 20, 22, SATURATED), Reading(power, None, 21, 23)])
    log.readings("fabric", [Reading(power, float("nan"), 25, 25), Reading(power, 3.5, 26, 26)])
    log.fact("fabric", Fact("stopped", {"port": "x"}, {"what": "w", "reason": "r"}), 30)
    log.end("every rank has ended", {"cpu_ns": 5})
    log.close()
    samples = read_samples(tmp_path / "s", "node1")
    one, two = samples.series
    assert (one.metric, one.labels, one.unit, one.kind) == (
        "fabric_tx_bytes",
        {"port": "mlx5_0/1"},
        "bytes",
        COUNTER,
    )
    assert (one.limit, one.scale, one.collector) == (1 << 32, 4.0, "fabric")
    assert one.values.tolist() == [7, (1 << 32) - 1]
    assert one.t_begin_ns.tolist() == [10, 20] and one.t_end_ns.tolist() == [12, 22]
    assert [QUALITIES[code] for code in one.quality] == ["exact", "saturated"]
    assert two.values.tolist() == [2.5, 3.5]  # failed readings are left out, not 0
    assert samples.find("gpu_power", gpu="0") == [two] and samples.find("gpu_power", gpu="1") == []
    assert (samples.facts[0].name, samples.facts[0].value) == ("stopped", Gap(what="w", reason="r"))
    assert samples.ends[0].cost == SamplerUse(cpu_ns=5)
    assert samples.intervals[0][1] == 100 and len(samples.anchors) == 1 and samples.num_dropped == 0


def test_counters_above_63_bits_keep_their_differences(tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "s", "h", 100)
    series = Series(BYTES)
    for at, value in enumerate([(1 << 64) - 5, 10]):
        log.readings("c", [Reading(series, value, at, at)])
    log.close()
    values = read_samples(tmp_path / "s", "h").series[0].values
    assert np.diff(values.astype(np.uint64)).tolist() == [15]


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(min_value=0, max_value=600))
def test_a_file_cut_anywhere_loses_its_last_line_at_most(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "s"
    log = SampleLog(path, "h", 100)
    series = Series(BYTES, {"port": "p"})
    for at in range(10):
        log.readings("c", [Reading(series, at, at, at)])
    log.close()
    whole = path.read_bytes()
    kept = whole[: max(len(whole) - cut, 0)]
    path.write_bytes(kept)
    samples = read_samples(path, "h")
    lines = kept.count(b"\n")
    assert sum(len(one.values) for one in samples.series) in (max(lines - 2, 0), max(lines - 1, 0))
    assert samples.num_dropped <= 1


def test_another_sampler_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    series, path = Series(BYTES), tmp_path / "s"
    for value in (5, 3):
        log = SampleLog(path, "h", 100)
        log.readings("c", [Reading(series, value, value, value)])
        log.close()
        with path.open("ab") as file:
            file.write(b"[0,1,2,[3")  # SIGKILL in the middle of a write
    samples = read_samples(path, "h")
    (one,) = samples.series
    assert one.values.tolist() == [5, 3]
    assert one.segment.tolist() == [0, 1]  # another process's counters: no difference across
    assert samples.num_dropped == 2


def test_lines_of_somebody_else_are_counted_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "s"
    log = SampleLog(path, "h", 100)
    log.readings("c", [Reading(Series(BYTES), 1, 1, 1)])
    log.close()
    odd = [
        '"text"',
        "[]",
        "[9,1,2,[1]]",
        "[0,1,2,[1,2]]",
        '{"id":1}',
        '{"series":3,"id":1}',
        "[0,1,2,3]",
        "\xff",
    ]
    with path.open("a", encoding="latin-1") as file:
        file.write("\n".join(odd) + "\n")
    samples = read_samples(path, "h")
    assert samples.series[0].values.tolist() == [1]
    assert samples.num_dropped >= len(odd) - 1


def test_a_full_disk_loses_readings_and_says_how_many(tmp_path: Path) -> None:
    log = SampleLog(Path("/dev/full"), "h", 100)
    series = Series(BYTES)
    for at in range(3):
        log.readings("c", [Reading(series, at, at, at)])
    log.close()
    assert log.num_lost >= 3


def test_a_place_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        SampleLog(tmp_path / "no" / "s", "h", 100)
    assert caught.value.errno == errno.ENOENT


def test_monotonic_times_become_wall_clock_times_by_the_nearest_anchors(tmp_path: Path) -> None:
    path = tmp_path / "s"
    lines = [
        {
            "schema_version": 1,
            "host": "h",
            "pid": os.getpid(),
            "interval_ns": 1,
            "anchor": [1000, 5_000_001_000],
        },
        {"anchor": [2000, 5_000_002_010]},  # the wall clock gained 10 ns
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = read_samples(path, "h")
    asked = np.array([0, 1000, 1500, 2000, 9000], np.int64)
    assert (samples.unix_ns(asked) - asked).tolist() == [5_000_000_000] * 2 + [5_000_000_005] + [
        5_000_000_010
    ] * 2


WRONG = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([10**30, -(10**30), 1 << 63, 1e308]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_anything_in_place_of_anything_is_read_or_counted(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines: list[Any] = [
        {"schema_version": 1, "host": "h", "pid": 1, "interval_ns": 100, "anchor": [1000, 2000]},
        {
            "id": 0,
            "collector": "c",
            "series": [{"metric": "m", "labels": {"a": "b"}, "limit": 8, "scale": 2.0}],
        },
        [0, 1000, 1001, [5]],
        [0, 1100, 1101, [6], {"0": "scaled"}],
        {"fact": "note", "collector": "c", "t_ns": 1100, "labels": {}, "value": {"text": "t"}},
        {"end": "over", "t_ns": 1200, "cost": {"cpu_ns": 1}},
    ]
    line = data.draw(st.sampled_from(lines))
    place: Any = line
    while True:  # down to some value, however deep
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], (dict, list)) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(WRONG)
        break
    path = tmp_path_factory.mktemp("wrong") / "s"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    samples = read_samples(path, "h")
    for series in samples.series:
        samples.unix_ns(series.t_begin_ns)
        assert len(series.values) == len(series.t_begin_ns) == len(series.quality)
    assert samples.num_dropped <= len(lines)


HEADER = [
    {"schema_version": 1, "host": "h", "pid": 1, "interval_ns": 100, "anchor": [1000, 2000]},
    {"id": 0, "collector": "c", "series": [{"metric": name} for name in ("a", "b", "c")]},
]


def _values(path: Path, lines: Sequence[object]) -> list[list[float]]:
    """Of each series, from a file of these lines."""
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return [one.values.tolist() for one in read_samples(path, "h").series]


NUMBERS = (
    st.none()
    | st.integers(-5, 5)
    | st.sampled_from([1 << 53, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)])
    | st.sampled_from([0.5, 1e20, -2.5])
)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=6))
def test_readings_together_are_the_same_as_readings_one_by_one(
    rows: list[tuple[float | None, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    for column in zip(*rows, strict=True):  # a counter of 64 bits is in no series of fractions
        kinds = {type(value) for value in column}
        assume(float not in kinds or all((value or 0) < 1 << 63 for value in column))
    path = tmp_path_factory.mktemp("rows") / "s"
    lines = [[0, 1000 + at, 1000 + at, list(row)] for at, row in enumerate(rows)]
    apart = [part for line in lines for part in (line, HEADER[1])]  # each is a piece of its own
    assert _values(path, [*HEADER, *lines]) == _values(path, [*HEADER, *apart])
    written = [[row[index] for row in rows if row[index] is not None] for index in range(3)]
    for values, read in zip(written, _values(path, [*HEADER, *lines]), strict=True):
        if any(isinstance(value, float) for value in values):
            continue
        assert read == [(int(value or 0) + (1 << 63)) % (1 << 64) - (1 << 63) for value in values]


def test_a_torn_line_among_many_costs_that_line_alone(tmp_path: Path) -> None:
    lines = [[0, 1000 + at, 1001 + at, [at, 2 * at, None]] for at in range(20)]
    torn = [*HEADER, *lines[:10], "[0,1010,10", "\n", *lines[10:]]
    assert _values(tmp_path / "s", torn) == [list(range(20)), list(range(0, 40, 2)), []]
    assert read_samples(tmp_path / "s", "h").num_dropped == 1


def test_a_quality_of_one_reading_is_no_other_readings(tmp_path: Path) -> None:
    lines: list[object] = [[0, 1000 + at, 1001 + at, [at, at, at]] for at in range(5)]
    lines[2] = [0, 1002, 1003, [2, 2, 2], {"1": "saturated"}]
    assert _values(tmp_path / "s", [*HEADER, *lines]) == [[0, 1, 2, 3, 4]] * 3
    qualities = [
        [QUALITIES[code] for code in one.quality] for one in read_samples(tmp_path / "s", "h").series
    ]
    assert qualities[0] == qualities[2] == ["exact"] * 5
    assert qualities[1] == ["exact", "exact", "saturated", "exact", "exact"]
