"""How the processes of each framework find each other in a job: lines of the batch script.

Everything is made in the job from what Slurm says there, so a script holds for any nodes and any job id.
Three pieces: lines of the batch script, text that every task runs before the command (as `bash -c`), and the
words that start the tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfscope.rundir.shell import quote
from perfscope.slurm.request import MPI, JobRequest
from perfscope.vocabulary.frameworks import FrameworkName


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """How one framework is started.

    Attributes:
        lines: of the batch script; `nodes`, `tasks`, `port` and address_of are there.
        task: what a task runs before the command, which is "$@" there; "" = it is the command itself.
        launch: shell words that start all tasks, up to the command.
    """

    lines: tuple[str, ...] = ()
    task: str = ""
    launch: tuple[str, ...] = ()


def rendezvous(job: JobRequest) -> Rendezvous:
    """The pieces for the job's framework."""
    return _MAKERS[job.framework](job)


def task_srun(job: JobRequest) -> tuple[str, ...]:
    """srun for one process per task."""
    argv = ["srun", '--ntasks="$tasks"', f"--ntasks-per-node={job.tasks_per_node}"]
    return (*argv, *_task_options(job))


def node_srun(job: JobRequest) -> tuple[str, ...]:
    """srun for one process per node, which starts the others itself and so needs all of the node's CPUs."""
    argv = ["srun", '--ntasks="${#nodes[@]}"', "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    if job.cpus_per_task:
        argv.append(f"--cpus-per-task={job.cpus_per_task * job.tasks_per_node}")
    return tuple(argv)


def _task_options(job: JobRequest) -> list[str]:
    # block: rank r runs on node r / tasks per node, which the lists of addresses below rely on.
    argv = ["--kill-on-bad-exit=1", "--distribution=block"]
    if job.cpus_per_task:  # since Slurm 22.05 srun does not take it from the job by itself
        argv.append(f"--cpus-per-task={job.cpus_per_task}")
    cpu_bind = job.cpu_bind or ("cores" if job.cpus_per_task else None)
    bindings = (("cpu-bind", cpu_bind), ("mem-bind", job.mem_bind), ("gpu-bind", job.gpu_bind))
    argv += [f"--{name}={quote(value)}" for name, value in bindings if value]
    if job.mpi:
        argv.append(f"--mpi={quote(job.mpi)}")
    return argv


def _exports(**variables: str) -> tuple[str, ...]:
    return tuple(f"export {name}={value}" for name, value in variables.items())


def _interface(job: JobRequest, *names: str) -> tuple[str, ...]:
    """The site's network interface, under the names a framework knows it by."""
    return tuple(f"export {name}={quote(job.interface)}" for name in names) if job.interface else ()


_MASTER = _exports(MASTER_ADDR='"$address"', MASTER_PORT='"$port"')
_TORCH_TASK = "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
_JAX_TASK = "export JAX_PROCESS_ID=$SLURM_PROCID"
_TF_TASK = (
    'export TF_CONFIG="{\\"cluster\\": {\\"worker\\": [$WORKERS]},'
    ' \\"task\\": {\\"type\\": \\"worker\\", \\"index\\": $SLURM_PROCID}}"'
)
_EXEC = 'exec "$@"'


def _torch(job: JobRequest) -> Rendezvous:
    interfaces = _interface(job, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    if job.torchrun:
        launch = (
            *node_srun(job),
            *("torchrun", '--nnodes="${#nodes[@]}"', f"--nproc-per-node={job.tasks_per_node}"),
            *("--rdzv-backend=c10d", '--rdzv-endpoint="$address:$port"', '--rdzv-id="$SLURM_JOB_ID"'),
            "--no-python",
        )
        return Rendezvous(lines=interfaces, launch=launch)
    return Rendezvous(
        lines=(*_MASTER, *interfaces), task=f"{_TORCH_TASK}\n{_EXEC}", launch=(*task_srun(job), *_task())
    )


def _tensorflow(job: JobRequest) -> Rendezvous:
    lines = (*_workers(job), *_interface(job, "NCCL_SOCKET_IFNAME"))
    return Rendezvous(lines=lines, task=f"{_TF_TASK}\n{_EXEC}", launch=(*task_srun(job), *_task()))


def _keras(job: JobRequest) -> Rendezvous:
    """Keras trains on three frameworks: KERAS_BACKEND decides in the job, so all three find each other."""
    lines = (
        *_workers(job),
        *_MASTER,
        *_jax_lines(),
        *_interface(job, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    )
    task = "\n".join((_TF_TASK, _TORCH_TASK, _JAX_TASK, _EXEC))
    return Rendezvous(lines=lines, task=task, launch=(*task_srun(job), *_task()))


def _jax(job: JobRequest) -> Rendezvous:
    lines = (
        "# jax.distributed.initialize() finds all of it by itself under Slurm where names of nodes resolve;",
        "# where they do not, it takes the address from here.",
        *_jax_lines(),
        *_interface(job, "NCCL_SOCKET_IFNAME"),
    )
    return Rendezvous(lines=lines, task=f"{_JAX_TASK}\n{_EXEC}", launch=(*task_srun(job), *_task()))


def _jax_lines() -> tuple[str, ...]:
    return _exports(JAX_COORDINATOR_ADDRESS='"$address:$((port + 1))"', JAX_NUM_PROCESSES='"$tasks"')


def _workers(job: JobRequest) -> tuple[str, ...]:
    """Every worker's address in the order of ranks. Each has a port of its own, also beside others."""
    return (
        "WORKERS=",
        "worker_port=$((port + 2))",
        'for node in "${nodes[@]}"; do',
        '  node_address=$(address_of "$node")',
        f"  for ((local = 0; local < {job.tasks_per_node}; local++)); do",
        "    # shellcheck disable=SC2089 # the quotes are JSON's",
        '    WORKERS+="${WORKERS:+, }\\"$node_address:$worker_port\\""',
        "    worker_port=$((worker_port + 1))",
        "  done",
        "done",
        "# shellcheck disable=SC2090",
        "export WORKERS",
    )


def _mxnet(job: JobRequest) -> Rendezvous:
    servers = job.servers_per_node
    lines = (
        *_exports(
            DMLC_PS_ROOT_URI='"$address"',
            DMLC_PS_ROOT_PORT='"$port"',
            DMLC_NUM_WORKER='"$tasks"',
            DMLC_NUM_SERVER=f"$((${{#nodes[@]}} * {servers}))",
        ),
        *_interface(job, "DMLC_INTERFACE"),
    )
    # The scheduler and the servers run the same program: `import mxnet` serves there and never returns.
    task = f"""\
if [ "$SLURM_LOCALID" -eq 0 ]; then
  if [ "$SLURM_PROCID" -eq 0 ]; then DMLC_ROLE=scheduler "$@" & fi
  for ((server = 0; server < {servers}; server++)); do DMLC_ROLE=server "$@" & done
fi
status=0
DMLC_ROLE=worker "$@" || status=$?
if [ "$status" -ne 0 ]; then exit "$status"; fi # srun ends the others
wait"""
    return Rendezvous(lines=lines, task=task, launch=(*task_srun(job), *_task()))


def _horovod(job: JobRequest) -> Rendezvous:
    interfaces = _interface(job, "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
    if not job.horovodrun:
        return Rendezvous(lines=interfaces, launch=task_srun(job))
    lines = (
        "hosts=",
        'for node in "${nodes[@]}"; do',
        f'  hosts+="${{hosts:+,}}$(address_of "$node"):{job.tasks_per_node}"',
        "done",
    )
    launch: tuple[str, ...] = ("horovodrun", '-np "$tasks"', '-H "$hosts"')
    if job.interface:
        launch = (*launch, f"--network-interfaces {quote(job.interface)}")
    return Rendezvous(lines=(*lines, *interfaces), launch=launch)


def _mpi(job: JobRequest) -> Rendezvous:
    return Rendezvous(launch=task_srun(job))


def _task() -> tuple[str, ...]:
    return ("bash", "-c", '"$task"', "task")


_MAKERS: dict[str, Callable[[JobRequest], Rendezvous]] = {
    FrameworkName.TORCH: _torch,
    FrameworkName.TENSORFLOW: _tensorflow,
    FrameworkName.KERAS: _keras,
    FrameworkName.JAX: _jax,
    FrameworkName.MXNET: _mxnet,
    FrameworkName.HOROVOD: _horovod,
    MPI: _mpi,
}
