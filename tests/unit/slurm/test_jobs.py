"""Jobs of Slurm as they go: what no real cluster of one machine can be brought to do comes from stand-ins."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.cli.slurm.watch import Teller, ending_text
from perfscope.errors import RunDirectoryError
from perfscope.rundir.layout import RUN_JSON
from perfscope.slurm.accounting import job_facts, show_job
from perfscope.slurm.job_log import first_failure
from perfscope.slurm.jobs import SlurmTask, look_up
from perfscope.slurm.programs import NotKnown, SlurmError, Unreachable, _failure, call, plain
from perfscope.slurm.progress import StepCounter
from perfscope.slurm.reasons import is_hopeless, reason_text
from perfscope.slurm.record import (
    close_run,
    read_manifest,
    record_job,
    whole_exit_code,
    why_incomplete,
)
from perfscope.slurm.refusals import explain
from perfscope.slurm.submission import (
    JobPaths,
    find_place,
    job_environment,
    job_of,
    place_of,
    require_free,
    submit,
)
from perfscope.slurm.watching import PendingTooLong, Snapshot, watch

SQUEUE_WIDTHS = (64, 24, 24, 128, 32, 24, 24, 16, 12, 512)
RUNNING = ("12", "12", "RUNNING", "None", "2026-11-22T01:00:00", "0:42", "1:00:00", "2", "0", "node[1-2]")
SCONTROL = """\
JobId=12 JobName=my job name=x
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)
   Requeue=1 Restarts=1 BatchFlag=1 Reboot=0 ExitCode=0:15
   RunTime=1-00:01:05 TimeLimit=1-00:01:00 TimeMin=N/A
   SubmitTime=2026-11-22T01:00:00 EligibleTime=2026-11-22T01:00:00
   StartTime=2026-11-22T01:00:30 EndTime=2026-11-23T01:01:35 Deadline=N/A
   Partition=debug AllocNode:Sid=login:17
   NumNodes=2 NumCPUs=4 NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   Command=/home/alice/my runs/one.sbatch
   WorkDir=/home/alice
"""


def squeue(*rows: Sequence[str]) -> str:
    lines = (
        "".join(word.ljust(width) for word, width in zip(row, SQUEUE_WIDTHS, strict=True)) for row in rows
    )
    return "\n".join(lines) + "\n"


class Stand:
    """Slurm's programs: answers by name, in order; the last one again and again."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            name: list(value) if isinstance(value, list) else [value] for name, value in answers.items()
        }
        self.calls: list[list[str]] = []

    def __call__(self, words: Sequence[str], /) -> str:
        self.calls.append(list(words))
        left = self.answers.get(words[0], [SlurmError(f"{words[0]} is not on PATH")])
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def task(state: str = "RUNNING", **changes: Any) -> SlurmTask:
    return replace(SlurmTask(name="12", job_id=12, state=state), **changes)


def watched(looks: list[Any], limit_s: float | None = None) -> tuple[list[Snapshot], Clock]:
    clock, left = Clock(), iter(looks)

    def look(job: str) -> tuple[SlurmTask, ...]:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, tuple) else (found,)

    made = watch("12", pending_limit_s=limit_s, look=look, sleep=clock.sleep, clock=clock)
    return list(made), clock


# --- asking ----------------------------------------------------------------------------------------------


def test_a_job_is_read_from_squeue() -> None:
    pending = ("13_4", "17", "PENDING", "ReqNodeNotAvail, UnavailableNodes:node7", "N/A", "0:00", "UNLIMITED")
    stand = Stand(squeue=squeue((*pending, "1-2", "3", ""), RUNNING))
    first, second = look_up("12", stand)
    assert first == SlurmTask(
        name="12",
        job_id=12,
        state="RUNNING",
        start="2026-11-22T01:00:00",
        elapsed="0:42",
        limit="1:00:00",
        nodes="node[1-2]",
        num_nodes=2,
    )
    assert (second.array_index, second.job_id, second.restarts, second.num_nodes) == (4, 17, 3, 1)
    assert second.reason == "ReqNodeNotAvail, UnavailableNodes:node7" and second.start == "" == second.nodes


def test_the_first_part_of_a_heterogeneous_job_stands_for_all() -> None:
    parts = [("9+0", "9", *RUNNING[2:]), ("9+1", "10", *RUNNING[2:])]
    (found,) = look_up("9", Stand(squeue=squeue(*parts)))
    assert (found.name, found.job_id, found.array_index) == ("9", 9, None)


