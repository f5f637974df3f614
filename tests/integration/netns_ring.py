"""One rank of an all_reduce between hosts: `netns_ring.py REPEATS BYTES`. Ready, waits, done, waits."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

repeats, size = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
tensor = torch.ones(size // 4)
dist.all_reduce(tensor)  # connections are made by the first one
print("ready", flush=True)
sys.stdin.readline()
for _ in range(repeats):
    dist.all_reduce(tensor)
print("done", flush=True)
sys.stdin.readline()
dist.destroy_process_group()
