"""Lines of a file that grows: each once, whole, and of a long file the first and the last."""

from __future__ import annotations

from pathlib import Path

from perfscope.rundir.tail import FIRST_LOOK_BYTES, Tail


def test_each_look_gives_what_was_appended_and_only_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = Tail(path)
    assert tail.lines() == [] and tail.changed_s is None
    path.write_bytes(b"head")
    assert tail.lines() == [] and tail.head == b""
    path.write_bytes(b"head\n1\n2\n3")
    assert (tail.lines(), tail.head) == ([b"1", b"2"], b"head")
    with path.open("ab") as file:
        file.write(b"3\n4\n")
    assert tail.lines() == [b"33", b"4"]
    assert tail.lines() == [] and tail.changed_s == path.stat().st_mtime


def test_a_file_that_was_made_anew_is_read_from_its_begin(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"head\n1\n2\n3\n")
    tail = Tail(path)
    tail.lines()
    path.write_bytes(b"new\n9\n")
    assert (tail.lines(), tail.head) == ([b"9"], b"new")


def test_of_a_long_file_the_first_look_reads_the_begin_and_the_end(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    numbers = [b"%09d" % number for number in range(200_000)]
    path.write_bytes(b"head\n" + b"\n".join(numbers) + b"\n")
    tail = Tail(path)
    lines = tail.lines()
    assert lines[0] == numbers[0] and lines[-1] == numbers[-1] and set(lines) <= set(numbers)
    assert sum(map(len, lines)) < 2 * FIRST_LOOK_BYTES
    assert tail.lines() == []


def test_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"head\n1\n")
    (tmp_path / "link").symlink_to("file")
    assert Tail(tmp_path / "link").lines() == []
