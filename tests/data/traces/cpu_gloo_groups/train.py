"""Training on several process groups at once; rank 0's window is the trace beside this file.

    perfscope run --windows 1 --overhead 1 -- torchrun --nproc-per-node 4 train.py

Each step on rank 0: an all-reduce on {0, 1}, an all-gather and a reduce-scatter on all, a functional
all-reduce on {0, 2}, a receive from anybody on {0, 1}, a send to rank 2 on {0, 2}, and the all-reduces of
a DistributedDataParallel over {0, 2}.
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
row = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
column = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 4))
model = torch.nn.parallel.DistributedDataParallel(net, process_group=column)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(8):
    x, whole = torch.randn(8, 16), torch.zeros(32, 16)
    dist.all_reduce(x, group=row)
    dist.all_gather_single(whole, x)
    dist.reduce_scatter_single(x, whole)
    x = functional.all_reduce(x, "sum", column) + 0
    message = torch.ones(5)
    if rank % 2 == 0:
        assert dist.recv(message, group=row) == rank + 1
    else:
        dist.send(message, rank - 1, group=row)
    if rank < 2:
        dist.send(message, rank + 2, group=column)
    else:
        dist.recv(message, rank - 2, group=column)
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
dist.destroy_process_group()
