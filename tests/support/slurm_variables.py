"""The environment of a Slurm task, where a test plays the part of Slurm."""

from __future__ import annotations


def variables(task: int, num_tasks: int = 4, per_node: int = 2, **more: str) -> dict[str, str]:
    """What srun of Slurm 22.05 gives a task (those that matter here)."""
    node = task // per_node
    mates = range(node * per_node, min((node + 1) * per_node, num_tasks))
    return {
        "SLURM_CLUSTER_NAME": "mini",
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NAME": "tiny",
        "SLURM_JOB_PARTITION": "debug",
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_JOB_NODELIST": "node[1-4]",
        "SLURM_NTASKS": str(num_tasks),
        "SLURM_STEP_ID": "3",
        "SLURM_STEP_NUM_TASKS": str(num_tasks),
        "SLURM_STEP_NUM_NODES": str(-(-num_tasks // per_node)),
        "SLURM_STEP_NODELIST": "node[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x2)",
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task % per_node),
        "SLURM_NODEID": str(node),
        "SLURM_GTIDS": ",".join(map(str, mates)),
        **more,
    }
