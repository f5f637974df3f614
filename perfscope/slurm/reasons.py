"""Slurm's reason codes in words, and what to do about those that pass by themselves never."""

from __future__ import annotations

# https://slurm.schedmd.com/job_reason_codes.html
_WAITS = {
    "Resources": "the nodes it asks for are in use",
    "Priority": "others are before it",
    "BeginTime": "its begin time has not come",
    "Dependency": "another job must end first",
    "Licenses": "licenses are in use",
    "Reservation": "its reservation has not begun",
    "ReqNodeNotAvail": "nodes it asks for are down or reserved",
    "QOSMaxJobsPerUserLimit": "you run as many jobs as the QOS allows",
    "JobArrayTaskLimit": "as many tasks of the array run as are to run at once",
    "AssocMaxJobsLimit": "the account runs as many jobs as it may",
    "Cleaning": "it was requeued and is being cleaned up",
    "None": "it has just been submitted",
    "": "it has just been submitted",
}
_NEVER = {
    "PartitionNodeLimit": "more nodes than the partition allows: fewer --nodes, or another --partition",
    "PartitionTimeLimit": "more time than the partition allows: less --time, or another --partition",
    "PartitionConfig": "the partition has nothing that fits: fewer nodes, CPUs or GPUs, less --mem or --time",
    "PartitionDown": "the partition is down: another --partition, or ask who runs the cluster",
    "PartitionInactive": "the partition is inactive: another --partition, or ask who runs the cluster",
    "BadConstraints": "no node has what --constraint asks for",
    "JobHeldUser": "you hold it: scontrol release JOB",
    "JobHeldAdmin": "an administrator holds it: ask who runs the cluster",
    "DependencyNeverSatisfied": "the job it depends on failed: scancel JOB",
    "InvalidAccount": "the account is not valid: another --account",
    "InvalidQOS": "the QOS is not valid: another --qos",
    "AccountNotAllowed": "the partition is closed to the account: another --account or --partition",
    "QOSNotAllowed": "the partition is closed to the QOS: another --qos or --partition",
    "AssocMaxNodePerJobLimit": "it asks for more nodes than the account allows: fewer --nodes",
    "QOSMaxNodePerUserLimit": "it asks for more nodes than the QOS allows: fewer --nodes",
    "QOSMaxWallDurationPerJobLimit": "it asks for more time than the QOS allows: less --time",
    "AssocMaxWallDurationPerJobLimit": "it asks for more time than the account allows: less --time",
    "MaxMemPerLimit": "it asks for more memory than is allowed: less --mem",
    "launch_failed_requeued_held": "it could not be started on its nodes and is held: scontrol release JOB",
}


def is_hopeless(reason: str) -> bool:
    """Whether a pending job will not start until a user or an administrator changes something."""
    return _code(reason) in _NEVER


def reason_text(reason: str, job: str) -> str:
    """`Resources: the nodes it asks for are in use`."""
    code = _code(reason)
    explanation = _NEVER.get(code, _WAITS.get(code, "")).replace("JOB", job)
    if code in ("", "None"):
        return explanation
    return f"{reason}: {explanation}" if explanation else reason


def _code(reason: str) -> str:
    return reason.partition(",")[0].strip().strip("()") if reason else ""
