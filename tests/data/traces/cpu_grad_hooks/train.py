"""Records the traces beside it: a backward whose nodes have pre-hooks.

torchrun --standalone --nproc-per-node 2 train.py fsdp2; python train.py hooks
"""

import gzip
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

HERE = Path(__file__).parent
KIND = sys.argv[1]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 8 * 8, 10)
        self.head = nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with record_function("perfscope.layer:conv"):
            x = self.conv(x)
        if KIND == "hooks":
            x.register_hook(lambda grad: grad * 1.0)
        with record_function("perfscope.layer:fc"):
            x = self.fc(x.flatten(1))
        if KIND == "hooks":
            x.register_hook(lambda grad: grad * 1.0)
        with record_function("perfscope.layer:head"):
            return self.head(x)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Net()
rank = 0
if KIND == "fsdp2":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model.conv, model.fc, model.head):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
data = torch.randn(8, 3, 8, 8)


def step() -> None:
    model(data).square().mean().backward()
    model.zero_grad()


for _ in range(2):
    step()
with (
    profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler,
    record_function("perfscope.step:2"),
):
    step()
if rank == 0:
    os.chdir(HERE)  # the trace names its own path
    profiler.export_chrome_trace(f"{KIND}.json")
    Path(f"{KIND}.json.gz").write_bytes(gzip.compress(Path(f"{KIND}.json").read_bytes(), mtime=0))
    Path(f"{KIND}.json").unlink()
if KIND == "fsdp2":
    dist.destroy_process_group()
