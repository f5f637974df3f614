"""What a job's end adds to its run: facts in run.json, and the word "incomplete" where the job was cut short.

Called when nothing of the job writes any more. run.json is replaced by rename, as by everybody.

    run.json  status: "incomplete"              beside "running" and "finished"
              incomplete: "Slurm ended ..."     why, one line; stands first among attach_notes, too
              slurm: {..., "job": {...}}        accounting.job_facts; the rest of it the job wrote itself
              slurm: {..., "neighbours": [...]} who else used the nodes, before and after
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from perfscope.errors import UnreadableFileError
from perfscope.rundir import layout
from perfscope.rundir.documents import read_document
from perfscope.rundir.opening import read_bounded
from perfscope.rundir.records import RunRecord, SlurmJob, decode_run
from perfscope.rundir.redact import redact_text
from perfscope.rundir.writer import write_json
from perfscope.slurm.script import ENDED_BY_SLURM

INCOMPLETE = "incomplete"
_MOST_LINES = 4096
_WHY = {
    "CANCELLED": "the job was canceled (scancel)",
    "TIMEOUT": "the job reached its time limit",
    "NODE_FAIL": "a node of the job failed",
    "PREEMPTED": "the job was preempted by another",
    "OUT_OF_MEMORY": "the job ran out of memory",
    "BOOT_FAIL": "a node of the job did not boot",
    "DEADLINE": "the job reached its deadline",
    "REVOKED": "the job was taken back by its cluster",
}


def read_manifest(run: Path) -> dict[str, object] | None:
    """run.json of a run; None where there is none that can be read."""
    try:
        document = read_document(run / layout.RUN_JSON)
    except (OSError, ValueError):
        return None
    return document if "schema_version" in document else None


def read_run(run: Path) -> RunRecord:
    """run.json of a run, typed; with defaults alone where there is none that can be read."""
    return decode_run(read_manifest(run) or {})[0]


def close_run(run: Path, reason: str, *, unless_finished: bool = False) -> bool:
    """Marks a run as incomplete, unless the reason is known already; whether there is a run.

    Args:
        unless_finished: leave a run alone whose command ended well by itself.

    Raises:
        RunDirectoryError: run.json cannot be written.
    """
    manifest = read_manifest(run)
    if manifest is None:
        return False
    take_in_neighbours(run)
    record = decode_run(manifest)[0]
    if unless_finished and ended_well(record):
        return True
    if not record.incomplete or record.incomplete.startswith(ENDED_BY_SLURM):
        write_json(run / layout.RUN_JSON, _incomplete(manifest, reason))
    return True


def record_job(run: Path, facts: Mapping[str, object], job_id: int | None = None) -> bool:
    """Adds what is known of the ended job to its run, and marks it where the job was cut short.

    Args:
        facts: see accounting.job_facts.
        job_id: the job's own number; a run that another job made is left alone. One of an earlier attempt of
            it is only marked: the facts are of the last.

    Returns:
        Whether there is a run of this job.

    Raises:
        RunDirectoryError: run.json cannot be written.
    """
    manifest = read_manifest(run)
    if manifest is None:
        return False
    recorded = decode_run(manifest)[0].slurm or SlurmJob()
    if job_id is not None and recorded.job_id not in (None, job_id):
        return False
    attempt, attempts = recorded.restart_count, facts.get("restarts")
    if attempt is not None and isinstance(attempts, int) and attempt < attempts:
        return close_run(run, f"job {facts.get('job')} was requeued", unless_finished=True)
    take_in_neighbours(run)
    written = manifest.get("slurm")
    of_job: dict[str, object] = {**(written if isinstance(written, dict) else {}), "job": dict(facts)}
    seen = read_neighbours(run)
    if seen:
        of_job["neighbours"] = seen
    manifest = {**manifest, "slurm": of_job}
    reason = why_incomplete(manifest, facts)
    write_json(run / layout.RUN_JSON, _incomplete(manifest, reason) if reason else manifest)
    return True


def whole_exit_code(run: Path, facts: Mapping[str, object]) -> object:
    """The job's exit code; Slurm shows codes from 128 on without their 128, the run has them whole."""
    slurm_code, ended = facts.get("exit_code"), read_run(run).exit
    is_cut = ended is not None and isinstance(slurm_code, int) and ended.code == slurm_code + 128
    return ended.code if ended is not None and is_cut else slurm_code


def why_incomplete(manifest: Mapping[str, object], facts: Mapping[str, object]) -> str:
    """Why a run is only a part of what was to be recorded; "" = it is not.

    A command that failed by itself has run to its end: its exit code says so. One that ended well is whole,
    whatever became of the rest of its job. (A training that saves itself at SIGTERM and exits with 0 was
    marked by the batch script, which saw the signal.)
    """
    state, record = str(facts.get("state")), decode_run(dict(manifest))[0]
    if state in _WHY and not ended_well(record):
        return f"{_WHY[state]}{_after(facts)}"
    if record.status == "running":
        code = facts.get("exit_code")
        ending = f" with exit code {code}" if code else ""
        return f"the job ended{ending}{_after(facts)}, and the run was not closed: perfscope was killed"
    of_step = record.slurm is not None and isinstance(record.slurm.step_id, int)  # its tasks know better
    if state == "FAILED" and record.status == INCOMPLETE and not of_step:
        first = facts.get("failed_task") or f"a task of the job failed{_after(facts)}"
        return f"{first}; srun ended the others"
    return ""


def ended_well(record: RunRecord) -> bool:
    """Whether the run's command ended by itself with exit code 0, and the run was not marked since."""
    return record.status == "finished" and record.exit is not None and record.exit.code == 0


def take_in_neighbours(run: Path) -> None:
    """What the script wrote beside the run before it was killed goes where it belongs."""
    of_job = read_run(run).slurm
    beside = run.with_name(f"{run.name}.{of_job.job_id if of_job is not None else None}.neighbours")
    if run.is_dir() and not (run / layout.NEIGHBORS_JSONL).exists():
        with suppress(OSError):  # not there, or a run that may only be read: it is there to be seen
            beside.replace(run / layout.NEIGHBORS_JSONL)


def read_neighbours(run: Path) -> list[dict[str, object]]:
    """What the script saw on the nodes: when, node, unix (s), load, busy_cpus, others."""
    try:
        lines = read_bounded(run / layout.NEIGHBORS_JSONL).splitlines()[:_MOST_LINES]
    except (OSError, UnreadableFileError):
        return []
    looks = []
    for line in lines:
        with suppress(ValueError, RecursionError):  # torn by the end of the job
            entry = json.loads(line)
            if isinstance(entry, dict):
                looks.append(entry)
    return looks


def _incomplete(manifest: Mapping[str, object], reason: str) -> dict[str, object]:
    end, text = manifest.get("end_unix_ns"), redact_text(reason)
    before, notes = manifest.get(INCOMPLETE), manifest.get("attach_notes")
    notes = [note for note in notes if note not in (before, text)] if isinstance(notes, list) else []
    return {
        **manifest,
        "status": INCOMPLETE,
        INCOMPLETE: text,
        "attach_notes": [text, *notes],
        "end_unix_ns": end if isinstance(end, int) else time.time_ns(),
    }


def _after(facts: Mapping[str, object]) -> str:
    elapsed = facts.get("elapsed_s")
    return f" after {clock(elapsed)}" if isinstance(elapsed, int) else ""


def clock(seconds: int) -> str:
    """`1:02:03`, `2:03`, as Slurm writes times without leading zeros."""
    hours, remainder = divmod(max(seconds, 0), 3600)
    minutes, seconds = divmod(remainder, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
