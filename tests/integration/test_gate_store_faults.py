"""Baselines and histories under real processes that write at once, die, fill the disk, or leave rubbish."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from perfscope.gate.store import BaselineError, open_store
from perfscope.gate.store.locking import beside
from perfscope.gate.store.sqlite_file import APPLICATION_ID
from tests.support.gate_store_runs import numbered, numbers

ROOT = Path(__file__).parents[2]
WRITERS = (sys.executable, "-m", "tests.integration.store_writers")
FILES = ("b.json", "h.sqlite")
files = pytest.mark.parametrize("name", FILES)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def writer(*words: object) -> subprocess.CompletedProcess[str]:
    command = [*WRITERS, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@contextmanager
def started(*words: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*WRITERS, *map(str, words)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def there(path: Path) -> list[int]:
    (entry,) = open_store(path).entries()
    return numbers(open_store(path).runs(entry.name, entry.key))


def sound(path: Path) -> None:
    """Nothing but the file is left, and SQLite finds nothing wrong with its own."""
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


# --- several writers ----------------------------------------------------------------------------------------


@files
@pytest.mark.parametrize("num_writers", [2, 4])
def test_writers_at_once_lose_nothing(tmp_path: Path, name: str, num_writers: int) -> None:
    """They begin together on a file that is not there yet."""
    path, count = tmp_path / name, 8
    commands = [
        [*WRITERS, "write", str(path), str(index * count), str(count)] for index in range(num_writers)
    ]
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        ends = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [(process.returncode, err) for process, (_, err) in zip(processes, ends, strict=True)] == [
        (0, "")
    ] * num_writers
    assert there(path) == list(range(num_writers * count))
    sound(path)


@files
def test_a_reader_meets_no_half_file_while_others_write(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    open_store(path, create=True).put("train", [numbered(0)])
    with started("write", path, 1, 20) as process:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        seen = 1
        while process.poll() is None:
            now = there(path)
            assert len(now) >= seen
            assert now == list(range(len(now)))
            seen = len(now)
    assert there(path) == list(range(21))


# --- killed -------------------------------------------------------------------------------------------------


@files
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_a_writer_killed_at_any_moment_loses_nothing_it_said_was_kept(
    tmp_path: Path, name: str, seed: int
) -> None:
    path = tmp_path / name
    done = writer("killed", path, 25, seed)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert len(told["promised"]) >= 20, "most writers were killed before they wrote anything"
    assert set(told["promised"]) <= set(told["there"])
    open_store(path).put("train", [numbered(900)])  # the file can be written as before
    assert there(path) == [*told["there"], 900]
    sound(path)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["flock", "fsync", "replace", "unlink"])
def test_a_baseline_is_the_old_or_the_new_one_wherever_its_writer_dies(
    tmp_path: Path, call: str, when: str
) -> None:
    path = tmp_path / "b.json"
    open_store(path, create=True).put("train", [numbered(0)])
    assert writer("killed-at", path, call, when).returncode == -9
    is_new = (call, when) in {("replace", "after"), ("unlink", "before"), ("unlink", "after")}
    assert there(path) == ([0, 77] if is_new else [0])
    store = open_store(path, timeout_s=0)  # no lock outlives its process
    store.put("train", [numbered(88)])
    assert there(path) == ([0, 77, 88] if is_new else [0, 88])
    sound(path)


# --- locked -------------------------------------------------------------------------------------------------


@files
def test_a_file_that_another_process_keeps_locked_is_an_error_that_names_it(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    open_store(path, create=True).put("train", [numbered(0)])
    store = open_store(path, timeout_s=0.3)
    with started("hold", path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BaselineError) as refused:
            store.put("train", [numbered(1)])
        assert f"process {holder.pid}" in str(refused.value)
        assert "more than 0.3 s; nothing was changed, try again" in str(refused.value)
        assert refused.value.exit_code == 4
        assert len(str(refused.value).splitlines()) == 1
    store.put("train", [numbered(2)])
    assert there(path) == [0, 2]
    sound(path)


def test_reading_a_baseline_waits_for_nobody(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    open_store(path, create=True).put("train", [numbered(0)])
    with started("hold", path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert there(path) == [0]


def test_a_lock_that_a_killed_process_left_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    beside(path, "lock").write_text("process 1 on elsewhere")
    beside(path, "aside").write_text('[{"kind":"perfscope-ba')
    open_store(path, create=True, timeout_s=0).put("train", [numbered(0)])
    assert there(path) == [0]
    sound(path)


# --- no room, no right --------------------------------------------------------------------------------------


def told_of_no_room(done: subprocess.CompletedProcess[str], path: Path, reasons: tuple[str, ...]) -> None:
    assert (done.returncode, done.stderr) == (0, "")
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["there"] == [1]
    assert told["files"] == [path.name]
    assert told["error"].startswith(f"cannot write {path}: ")
    assert any(reason in told["error"] for reason in reasons), told["error"]
    assert told["error"].endswith("nothing was changed")
    assert len(told["error"].splitlines()) == 1


@files
def test_a_file_that_may_not_grow_stays_as_it_was(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    done = writer("full", path, 64_000)
    told_of_no_room(done, path, ("File too large", "disk I/O error", "disk is full"))
    assert there(path) == [1]


@as_root
@files
def test_a_full_disk_costs_nothing_but_the_update(tmp_path: Path, name: str) -> None:
    path = tmp_path / "disk" / name
    path.parent.mkdir()
    mounted = f"mount -t tmpfs -o size=256k tmpfs {path.parent}"
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("nothing can be mounted here")
    command = f'{mounted} && exec "$0" "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, *WRITERS, "full", str(path), "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    told_of_no_room(done, path, ("No space left on device", "disk is full"))


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A directory that every user can look into, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="perfscope-store-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@as_root
@files
def test_a_directory_without_the_right_to_write_can_be_read_from(public: Path, name: str) -> None:
    path = public / name
    open_store(path, create=True).put("train", [numbered(0)])
    done = writer("nobody", path, "read")
    assert (done.stdout, done.stderr) == ("1\n", "")
    done = writer("nobody", path, "put")
    assert done.returncode == 4
    assert done.stderr.startswith(f"BaselineError: cannot write {path}: ")
    assert len(done.stderr.splitlines()) == 1
    assert there(path) == [0]
    sound(path)


@as_root
def test_a_lock_that_another_users_killed_process_left_is_harmless(public: Path) -> None:
    path = public / "b.json"
    open_store(path, create=True).put("train", [numbered(0)])
    beside(path, "lock").touch(mode=0o644)
    public.chmod(0o777)
    done = writer("nobody", path, "put")
    assert (done.stdout, done.stderr) == ("2\n", "")
    assert there(path) == [0, 1]


@as_root
@files
def test_a_file_that_may_not_be_read_is_one_line(public: Path, name: str) -> None:
    path = public / name
    open_store(path, create=True).put("train", [numbered(0)])
    path.chmod(0o600)
    done = writer("nobody", path, "read")
    assert (done.returncode, done.stderr) == (
        4,
        f"BaselineError: cannot read {path}: Permission denied\n",
    )


# --- rubbish ------------------------------------------------------------------------------------------------


def refusal(path: Path, *, create: bool = True) -> str:
    """One line; the file is as it was."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(BaselineError) as refused:
        open_store(path, create=create)
    assert refused.value.exit_code == 4
    assert str(refused.value).isprintable()
    assert before is None or path.read_bytes() == before
    return str(refused.value)


