"""A tiny training: one process, or DDP over gloo when a launcher set RANK. Prints each loss bit for bit.

STEPS: number of steps. PAUSE_AT: at this step print "paused" and wait for a line on stdin. EXIT: exit code.
SPAWN: start this many ranks by torch.multiprocessing.spawn, without a launcher.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

torch.set_num_threads(1)
torch.manual_seed(0)


def train(rank: int) -> None:
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
    )
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(int(os.environ.get("STEPS", "8"))):
        if os.environ.get("PAUSE_AT") == str(step):
            print("paused", flush=True)
            sys.stdin.readline()
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(step, loss.item().hex(), flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def spawned(rank: int, store: str, world_size: int) -> None:
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world_size)
    train(rank)


def main() -> None:
    if "SPAWN" in os.environ:
        world_size = int(os.environ["SPAWN"])
        with tempfile.TemporaryDirectory() as directory:
            mp.spawn(spawned, args=(str(Path(directory) / "store"), world_size), nprocs=world_size)
        return
    for variable, of_open_mpi, of_hydra in (
        ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
        ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    ):
        value = os.environ.get(of_open_mpi, os.environ.get(of_hydra))
        if value is not None:
            os.environ.setdefault(variable, value)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    train(int(os.environ.get("RANK", "0")))
    sys.exit(int(os.environ.get("EXIT", "0")))


if __name__ == "__main__":
    main()
