"""Tasks of one Slurm step in one run directory: finding out who one is, meeting, and closing the run once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perfscope.errors import RunDirectoryError
from perfscope.launch import step_closing
from perfscope.launch.attachment import read_ranks
from perfscope.launch.joining import exclusive, is_for_step
from perfscope.launch.plan import LaunchPlan
from perfscope.launch.process import Ending
from perfscope.launch.slurm_job import StepTask, find_step_task, slurm_facts
from perfscope.launch.step_tasks import StepRoom, enter, enter_default, step_directory
from perfscope.rundir.layout import host_name
from perfscope.rundir.writer import create_run_dir, write_json
from tests.support.slurm_variables import variables

PLAN = LaunchPlan(launcher="python", argv=("python",), name="train")
WELL, FAILED = Ending(0, None), Ending(3, None)


def step_task(task: int, num_tasks: int = 4, per_node: int = 2, **more: str) -> StepTask:
    found = find_step_task({**variables(task, num_tasks, per_node), **more})
    assert found is not None
    return found


def room(directory: Path, task: int, num_tasks: int = 4, **more: str) -> StepRoom:
    return enter(step_task(task, num_tasks, 2, **more), directory, name="train", force=False)


def close(one: StepRoom, ending: Ending = WELL) -> None:
    one.ended(ending)
    one.say("closed", problems=[])


def seats(directory: Path, task: int, **facts: object) -> None:
    """Another host's task came and did what `facts` say."""
    line = json.dumps({"at": "came", "host": "elsewhere", "pid": 1, "namespace": "pid:[1]", **facts})
    (directory / ".owner" / f"{task}.jsonl").write_text(line + "\n")


def add_rank(run_dir: Path, rank: int, **more: object) -> Path:
    folder = run_dir / "ranks" / str(rank)
    folder.mkdir(parents=True)
    manifest = {"rank": rank, "host": host_name(), "pid": 2**22 + 1, "world_size": 4, "finished": True}
    (folder / "rank.json").write_text(json.dumps({**manifest, **more}))
    return folder


def no() -> bool:
    return False


# Who am I?


def test_a_task_knows_its_step_and_its_node() -> None:
    task = step_task(3)
    assert (task.job, task.step, task.task, task.num_tasks, task.num_nodes) == (77, 3, 3, 4, 2)
    assert (task.mates, task.local_leader, task.is_first) == ((2, 3), 2, False)
    assert task.step_name == "77.3"
    assert step_task(0, SLURM_RESTART_COUNT="2").step_name == "77.3-restart2"
    assert step_task(1, SLURM_GTIDS="").mates == (0, 1, 2, 3)
    assert step_task(3, SLURM_GTIDS="0,x").mates == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # a batch script
        variables(0, 1),  # srun --pty bash
        variables(0, SLURM_STEP_ID="4294967291"),  # the batch step itself
        variables(0, SLURM_NTASKS="2"),  # a batch script that was submitted from inside a step
        variables(5),  # contradicts itself
        variables(0, PMI_RANK="3", PMI_SIZE="8"),  # Hydra below Slurm
        variables(0, OMPI_COMM_WORLD_RANK="1"),
        variables(0, TORCHELASTIC_RUN_ID="x", RANK="3"),  # a worker of torchrun below srun
        variables(0, SLURM_PROCID="zero"),
    ],
)
def test_what_is_no_task_of_a_step(environment: dict[str, str]) -> None:
    assert find_step_task(environment) is None


def test_pmi2_ranks_of_srun_itself_are_tasks() -> None:
    assert find_step_task(variables(2, PMI_RANK="2", PMI_SIZE="4")) is not None
    assert find_step_task(variables(2, PMIX_RANK="2")) is not None


def test_facts_of_a_step_a_batch_script_and_an_array() -> None:
    facts = slurm_facts(variables(1, SLURM_CPUS_PER_TASK="2"))
    assert facts["step_id"] == 3
    assert (facts["num_nodes"], facts["node_list"], facts["tasks_per_node"]) == (2, "node[1-2]", "2(x2)")
    assert (facts["num_tasks"], facts["cpus_per_task"], facts["restart_count"]) == (4, 2, 0)
    assert (facts["job_name"], facts["partition"], facts["cluster"]) == ("tiny", "debug", "mini")
    script = {k: v for k, v in variables(0).items() if "STEP" not in k}
    script |= {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "5", "SLURM_TASKS_PER_NODE": "1(x4)"}
    facts = slurm_facts(script)
    assert (facts["step_id"], facts["num_nodes"], facts["node_list"]) == (None, 4, "node[1-4]")
    assert (facts["array_job_id"], facts["array_task_id"], facts["tasks_per_node"]) == (70, 5, "1(x4)")
    assert slurm_facts({**script, "SLURM_STEP_ID": "4294967290"})["step_id"] == "interactive"
    assert slurm_facts({}) == {}
    assert slurm_facts({**script, "SLURM_JOB_NAME": "x --token=abcdef123456"})["job_name"] != "abcdef123456"


