"""Baselines and histories: what is put in comes out, once, in order, and a change touches only its lines."""

from __future__ import annotations

import difflib
import itertools
import json
import random
import shutil
import sqlite3
import stat
import string
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from perfscope.gate.records import (
    Fingerprint,
)
from perfscope.gate.store import BaselineError, Store, open_store
from perfscope.gate.store.json_file import render
from perfscope.gate.store.shareable import encode_run, shareable
from perfscope.gate.store.sqlite_file import SCHEMA_VERSION
from tests.support.gate_store_runs import START, numbered, numbers, recorded_runs

OTHER = Fingerprint(cpu="Xeon", num_cpus=64, gpus=("H100",) * 8, torch="2.13.0", world_size=8, batch=256)
kinds = pytest.mark.parametrize("name", ["b.json", "h.sqlite"])


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Store]:
    return lambda name: open_store(tmp_path / name, create=True)


# --- what comes out -----------------------------------------------------------------------------------------


@kinds
def test_recorded_runs_come_back_as_they_were_oldest_first(make: Callable[[str], Store], name: str) -> None:
    runs = recorded_runs()
    shuffled = random.Random(1).sample(runs, len(runs))
    store = make(name)
    entry = store.put("train", shuffled[:3])
    entry = store.put("train", shuffled[3:])
    assert store.runs("train", entry.key) == tuple(runs)
    assert store.runs("train", runs[0].fingerprint.key) == tuple(runs)
    assert open_store(store.path).entries() == (entry,)
    assert entry.num_runs == 8
    starts = [run.surroundings.start_unix_ns for run in runs]
    assert (entry.first_start_unix_ns, entry.last_start_unix_ns) == (starts[0], starts[-1])
    times = sorted(run.metrics["step_p10"] for run in runs)
    assert entry.median_step_p10 == (times[3] + times[4]) / 2


@kinds
def test_adding_the_same_runs_again_changes_nothing(make: Callable[[str], Store], name: str) -> None:
    store = make(name)
    runs = [numbered(number) for number in range(6)]
    first = store.put("train", runs)
    content = store.path.read_bytes()
    assert store.put("train", runs[2:4]) == first
    assert store.put("train", list(reversed(runs))) == first
    assert numbers(store.runs("train", first.key)) == list(range(6))
    if name == "b.json":
        assert store.path.read_bytes() == content


@kinds
def test_a_run_measured_again_takes_the_place_of_its_earlier_figures(
    make: Callable[[str], Store], name: str
) -> None:
    store = make(name)
    store.put("train", [numbered(0), numbered(1)])
    again = replace(numbered(0), metrics={"step_p10": 5.0})
    entry = store.put("train", [again])
    assert [run.metrics["step_p10"] for run in store.runs("train", entry.key)] == [
        5.0,
        numbered(1).metrics["step_p10"],
    ]


@kinds
def test_runs_are_the_same_only_if_start_host_and_name_are(make: Callable[[str], Store], name: str) -> None:
    store = make(name)
    run = numbered(0)
    around = run.surroundings
    variants = [
        run,
        replace(run, name="other"),
        replace(run, surroundings=replace(around, start_unix_ns=START + 99)),
        replace(run, surroundings=replace(around, hosts=("elsewhere",))),
        replace(run, surroundings=replace(around, start_unix_ns=None)),
        replace(run, surroundings=replace(around, start_unix_ns=None), metrics={"step_p10": 1.0}),
    ]
    assert store.put("train", variants).num_runs == 6
    assert store.put("train", variants[4:]).num_runs == 6
    entry = store.put("train", [replace(run, name=f"/somewhere/else/{run.name}")])
    assert entry.num_runs == 6  # the same run, seen from another directory
    # Without a start a run counts as older than any other.
    assert [one.surroundings.start_unix_ns for one in store.runs("train", entry.key)][:2] == [None, None]


