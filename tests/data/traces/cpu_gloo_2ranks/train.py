"""Two ranks, three steps, with the marks perfscope's probe writes, by hand: a known truth for ingest."""
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import profile, ProfilerActivity, record_function
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
m = nn.Sequential()
m.add_module("features", nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, stride=2, groups=2), nn.ReLU()))
m.add_module("pool", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
m.add_module("head", nn.Linear(32, 10))
names = {mod: name for name, mod in m.named_modules()}
marks = []
def pre(mod, args):
    if mod in names:
        mark = record_function("perfscope.layer:" + names[mod]); mark.__enter__(); marks.append(mark)
def post(mod, args, out):
    if mod in names:
        marks.pop().__exit__(None, None, None)
for mod in m.modules():
    mod.register_forward_pre_hook(pre); mod.register_forward_hook(post)
d = DDP(m)
opt = torch.optim.SGD(d.parameters(), 0.01, momentum=0.9)
data = DataLoader(TensorDataset(torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,))), batch_size=32)
feed = iter(data)
def step():
    x, y = next(feed)
    loss = nn.functional.cross_entropy(d(x), y); loss.backward(); opt.step(); opt.zero_grad()
for _ in range(3): step()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
    for i in range(3):
        with record_function(f"perfscope.step:{3 + i}"): step()
p.export_chrome_trace(f"rank{dist.get_rank()}.json")
dist.barrier(); dist.destroy_process_group()