# Meeting


def test_of_tasks_that_start_together_exactly_one_owns_the_run(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        rooms = list(pool.map(lambda task: room(tmp_path / "a" / "run", task, 8), range(8)))
    assert sorted(one.is_owner for one in rooms) == [False] * 7 + [True]
    assert {path.name for path in (tmp_path / "a" / "run").iterdir()} == {".owner", ".owner.lock"}


def test_default_places_are_named_by_job_and_step(tmp_path: Path) -> None:
    found = [enter_default(step_task(task), tmp_path, "my train.py") for task in range(3)]
    assert {one.run_dir for one in found} == {tmp_path / "perfscope-runs" / "slurm-77.3-my_train.py"}
    assert (tmp_path / "perfscope-runs" / "latest").readlink() == Path("slurm-77.3-my_train.py")
    assert (tmp_path / "perfscope-runs" / ".gitignore").exists()
    again = enter_default(step_task(1), tmp_path, "my train.py")
    assert again.run_dir.name == "slurm-77.3-my_train.py-2"
    restarted = enter_default(step_task(1, SLURM_RESTART_COUNT="1"), tmp_path, "my train.py")
    assert restarted.run_dir.name == "slurm-77.3-restart1-my_train.py"
    other = enter_default(step_task(1, SLURM_CLUSTER_NAME="maxi"), tmp_path, "my train.py")
    assert (other.run_dir.name, other.is_owner) == ("slurm-77.3-my_train.py-3", True)


def test_other_runs_and_foreign_directories_are_refused(tmp_path: Path) -> None:
    room(tmp_path / "run", 0)
    with pytest.raises(RunDirectoryError, match="already holds a run of this task"):
        room(tmp_path / "run", 0)
    with pytest.raises(RunDirectoryError, match="already holds the run of Slurm job 77, step 3"):
        room(tmp_path / "run", 0, SLURM_JOB_ID="78")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("")
    with pytest.raises(RunDirectoryError, match="is not empty"):
        room(tmp_path / "thesis", 0)
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter"]
    plain = create_run_dir(tmp_path / "plain", name="x", force=False)
    write_json(plain / "run.json", {"schema_version": 1, "perfscope_version": "0"})
    with pytest.raises(RunDirectoryError, match="already holds a run; choose another -o"):
        room(plain, 0)
    with pytest.raises(RunDirectoryError, match="is a file"):
        room(tmp_path / "thesis" / "chapter", 0)
    with pytest.raises(RunDirectoryError, match="cannot make"):
        room(Path("/proc/none/run"), 0)


def test_force_is_the_first_tasks_and_the_others_wait_for_it(tmp_path: Path) -> None:
    old = room(tmp_path / "run", 0, SLURM_JOB_ID="76")
    write_json(old.run_dir / "run.json", {"schema_version": 1, "perfscope_version": "0"})
    (old.run_dir / "notes-of-mine.txt").touch()
    with ThreadPoolExecutor(4) as pool:
        tasks = [step_task(task) for task in (3, 2, 1, 0)]
        found = list(pool.map(lambda one: enter(one, tmp_path / "run", name="x", force=True), tasks))
    assert sorted(one.is_owner for one in found) == [False, False, False, True]
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {".owner", ".owner.lock", "notes-of-mine.txt"}
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("")
    with pytest.raises(RunDirectoryError, match="holds no perfscope run"):
        enter(step_task(0), tmp_path / "thesis", name="x", force=True)


def test_a_requeued_job_leaves_its_first_try_alone(tmp_path: Path) -> None:
    assert step_directory(tmp_path / "run", step_task(0)) == tmp_path / "run"
    requeued = step_task(0, SLURM_RESTART_COUNT="1")
    assert step_directory(tmp_path / "run", requeued) == tmp_path / "run-restart1"


def test_who_may_share_a_directory_named_by_the_environment(tmp_path: Path) -> None:
    assert is_for_step(tmp_path / "new")
    room(tmp_path / "step", 0)
    assert is_for_step(tmp_path / "step")
    with exclusive(tmp_path / "step"):
        assert (tmp_path / "step" / ".owner" / "lock").exists()
    (tmp_path / "joined").mkdir()
    (tmp_path / "joined" / ".owner").touch()
    assert not is_for_step(tmp_path / "joined")


def test_the_others_wait_until_the_nodes_eldest_has_measured(tmp_path: Path) -> None:
    local_leader, other = room(tmp_path, 2), room(tmp_path, 3)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.await_measured, 30, no)
        assert not waiting.done()
        local_leader.say("measured")
        waiting.result(timeout=10)


