"""Reading XPlane profiles: known files, files of TensorFlow, damaged files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.errors import TraceError
from perfscope.ingest.formats.tensorflow import read_tensorflow
from perfscope.ingest.formats.xplane import read_xspace
from tests.support.xspace import Event, Line, Plane, message, number, space

DATA = Path(__file__).parents[3] / "data" / "frameworks"
STATS: dict[str, int | float | str | bytes] = {
    "a": 7,
    "b": -7,
    "c": 1.5,
    "d": "text",
    "e": b"\x00\xff",
    "long": 2**63,
}
LINE = Line(
    4711,
    "python",
    1_000,
    [Event("first", 2_500, 10**12, STATS), Event("second", 5, 0), Event("first", 2**50, 3)],
)
WHOLE = space(Plane("/host:CPU", [LINE, Line(-3, "", -5)]), Plane("empty", (), {"x": "y"}))


def read(tmp_path: Path, data: bytes, name: str = "0.tensorflow.xplane.pb") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def is_whole(path: Path) -> bool:
    try:
        read_xspace(path)
    except TraceError as error:
        assert "was it cut off?" in str(error)
        return False
    return True


def test_everything_written_is_read(tmp_path: Path) -> None:
    host, empty = read_xspace(read(tmp_path, WHOLE))
    assert (host.name, empty.name, empty.lines, empty.stats) == ("/host:CPU", "empty", [], {"x": "y"})
    first, other = host.lines
    assert (first.id, first.name, first.timestamp_ns) == (4711, "python", 1_000)
    assert (other.id, other.timestamp_ns, other.events) == (-3, -5, [])
    found = [(event.name, event.offset_ps, event.duration_ps, event.stats) for event in first.events]
    assert found == [("first", 2_500, 10**12, STATS), ("second", 5, 0, {}), ("first", 2**50, 3, {})]
    assert first.start_ns(first.events[0]) == 1_002


def test_a_gzipped_file_is_read_as_well(tmp_path: Path) -> None:
    plain = read_xspace(read(tmp_path, WHOLE))
    assert read_xspace(read(tmp_path, gzip.compress(WHOLE), "0.tensorflow.xplane.pb.gz")) == plain


def test_unknown_fields_of_every_wire_type_are_passed_over(tmp_path: Path) -> None:
    unknown = number(90, 3) + message(91, "x") + bytes([93 << 3 & 0x7F | 5 | 0x80, 93 >> 4]) + b"1234"
    unknown += bytes([94 << 3 & 0x7F | 1 | 0x80, 94 >> 4]) + b"12345678"
    plane = message(2, "p") + message(3, number(1, 5) + unknown + message(4, unknown)) + unknown
    (found,) = read_xspace(read(tmp_path, unknown + message(1, plane) + unknown))
    assert (found.name, found.lines[0].id, len(found.lines[0].events)) == ("p", 5, 1)


def test_a_file_cut_off_anywhere_says_so_or_ends_between_planes(tmp_path: Path) -> None:
    num_whole = 0
    for length in range(len(WHOLE)):
        num_whole += is_whole(read(tmp_path, WHOLE[:length]))
    assert num_whole == 3  # nothing, one plane, both planes without the host's name


@pytest.mark.parametrize("data", [b"{}", b"\x0b", b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f"])
def test_what_is_no_profile_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(TraceError, match="is no whole XPlane profile"):
        read_xspace(read(tmp_path, data))


# With the time of writing in its header, the bytes (and pytest's names) would differ from worker to worker.
ZIPPED = gzip.compress(WHOLE, mtime=0)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"no gzip", id="no gzip"),
        pytest.param(ZIPPED[:60], id="cut off"),
        pytest.param(ZIPPED[:-4] + b"abcd", id="wrong check sum"),
    ],
)
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_xspace(read(tmp_path, data, "0.tensorflow.xplane.pb.gz"))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_planes_or_a_trace_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.tensorflow.xplane.pb"
    path.write_bytes(data)
    try:
        read_tensorflow(path)
    except TraceError:
        return


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 255)), min_size=1, max_size=6))
def test_flipped_bytes_give_a_table_or_a_trace_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(WHOLE)
    for place, value in changes:
        data[place % len(data)] = value
    path = tmp_path_factory.getbasetemp() / "flipped.tensorflow.xplane.pb"
    path.write_bytes(bytes(data))
    try:
        trace = read_tensorflow(path)
    except TraceError:
        return
    assert trace.table(0, 0).num_rows == len(trace)


@pytest.mark.parametrize("name", ["tensorflow_cnn", "tensorflow_fit"])
def test_files_of_tensorflow_are_read_as_its_own_protobuf_classes_read_them(name: str) -> None:
    expected = json.loads((DATA / name / "expected.json").read_text())
    planes = read_xspace(DATA / name / "windows" / "0.tensorflow.xplane.pb.gz")
    found = {
        plane.name: [
            [line.id, line.name, line.timestamp_ns, len(line.events)]
            + [sum(getattr(event, part) for event in line.events) for part in ("offset_ps", "duration_ps")]
            for line in plane.lines
        ]
        for plane in planes
    }
    assert found == expected["planes"]
