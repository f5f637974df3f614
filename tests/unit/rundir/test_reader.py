"""Opening run directories in whatever state they are."""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from io import FileIO
from pathlib import Path

import pytest

from perfscope.errors import RunDirectoryError
from perfscope.rundir.inventory import take_inventory
from perfscope.rundir.layout import SCHEMA_VERSION
from perfscope.rundir.migrations import MIGRATIONS
from perfscope.rundir.reader import RunReader
from perfscope.rundir.schema import STEPS
from perfscope.rundir.writer import write_json
from tests.support.synthetic_run import SyntheticRun, span


@pytest.fixture
def run(tmp_path: Path) -> SyntheticRun:
    made = SyntheticRun(tmp_path / "run", name="demo")
    made.rank(0)
    made.steps(0, [30, 20, 20])
    return made


@pytest.mark.parametrize("form", ["directory", "latest link", "run.json"])
def test_a_run_opens_by_each_of_its_names(run: SyntheticRun, tmp_path: Path, form: str) -> None:
    link = tmp_path / "latest"
    link.symlink_to("run")
    path = {"directory": run.path, "latest link": link, "run.json": run.path / "run.json"}[form]
    reader = RunReader(path)
    assert reader.run.name == "demo"
    assert reader.ranks == (0,)


def error_of(path: Path) -> str:
    with pytest.raises(RunDirectoryError) as caught:
        RunReader(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_is_no_run_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("gone")
    (tmp_path / "trace.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    assert "is not there" in error_of(tmp_path / "nowhere")
    assert "link to gone, which is not there" in error_of(tmp_path / "latest")
    assert "perfscope import" in error_of(tmp_path / "trace.json")
    assert "holds no run.json" in error_of(tmp_path / "empty")


def test_where_a_run_is_not_there_the_newest_ones_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 6):
        SyntheticRun(tmp_path / "perfscope-runs" / f"2026112{number}T090218Z-train")
    (tmp_path / "perfscope-runs" / "latest").symlink_to("20261125T090218Z-train")
    monkeypatch.chdir(tmp_path)
    newest = ", ".join(f"perfscope-runs/2026112{number}T090218Z-train" for number in (5, 4, 3))
    assert error_of(Path("nosuch")) == f"nosuch is not there; the newest runs here: {newest}"


@pytest.mark.parametrize("text", ['{"schema_version": 1', "[1]", "", "\udcff"])
def test_a_broken_manifest_is_said_to_be_broken(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert "run.json is broken" in error_of(tmp_path)


def test_a_manifest_that_cannot_be_read_names_the_cause(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    assert "cannot be read: it is a directory" in error_of(tmp_path)


def test_a_newer_schema_asks_for_an_upgrade(run: SyntheticRun) -> None:
    run.write("run.json", {"schema_version": 7})
    message = error_of(run.path)
    assert f"made by a newer perfscope (schema 7, this one reads up to {SCHEMA_VERSION}): upgrade" in message


@pytest.mark.parametrize("version", [None, "1", 0, True])
def test_a_manifest_without_a_version_is_no_run(run: SyntheticRun, version: object) -> None:
    run.write("run.json", {"schema_version": version})
    assert "not a perfscope run" in error_of(run.path)


def test_every_older_version_has_its_migration() -> None:
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA_VERSION))


def test_steps_of_a_killed_rank_are_all_there_but_the_torn_line(run: SyntheticRun) -> None:
    run.rank(0, finished=False)
    path = run.path / "ranks/0/steps.jsonl"
    path.write_text(path.read_text() + "[3,1000070,2")
    reader = run.read()
    table = reader.steps(0)
    assert table.schema == STEPS
    assert table.column("dur_ns").to_pylist() == [30, 20, 20]
    assert table.column("samples").to_pylist() == [None, None, None]
    [note] = reader.notes
    assert (note.path, note.num_dropped) == ("ranks/0/steps.jsonl", 1)


def test_garbled_step_lines_are_dropped_and_counted(run: SyntheticRun) -> None:
    header = json.dumps({"columns": ["step", "start_ns", "dur_ns"]})
    good = ["[0,10,5]", "[1,15,5]"]
    bad = [
        "[2,20]",
        "[3,null,5]",
        "[4,25,-1]",
        "[5,1e400,1]",
        f"[6,30,{10**30}]",
        f"[{10**12},1,1]",
        "\x00\x00",
        "{",
    ]
    run.write("ranks/0/steps.jsonl", "\n".join([header, good[0], *bad, good[1]]))
    reader = run.read()
    assert reader.steps(0).column("step").to_pylist() == [0, 1]
    assert sum(note.num_dropped for note in reader.notes) == len(bad) - 1  # "{" is a torn second header
    assert any("2 processes" in note.reason for note in reader.notes)


def test_steps_without_a_header_are_dropped_and_counted(run: SyntheticRun) -> None:
    run.write("ranks/0/steps.jsonl", "[0,10,5]\n[1,15,5]\n")
    reader = run.read()
    assert reader.steps(0).num_rows == 0
    assert reader.notes[0].num_dropped == 2


def test_a_rank_without_a_readable_rank_json_is_named_and_the_others_go_on(run: SyntheticRun) -> None:
    run.rank(2)
    run.write("ranks/1/rank.json", '{"rank": 1')
    run.write("ranks/notes.txt", "not a rank")
    reader = run.read()
    assert reader.ranks == (0, 2)
    assert {note.path for note in reader.notes} == {"ranks/1/rank.json"}


def test_broken_lines_and_documents_of_a_rank_are_counted(run: SyntheticRun) -> None:
    run.write("ranks/0/windows.jsonl", '{"window": 0}\n{"window"')
    run.write("ranks/0/layers.json", "nonsense")
    reader = run.read()
    assert reader.windows(0) == ({"window": 0},)
    assert reader.layers(0) is None
    assert reader.errors(0) == ()
    lost = "ranks/0/windows/0.json.gz"
    assert {note.path for note in reader.notes} == {"ranks/0/windows.jsonl", "ranks/0/layers.json", lost}


def test_a_document_of_another_host_or_rank_is_noticed(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    for rank in range(2):
        run.rank(rank)
        write_json(run.path / f"ranks/{rank}/bench.json", {"held_out_loss": float(rank)})
        (run.path / f"hosts/{rank}").mkdir(parents=True)
        write_json(run.path / f"hosts/{rank}/ceilings.json", {"host": str(rank)})
    run.write("run.json", {"schema_version": 1, "inventory": take_inventory(run.path)})
    whole = run.read()
    assert whole.bench_records()[1].held_out_loss == 1.0 and whole.ceilings("1") is not None
    assert whole.notes == ()
    for name in ("ranks/{}/bench.json", "hosts/{}/ceilings.json"):
        shutil.copy(run.path / name.format(0), run.path / name.format(1))
    exchanged = run.read()
    assert list(exchanged.bench_records()) == [0] and exchanged.ceilings("1") is None
    assert {note.path for note in exchanged.notes} == {"ranks/1/bench.json", "hosts/1/ceilings.json"}


@pytest.mark.parametrize("kept", ["windows/0.json", "windows/0.json.gz"])
def test_a_listed_window_whose_trace_is_there_is_not_lost(run: SyntheticRun, kept: str) -> None:
    run.write("ranks/0/windows.jsonl", '{"window": 0}\n')
    run.write(f"ranks/0/{kept}", "x")
    reader = run.read()
    assert reader.windows(0) == ({"window": 0},)
    assert reader.notes == ()


def restarted(run: SyntheticRun, *, first: int, second: int) -> SyntheticRun:
    """Rank 0 as two processes left it; the second is on another host so that the two can be distinguished."""
    for name, num_steps, host in (("0", first, "one"), ("0.1", second, "two")):
        run.write(f"ranks/{name}/rank.json", {"schema_version": 1, "rank": 0, "host": host})
        lines = [json.dumps({"columns": ["step", "start_ns", "dur_ns"]})]
        lines += [f"[{step},{step * 10},10]" for step in range(num_steps)]
        run.write(f"ranks/{name}/steps.jsonl", "\n".join(lines) + "\n")
    return run


@pytest.mark.parametrize(
    ("first", "second", "host", "note"),
    [
        (6, 64, "two", ("ranks/0", "6 steps, not shown; ranks/0.1 is")),
        (64, 1, "one", ("ranks/0.1", "1 step, not shown; ranks/0 is")),
        (8, 8, "two", ("ranks/0", "8 steps, not shown; ranks/0.1 is")),
    ],
)
def test_of_a_restarted_rank_the_longest_attempt_is_read(
    run: SyntheticRun, first: int, second: int, host: str, note: tuple[str, str]
) -> None:
    reader = restarted(run, first=first, second=second).read()
    assert reader.ranks == (0,)
    assert reader.rank_records[0].host == host
    assert reader.steps(0).num_rows == max(first, second)
    assert [(one.path, one.reason) for one in reader.notes] == [note]


def test_a_restart_that_left_no_rank_json_does_not_hide_the_first_attempt(run: SyntheticRun) -> None:
    restarted(run, first=6, second=64)
    (run.path / "ranks/0.1/rank.json").unlink()
    assert run.read().rank_records[0].host == "one"


def test_a_summary_ingested_of_another_attempt_is_not_mixed_in(run: SyntheticRun) -> None:
    restarted(run, first=6, second=64)
    run.window(0, [span(0, 10, "compute")], [(0, 0, 100)])
    run.window(
        0,
        [span(0, 10, "compute")],
        [(0, 0, 100)],
        window=1,
        source={"path": "ranks/0.1/windows/1.json.gz"},
    )
    assert [summary.window for summary in run.read().summaries()] == [1]


def test_a_rank_of_a_newer_schema_is_left_out_and_named(run: SyntheticRun) -> None:
    run.rank(1, schema_version=SCHEMA_VERSION + 1)
    reader = run.read()
    assert reader.ranks == (0,)
    assert [(note.path, "newer perfscope" in note.reason) for note in reader.notes] == [
        ("ranks/1/rank.json", True)
    ]


def test_a_run_whose_steps_file_is_gone_says_where_its_steps_are_from(run: SyntheticRun) -> None:
    (run.path / "ranks/0/steps.jsonl").unlink()
    run.window(0, [span(0, 10, "compute")], [(0, 0, 100)])
    reader = run.read()
    assert reader.steps(0).num_rows == 1
    assert [note.path for note in reader.notes] == ["ranks/0/steps.jsonl"]


def test_steps_of_an_import_come_from_the_trace_marks(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, origin="import")
    run.rank(0)
    run.window(0, [span(0, 10, "compute")], [(7, 0, 100), (8, 100, 250)])
    table = run.read().steps(0)
    assert table.column("step").to_pylist() == [7, 8]
    assert table.column("dur_ns").to_pylist() == [100, 150]
    assert table.column("window").to_pylist() == [0, 0]


def test_a_timeline_that_is_not_there_says_how_to_get_it(run: SyntheticRun) -> None:
    with pytest.raises(RunDirectoryError, match="run `perfscope report` again"):
        run.read().timeline(0, 0)


def test_a_timeline_is_read_by_the_thread_that_asks(
    run: SyntheticRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of Arrow's with a Python file in its hands aborts the process when the interpreter ends."""
    run.window(0, [span(0, 10, "compute")], [(0, 0, 100)])
    readers: set[threading.Thread] = set()

    class Watched(FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            readers.add(threading.current_thread())
            return super().read(size)

    def watched(path: Path) -> FileIO:
        return Watched(path, "rb")

    monkeypatch.setattr("perfscope.rundir.opening.open_regular", watched)
    assert run.read().timeline(0, 0).num_rows == 1
    assert readers == {threading.current_thread()}


def test_columns_that_are_decoded_one_by_one_are_those_of_the_table(run: SyntheticRun) -> None:
    run.window(0, [span(0, 10, "compute"), span(20, 5, "comm")], [(0, 0, 100)])
    reader = run.read()
    table = reader.timeline(0, 0)
    columns = reader.timeline_columns(0, 0, table.column_names)
    assert columns.num_rows == 2
    assert all(columns.column(name).equals(table.column(name)) for name in table.column_names)
    with pytest.raises(RunDirectoryError, match="no_such"):
        reader.timeline_columns(0, 0, ["start_ns", "no_such"])


def test_a_damaged_timeline_says_so(run: SyntheticRun) -> None:
    run.window(0, [span(0, 10, "compute")], [(0, 0, 100)])
    reader = run.read()
    assert reader.timeline(0, 0, ["dur_ns"]).column_names == ["dur_ns"]
    path = run.path / "derived/timeline/rank-00000-window-000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        reader.timeline(0, 0)


def test_only_the_ranks_asked_for_are_opened(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    for rank in range(4):
        made.rank(rank)
        made.steps(rank, [30, 20, 20])
        made.window(rank, [span(0, 5, "compute")], [(0, 0, 10)])
    (made.path / "ranks" / "3" / "rank.json").write_text("torn")
    reader = RunReader(made.path, ranks=[2, 1, 9])
    assert reader.ranks == (1, 2)
    assert [summary.rank for summary in reader.summaries()] == [1, 2]
    assert reader.notes == ()
    assert RunReader(made.path).notes != ()


def test_a_part_of_a_run_reads_the_same_in_another_process_without_opening_the_run_again(
    run: SyntheticRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (1, 2):
        run.rank(rank)
        run.steps(rank, [40, 50])
    run.window(2, [span(0, 5, "compute")], [(0, 0, 10)])
    (run.path / "ranks" / "1" / "layers.json").write_text("torn")
    whole = RunReader(run.path)
    part = whole.part([2, 1])
    monkeypatch.setattr(RunReader, "__init__", None)  # unpickling does not call it
    there = pickle.loads(pickle.dumps(part))
    assert (there.ranks, sorted(there.rank_records)) == ((1, 2), [1, 2])
    assert there.steps(2).equals(whole.steps(2))
    assert there.timeline(2, 0).equals(whole.timeline(2, 0))
    assert there.layers(1) is None
    assert [note.path for note in there.notes] == ["ranks/1/layers.json"]
    assert whole.notes == ()
    whole.add_notes(there.notes)
    assert whole.notes == there.notes