# Ending


def test_the_last_to_end_says_the_last_word(tmp_path: Path) -> None:
    rooms = [room(tmp_path, task) for task in range(4)]
    for one in rooms:
        close(one)
    said = [step_closing.await_end(one, WELL, no) for one in rooms]
    (end,) = [one for one in said if one]
    assert (end.status, end.ending, end.failed) == ("finished", WELL, ())
    assert step_closing.task_notes(end) == []


def test_a_task_at_its_last_duties_is_left_the_last_word(tmp_path: Path) -> None:
    rooms = [room(tmp_path, task, 2) for task in range(2)]
    rooms[1].ended(FAILED)  # and packs the node's windows now
    close(rooms[0], FAILED)
    assert step_closing.await_end(rooms[0], FAILED, lambda: True) is None
    rooms[1].say("closed", problems=["x"])
    end = step_closing.await_end(rooms[1], FAILED, no)
    assert end is not None
    assert (end.is_last_word, end.problems) == (True, ("x",))


def test_a_nodes_last_task_closes_what_the_node_shares(tmp_path: Path) -> None:
    rooms = [room(tmp_path, task) for task in range(4)]
    rooms[2].ended(WELL)
    assert not rooms[2].is_last_here()
    rooms[3].ended(FAILED)
    assert [one.is_last_here() for one in rooms] == [False, False, True, False]


def test_a_failing_task_and_what_it_draws_with_it(tmp_path: Path) -> None:
    rooms = [room(tmp_path, task) for task in range(4)]
    for task, ending in ((1, FAILED), (0, Ending(1, None)), (2, Ending(137, 9)), (3, WELL)):
        close(rooms[task], ending)
    end = step_closing.await_end(rooms[3], WELL, no)
    assert end is not None
    assert (end.status, end.ending) == ("incomplete", Ending(137, 9))
    assert [one.task for one in end.failed] == [1, 0, 2]
    note = f"task 1 on {host_name()} ended with exit code 3; 2 more failed after it"
    assert step_closing.task_notes(end) == [note]


def test_cancelled_tasks_share_one_note(tmp_path: Path) -> None:
    for one in [room(tmp_path, task) for task in range(4)]:
        close(one, Ending(143, 15))
    end = step_closing.await_end(one, Ending(143, 15), no)
    assert end is not None
    assert end.status == "incomplete"
    assert step_closing.task_notes(end) == [
        "every task ended by signal 15: canceled, requeued or out of time"
    ]


def dead_process() -> int:
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    return int(ended.stdout)


def test_a_killed_wrapper_is_not_waited_for(tmp_path: Path) -> None:
    rooms = [room(tmp_path, task, 2) for task in range(2)]
    seat = tmp_path / ".owner" / "0.jsonl"
    seat.write_text(seat.read_text().replace(str(os.getpid()), str(dead_process())))
    close(rooms[1])
    assert rooms[1].is_last_here()
    end = step_closing.await_end(rooms[1], WELL, no)
    assert end is not None
    assert (end.status, end.ending) == ("incomplete", None)
    (note,) = step_closing.task_notes(end)
    assert note == "task 0 left no ending: its perfscope was killed"


def test_tasks_elsewhere_are_waited_for_while_they_show_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_closing, "PATIENCE_S", 0.6)
    first = room(tmp_path, 0)
    close(first)
    for task in (1, 2, 3):
        seats(tmp_path, task)
    steps = add_rank(tmp_path, 1, finished=False) / "steps.jsonl"
    steps.write_text("{}\n")
    looks = iter(range(1000))

    def grow() -> bool:
        steps.write_text("x" * next(looks))
        return False

    assert step_closing.await_end(first, WELL, grow) is None
    end = step_closing.await_end(first, WELL, no)
    assert end is not None
    assert end.status == "incomplete"
    assert step_closing.task_notes(end)[0].startswith("tasks 1, 2, 3 had not ended when this")
    assert step_closing.await_end(first, WELL, no) is None  # said once


