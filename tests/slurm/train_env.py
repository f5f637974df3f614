"""A tiny DistributedDataParallel training; its place comes from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

It never mentions perfscope. STEPS: number of steps; PAUSE: seconds between them.
"""

import os
import time

import torch
import torch.distributed as dist


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(int(os.environ.get("STEPS", "12"))):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        time.sleep(float(os.environ.get("PAUSE", "0")))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