def test_a_job_that_the_controller_has_forgotten_is_asked_of_accounting() -> None:
    gone = NotKnown("Invalid job id specified")
    row = "12|12|CANCELLED by 1000|2026-11-22T01:00:00|00:00:09|01:00:00|node[1-2]|2\n"
    (found,) = look_up("12", Stand(squeue=gone, sacct=row))
    assert (found.state, found.has_ended, found.nodes) == ("CANCELLED", True, "node[1-2]")
    with pytest.raises(NotKnown, match="does not know job 12, or has forgotten it"):
        look_up("12", Stand(squeue=gone, sacct=SlurmError("Slurm accounting storage is disabled")))


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            Unreachable,
            "slurmctld",
        ),
        (
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
            Unreachable,
            "try again later",
        ),
        ("slurm_load_jobs error: Invalid job id specified", NotKnown, "does not know this job"),
        ("sbatch: fatal: Could not establish a configuration source", SlurmError, "login node"),
        ("", SlurmError, "said nothing"),
    ],
)
def test_what_slurm_says_becomes_one_line(said: str, kind: type, words: str) -> None:
    error = _failure("squeue", said, 1)
    assert type(error) is kind and words in str(error) and "\n" not in str(error)


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(SlurmError, match="sbatch-that-is-not is not on PATH: go to a login node"):
        call(["sbatch-that-is-not"])
    assert plain("sbatch: error: a\nsbatch: error: b\n") == "a; b"


@pytest.mark.parametrize(
    ("said", "asked", "words"),
    [
        (
            "invalid partition specified: gpuu",
            {"partition": "gpuu"},
            "no partition 'gpuu'; did you mean 'gpu'?",
        ),
        (
            "Batch job submission failed: Invalid account or account/partition combination specified",
            {"account": "x"},
            "the account 'x' is not yours",
        ),
        (
            "Batch job submission failed: Invalid qos specification",
            {"qos": "y"},
            "the QOS 'y' does not exist",
        ),
        (
            "Batch job submission failed: Requested node configuration is not available",
            {},
            "no node has as many CPUs",
        ),
        ("Batch job submission failed: Requested time limit is invalid", {}, "(--time)"),
    ],
)
def test_a_refusal_says_what_to_do(said: str, asked: dict[str, str], words: str) -> None:
    error = explain(SlurmError(f"sbatch: {said}"), asked, Stand(sinfo="debug\ngpu\ngpu\n"))
    assert words in str(error) and "\n" not in str(error)


def test_reasons_are_words_and_say_when_waiting_is_in_vain() -> None:
    assert reason_text("Resources", "12") == "Resources: the nodes it asks for are in use"
    assert not is_hopeless("Priority") and is_hopeless("PartitionTimeLimit")
    assert reason_text("JobHeldUser", "12").endswith("scontrol release 12")
    assert reason_text("SomethingNew", "12") == "SomethingNew"
    assert reason_text("", "12") == "it has just been submitted"


# --- following -------------------------------------------------------------------------------------------


def test_a_job_is_followed_to_its_end_with_growing_pauses() -> None:
    looks = [task("PENDING")] * 6 + [task()] * 20 + [task("COMPLETED")]
    seen, clock = watched(looks)
    assert [one.is_over for one in seen] == [False] * 26 + [True]
    waits = clock.pauses
    assert waits[0] == 0.5 and waits[5] > waits[4] > waits[1]
    assert waits[6] == 0.5  # it has started: look closely again
    assert max(waits) <= 20 and waits[-1] == 20


def test_a_controller_that_is_restarted_is_waited_for() -> None:
    down = Unreachable("Slurm's controller (slurmctld) does not answer")
    seen, _ = watched([task(), down, down, task("COMPLETED")])
    assert [bool(one.trouble) for one in seen] == [False, True, True, False] and seen[-1].is_over
    with pytest.raises(Unreachable):
        watched([task(), *[down] * 100])
    with pytest.raises(Unreachable):  # nothing is known of the job at all
        watched([down])


