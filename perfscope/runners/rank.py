"""One rank of a bench run: `python -m perfscope.runners.rank CONFIG_JSON`.

Started by torchrun, mpiexec, srun or the emulated cluster. Prints nothing while all is well; whatever goes
wrong is one line on stderr, with the rank, and a non-zero exit code:

    2  the run cannot be (the same line on every rank, before anything is trained)
    3  another rank is gone, or did not answer in time
    1  anything else
"""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.starting.endings import EXIT_LOST_PEER

EXIT_FAILED, EXIT_IMPOSSIBLE = 1, 2
# What torch says when another rank is gone or silent, in whole phrases: its other errors name gloo, too.
_PEER_SIGNS = re.compile(
    r"connection closed by peer|connection reset by peer|broken pipe"
    r"|timed out waiting \d+ ?ms for (?:recv|send) operation|application timeout caused pair closure"
    r"|gloo/transport/\S+\] (?:read|connect) timeout"
    r"|gloo connectfullmesh failed|failed to pass monitoredbarrier"
    r"|client socket has timed out|timed out after \d+ seconds waiting for clients"
    r"|wait timeout after \d+ ?ms, keys:|connection was likely closed"
    r"|caught collective operation timeout|remote process exited or there was a network error",
    re.IGNORECASE,
)


def main(arguments: list[str]) -> int:
    """Trains as configured; returns the exit code."""
    rank = _own_rank()
    try:
        if len(arguments) != 1:
            raise BenchError("give one argument, the run's configuration as JSON")
        return _run(BenchConfig.from_json(arguments[0]), rank)
    except BenchError as error:
        _say(rank, str(error))
        return EXIT_IMPOSSIBLE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - the process's outermost boundary: one line, a code
        return _explain(rank, error)


def _run(config: BenchConfig, own_rank: str) -> int:
    from perfscope.runners.starting.guard import end_with_bench
    from perfscope.runners.starting.placement import bind_this_process

    end_with_bench(through_others=config.backend == "mpi")
    local_rank, local_size = _local()
    binding = bind_this_process(config, local_rank, local_size)  # before torch starts its threads
    _say_all(binding["notes"])
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # our line says more of a lost peer
    import torch

    from perfscope.runners.planning import plan
    from perfscope.runners.schemes.chunks import settled
    from perfscope.runners.schemes.registry import find_scheme
    from perfscope.runners.train import train
    from perfscope.runners.world import open_world

    threads = config.threads or binding.get("threads")
    if isinstance(threads, int):
        torch.set_num_threads(threads)
    job = plan(config, writes=own_rank == "0")
    world = open_world(config, backends=find_scheme(config.scheme).backends)
    job = settled(job, world)
    placement = {
        "host": os.uname().nodename,
        "numa": binding.get("numa"),
        "cpus": binding.get("cpus") or (),
        "gpu": world.device.index if world.device.type == "cuda" else None,
    }
    placements = world.peers.gather(placement)
    run_dir = os.environ.get("PERFSCOPE_RUN_DIR")
    if placements is not None and run_dir:
        _write_identity(Path(run_dir), job, placements, world.peers.backend)
    outcome = train(job, world)
    if run_dir:
        _write_outcome(Path(run_dir), world.rank, {**outcome.as_json(), "binding": binding})
    problem = None
    if config.save_weights and outcome.state is not None:
        problem = _save(outcome.state, Path(config.save_weights))
    world.peers.barrier()
    world.peers.close()
    if problem:  # reported at the end: the other ranks have nothing to do with it
        _say(own_rank, problem)
    return EXIT_FAILED if problem else 0


def _save(state: dict[str, Any], file: Path) -> str | None:
    """Writes the weights, whole or not at all; what went wrong, if anything did."""
    import torch

    part = file.with_name(file.name + ".part")
    try:
        with part.open("wb") as stream:
            torch.save(state, stream)
        part.replace(file)
    except (OSError, RuntimeError) as error:  # torch's own writer has no better name for a full disk
        if part.is_file():
            part.unlink()
        reason = getattr(error, "strerror", None) or _first_sentence(" ".join(str(error).split()))
        return f"cannot write the weights to {file}: {reason}"
    return None


def _write_identity(run_dir: Path, job: Any, placements: list[dict[str, Any]], backend: str) -> None:
    from perfscope.rundir import layout
    from perfscope.rundir.writer import write_json
    from perfscope.runners.identity import RankLocation, identity

    located = tuple(
        RankLocation(**{**placement, "cpus": tuple(placement["cpus"])}) for placement in placements
    )
    write_json(run_dir / layout.SCHEME_JSON, identity(job, located, "gloo" if backend == "none" else backend))


def _write_outcome(run_dir: Path, rank: int, outcome: dict[str, Any]) -> None:
    from perfscope.rundir import layout
    from perfscope.rundir.writer import write_json

    folder = run_dir / layout.RANKS / str(rank)
    folder.mkdir(parents=True, exist_ok=True)  # a rank that no probe reached has no folder yet
    write_json(folder / layout.BENCH_JSON, _finite(outcome))


def _finite(value: Any) -> Any:
    """JSON has no NaN: a loss that is none is written as null."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _explain(rank: str, error: Exception) -> int:
    """One line; the stack trace only where it is asked for."""
    if os.environ.get("PERFSCOPE_BENCH_TRACE"):
        traceback.print_exception(error)
    text = " ".join(str(error).split())
    if isinstance(error, RuntimeError) and (_is_lost_peer(error) or _PEER_SIGNS.search(text)):
        _say(rank, f"lost contact with another rank, stopping ({_first_sentence(text)})")
        return EXIT_LOST_PEER
    _say(rank, f"{type(error).__name__}: {text} (set PERFSCOPE_BENCH_TRACE=1 for the stack trace)")
    return EXIT_FAILED


def _is_lost_peer(error: RuntimeError) -> bool:
    from perfscope.runners.transport import PeerLostError  # the one who raises it has loaded torch already

    return isinstance(error, PeerLostError)


def _first_sentence(text: str) -> str:
    """torch puts file names in front and stack traces behind what it has to say."""
    parts = [part.strip() for part in text.split("] ") if part.strip()]
    return (parts[-1] if parts else text).split(". ")[0][:160]


def _say(rank: str, line: str) -> None:
    sys.stderr.write(f"perfscope bench: rank {rank}: {line}\n")
    sys.stderr.flush()


def _say_all(notes: object) -> None:
    for note in notes if isinstance(notes, list) else ():
        _say(_own_rank(), note)


def _own_rank() -> str:
    for name in ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        if name in os.environ:
            return os.environ[name]
    return "0"


def _local() -> tuple[int, int]:
    """(local rank, ranks on this host) as the launcher says."""
    ranks = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
    sizes = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
    return _first(ranks, 0), _first(sizes, 1)


def _first(names: tuple[str, ...], default: int) -> int:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return default


def _exit(code: int) -> NoReturn:
    """Without torch's own farewells: a lost peer would make them wait."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code == 0:
        sys.exit(0)
    os._exit(code)


if __name__ == "__main__":
    _exit(main(sys.argv[1:]))
