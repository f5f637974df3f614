"""Why sbatch refused a job, in a line that says what to do about it."""

from __future__ import annotations

from perfscope.settings import nearest
from perfscope.slurm.programs import Caller, SlurmError, Unreachable


def explain(error: SlurmError, asked: dict[str, str], ask: Caller) -> SlurmError:
    """The refusal for a user.

    Args:
        error: what sbatch said.
        asked: options that were asked for, by name: partition, account, qos ...
        ask: to find out what there is instead.
    """
    error_text = str(error)
    if isinstance(error, Unreachable) or not error_text.startswith("sbatch: "):
        return error  # sbatch was not asked, or did not come to an answer
    if "invalid partition" in error_text.lower():
        partitions = _partitions(ask)
        name = asked.get("partition", "")
        there = nearest(name, partitions) if partitions else "; `sinfo -s` lists what there is"
        return SlurmError(f"there is no partition {name!r}{there}")
    if "account or account/partition combination" in error_text:
        named = f" {asked['account']!r}" if "account" in asked else ""
        return SlurmError(
            f"the account{named} is not yours, or not for this partition: `sacctmgr show associations "
            "user=$USER format=account,partition,qos` lists what you may use (--account, --partition)"
        )
    if "invalid qos" in error_text.lower():
        named = f" {asked['qos']!r}" if "qos" in asked else ""
        return SlurmError(
            f"the QOS{named} does not exist or is not yours: `sacctmgr show associations user=$USER "
            "format=account,qos` lists what you may use (--qos)"
        )
    hint = next((hint for phrase, hint in _HINTS.items() if phrase in error_text.lower()), "")
    return SlurmError(f"Slurm refused the job: {error_text.removeprefix('sbatch: ')}{hint}")


_HINTS = {
    "node configuration is not available": "; no node has as many CPUs, GPUs or as much memory as asked for: "
    "`sinfo -N -o '%N %c %m %G %f'` lists what they have",
    "node count specification invalid": "; fewer --nodes, or another --partition",
    "more processors requested than permitted": "; fewer --ntasks-per-node or --cpus-per-task",
    "time limit": "; `sinfo -o '%P %l'` lists what partitions allow (--time)",
    "job violates accounting/qos policy": "; it asks for more than the account or QOS allows",
    "invalid job array specification": "; `scontrol show config | grep MaxArraySize` shows the largest",
    "invalid generic resource": "; the cluster knows no such GPU: `sinfo -o '%N %G'` lists them",
    "invalid feature": "; `sinfo -o '%N %f'` lists the features for --constraint",
    "memory specification": "; less --mem",
}


def _partitions(ask: Caller) -> list[str]:
    try:
        partitions = ask(["sinfo", "--noheader", "--format=%R"]).split()
    except SlurmError:
        return []
    return list(dict.fromkeys(partitions))
