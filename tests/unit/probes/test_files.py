"""The owner of files written inside the training: what is not perfscope's is neither written nor closed."""

from __future__ import annotations

import ast
import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import perfscope
from perfscope.probes.files import AppendFile, Folder, Gone, Shield, write_whole

PROBES = Path(perfscope.__file__).parent / "probes"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[AppendFile]:
    opened = AppendFile(str(tmp_path / "lines"))
    yield opened
    opened.close()


def content(file: AppendFile) -> bytes:
    return Path(file.path).read_bytes()


def accounted(file: AppendFile) -> bool:
    data = content(file)
    return (file.lines, file.bytes, file.crc32) == (data.count(b"\n"), len(data), zlib.crc32(data))


def test_the_descriptor_is_out_of_the_way_and_not_inherited(file: AppendFile) -> None:
    assert file._fd >= 500 or resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 500
    assert not os.get_inheritable(file._fd)


def test_a_closed_descriptor_is_opened_again(file: AppendFile) -> None:
    file.write(b"one\n")
    os.close(file._fd)
    file.write(b"two\n")
    assert content(file) == b"one\ntwo\n" and accounted(file)


def test_a_descriptor_that_became_another_file_is_left_alone(file: AppendFile, tmp_path: Path) -> None:
    file.write(b"one\n")
    number = file._fd
    with (tmp_path / "checkpoint").open("wb", buffering=0) as own:
        os.dup2(own.fileno(), number)
        own.write(b"MY CHECKPOINT\n")
        file.write(b"two\n")
        assert file._fd != number
        file.close()
        os.write(number, b"more\n")  # it was not closed either
        os.close(number)
    assert (tmp_path / "checkpoint").read_bytes() == b"MY CHECKPOINT\nmore\n"
    assert content(file) == b"one\ntwo\n" and accounted(file)


@pytest.mark.parametrize("lost", [False, True])
def test_a_removed_file_is_not_made_again(file: AppendFile, lost: bool) -> None:
    file.write(b"one\n")
    Path(file.path).unlink()
    if lost:
        os.close(file._fd)
    for _ in range(2):
        with pytest.raises(Gone, match="not there"):
            file.write(b"two\n")
    assert not Path(file.path).exists()


@pytest.mark.parametrize("kind", ["file", "link", "fifo", "folder"])
def test_what_stands_in_its_place_is_not_written(file: AppendFile, tmp_path: Path, kind: str) -> None:
    os.close(file._fd)
    Path(file.path).rename(tmp_path / "aside")
    other = tmp_path / "other"
    other.write_bytes(b"")
    make: dict[str, Callable[[], object]] = {
        "file": lambda: Path(file.path).write_bytes(b""),
        "link": lambda: Path(file.path).symlink_to(other),
        "fifo": lambda: os.mkfifo(file.path),
        "folder": lambda: Path(file.path).mkdir(),
    }
    make[kind]()
    with pytest.raises(Gone):
        file.write(b"two\n")
    assert other.read_bytes() == b""


def test_a_renamed_directory_is_written_on(file: AppendFile, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    Path(file.path).rename(moved)
    file.write(b"two\n")
    assert moved.read_bytes() == b"two\n"


def test_a_forked_child_writes_nothing(file: AppendFile) -> None:
    child = os.fork()
    if child == 0:
        file.write(b"child\n")
        file.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    file.write(b"parent\n")
    assert content(file) == b"parent\n" and accounted(file)


LIMITED = """
import os, resource, signal, sys
sys.path.insert(0, {root!r})
from perfscope.probes.files import AppendFile
file = AppendFile("lines")
file.write(b"whole line\\n")
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        file.write(b"a line that does not fit\\n")
        print("written")
    except OSError as error:
        print(error.errno, file.lines, os.path.getsize("lines"))
print(signal.sigpending(), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
file.write(b"last\\n")
print(open("lines", "rb").read())
"""


def test_a_limit_on_the_size_of_files_tears_no_line_and_sends_no_signal(tmp_path: Path) -> None:
    code = LIMITED.format(root=str(PROBES.parent.parent))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    line = f"{errno.EFBIG} 1 11\n"
    assert done.stderr == "" and done.returncode == 0
    assert done.stdout == line + line + "set() set()\nb'whole line\\nlast\\n'\n"


def test_a_torn_line_that_cannot_be_taken_back_ends_at_the_next_write(
    file: AppendFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = os.write, []

    def filling(fd: int, data: bytes) -> int:
        calls.append(fd)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:3])

    def refused(fd: int, size: int) -> None:
        raise OSError(errno.EPERM, "append only")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", filling)
        patch.setattr(os, "ftruncate", refused)
        with pytest.raises(OSError, match="No space"):
            file.write(b"torn line\n")
    file.write(b"whole\n")
    assert content(file) == b"tor\nwhole\n" and accounted(file)


