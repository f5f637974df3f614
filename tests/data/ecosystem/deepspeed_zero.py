"""A DeepSpeed engine on CPUs: stage of ZeRO, micro-batches of a step."""

import logging
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
logging.disable(logging.ERROR)  # its lines have times

import deepspeed
import torch
from torch import nn

stage, accumulate = map(int, sys.argv[1:])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
config = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": accumulate,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": stage},
    "zero_force_ds_cpu_optimizer": False,
    "steps_per_print": 1_000_000,
}
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
torch.manual_seed(engine.global_rank)
for _ in range(12 * accumulate):
    x, y = torch.randn(8, 64), torch.randint(10, (8,))
    loss = nn.functional.cross_entropy(engine(x), y)
    engine.backward(loss)
    engine.step()
if engine.global_rank == 0:
    print(f"loss {float(loss.detach()):.6f}", flush=True)
