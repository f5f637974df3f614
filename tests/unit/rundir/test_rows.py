"""Step lines: read in one piece where all are whole, line by line where any may not be."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfscope.rundir.rows import StepLines, _irregular, read_step_files, read_step_lines
from perfscope.rundir.steps_ahead import StepsAhead

HEADER = b'{"columns": ["step", "start_ns", "dur_ns", "window", "input_ns"]}\n'
WHOLE = [b"[0,100,10,-1,null]", b"[1,110,12,0,3]", b"[2,122,9,-1,0]"]


def content(lines: StepLines) -> tuple[dict[str, list[int | None]], int, int]:
    columns = {
        name: (column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column).to_pylist()
        for name, column in lines.columns.items()
    }
    return columns, lines.num_bad, lines.num_processes


def line_by_line(data: bytes) -> tuple[dict[str, list[int | None]], int, int]:
    return content(_irregular(data.splitlines()))


def test_whole_lines_are_read_with_nulls_and_the_types_of_the_schema() -> None:
    lines = read_step_lines(HEADER + b"\n".join(WHOLE) + b"\n")
    assert content(lines)[0]["input_ns"] == [None, 3, 0]
    assert lines.columns["window"].type == pa.int32() and lines.columns["start_ns"].type == pa.int64()
    assert (lines.num_bad, lines.num_processes, lines.num_rows) == (0, 1, 3)


@pytest.mark.parametrize("separator", [",", ", "])
def test_spaces_behind_commas_make_no_difference(separator: str) -> None:
    text = "\n".join(json.dumps([1, 2, 3, -1, None], separators=(separator, ":")) for _ in range(3))
    assert content(read_step_lines(HEADER + text.encode() + b"\n"))[0]["step"] == [1, 1, 1]


@pytest.mark.parametrize(
    "tail",
    [
        b"[3,131,10",  # torn
        b"[3,131,10,-1,null]",  # whole, but for the end of the line
        b"[3[3,131,10,-1,null]\n",  # torn, then another process's
        b"[3,131,-1,-1,null]\n",
        b"[null,131,1,-1,null]\n",
        b"[3,131,1,99999999999,null]\n",
        b"[3,131,9999999999999999999999,1,null]\n",
        b"[3,131,1.5,1,null]\n",
        b"[3,131,,1,null]\n",
        b'[3,131,"7",1,null]\n',
        b"[3,1 31,1,1,null]\n",
        b"[3,131,1,[1],null]\n",
        b"\n",
        b"\x00\x00\x00\x00\n",
        HEADER + b"[0,200,10,-1,null]\n",
    ],
)
def test_a_line_that_is_no_step_changes_no_other_line(tail: bytes) -> None:
    data = HEADER + b"\n".join(WHOLE) + b"\n" + tail
    assert content(read_step_lines(data)) == line_by_line(data)
    assert content(read_step_lines(data))[0]["start_ns"][:3] == [100, 110, 122]


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_damaged_bytes_are_read_as_line_by_line(data: st.DataObject) -> None:
    text = bytearray(HEADER + b"\n".join(WHOLE * 3) + b"\n")
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(len(HEADER), len(text) - 1))
        text[place : place + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"[", b"]", b",", b"\n", b"1", b"-", b" ", b"null", b"{", b"\xff"])
        )
    assume(re.search(rb"[\[,-]0\d", text) is None)  # JSON has no leading zeros; Arrow passes over them
    assert content(read_step_lines(bytes(text))) == line_by_line(bytes(text))


def test_a_file_without_a_header_has_no_steps() -> None:
    assert content(read_step_lines(b"\n".join(WHOLE))) == ({}, 3, 0)
    assert content(read_step_lines(b"")) == ({}, 0, 0)


OTHER = b'{"columns": ["step", "dur_ns", "start_ns"]}\n'
LINES = st.sampled_from([*WHOLE, b"[3,131,10", b"[3,131,-1,-1,null]", HEADER.strip(), b""])
FILES = st.tuples(
    st.sampled_from([HEADER, HEADER, OTHER, b""]), st.lists(LINES, max_size=4), st.sampled_from([b"\n", b""])
)


@given(st.lists(FILES, min_size=1, max_size=4))
def test_files_that_are_read_together_have_the_steps_that_each_has_alone(
    files: list[tuple[bytes, list[bytes], bytes]],
) -> None:
    contents = [header + b"\n".join(lines) + end for header, lines, end in files]
    together = [content(steps) for steps in read_step_files(contents)]
    assert together == [content(read_step_lines(data)) for data in contents]


def test_steps_of_ranks_are_the_same_in_every_order_of_asking() -> None:
    files = {rank: HEADER + b"[%d,100,10,-1,null]\n" % rank for rank in range(70)}
    files[40] = b""  # not there
    asked: list[int] = []

    def read(rank: int) -> bytes:
        asked.append(rank)
        return files[rank]

    in_order, ranks = StepsAhead(), tuple(files)
    found = {rank: content(in_order.of(rank, ranks, read)) for rank in ranks}
    assert sorted(asked) == sorted([*ranks, 40])  # what ends a read ahead is read again alone
    alone = StepsAhead()
    for rank in (69, 3, 3, 40, 0):
        assert content(alone.of(rank, ranks, files.__getitem__)) == found[rank]
    assert found[3][0]["step"] == [3] and found[40][2] == 0