def test_tasks_that_never_came_are_named(tmp_path: Path) -> None:
    first = room(tmp_path, 0)
    seats(tmp_path, 2)
    close(first, FAILED)
    end = step_closing.await_end(first, FAILED, lambda: True)
    assert end is not None
    assert "tasks 1, 3 never came, so nothing of them is here" in step_closing.task_notes(end)


def test_a_directory_of_one_node_is_closed_by_its_own_tasks(tmp_path: Path) -> None:
    rooms = [room(tmp_path, task) for task in (2, 3)]
    for one in rooms:
        close(one)
    for rank in (2, 3):
        add_rank(tmp_path, rank)
    end = step_closing.await_end(rooms[0], WELL, no)
    assert end is not None
    manifest: dict[str, object] = {"expected_ranks": 4, "slurm": {"job_id": 77}}
    closed = step_closing.closed_manifest(rooms[0], manifest, PLAN, end, read_ranks(tmp_path))
    assert (closed["status"], closed["expected_ranks"], closed["attached_ranks"]) == ("finished", 4, 2)
    assert closed["slurm"] == {"job_id": 77, "failed_tasks": []}
    notes = closed["attach_notes"]
    assert isinstance(notes, list) and len(notes) == 1
    assert notes[0].startswith("only tasks 2, 3 of 4 can see this directory")


def test_torn_lines_of_a_task_are_left_out(tmp_path: Path) -> None:
    one = room(tmp_path, 0)
    with (tmp_path / ".owner" / "0.jsonl").open("a") as file:
        file.write('{"at":"ended","co')
    state = one.state(0)
    assert state is not None
    assert (state.host, state.pid, state.ending) == (host_name(), os.getpid(), None)
    assert one.state(3) is None


# All of it, with processes but without Slurm


def start_task(cwd: Path, task: int, *command: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), **variables(task, 2)}
    return subprocess.Popen(
        [sys.executable, "-m", "perfscope", "run", "--ceilings", "off", *options, "--", *command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_wrappers_record_one_run_and_speak_with_one_voice(tmp_path: Path) -> None:
    after_task_0 = "until grep -sq ended perfscope-runs/*/.owner/0.jsonl; do sleep 0.05; done; exit 3"
    scripts = ("exit 0", after_task_0)
    tasks = [start_task(tmp_path, task, "sh", "-c", script) for task, script in enumerate(scripts)]
    said = [line for task in tasks for line in task.communicate(timeout=60)[1].splitlines()]
    assert [task.returncode for task in tasks] == [0, 3]
    place = "perfscope-runs/slurm-77.3-sh"
    manifest = json.loads((tmp_path / place / "run.json").read_bytes())
    assert (manifest["status"], manifest["exit"]) == ("finished", {"code": 3, "signal": None})
    assert (manifest["launcher"], manifest["expected_ranks"]) == ("srun", 2)
    assert manifest["slurm"]["job_id"] == 77
    assert said[0] == "perfscope: attached 0 of expected 2 ranks"
    assert said[1] == f"perfscope: task 1 on {host_name()} ended with exit code 3"
    assert said[-1] == f"perfscope: run directory: {place}"
    assert len([line for line in said if "run directory" in line]) == 1


def test_of_tasks_that_are_refused_the_nodes_first_says_why(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").touch()
    tasks = [start_task(tmp_path, task, "touch", "started", options=("-o", "thesis")) for task in range(2)]
    said = [task.communicate(timeout=60)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [125, 125]
    assert said[0].endswith("thesis is not empty; choose another -o\n")
    assert said[1] == ""
    assert not (tmp_path / "started").exists()


def test_a_heterogeneous_job_is_told_of_as_a_whole() -> None:
    script = {
        "SLURM_JOB_ID": "5",
        "SLURM_HET_SIZE": "2",
        "SLURM_NTASKS": "1",
        "SLURM_JOB_NODELIST": "node1",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "node1",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "node[2-3]",
        "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
        "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2",
        "SLURM_NTASKS_HET_GROUP_0": "1",
        "SLURM_NTASKS_HET_GROUP_1": "4",
    }
    facts = slurm_facts(script)
    assert (facts["num_nodes"], facts["num_tasks"], facts["node_list"]) == (3, 5, "node1,node[2-3]")