@kinds
def test_keep_drops_the_oldest_and_replace_drops_all_others_of_the_entry(
    make: Callable[[str], Store], name: str
) -> None:
    store = make(name)
    elsewhere = replace(numbered(50), fingerprint=OTHER)
    store.put("train", [elsewhere])
    store.put("other", [numbered(60)])
    entry = store.put("train", [numbered(number) for number in (5, 1, 4)])
    entry = store.put("train", [numbered(2)], keep=3)
    assert numbers(store.runs("train", entry.key)) == [2, 4, 5]
    entry = store.put("train", [numbered(0)], keep=3)  # older than what is kept
    assert numbers(store.runs("train", entry.key)) == [2, 4, 5]
    entry = store.put("train", [numbered(7), numbered(8)], replace=True)
    assert numbers(store.runs("train", entry.key)) == [7, 8]
    assert store.runs("train", OTHER.key) == (elsewhere,)
    order = [(one.name, one.key) for one in store.entries()]
    assert order == sorted([("other", entry.key), ("train", entry.key), ("train", OTHER.key)])


@kinds
def test_an_entry_is_found_by_its_exact_fingerprint_and_nearest_gives_the_others(
    make: Callable[[str], Store], name: str
) -> None:
    store = make(name)
    runs = recorded_runs()
    store.put("train", [replace(runs[0], fingerprint=OTHER)])
    entry = store.put("train", runs)
    store.put("unrelated", runs[:1])
    assert store.find("train", runs[0].fingerprint) == entry
    assert store.find("train", replace(OTHER, batch=257)) is None
    assert store.find("nothing", OTHER) is None
    assert [(one.fingerprint, one.num_runs) for one in store.nearest("train")] == [
        (runs[0].fingerprint, 8),
        (OTHER, 1),
    ]
    assert store.nearest("nothing") == ()
    assert store.runs("train", "no such key") == ()


@kinds
def test_commits_are_listed_once_in_the_order_of_their_runs(make: Callable[[str], Store], name: str) -> None:
    store = make(name)
    commits = ["bbb", "aaa", "bbb", "", "ccc"]
    runs = [numbered(number, commit=commit) for number, commit in enumerate(commits)]
    assert store.put("train", runs[::-1]).commits == ("bbb", "aaa", "ccc")
    assert store.entries()[0].commits == ("bbb", "aaa", "ccc")


@kinds
def test_one_put_takes_runs_of_one_fingerprint(make: Callable[[str], Store], name: str) -> None:
    store = make(name)
    with pytest.raises(ValueError, match="one fingerprint"):
        store.put("train", [numbered(0), replace(numbered(1), fingerprint=OTHER)])
    with pytest.raises(ValueError, match="one fingerprint"):
        store.put("train", [])
    with pytest.raises(ValueError, match="keep=0"):
        store.put("train", [numbered(0)], keep=0)
    assert store.entries() == ()


# --- what others may see ------------------------------------------------------------------------------------


def test_absolute_paths_are_reduced_to_their_last_part_and_nothing_else_is_lost() -> None:
    around = replace(
        numbered(0).surroundings,
        command=(
            "/home/me/venv/bin/python",
            "train.py",
            "--data=/scratch/me/data set",
            "~/x/y.toml",
            "-c",
            "1/2",
        ),
        environment={
            "LD_PRELOAD": "/opt/lib/libjemalloc.so.2:/usr/lib/libgomp.so",
            "MASTER_ADDR": "tcp://10.0.0.1:29500",
            "OMP_NUM_THREADS": "4",
        },
        options={"name": "(/home/me/x)"},
    )
    run = replace(
        numbered(0),
        name="/home/me/perfscope-runs/main-3",
        surroundings=around,
        clean_reason="Other processes (/usr/bin/grep) took 0.6 of 2 CPUs, 12 samples/s, n/a.",
        absent={"energy": "cannot read /sys/class/powercap/x: denied"},
    )
    kept = shareable(run)
    assert kept.name == "main-3"
    assert kept.surroundings.command == ("python", "train.py", "--data=data set", "y.toml", "-c", "1/2")
    assert kept.surroundings.environment == {
        "LD_PRELOAD": "libjemalloc.so.2:libgomp.so",
        "MASTER_ADDR": "tcp://10.0.0.1:29500",
        "OMP_NUM_THREADS": "4",
    }
    assert kept.clean_reason == "Other processes (grep) took 0.6 of 2 CPUs, 12 samples/s, n/a."
    assert kept.absent == {"energy": "cannot read x: denied"}
    assert "/home" not in encode_run(kept)
    plain = ("metrics", "layers", "collectives", "composition", "phases", "fingerprint", "num_steps")
    assert all(getattr(kept, name) == getattr(run, name) for name in plain)