def test_a_job_that_does_not_start_is_left_in_the_queue() -> None:
    with pytest.raises(PendingTooLong) as caught:
        watched([task("PENDING", reason="PartitionNodeLimit")] * 100, limit_s=30)
    assert caught.value.task.reason == "PartitionNodeLimit" and caught.value.exit_code == 3
    seen, _ = watched([task("PENDING"), *[task()] * 100, task("COMPLETED")], limit_s=30)  # it did start
    assert seen[-1].is_over


def test_an_array_is_over_when_all_its_tasks_are() -> None:
    def tasks(*states: str) -> tuple[SlurmTask, ...]:
        return tuple(task(state, name=f"12_{k}") for k, state in enumerate(states))

    seen, _ = watched([tasks("RUNNING", "PENDING"), tasks("FAILED", "RUNNING"), tasks("FAILED", "COMPLETED")])
    assert [one.is_over for one in seen] == [False, False, True]


def test_the_user_is_told_what_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = JobPaths(run=tmp_path / "run")
    run_of(place.run, status="running")
    steps = place.run / "ranks/0/steps.jsonl"
    steps.parent.mkdir(parents=True)
    steps.write_text('{"columns": ["step"]}\n[0]\n[1]\n')
    teller = Teller("12", place)
    for one in (
        task("PENDING", reason="Resources", start="2031-01-02T03:04:05"),
        task("PENDING", reason="Resources", start="2031-01-02T03:04:06"),
        task(elapsed="0:10", limit="1:00", nodes="node[1-2]"),
        task("PENDING", restarts=1, reason="BeginTime"),
    ):
        teller.show(Snapshot(tasks=(one,)))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4  # nothing has changed between the first two
    assert lines[0].endswith("the nodes it asks for are in use; expected to start 2031-01-02 03:04")
    assert lines[1] == "perfscope: job 12 is running: 0:10 of 1:00 on node[1-2], step 2"
    assert "requeued" in lines[2] and "run-restart1" in lines[2]
    assert (read_manifest(place.run) or {})["status"] == "incomplete"


def test_steps_are_counted_without_reading_twice(tmp_path: Path) -> None:
    counter = StepCounter(tmp_path)
    assert counter.count() is None
    first = tmp_path / "ranks/0/steps.jsonl"
    first.parent.mkdir(parents=True)
    first.write_text('{"columns": ["step"]}\n[0]\n')
    assert counter.count() == 1
    with first.open("a") as file:
        file.write("[1]\n[2]\n")
    again = tmp_path / "ranks/0.1/steps.jsonl"
    again.parent.mkdir()
    again.write_text('{"columns": ["step"]}\n')
    assert counter.count() == 3


# --- what is known of an ended job -----------------------------------------------------------------------


