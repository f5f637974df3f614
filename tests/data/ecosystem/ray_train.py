"""Ray Train's TorchTrainer: two workers on this machine, DistributedDataParallel by prepare_model."""

import os
import sys
import tempfile

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0", RAY_TRAIN_V2_ENABLED="1")
import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn


def loop(config: dict) -> None:
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    data = torch.utils.data.TensorDataset(torch.randn(192, 64), torch.randint(10, (192,)))
    loader = prepare_data_loader(torch.utils.data.DataLoader(data, batch_size=8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if train.get_context().get_world_rank() == 0:
        with open(config["out"], "w") as file:
            file.write(f"{float(loss.detach()):.6f}")


ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
with tempfile.TemporaryDirectory() as folder:
    out = os.path.join(folder, "loss")
    TorchTrainer(
        loop,
        train_loop_config={"out": out},
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(storage_path=folder, name="run"),
    ).fit()
    print("loss", open(out).read(), flush=True)
ray.shutdown()