# --- the committed file -------------------------------------------------------------------------------------


def changed_lines(before: bytes, after: bytes) -> list[str]:
    diff = difflib.unified_diff(before.decode().splitlines(), after.decode().splitlines(), n=0, lineterm="")
    return [line for line in diff if not line.startswith(("---", "+++", "@@"))]


def test_a_change_to_one_benchmark_touches_only_its_lines(make: Callable[[str], Store]) -> None:
    store = make("b.json")
    for name in ("beta", "delta"):
        store.put(name, [numbered(number) for number in range(10, 14)])
    before = store.path.read_bytes()
    for benchmark, number in itertools.product(("alpha", "beta", "gamma", "zeta"), (3, 12, 99)):
        if (benchmark, number) == ("beta", 12):
            continue
        store.put(benchmark, [numbered(number)])
        after = store.path.read_bytes()
        (line,) = changed_lines(before, after)
        assert line.startswith(f'+,{{"benchmark":"{benchmark}","run":{{"name":"run-{number:04d}"')
        before = after
    store.put("beta", [numbered(200)], keep=3)  # was 3, 10..13, 99
    signs = [line[:24] for line in changed_lines(before, store.path.read_bytes())]
    assert signs == ['-,{"benchmark":"beta","ru'[:24]] * 4 + ['+,{"benchmark":"beta","ru'[:24]]


def test_the_file_is_the_same_whatever_the_order_of_updates(tmp_path: Path) -> None:
    work = [(name, [numbered(n) for n in part]) for name in ("b", "a") for part in ((0, 1), (2,), (3, 4))]
    contents = set()
    for seed in range(4):
        path = tmp_path / f"{seed}.json"
        for name, runs in random.Random(seed).sample(work, len(work)):
            open_store(path, create=True).put(name, runs)
        contents.add(path.read_bytes())
    assert len(contents) == 1


def test_the_file_is_plain_json_with_kind_and_schema_and_a_run_per_line(make: Callable[[str], Store]) -> None:
    store = make("b.json")
    store.put("train\u202e", [numbered(0), numbered(1)])
    text = store.path.read_text("ascii")
    assert set(text) <= set(string.printable)
    header, *records = json.loads(text)
    assert header == {"kind": "perfscope-baseline", "schema_version": 1}
    assert [record["benchmark"] for record in records] == ["train\u202e"] * 2
    assert len(text.splitlines()) == 4


