"""What a job was, in figures: from sacct, else from what the controller still remembers.

sacct lags some seconds behind the end of a job, so it is asked until its rows are final.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Mapping, Sequence

from perfscope.slurm.jobs import ENDED, SlurmTask, state_word
from perfscope.slurm.programs import Caller, SlurmError, call

LIMIT_S = 12.0
_POLL_S = 0.5
_FIELDS = (
    *("JobIDRaw", "State", "ExitCode", "ElapsedRaw", "Submit", "Start", "End", "NodeList", "NNodes"),
    *("AllocCPUS", "MaxRSS", "ConsumedEnergyRaw", "Partition", "Account", "QOS"),
)
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_OF_STEPS = ("peak memory of a task", "energy of the job")
Facts = dict[str, object]
_Row = Mapping[str, str]


def job_facts(
    task: SlurmTask,
    *,
    ask: Caller = call,
    limit_s: float = LIMIT_S,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Facts:
    """What is known of a job that has ended.

    Returns:
        job (`12`, `12_3`), state, reason, exit_code, exit_signal, elapsed_s, submitted, started, ended
        (Slurm's local time), queued_s, nodes, num_nodes, num_cpus, restarts, max_rss_bytes (largest of a
        step's task), energy_joules, partition, account, qos: None where it is not known; source: "sacct",
        "scontrol" or "squeue"; missing: [{"what", "reason"}].
    """
    facts = _of_queue(task)
    controller = _of_controller(task, ask)
    facts |= controller
    end = clock() + limit_s
    while True:
        try:
            rows = _rows(ask(_sacct_words(task)))
        except SlurmError as error:
            return {**facts, "missing": _missing(_OF_STEPS, f"no accounting: {error}")}
        job = _own_row(rows, task)
        if job is not None and state_word(job["State"]) in ENDED and _time(job["End"]):
            return _of_accounting(facts, job, rows)
        if clock() > end:
            reason = "accounting had no final record of the job yet; `perfscope slurm follow` asks again"
            return {**facts, "missing": _missing(_OF_STEPS, reason)}
        sleep(_POLL_S)


def _sacct_words(task: SlurmTask) -> list[str]:
    form = ",".join(_FIELDS)
    return ["sacct", "--noheader", "--parsable2", "--duplicates", f"--jobs={task.name}", f"--format={form}"]


def _rows(text: str) -> list[_Row]:
    lines = (line.split("|") for line in text.splitlines())
    return [dict(zip(_FIELDS, fields, strict=True)) for fields in lines if len(fields) == len(_FIELDS)]


def _own_row(rows: Sequence[_Row], task: SlurmTask) -> _Row | None:
    """The job's own row; of one that was requeued the last."""
    own_rows = [row for row in rows if row["JobIDRaw"] == str(task.job_id)]
    return own_rows[-1] if own_rows else None


def _of_accounting(facts: Facts, job: _Row, rows: Sequence[_Row]) -> Facts:
    steps = [row for row in rows if row["JobIDRaw"].startswith(f"{job['JobIDRaw']}.")]
    # Steps of the attempt that counts: an attempt's steps begin when it does, or later.
    steps = [row for row in steps if row["Start"] >= job["Start"]]
    training = [row for row in steps if row["JobIDRaw"].rpartition(".")[2].isdigit()] or steps
    memory = max((_bytes(row["MaxRSS"]) or 0 for row in training), default=0) or None
    energy = max((_whole(row["ConsumedEnergyRaw"]) or 0 for row in (job, *steps)), default=0) or None
    missing = []
    if memory is None:
        missing += _missing(_OF_STEPS[:1], "accounting has no memory of its steps (JobAcctGatherType)")
    if energy is None:
        missing += _missing(_OF_STEPS[1:], "the cluster does not measure it (AcctGatherEnergyType)")
    values: Facts = {
        "state": state_word(job["State"]),
        "elapsed_s": _whole(job["ElapsedRaw"]),
        "submitted": _time(job["Submit"]),
        "started": _time(job["Start"]),
        "ended": _time(job["End"]),
        "queued_s": _between(job["Submit"], job["Start"]),
        "nodes": job["NodeList"] if job["NodeList"] != "None assigned" else None,
        "num_nodes": _whole(job["NNodes"]),
        "num_cpus": _whole(job["AllocCPUS"]),
        "partition": job["Partition"] or None,
        "account": job["Account"] or None,
        "qos": job["QOS"] or None,
        **_exit(job["ExitCode"]),
        "max_rss_bytes": memory,
        "energy_joules": energy,
        "restarts": _restarts(facts, rows, job),
        "source": "sacct",
    }
    return {**facts, **values, "missing": missing}


def _restarts(facts: Facts, rows: Sequence[_Row], job: _Row) -> int:
    """By the controller; where it has forgotten the job, by the attempts that accounting has."""
    num_restarts = _whole(facts["restarts"]) or 0
    if facts["source"] == "scontrol":  # accounting may hold an older job of the same number, too
        return num_restarts
    return max(num_restarts, sum(row["JobIDRaw"] == job["JobIDRaw"] for row in rows) - 1)


def _of_queue(task: SlurmTask) -> Facts:
    """What squeue said; every key there is."""
    keys = ("exit_code", "exit_signal", "elapsed_s", "submitted", "ended", "queued_s", "num_cpus")
    more = ("max_rss_bytes", "energy_joules", "partition", "account", "qos")
    return {
        "job": task.name,
        "state": task.state,
        "reason": task.reason or None,
        "started": task.start or None,
        "nodes": task.nodes or None,
        "num_nodes": task.num_nodes or None,
        "restarts": task.restarts,
        **dict.fromkeys((*keys, *more)),
        "source": "squeue",
    }


def _of_controller(task: SlurmTask, ask: Caller) -> Facts:
    """What scontrol says, which it does for some minutes after the end (MinJobAge)."""
    try:
        fields = show_job(str(task.job_id), ask)
    except SlurmError:
        return {}
    submitted, started, ended = (fields.get(name, "") for name in ("SubmitTime", "StartTime", "EndTime"))
    values: Facts = {
        "submitted": _time(submitted),
        "started": _time(started),
        "ended": _time(ended),
        "queued_s": _between(submitted, started),
        "elapsed_s": _seconds(fields.get("RunTime", "")),
        "num_nodes": _whole(fields.get("NumNodes")),
        "num_cpus": _whole(fields.get("NumCPUs")),
        "restarts": _whole(fields.get("Restarts")) or task.restarts,
        "partition": fields.get("Partition"),
        "account": fields.get("Account") if fields.get("Account") != "(null)" else None,
        "qos": fields.get("QOS") if fields.get("QOS") != "(null)" else None,
        **_exit(fields.get("ExitCode", "")),
        "source": "scontrol",
    }
    return {key: value for key, value in values.items() if value is not None}


def show_job(job: str, ask: Caller = call) -> dict[str, str]:
    """`scontrol show job` by name. Values that may hold spaces (Command, WorkDir ...) are whole.

    Raises:
        SlurmError: see programs.call.
    """
    fields: dict[str, str] = {}
    for line in ask(["scontrol", "show", "job", job]).splitlines():
        text = line.strip()
        if text.startswith(("Command=", "WorkDir=", "StdOut=", "StdErr=", "Comment=")):
            name, _, value = text.partition("=")
            fields.setdefault(name, value)
            continue
        for name, value in re.findall(r"(?:^|\s)([A-Z][A-Za-z/:]*)=(\S*)", text):
            fields.setdefault(name, value)
    return fields


def _missing(what: Sequence[str], reason: str) -> list[dict[str, str]]:
    return [{"what": name, "reason": reason} for name in what]


def _exit(text: str) -> Facts:
    """`3:0` is exit code 3, `0:15` ended by signal 15."""
    code, _, number = text.partition(":")
    if not code.isdigit():
        return {}
    return {
        "exit_code": int(code),
        "exit_signal": int(number) if number.isdigit() and number != "0" else None,
    }


def _time(text: str) -> str | None:
    return text if re.match(r"\d{4}-", text) else None


def _between(first: str, second: str) -> int | None:
    """Seconds from one of Slurm's times to another."""
    try:
        times = [datetime.datetime.fromisoformat(text) for text in (first, second)]
    except ValueError:
        return None
    return max(round((times[1] - times[0]).total_seconds()), 0)


def _seconds(text: str) -> int | None:
    """`1-02:03:04` or `02:03:04` -> seconds."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _bytes(text: str) -> int | None:
    """`123456K` -> bytes."""
    match = re.fullmatch(r"([0-9.]+)([KMGT]?)", text.strip())
    return round(float(match[1]) * _SIZES[match[2]]) if match else None


def _whole(value: object) -> int | None:
    match = re.match(r"[0-9]+", str(value))
    return int(match[0]) if match else None
