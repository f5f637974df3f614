"""`perfscope collect`: one run out of the directories of several nodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.cli.collect import command
from perfscope.errors import PerfscopeError, RunDirectoryError, UsageError
from perfscope.launch.merging import collect
from perfscope.slurm.record import record_job

START = 1_750_000_000_000_000_000
SECOND = 1_000_000_000
STEP = {"cluster": "mini", "job_id": 77, "step_id": 0, "restart_count": 0}


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def add_rank(place: Path, name: str, *, host: str, steps: int = 5, **more: object) -> Path:
    rank = int(name.partition(".")[0])
    begin = START + 2 * SECOND
    meta = {
        "schema_version": 1,
        "rank": rank,
        "host": host,
        "pid": 100 + rank,
        "world_size": 4,
        "rank_source": "SLURM_PROCID",
        "anchors": [[1, begin], [2, begin + SECOND]],
        "finished": True,
        **more,
    }
    folder = place / "ranks" / name
    write(folder / "rank.json", meta)
    lines = [f"[{step},{step},1]" for step in range(steps)]
    write(folder / "steps.jsonl", "\n".join(['{"columns":["step","start_ns","dur_ns"]}', *lines, ""]))
    write(folder / "windows" / "0.json.gz", "trace")
    return folder


def node(
    tmp_path: Path,
    number: int,
    ranks: tuple[int, ...],
    *,
    slurm: Mapping[str, object] | None = STEP,
    **more: object,
) -> Path:
    """The directory of one node: its run.json, its ranks, its host."""
    place, host = tmp_path / f"node{number}", f"node{number}"
    write(
        place / "run.json",
        {
            "schema_version": 1,
            "perfscope_version": "0",
            "name": "train",
            "command": ["python", "train.py", "--node", str(number)],
            "host": host,
            "launcher": "srun",
            "start_unix_ns": START + number * SECOND,
            "end_unix_ns": START + 10 * SECOND,
            "status": "finished",
            "exit": {"code": 0, "signal": None},
            "expected_ranks": 4,
            "attached_ranks": len(ranks),
            "attach_notes": ["only tasks 0, 1 of 4 can see this directory: gather"],
            "git": {"commit": "abc"} if number == 1 else None,
            "slurm": slurm,
            **more,
        },
    )
    for rank in ranks:
        add_rank(place, str(rank), host=host)
    write(place / "hosts" / host / "samples.jsonl", "x" * 50)
    write(place / "hosts" / host / "topology.json", {})
    for name in ("sampler.lock", "watcher", "pids/1"):
        write(place / "hosts" / host / name, "")
    write(place / ".owner" / "0.jsonl", "{}")
    write(place / "derived" / "timeline" / "x.parquet", "")
    return place


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def manifest(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "run.json").read_bytes())
    return found


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    return [node(tmp_path, 1, (0, 1)), node(tmp_path, 2, (2, 3))]


def test_nodes_become_one_run_and_stay_as_they_are(tmp_path: Path, two: list[Path]) -> None:
    before = [contents(place) for place in two]
    found = collect(two, tmp_path / "run")
    assert [contents(place) for place in two] == before
    assert (found.attached, found.expected, found.missing, found.changed) == ((0, 1, 2, 3), 4, (), True)
    run = manifest(tmp_path / "run")
    assert (run["expected_ranks"], run["attached_ranks"], run["world_size"]) == (4, 4, 4)
    assert (run["status"], run["exit"], run["attach_notes"]) == ("finished", {"code": 0, "signal": None}, [])
    assert (run["start_unix_ns"], run["end_unix_ns"]) == (START + SECOND, START + 10 * SECOND)
    assert run["git"] == {"commit": "abc"}
    names = set(contents(tmp_path / "run"))
    assert "ranks/3/windows/0.json.gz" in names
    assert {"hosts/node1/samples.jsonl", "hosts/node2/topology.json"} <= names
    assert not [name for name in names if "lock" in name or "pids" in name or "watcher" in name]
    assert not [name for name in names if "derived" in name or "part" in Path(name).name]


def test_collecting_again_changes_nothing_whatever_the_order(tmp_path: Path, two: list[Path]) -> None:
    collect(two, tmp_path / "run")
    before = contents(tmp_path / "run")
    assert not collect(two[::-1], tmp_path / "run").changed
    assert contents(tmp_path / "run") == before
    collect(two[::-1], tmp_path / "other")
    assert manifest(tmp_path / "other") == manifest(tmp_path / "run")


def test_a_node_that_comes_later_is_added(tmp_path: Path, two: list[Path]) -> None:
    found = collect(two[1:], tmp_path / "run")
    assert found.missing == (0, 1)
    run = manifest(tmp_path / "run")
    assert (run["status"], run["attached_ranks"]) == ("incomplete", 2)
    assert "ranks 0, 1 are in none of the collected directories" in found.notes
    (tmp_path / "run" / "derived").mkdir()
    found = collect(two[:1], tmp_path / "run")
    assert (found.missing, found.notes) == ((), ())
    assert manifest(tmp_path / "run")["status"] == "finished"
    assert manifest(tmp_path / "run")["command"] == ["python", "train.py", "--node", "1"]  # rank 0's
    assert not (tmp_path / "run" / "derived").exists()


def test_a_half_copied_rank_gives_way_to_a_fuller_copy_only(tmp_path: Path, two: list[Path]) -> None:
    half = tmp_path / "half"
    shutil.copytree(two[0], half)
    (half / "ranks" / "1" / "rank.json").unlink()
    (half / "ranks" / "0" / "steps.jsonl").write_text('{"columns":["step","start_ns","dur_ns"]}\n[0,0,1]\n')
    (half / "hosts" / "node1" / "samples.jsonl").write_text("x")
    found = collect([half, two[1]], tmp_path / "run")
    assert (found.missing, found.attached) == ((1,), (0, 2, 3))
    assert found.notes == ("rank 1 was copied half (without rank.json): copy and collect again",)
    assert manifest(tmp_path / "run")["attached_ranks"] == 3
    found = collect([two[0]], tmp_path / "run")
    assert (found.tallies[0].num_replaced, found.tallies[0].num_copied) == (2, 0)
    assert sorted(path.name for path in (tmp_path / "run" / "ranks").iterdir()) == ["0", "1", "2", "3"]
    whole = contents(tmp_path / "run")
    assert not collect([half], tmp_path / "run").changed
    assert contents(tmp_path / "run") == whole
    assert whole["hosts/node1/samples.jsonl"][0] == b"x" * 50


def test_hosts_without_a_wrapper_bring_ranks_without_run_json(tmp_path: Path, two: list[Path]) -> None:
    (two[1] / "run.json").unlink()
    assert collect(two, tmp_path / "run").missing == ()
    with pytest.raises(RunDirectoryError, match=r"none of the directories has a run\.json"):
        collect(two[1:], tmp_path / "other")
    assert not (tmp_path / "other").exists()
    meta = json.loads((two[1] / "ranks" / "2" / "rank.json").read_bytes())
    write(two[1] / "ranks" / "2" / "rank.json", {**meta, "anchors": [[1, START - 3600 * SECOND]]})
    with pytest.raises(RunDirectoryError, match=r"rank 2 of .* did not train while the run went on"):
        collect(two, tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"slurm": {**STEP, "job_id": 78}}, "job_id is 77 and 78"),
        ({"slurm": {**STEP, "step_id": 1}}, "step_id is 0 and 1"),
        ({"slurm": {**STEP, "restart_count": 1}}, "restart_count"),
        ({"slurm": None}, "cluster is mini and not said"),
        ({"command": ["python", "other.py", "--node", "2"]}, "node1 and "),
        ({"name": "other"}, "name is train and other"),
        ({"start_unix_ns": START + 3600 * SECOND, "end_unix_ns": None}, "they began 3,599 s apart"),
        (
            {"start_unix_ns": START + 60 * SECOND, "end_unix_ns": None},
            "one began 50 s after the other ended",
        ),
    ],
)
def test_different_runs_are_refused_in_one_line(tmp_path: Path, change: dict[str, object], said: str) -> None:
    places = [node(tmp_path, 1, (0, 1)), node(tmp_path, 2, (2, 3), **change)]  # type: ignore[arg-type]
    with pytest.raises(RunDirectoryError, match="different runs") as refused:
        collect(places, tmp_path / "run")
    assert said in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_two_processes_cannot_have_been_one_rank_at_once(tmp_path: Path, two: list[Path]) -> None:
    add_rank(two[1], "1", host="node2")
    with pytest.raises(RunDirectoryError, match="two processes were rank 1 at the same time"):
        collect(two, tmp_path / "run")
    add_rank(two[1], "1", host="node2", rank_source="order of start")
    with pytest.raises(RunDirectoryError, match="their processes did not know their ranks"):
        collect(two, tmp_path / "run")
    add_rank(two[1], "1", host="node2", world_size=8)
    with pytest.raises(RunDirectoryError, match="of worlds of 4 and 8 ranks"):
        collect(two, tmp_path / "run")


def test_a_rank_that_was_restarted_on_another_node_is_one_more_attempt(
    tmp_path: Path, two: list[Path]
) -> None:
    later = START + 7 * SECOND
    add_rank(two[1], "1", host="node2", anchors=[[1, later], [2, later + SECOND]])
    collect(two, tmp_path / "run")
    assert (tmp_path / "run" / "ranks" / "1.1" / "rank.json").exists()
    assert not collect(two, tmp_path / "run").changed


def test_launchers_of_their_own_on_every_node_are_added_up(tmp_path: Path) -> None:
    """`torchrun --nnodes 2` without Slurm: each wrapper expects its own ranks only."""
    places = [
        node(tmp_path, number, ranks, slurm=None, expected_ranks=2, launcher="torchrun")
        for number, ranks in ((1, (0, 1)), (2, (2, 3)))
    ]
    found = collect(places, tmp_path / "run")
    assert (found.expected, found.missing) == (4, ())


def test_what_failed_on_one_node_failed_in_the_run(tmp_path: Path) -> None:
    failed = [{"task": 3, "host": "node2", "code": 3, "signal": None}]
    more: dict[str, object] = {
        "exit": {"code": 3, "signal": None},
        "attach_notes": ["task 3 on node2 ended with exit code 3"],
    }
    places = [
        node(tmp_path, 1, (0, 1)),
        node(tmp_path, 2, (2, 3), slurm={**STEP, "failed_tasks": failed}, **more),
    ]
    collect(places, tmp_path / "run")
    run = manifest(tmp_path / "run")
    assert (run["exit"], run["attach_notes"]) == (more["exit"], more["attach_notes"])
    slurm = run["slurm"]
    assert isinstance(slurm, dict)
    assert slurm["failed_tasks"] == failed


def test_targets_that_are_not_collected_runs_are_left_alone(tmp_path: Path, two: list[Path]) -> None:
    for target in (two[0], two[0] / "run", tmp_path):
        with pytest.raises(UsageError, match="in each other"):
            collect(two, target)
    other = node(tmp_path / "x", 3, ())
    with pytest.raises(RunDirectoryError, match="was not collected"):
        collect(two, other)
    write(tmp_path / "thesis" / "chapter", "")
    with pytest.raises(RunDirectoryError, match="is not empty"):
        collect(two, tmp_path / "thesis")


@pytest.mark.parametrize("damage", ["absent", "empty", "file", "broken"])
def test_sources_that_hold_no_run_are_named(tmp_path: Path, two: list[Path], damage: str) -> None:
    place = tmp_path / "source"
    if damage == "empty":
        place.mkdir()
    elif damage == "file":
        write(place, "")
    elif damage == "broken":
        write(place / "run.json", "{")
    with pytest.raises(RunDirectoryError, match="source"):
        collect([*two, place], tmp_path / "run")


def test_links_in_a_source_are_not_followed(tmp_path: Path, two: list[Path]) -> None:
    write(tmp_path / "secret", "s")
    (two[0] / "ranks" / "0" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(RunDirectoryError, match="ranks/0/link is a symbolic link"):
        collect(two, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_the_probes_swallowed_is_joined(tmp_path: Path, two: list[Path]) -> None:
    for number, place in enumerate(two):
        write(place / "boot-errors.txt", f"pid {number}: x\n")
    for _ in range(2):
        collect(two, tmp_path / "run")
    assert (tmp_path / "run" / "boot-errors.txt").read_text() == "pid 0: x\npid 1: x\n"


def test_the_command_prints_what_is_missing(tmp_path: Path, two: list[Path]) -> None:
    target = str(tmp_path / "run")
    ended = CliRunner().invoke(command, [str(two[0]), "-o", target, "--json"])
    assert ended.exit_code == 3
    document = json.loads(ended.stdout)
    assert (document["missing"], document["ranks"], document["expected_ranks"]) == ([2, 3], [0, 1], 4)
    assert "perfscope: ranks 2, 3 are in none of the collected directories" in ended.stderr
    ended = CliRunner().invoke(command, [*map(str, two), "-o", target])
    assert ended.exit_code == 0
    assert ended.stdout.splitlines() == [
        f"{two[0]}: ranks 0, 1: 2 there already",
        f"{two[1]}: ranks 2, 3: 2 copied",
        f"{target}: 4 of 4 ranks",
    ]
    assert (
        CliRunner()
        .invoke(command, [*map(str, two), "-o", target])
        .stdout.endswith("4 of 4 ranks, unchanged\n")
    )
    assert CliRunner().invoke(command, ["-o", target]).exit_code == 2
    with pytest.raises(PerfscopeError):
        CliRunner().invoke(command, [str(tmp_path / "none"), "-o", target], catch_exceptions=False)


def test_a_collection_that_was_interrupted_is_gone_on_with(
    tmp_path: Path, two: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("perfscope.launch.merging._copy_hosts", interrupted)
        with pytest.raises(KeyboardInterrupt):
            collect(two, tmp_path / "run")
    assert (tmp_path / "run" / "ranks" / "0").is_dir()
    assert collect(two, tmp_path / "run").missing == ()
    assert manifest(tmp_path / "run")["status"] == "finished"


def test_what_slurm_told_of_the_collected_run_is_kept(tmp_path: Path, two: list[Path]) -> None:
    collect(two[:1], tmp_path / "run")
    assert record_job(tmp_path / "run", {"state": "NODE_FAIL", "elapsed_s": 80, "restarts": 0}, 77)
    told = manifest(tmp_path / "run")
    assert not collect(two[:1], tmp_path / "run").changed
    assert manifest(tmp_path / "run") == told
    collect(two, tmp_path / "run")
    run = manifest(tmp_path / "run")
    assert (run["attached_ranks"], run["status"]) == (4, "incomplete")
    assert run["incomplete"] == "a node of the job failed after 1:20"
    slurm = run["slurm"]
    assert isinstance(slurm, dict)
    assert slurm["job"]["state"] == "NODE_FAIL"
