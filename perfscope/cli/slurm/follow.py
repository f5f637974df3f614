"""`perfscope slurm follow`: find the job, follow it, record it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import print_result
from perfscope.cli.slurm.options import waiting_options
from perfscope.errors import UsageError


@click.command("follow", context_settings=HELP)
@click.argument("job", metavar="JOBID|RUN")
@waiting_options
@click.option("--no-report", is_flag=True, help="Print no report when the job has ended.")
@click.option("--json", "as_json", is_flag=True, help="Print what is known of the job as JSON, no report.")
def command(job: str, no_wait: bool, timeout_pending: float | None, no_report: bool, as_json: bool) -> None:
    """Follow a job to its end, put what Slurm knows of it into its run, and print the report.

    The job is named by its id or by the run directory it makes. A run whose job was canceled, ran out of
    time or lost a node is marked incomplete, with the reason. With --no-wait the job's state is printed once.

    \b
    Examples:
      perfscope slurm follow 4711
      perfscope slurm follow perfscope-runs/20261122T010203Z-train-9f3a
      perfscope slurm follow 4711 --no-wait --json

    \b
    Exit codes: 0 the job completed (--no-wait: is known); 1 it did not, or cannot be followed;
      3 still queued after --timeout-pending; 130 detached.
    """
    from perfscope.cli.slurm.submit import follow_and_report
    from perfscope.slurm.jobs import is_job
    from perfscope.slurm.submission import JobPaths, find_place, job_of, place_of

    if no_wait and timeout_pending is not None:
        raise UsageError("--timeout-pending waits, --no-wait does not; leave one out")
    submitted: JobPaths | None
    path = Path.cwd() / job.rstrip("/")
    if is_job(job) and not path.exists():
        number, submitted = job, place_of(job)
    else:
        number, submitted = job_of(path), find_place(path)
    if no_wait:
        _look_once(number, submitted, as_json)
        return
    follow_and_report(number, submitted, timeout_pending, with_report=not no_report, as_json=as_json)


def _look_once(job: str, submitted: object, as_json: bool) -> None:
    """The state now; of a job that has ended all facts, which also go into its run."""
    from perfscope.cli.slurm.submit import SCHEMA_VERSION
    from perfscope.cli.slurm.watch import conclude
    from perfscope.slurm.jobs import all_ended, look_up
    from perfscope.slurm.reasons import reason_text
    from perfscope.slurm.submission import JobPaths

    where = submitted if isinstance(submitted, JobPaths) else None
    tasks = look_up(job)
    if all_ended(tasks):
        job_facts = conclude(tasks, where)
    else:
        job_facts = [
            {
                "job": task.name,
                "state": task.state,
                "reason": task.reason or None,
                "expected_start" if task.is_queued else "started": task.start or None,
                "elapsed": task.elapsed,
                "limit": task.limit or None,
                "nodes": task.nodes or None,
                "restarts": task.restarts,
                "run": str(where.of(task)) if where else None,
            }
            for task in tasks
        ]
    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "jobs": job_facts}
        print_result(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        return
    for job_fact in job_facts:
        parts = [f"job {job_fact['job']}", str(job_fact["state"]).lower()]
        if job_fact["state"] == "PENDING":
            parts.append(f"({reason_text(str(job_fact['reason'] or ''), job)})")
        elif job_fact.get("elapsed"):
            parts.append(f"{job_fact['elapsed']} of {job_fact['limit'] or 'no limit'} on {job_fact['nodes']}")
        print_result(" ".join(parts) + "\n")