@pytest.fixture
def branches(tmp_path: Path) -> Callable[..., str]:
    """Two branches that added runs to a baseline are merged by git; gives what it said."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    path = tmp_path / "b.json"

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def merge(attributes: str) -> str:
        git("init", "-q", "-b", "main")
        (tmp_path / ".gitattributes").write_text(attributes)
        open_store(path, create=True).put("train", [numbered(0)])
        for branch, numbers_of_it in (("", ()), ("theirs", (3, 9)), ("main", (5, 9))):
            if branch:
                git("checkout", "-q", *(["-b"] if branch == "theirs" else []), branch)
                open_store(path).put("train", [numbered(number) for number in numbers_of_it])
            git("add", ".")
            git("commit", "-q", "-m", "x")
        return git("merge", "theirs")

    return merge


def test_git_keeps_the_lines_of_both_branches_where_it_is_told_to(
    branches: Callable[[str], str], tmp_path: Path
) -> None:
    assert "Conflict" not in branches("*.json merge=union\n")
    store = open_store(tmp_path / "b.json")
    key = numbered(0).fingerprint.key
    assert numbers(store.runs("train", key)) == [0, 3, 5, 9]
    store.put("train", [numbered(10)])  # brings the lines into their order
    assert store.path.read_bytes() == render({("train", numbered(0).fingerprint): store.runs("train", key)})


def test_a_merge_conflict_is_told_and_not_written_over(
    branches: Callable[[str], str], tmp_path: Path
) -> None:
    assert "CONFLICT" in branches("")
    path = tmp_path / "b.json"
    content = path.read_bytes()
    for create in (False, True):
        with pytest.raises(BaselineError, match="has merge conflict markers: resolve them"):
            open_store(path, create=create)
    assert path.read_bytes() == content
    lines = [
        line for line in content.splitlines(keepends=True) if line[:7] not in (b"<" * 7, b"=" * 7, b">" * 7)
    ]
    path.write_bytes(b"".join(lines))  # what the message says may be done
    assert numbers(open_store(path).runs("train", numbered(0).fingerprint.key)) == [0, 3, 5, 9]


@pytest.mark.parametrize("change", [lambda c: b"\xef\xbb\xbf" + c, lambda c: c.replace(b"\n", b"\r\n")])
def test_what_editors_do_to_text_files_is_read(
    make: Callable[[str], Store], change: Callable[[bytes], bytes]
) -> None:
    store = make("b.json")
    entry = store.put("train", [numbered(0)])
    store.path.write_bytes(change(store.path.read_bytes()))
    assert open_store(store.path).entries() == (entry,)


def test_a_link_stays_a_link_and_the_files_rights_stay(make: Callable[[str], Store], tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "b.json"
    link = tmp_path / "link.json"
    link.symlink_to("there/b.json")
    store = open_store(link, create=True)  # it points to nothing yet
    store.put("train", [numbered(0)])
    target.chmod(0o640)
    store.put("train", [numbered(1)])
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert open_store(target).entries()[0].num_runs == 2
    assert [path.name for path in target.parent.iterdir()] == ["b.json"]


# --- the history --------------------------------------------------------------------------------------------


def test_a_history_can_be_queried_by_hand(make: Callable[[str], Store]) -> None:
    store = make("h.sqlite")
    store.put("train", recorded_runs())
    with closing(sqlite3.connect(store.path)) as connection:
        rows = connection.execute(
            "SELECT runs.start_unix_ns, runs.step_p10, runs.throughput FROM runs "
            "JOIN benchmarks ON benchmarks.id = runs.benchmark WHERE name = 'train' ORDER BY start_unix_ns"
        ).fetchall()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    wanted = [
        (run.surroundings.start_unix_ns, run.metrics["step_p10"], run.metrics["throughput"])
        for run in recorded_runs()
    ]
    assert (rows, version, mode) == (wanted, SCHEMA_VERSION, "delete")


def test_a_fingerprint_is_found_though_an_earlier_perfscope_named_it_by_another_key(
    make: Callable[[str], Store],
) -> None:
    """A later version may know a field more, which changes keys but not what is recorded."""
    store = make("h.sqlite")
    entry = store.put("train", [numbered(0)])
    fingerprint = msgspec.to_builtins(entry.fingerprint)
    del fingerprint["scheme"]
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE benchmarks SET key = 'old', fingerprint = ?", (json.dumps(fingerprint),))
    assert store.find("train", entry.fingerprint) == entry
    assert store.put("train", [numbered(1)]).num_runs == 2
    assert len(store.entries()) == 1


def test_a_thousand_runs_stay_quick_to_sum_up(make: Callable[[str], Store]) -> None:
    store = make("h.db")
    entry = store.put("train", [numbered(number) for number in range(1000)])
    assert (entry.num_runs, store.entries()) == (1000, (entry,))
    assert numbers(store.runs("train", entry.key)) == list(range(1000))