def test_a_write_within_a_write_is_refused(file: AppendFile) -> None:
    """A signal handler of the training's may step while a batch of steps is being written."""

    def handler(*_: object) -> None:
        with pytest.raises(BlockingIOError):
            file.write(b"inner\n")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        own = file._own

        def interrupted() -> None:
            own()
            signal.raise_signal(signal.SIGUSR1)

        file._own = interrupted  # type: ignore[method-assign]
        file.write(b"outer\n")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert content(file) == b"outer\n" and accounted(file)


def test_the_shield_takes_its_own_signal_and_no_other() -> None:
    caught = []
    before = signal.signal(signal.SIGPIPE, lambda number, frame: caught.append(number))
    try:
        reader, writer = os.pipe()
        os.close(reader)
        with Shield(), pytest.raises(BrokenPipeError):
            os.write(writer, b"x")
        assert caught == [] and signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
        with Shield():  # from outside, meanwhile
            subprocess.run(["kill", "-PIPE", str(os.getpid())], check=True)
        assert caught == [signal.SIGPIPE]
        os.close(writer)
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_threads_append_whole_lines(file: AppendFile) -> None:
    def work(letter: bytes) -> None:
        for _ in range(200):
            file.write(letter * 30 + b"\n")

    threads = [threading.Thread(target=work, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert accounted(file) and file.lines == 600
    assert {len(set(line)) for line in content(file).splitlines()} == {1}


def test_a_folder_that_was_replaced_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    folder = Folder(str(path))
    folder.replace_json("a.json", {"a": 1})
    path.rename(tmp_path / "moved")
    with pytest.raises(Gone, match="not there"):
        folder.replace_json("a.json", {"a": 2})
    path.mkdir()
    with pytest.raises(Gone, match="was replaced"):
        folder.replace_json("a.json", {"a": 2})
    with pytest.raises(Gone):
        folder.subfolder("windows")
    assert list(path.iterdir()) == []


def test_whole_files_go_through_no_link_and_leave_nothing_behind(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    (tmp_path / "name").symlink_to(other)
    write_whole(str(tmp_path / "name"), b"new")
    assert other.read_bytes() == b"mine" and (tmp_path / "name").read_bytes() == b"new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(str(tmp_path / "folder"), b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "name", "other"]


def test_no_probe_opens_a_file_for_writing_by_itself() -> None:
    """Besides the pid file (empty) and the files of the bootstrap, which is loaded before the rest."""
    allowed = {"files.py", "sampler_start.py"}
    found = []
    for path in sorted(PROBES.rglob("*.py")):
        if path.name in allowed or path.parent.name in ("bootstrap", "site"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "os.open", "os.write"):
                mode = ast.unparse(node.args[1]) if len(node.args) > 1 else "'r'"
                if mode not in ("'r'", "'rb'"):
                    found.append(f"{path.relative_to(PROBES)}: {ast.unparse(node)[:60]}")
    assert found == ["tensorflow/stderr_filter.py: os.write(2, data)"]
