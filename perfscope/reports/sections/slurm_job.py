"""The Slurm job that a run was a part of: rows for "The run", and a note where others used its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfscope import units
from perfscope.reports.display import visible
from perfscope.reports.model import Note

NOTABLE_CPUS = 0.5  # busy on an idle node, above which the report says so
_LONGEST = 300
_MOST_NODES = 4


def job_facts(run: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Which job it was, what accounting says of it, what its nodes did while it did nothing."""
    job = _mapping(run.get("slurm"))
    if job.get("job_id") is None:
        return
    yield "Slurm job", visible(", ".join(_which(job)), _LONGEST)
    account = ", ".join(_account(_mapping(job.get("job"))))
    if account:
        yield "Slurm's account of it", visible(account, _LONGEST)
    looks = _looks(job)
    for when in ("before", "after"):
        busy = [
            cpus
            for one in looks
            if one.get("when") == when and (cpus := _number(one, "busy_cpus")) is not None
        ]
        if busy:
            nodes = f"{len(busy)} node{'s' if len(busy) != 1 else ''}"
            yield f"Busy CPUs {when} it", f"{max(busy):.2f} at most, on {nodes}"


def neighbour_note(run: Mapping[str, object]) -> Note | None:
    """Says where somebody else used the nodes although the job did nothing on them; None = nobody did."""
    noisy = [
        one
        for one in _looks(_mapping(run.get("slurm")))
        if (_number(one, "busy_cpus") or 0.0) >= NOTABLE_CPUS or one.get("others")
    ]
    if not noisy:
        return None
    noisy.sort(key=lambda one: -(_number(one, "busy_cpus") or 0.0))
    named = [_in_words(one) for one in noisy[:_MOST_NODES]]
    more = f" and {len(noisy) - _MOST_NODES} more" if len(noisy) > _MOST_NODES else ""
    text = f"The job's nodes were in use while it did nothing on them: {'; '.join(named)}{more}."
    return Note(text=visible(text, 2 * _LONGEST), tone="caution")


def _which(job: Mapping[str, object]) -> Iterator[str]:
    yield f"{job['job_id']}" + (f" “{job['job_name']}”" if job.get("job_name") else "")
    if job.get("array_job_id") is not None:
        yield f"task {job.get('array_task_id')} of array {job['array_job_id']}"
    if isinstance(job.get("step_id"), int):
        yield f"step {job['step_id']}"
    if job.get("partition"):
        yield f"partition {job['partition']}"
    if job.get("node_list"):
        yield f"on {job['node_list']}"
    if job.get("num_tasks") is not None:
        yield f"{job['num_tasks']} task{'s' if job['num_tasks'] != 1 else ''}"
    restarts = job.get("restart_count")
    if isinstance(restarts, int) and restarts > 0:
        yield f"after {restarts} requeue{'s' if restarts != 1 else ''}"


def _account(facts: Mapping[str, object]) -> Iterator[str]:
    """`completed after 80 s, queued for 7 s, 793 MiB in its largest task, 1.50 kJ`."""
    if not facts.get("state"):
        return
    elapsed, queued = _number(facts, "elapsed_s"), _number(facts, "queued_s")
    state = str(facts["state"]).lower().replace("_", " ")
    yield state if elapsed is None else f"{state} after {_seconds(elapsed)}"
    if queued is not None:
        yield f"queued for {_seconds(queued)}"
    if (memory := _number(facts, "max_rss_bytes")) is not None:
        yield f"{units.format_bytes(memory)} in its largest task"
    if (energy := _number(facts, "energy_joules")) is not None:
        yield units.format_si(energy, "J")


def _seconds(value: float) -> str:
    """`80 s`, `1:20:00`: Slurm counts whole seconds."""
    if value < 120:
        return f"{value:.0f} s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def _in_words(look: Mapping[str, object]) -> str:
    others = f", processes of {look['others']}" if look.get("others") else ""
    return (
        f"{look.get('node')} {look.get('when')} it, {_number(look, 'busy_cpus') or 0.0:.2f} CPUs busy{others}"
    )


def _looks(job: Mapping[str, object]) -> list[Mapping[str, object]]:
    found = job.get("neighbours")
    return (
        [_mapping(one) for one in found] if isinstance(found, Sequence) and not isinstance(found, str) else []
    )


def _number(facts: Mapping[str, object], name: str) -> float | None:
    value = facts.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
