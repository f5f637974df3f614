"""Two ranks with DDP on gloo; each writes its Kineto trace, without shapes, and its execution trace.

torchrun --nproc-per-node 2 train.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step() -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(16, 32)), torch.randn(16, 8)).backward()
    optimizer.step()


for _ in range(2):
    step()
observer = ExecutionTraceObserver().register_callback(f"gloo_rank{rank}.et.json")
with profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer) as profiler:
    for _ in range(3):
        step()
        profiler.step()
profiler.export_chrome_trace(f"gloo_rank{rank}.json")
dist.destroy_process_group()
