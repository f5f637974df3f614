"""What Slurm says of a job now: its tasks, states and reasons, by squeue, and by sacct when it is gone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.slurm.programs import Caller, NotKnown, SlurmError, call

ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}
    | {"OUT_OF_MEMORY", "REVOKED"}
)
QUEUED = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_JOB = re.compile(r"[0-9]+(?:_[0-9]+)?")
# squeue's names of what we ask for, and how wide a column must be for the longest.
_COLUMNS = (
    ("jobarrayid", 64),
    ("jobid", 24),
    ("state", 24),
    ("reason", 128),
    ("starttime", 32),
    ("timeused", 24),
    ("timelimit", 24),
    ("numnodes", 16),
    ("restartcnt", 12),
    ("nodelist", 512),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmTask:
    """A job, or one task of an array.

    Attributes:
        name: `12` or `12_3`.
        job_id: its own number, also as a task of an array.
        state: Slurm's word: PENDING, RUNNING, COMPLETED ...
        reason: why it is pending, or ended so; "" = none.
        start: when it started or is expected to, as Slurm writes it; "" = not known.
        elapsed, limit: as Slurm writes them; "" = not known.
        nodes: `node[1-2]`; "" = none yet.
        num_nodes: how many it has or wants.
        restarts: how often it was requeued.
    """

    name: str
    job_id: int
    state: str
    reason: str = ""
    start: str = ""
    elapsed: str = ""
    limit: str = ""
    nodes: str = ""
    num_nodes: int = 0
    restarts: int = 0

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_queued(self) -> bool:
        return self.state in QUEUED

    @property
    def array_index(self) -> int | None:
        """Its index in an array; None = it is a job of its own."""
        _, underscore, index = self.name.partition("_")
        return int(index) if underscore and index.isdigit() else None


def is_job(text: str) -> bool:
    """Whether `text` is a job id: `12`, or `12_3` of an array."""
    return _JOB.fullmatch(text) is not None


def look_up(job: str, ask: Caller = call) -> tuple[SlurmTask, ...]:
    """The job's tasks, by index; one for a job that is no array.

    Raises:
        NotKnown: neither the queue nor accounting knows it.
        SlurmError: Slurm cannot be asked.
    """
    form = ",".join(f"{name}:{width}" for name, width in _COLUMNS)
    try:
        tasks = _parse(ask(["squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", "-O", form]))
    except NotKnown:
        tasks = ()
    if tasks:
        return tasks
    tasks = _of_accounting(job, ask)
    if not tasks:
        raise NotKnown(f"Slurm does not know job {job}, or has forgotten it and keeps no accounting")
    return tasks


def _parse(text: str) -> tuple[SlurmTask, ...]:
    tasks = []
    for line in text.splitlines():
        fields, position = {}, 0
        for name, width in _COLUMNS:
            fields[name] = _word(line[position : position + width])
            position += width
        name = _own_name(fields["jobarrayid"])
        if name and fields["jobid"].isdigit():
            tasks.append(
                SlurmTask(
                    name=name,
                    job_id=int(fields["jobid"]),
                    state=fields["state"],
                    reason=fields["reason"],
                    start=fields["starttime"],
                    elapsed=fields["timeused"],
                    limit=fields["timelimit"],
                    nodes=fields["nodelist"],
                    num_nodes=_whole(fields["numnodes"]),
                    restarts=_whole(fields["restartcnt"]),
                )
            )
    return tuple(sorted(tasks, key=lambda task: task.array_index or 0))


def _of_accounting(job: str, ask: Caller) -> tuple[SlurmTask, ...]:
    """The job as accounting remembers it; empty where there is none."""
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}"]
    try:
        text = ask([*argv, "--format=JobID,JobIDRaw,State,Start,Elapsed,Timelimit,NodeList,NNodes"])
    except SlurmError:
        return ()
    tasks = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 8 and _own_name(fields[0]):
            tasks.append(
                SlurmTask(
                    name=_own_name(fields[0]),
                    job_id=_whole(fields[1]),
                    state=state_word(fields[2]),
                    start=_word(fields[3]),
                    elapsed=fields[4],
                    limit=_word(fields[5]),
                    nodes=_word(fields[6]),
                    num_nodes=_whole(fields[7]),
                )
            )
    return tuple(tasks)


def _own_name(text: str) -> str:
    """`12_3` as it is; `12+0` is 12: the first part of a heterogeneous job stands for all; "" for others."""
    job, plus, part = text.partition("+")
    return job if is_job(job) and (not plus or part == "0") else ""


def state_word(text: str) -> str:
    """`CANCELLED by 1000` -> CANCELLED."""
    return text.split()[0] if text.split() else ""


def all_ended(tasks: Sequence[SlurmTask]) -> bool:
    return all(task.has_ended for task in tasks)


def _word(text: str) -> str:
    text = text.strip()
    return "" if text in ("N/A", "None", "(null)", "Unknown", "None assigned", "NOT_SET") else text


def _whole(text: str) -> int:
    match = re.match(r"[0-9]+", text.strip())
    return int(match[0]) if match else 0