def sacct(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


END = "2026-11-22T01:00:00|2026-11-22T01:00:07|2026-11-22T01:01:27"
JOB_ROW = f"12|COMPLETED|0:0|80|{END}|node[1-2]|2|4||1500|debug|research|normal"
BATCH_ROW = f"12.batch|COMPLETED|0:0|80|{END}|node1|1|2|900000K||||"
STEP_ROW = f"12.0|COMPLETED|0:0|78|{END}|node[1-2]|2|4|812500K|1400|||"


def test_facts_come_from_accounting_once_its_rows_are_final() -> None:
    late = f"12|RUNNING|0:0|80|{END.replace('2026-11-22T01:01:27', 'Unknown')}|node[1-2]|2|4||0|debug|||"
    stand = Stand(scontrol=SCONTROL, sacct=["", sacct(late), sacct(JOB_ROW, BATCH_ROW, STEP_ROW)])
    clock = Clock()
    facts = job_facts(task("COMPLETED"), ask=stand, sleep=clock.sleep, clock=clock)
    assert facts["state"] == "COMPLETED" and facts["source"] == "sacct" and facts["missing"] == []
    assert facts["max_rss_bytes"] == 812500 * 1024  # of the training's step, not of the batch script
    assert (facts["energy_joules"], facts["elapsed_s"], facts["queued_s"]) == (1500, 80, 7)
    assert (facts["account"], facts["nodes"], facts["num_cpus"]) == ("research", "node[1-2]", 4)
    assert len(clock.pauses) == 2


def test_without_accounting_the_controller_is_asked_and_the_rest_is_missing_with_the_reason() -> None:
    stand = Stand(scontrol=SCONTROL, sacct=SlurmError("sacct: Slurm accounting storage is disabled"))
    facts = job_facts(task("TIMEOUT", nodes="node[1-2]"), ask=stand)
    assert (facts["state"], facts["source"], facts["exit_signal"]) == ("TIMEOUT", "scontrol", 15)
    assert (facts["elapsed_s"], facts["queued_s"], facts["restarts"]) == (86465, 30, 1)
    assert facts["account"] is None and facts["max_rss_bytes"] is None
    missing = facts["missing"]
    assert isinstance(missing, list) and len(missing) == 2
    assert all("storage is disabled" in one["reason"] for one in missing)


def test_a_job_of_which_nobody_knows_anything_still_has_its_state() -> None:
    facts = job_facts(task("NODE_FAIL", nodes="node2"), ask=Stand())
    assert (facts["state"], facts["nodes"], facts["exit_code"]) == ("NODE_FAIL", "node2", None)


def test_accounting_that_stays_behind_is_not_waited_for_without_end() -> None:
    clock = Clock()
    stand = Stand(scontrol=SCONTROL, sacct="")
    facts = job_facts(task("COMPLETED"), ask=stand, sleep=clock.sleep, clock=clock)
    assert facts["source"] == "scontrol" and 10 < clock.now < 20


def test_of_a_requeued_job_the_last_attempt_counts() -> None:
    first = "12|NODE_FAIL|1:0|10|2026-11-22T00:00:00|2026-11-22T00:00:01|2026-11-22T00:00:11|node1|1|2||0|d||"
    step = (
        "12.0|CANCELLED|0:15|9|2026-11-22T00:00:00|2026-11-22T00:00:02|2026-11-22T00:00:11|node1|1|2|9G||||"
    )
    facts = job_facts(task("COMPLETED"), ask=Stand(sacct=sacct(first, step, JOB_ROW, STEP_ROW)))
    assert (facts["state"], facts["restarts"], facts["max_rss_bytes"]) == ("COMPLETED", 1, 812500 * 1024)


def test_paths_with_spaces_in_scontrol_are_whole() -> None:
    fields = show_job("12", Stand(scontrol=SCONTROL))
    assert fields["Command"] == "/home/alice/my runs/one.sbatch" and fields["JobState"] == "TIMEOUT"


def run_of(folder: Path, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    document = {"schema_version": 1, "perfscope_version": "0", "status": "finished", "slurm": {"job_id": 12}}
    (folder / RUN_JSON).write_text(json.dumps({**document, **more}))
    return folder


@pytest.mark.parametrize(
    ("state", "status", "reason"),
    [
        ("COMPLETED", "finished", ""),
        ("FAILED", "finished", ""),  # the command's own exit code says it
        ("CANCELLED", "finished", "the job was canceled (scancel) after 1:20"),
        ("TIMEOUT", "running", "the job reached its time limit after 1:20"),
        ("NODE_FAIL", "running", "a node of the job failed after 1:20"),
        ("PREEMPTED", "finished", "the job was preempted by another after 1:20"),
        ("OUT_OF_MEMORY", "running", "the job ran out of memory after 1:20"),
        ("FAILED", "running", "the job ended with exit code 9 after 1:20, and the run was not closed"),
    ],
)
def test_a_run_whose_job_was_cut_short_is_incomplete(
    state: str, status: str, reason: str, tmp_path: Path
) -> None:
    run = run_of(tmp_path / "run", status=status, end_unix_ns=None)
    (tmp_path / "run.12.neighbours").write_text('{"when": "before", "node": "node1"}\n{"torn')
    facts = {"state": state, "elapsed_s": 80, "exit_code": 9 if state == "FAILED" else 0}
    assert why_incomplete({"status": status}, facts).startswith(reason)
    assert record_job(run, facts)
    after = read_manifest(run)
    assert after is not None
    assert after["status"] == ("incomplete" if reason else "finished")
    assert str(after.get("incomplete", "")).startswith(reason)
    slurm = after["slurm"]
    assert isinstance(slurm, dict)
    assert slurm["job_id"] == 12 and slurm["job"]["state"] == state  # what the job wrote itself stays
    assert slurm["neighbours"] == [{"when": "before", "node": "node1"}]
    assert not (tmp_path / "run.12.neighbours").exists()


def test_a_command_that_ended_well_is_whole_whatever_became_of_its_job(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", exit={"code": 0, "signal": None})
    assert record_job(run, {"state": "TIMEOUT", "elapsed_s": 80}, 12)
    assert close_run(run, "job 12 was requeued", unless_finished=True)
    after = read_manifest(run) or {}
    assert after["status"] == "finished" and "incomplete" not in after
    assert close_run(run, "Slurm ended job 12")  # by a script that saw the signal
    assert record_job(run, {"state": "TIMEOUT", "elapsed_s": 80}, 12)
    assert (read_manifest(run) or {})["incomplete"] == "the job reached its time limit after 1:20"


def test_facts_of_the_last_attempt_do_not_go_into_the_run_of_an_earlier_one(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", status="running", slurm={"job_id": 12, "restart_count": 0})
    assert record_job(run, {"job": "12", "state": "COMPLETED", "restarts": 1}, 12)
    after = read_manifest(run) or {}
    assert after["incomplete"] == "job 12 was requeued" and after["slurm"] == {
        "job_id": 12,
        "restart_count": 0,
    }


LOG = """\
srun: error: node1: task 1: Exited with exit code 9
slurmstepd-node1: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-22T01:00:00 DUE TO JOB REQUEUE ***
srun: error: node2: task 2: Terminated
srun: error: node2: task 3: Exited with exit code 3
srun: error: node1: tasks 0-1: Terminated
"""


def test_the_task_that_failed_is_the_reason_why_srun_ended_the_others(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    assert first_failure(log) == ""
    log.write_text(LOG)
    assert first_failure(log) == "task 3 on node2: Exited with exit code 3"
    run = run_of(tmp_path / "run", status="incomplete", exit={"code": 143, "signal": None})
    assert record_job(run, {"state": "FAILED", "failed_task": first_failure(log)}, 12)
    said = "task 3 on node2: Exited with exit code 3; srun ended the others"
    assert (read_manifest(run) or {})["incomplete"] == said


def test_a_reason_is_given_once(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", status="running")
    assert close_run(run, "job 12 was requeued") and close_run(run, "something else")
    assert (read_manifest(run) or {})["incomplete"] == "job 12 was requeued"
    weak = run_of(tmp_path / "weak", status="running")
    assert close_run(weak, "Slurm ended job 12") and close_run(weak, "job 12 was requeued")
    assert (read_manifest(weak) or {})["attach_notes"] == ["job 12 was requeued"]
    assert not close_run(tmp_path / "nothing", "x") and not record_job(tmp_path / "nothing", {})


@pytest.mark.parametrize(("told", "own", "whole"), [(15, 143, 143), (3, 3, 3), (0, 0, 0), (15, None, 15)])
def test_slurm_takes_128_from_exit_codes(told: int, own: int | None, whole: int, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", exit={"code": own, "signal": None})
    assert whole_exit_code(run, {"exit_code": told}) == whole


def test_a_run_of_another_job_is_left_alone(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    before = (run / RUN_JSON).read_bytes()
    assert not record_job(run, {"state": "FAILED"}, 13) and (run / RUN_JSON).read_bytes() == before
    assert record_job(run, {"state": "COMPLETED"}, 12)


def test_the_end_of_a_job_is_a_line() -> None:
    facts = {"job": "12", "state": "TIMEOUT", "elapsed_s": 65, "exit_signal": 15, "exit_code": 0}
    rest = {"nodes": "node1", "queued_s": 3, "restarts": 1, "run_status": "incomplete"}
    assert ending_text({**facts, **rest}) == (
        "job 12 ended: timeout after 1:05 (signal 15) on node1, queued for 0:03, requeued 1 time; "
        "its run is marked incomplete"
    )
    canceled = {**facts, **rest, "state": "CANCELLED", "restarts": 0, "run_status": None}
    assert ending_text(canceled).startswith("job 12 canceled after 1:05 (signal 15) on node1")


# --- submitting ------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[JobPaths]:
    yield JobPaths(run=tmp_path / "runs" / "one")


def test_a_script_is_submitted_beside_its_run(place: JobPaths) -> None:
    stand = Stand(sbatch="12;mini\n")
    assert submit("#!/bin/bash\n", place, ask=stand) == "12"
    assert stand.calls == [["sbatch", "--parsable", str(place.script)]]
    assert place.script.read_text() == "#!/bin/bash\n" and not place.run.exists()
    assert job_of(place.run) == "12" == job_of(place.run.with_name("one-3-restart1"))
    assert find_place(place.run.with_name("one-restart2")) == place


def test_two_jobs_never_make_one_run(place: JobPaths) -> None:
    submit("", place, ask=Stand(sbatch="12\n"))
    with pytest.raises(RunDirectoryError, match="job 12 is queued or running for"):
        submit("", place, ask=Stand(sbatch="13\n", squeue=squeue(RUNNING)))
    over = ("12", "12", "FAILED", *RUNNING[3:])
    assert submit("", place, ask=Stand(sbatch="14\n", squeue=squeue(over))) == "14"
    run_of(place.run)
    with pytest.raises(RunDirectoryError, match="already holds a run; choose another -o"):
        require_free(place, Stand())


def test_runs_of_an_earlier_array_are_not_written_into(place: JobPaths) -> None:
    run_of(place.run.with_name("one-3"))
    require_free(place, Stand())
    with pytest.raises(RunDirectoryError, match="one-3 already holds a run"):
        require_free(place, Stand(), array=True)


def test_of_two_submits_at_the_same_moment_one_is_refused(place: JobPaths) -> None:
    place.run.parent.mkdir()
    place.ticket.touch()  # the other one is at sbatch now
    with pytest.raises(RunDirectoryError, match="another command is submitting"):
        submit("", place, ask=Stand(sbatch="13\n"))


def test_a_refused_job_leaves_the_place_free(place: JobPaths) -> None:
    with pytest.raises(SlurmError, match="there is no partition 'x'; there are debug"):
        submit(
            "",
            place,
            asked={"partition": "x"},
            ask=Stand(sbatch=SlurmError("sbatch: invalid partition specified: x"), sinfo="debug\n"),
        )
    assert list(place.run.parent.iterdir()) == []
    assert submit("", place, ask=Stand(sbatch="13\n")) == "13"


def test_slurm_that_is_not_there_refused_nothing(place: JobPaths) -> None:
    with pytest.raises(SlurmError, match=r"^sbatch is not on PATH: go to a login node"):
        submit("", place, ask=Stand(sbatch=SlurmError("sbatch is not on PATH: go to a login node")))


def test_the_job_is_what_the_script_says_whatever_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {
        "PERFSCOPE_RUN_DIR": "/run",
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_WAIT": "1",
        "SBATCH_ACCOUNT": "mine",
        "SLURM_CONF": "/x",
    }
    for name, value in {**asked, "SLURM_STEP_ID": "0", "OWN": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    script = "#!/bin/bash\n#SBATCH --time=30\n"
    kept = set(job_environment(tmp_path, script)) & {*asked, "SLURM_STEP_ID", "SLURM_JOB_ID", "OWN"}
    assert kept == {"SBATCH_ACCOUNT", "SLURM_CONF", "OWN"}


def test_runs_of_scripts_submitted_by_hand_are_found(tmp_path: Path) -> None:
    def found(job: str, more: str = "") -> Path | None:
        place = place_of(
            job, Stand(scontrol=f"Restarts=0 {more}\n   Command=/x/job.sh\n   WorkDir={tmp_path}\n")
        )
        return None if place is None else place.of(task(name="4_3" if job == "4" else job))

    runs = tmp_path / "perfscope-runs"
    for name in ("slurm-12.0-train", "slurm-2", "slurm-31.0-a", "slurm-31.1-b", "slurm-4_3", "slurm-5.0-x"):
        run_of(runs / name)
    assert found("12") == runs / "slurm-12.0-train"
    assert found("1") is None  # whose number begins those of others
    assert found("2") == runs / "slurm-2"
    assert found("31") is None  # which of the two?
    assert found("4") == runs / "slurm-4_3"
    assert found("5", "ArrayJobId=5") is None
    assert find_place(runs / "slurm-12.0-train").of(task(restarts=1)) == runs / "slurm-12.0-train"
    array = run_of(tmp_path / "mine", slurm={"job_id": 11, "array_job_id": 11, "array_task_id": 1})
    assert job_of(array) == "11_1"


def test_a_run_that_no_job_made_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", slurm=None)
    with pytest.raises(SlurmError, match="nothing says that"):
        job_of(run)
    assert job_of(run_of(tmp_path / "other")) == "12"  # the job itself has written its id
