"""A tiny DistributedDataParallel training of one process per Slurm task; it never mentions perfscope.

The emulated nodes are all on the loopback interface. STEPS: number of steps.
"""

import os

import torch
import torch.distributed as dist


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    job = 10 * int(os.environ["SLURM_JOB_ID"]) + int(os.environ["SLURM_STEP_ID"])
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(20_000 + job % 10_000)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(int(os.environ.get("STEPS", "12"))):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
