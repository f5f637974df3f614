"""The Slurm job that a run was a part of: rows for "The run", and a note where others used its nodes."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope import units
from perfscope.messages.lists import counted, first_of
from perfscope.reports.display import visible
from perfscope.reports.model import Note
from perfscope.rundir.records import NodeLook, RunRecord, SlurmAccount, SlurmJob

NOTABLE_CPUS = 0.5  # busy on an idle node, above which the report says so
_LONGEST = 300
_MOST_NODES = 4


def job_facts(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Which job it was, what accounting says of it, what its nodes did while it did nothing."""
    job = run.slurm
    if job is None or job.job_id is None:
        return
    yield "Slurm job", visible(", ".join(_which(job)), _LONGEST)
    account = ", ".join(_account(job.job))
    if account:
        yield "Slurm's account of it", visible(account, _LONGEST)
    for when in ("before", "after"):
        looks = [look for look in job.neighbours if look.when == when]
        busy = [look_.busy_cpus for look_ in looks if look_.busy_cpus is not None]
        if busy:
            nodes = counted(len(busy), "node")
            yield f"Busy CPUs {when} it", f"{max(busy):.2f} at most, on {nodes}"


def neighbour_note(run: RunRecord) -> Note | None:
    """Says where other jobs used the nodes although this job did nothing on them; None = none did."""
    noisy = [
        look
        for look in (run.slurm.neighbours if run.slurm is not None else ())
        if (look.busy_cpus or 0.0) >= NOTABLE_CPUS or look.others
    ]
    if not noisy:
        return None
    noisy.sort(key=lambda look: -(look.busy_cpus or 0.0))
    named = first_of(map(_in_words, noisy), _MOST_NODES, separator="; ")
    text = f"The job's nodes were in use while it did nothing on them: {named}."
    return Note(text=visible(text, 2 * _LONGEST), tone="caution")


def _which(job: SlurmJob) -> Iterator[str]:
    yield f"{job.job_id}" + (f" “{job.job_name}”" if job.job_name else "")
    if job.array_job_id is not None:
        yield f"task {job.array_task_id} of array {job.array_job_id}"
    if isinstance(job.step_id, int):
        yield f"step {job.step_id}"
    if job.partition:
        yield f"partition {job.partition}"
    if job.node_list:
        yield f"on {job.node_list}"
    if job.num_tasks is not None:
        yield counted(job.num_tasks, "task")
    restarts = job.restart_count or 0
    if restarts > 0:
        yield f"after {counted(restarts, 'requeue')}"


def _account(facts: SlurmAccount) -> Iterator[str]:
    """`completed after 80 s, queued for 7 s, 793 MiB in its largest task, 1.50 kJ`."""
    if not facts.state:
        return
    elapsed, queued = facts.elapsed_s, facts.queued_s
    state = facts.state.lower().replace("_", " ")
    yield state if elapsed is None else f"{state} after {_seconds(elapsed)}"
    if queued is not None:
        yield f"queued for {_seconds(queued)}"
    if facts.max_rss_bytes is not None:
        yield f"{units.format_bytes(facts.max_rss_bytes)} in its largest task"
    if facts.energy_joules is not None:
        yield units.format_si(facts.energy_joules, "J")


def _seconds(value: float) -> str:
    """`80 s`, `1:20:00`: Slurm counts whole seconds."""
    if value < 120:
        return f"{value:.0f} s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def _in_words(look: NodeLook) -> str:
    others_text = f", processes of {look.others}" if look.others else ""
    return f"{look.node} {look.when} it, {look.busy_cpus or 0.0:.2f} CPUs busy{others_text}"