@files
def test_what_is_not_there_is_made_only_where_that_is_wanted(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert "make it with `perfscope baseline update" in refusal(path, create=False)
    assert not path.exists()
    assert open_store(path, create=True).entries() == ()
    deeper = tmp_path / "not" / "yet" / name
    assert "make it with" in refusal(deeper, create=False)
    assert not deeper.parent.exists()
    open_store(deeper, create=True).put("train", [numbered(0)])
    assert there(deeper) == [0]
    assert "cannot make the directory of" in refusal(deeper / "below" / name)


@files
def test_an_empty_file_is_refused_or_filled_but_never_taken_for_no_regressions(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.touch()
    assert "is empty" in refusal(path, create=False)
    open_store(path, create=True).put("train", [numbered(0)])
    assert there(path) == [0]


@files
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_and_stays(tmp_path: Path, name: str, share: float) -> None:
    path = tmp_path / name
    open_store(path, create=True).put("train", [numbered(number) for number in range(20)])
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    if name == "b.json" or share < 0.9:
        assert "damaged" in refusal(path) or "merge" in refusal(path)
        return
    # SQLite may open a file whose last pages are gone; it is neither read nor written as if it were whole.
    with pytest.raises(BaselineError, match="damaged"):
        there(path)
    before = path.read_bytes()
    with pytest.raises(BaselineError, match="damaged"):
        open_store(path).put("other", [numbered(50)])
    assert path.read_bytes() == before


@files
@pytest.mark.parametrize(
    "content",
    [b"\0" * 5000, b"\xff\xfe garbage", b"hello\n", b"[" * 100_000, b"SQLite format 3\0" + b"x" * 5000],
)
def test_garbage_is_refused_and_stays(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert any(word in refusal(path) for word in ("damaged", "no SQLite file", "is an SQLite file"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{}", "is JSON, but no baseline"),
        (b"[]", "is JSON, but no baseline"),
        (b"[1, 2]", "is JSON, but no baseline"),
        (b"null", "is JSON, but no baseline"),
        (b'[{"kind":"another","schema_version":1}]', "is JSON, but no baseline"),
        (
            b'[{"kind":"perfscope-baseline","schema_version":2}]',
            "newer perfscope (schema 2, this one knows 1)",
        ),
        (b'[{"kind":"perfscope-baseline","schema_version":1},{"benchmark":"x"}]', "damaged"),
        (b'[{"kind":"perfscope-baseline","schema_version":1},{"benchmark":"\xff"}]', "damaged"),
    ],
)
def test_json_that_is_no_baseline_is_told_from_a_damaged_and_a_newer_one(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(content)
    assert reason in refusal(path)


def test_a_history_of_a_newer_perfscope_or_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    assert "an SQLite file of another program" in refusal(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 7")
    assert "newer perfscope (schema 7, this one knows 1)" in refusal(path)


def test_a_figure_that_was_tampered_with_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    open_store(path, create=True).put("train", [numbered(0)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE runs SET figures = '{\"name\": 1}'")
    with pytest.raises(BaselineError, match="damaged"):
        there(path)


@files
def test_a_history_named_json_and_a_baseline_named_sqlite_are_told(tmp_path: Path, name: str) -> None:
    other = FILES[1 - FILES.index(name)]
    open_store(tmp_path / other, create=True).put("train", [numbered(0)])
    (tmp_path / other).rename(tmp_path / name)
    assert "name" in refusal(tmp_path / name)


@files
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.mkdir(), "is a directory"),
        (os.mkfifo, "is no regular file"),  # opening it would wait for ever
        (lambda path: path.symlink_to(path), "symbolic link"),
        (lambda path: path.symlink_to("/dev/null"), "is no regular file"),
    ],
    ids=["directory", "fifo", "circle", "device"],
)
def test_what_is_no_file_is_refused_at_once(
    tmp_path: Path, name: str, make: Callable[[Path], object], reason: str
) -> None:
    path = tmp_path / name
    make(path)
    assert reason in refusal(path)


@files
def test_a_hostile_path_is_one_line(tmp_path: Path, name: str) -> None:
    assert "\\n" in refusal(tmp_path / f"a\nb\u202e{name}", create=False)
    assert "no path of a file" in refusal(tmp_path / f"a\0{name}")
    path = tmp_path / f"{'é?#% ' * 30}{name}"
    open_store(path, create=True).put("train", [numbered(0)])
    assert there(path) == [0]
    sound(path)
