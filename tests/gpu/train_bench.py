"""Bench runs of one rank in one process, NCCL on a GPU or gloo on a CPU. Started by test_bench_cuda.

    python tests/gpu/train_bench.py cuda

Prints one line of JSON: by run, losses, the kind of device of the trained weights, details, and the largest
difference of weights to the same run in one process on the CPU, where both are in float64.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from typing import Any

import torch

from perfscope.runners.config import BenchConfig, Device
from perfscope.runners.mesh import Mesh
from perfscope.runners.planning import plan
from perfscope.runners.train import train
from perfscope.runners.world import Alone, World, open_world

GPT: dict[str, Any] = {
    "model": "gpt-nano",
    "input_shape": (32,),
    "num_classes": 32,
    "batch": 8,
    "steps": 12,
    "optimizer": "adamw",
    "learning_rate": 1e-3,
}
EXACT: dict[str, Any] = {**GPT, "dtype": "float64", "steps": 3}
ONE_SHARD = Mesh.parse("fsdp=1")
RUNS: dict[str, BenchConfig] = {
    **{
        f"{scheme} float64": BenchConfig(scheme=scheme, **EXACT)
        for scheme in ("serial", "dp.ddp", "dp.packed", "dp.perlayer", "dp.fsdp")
    },
    "mesh float64": BenchConfig(scheme="mesh", mesh=ONE_SHARD, **EXACT),
    **{
        f"{scheme} {dtype}": BenchConfig(scheme=scheme, dtype=dtype, **GPT)
        for scheme in ("serial", "dp.ddp")
        for dtype in ("bfloat16", "float16")
    },
    "dp.fsdp bfloat16": BenchConfig(scheme="dp.fsdp", dtype="bfloat16", **GPT),
    "serial compiled": BenchConfig(scheme="serial", dtype="bfloat16", compile="default", **GPT),
    "dp.ddp compiled": BenchConfig(scheme="dp.ddp", compile="default", **EXACT),
}


def main(device: Device) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    world = open_world(BenchConfig(scheme="dp.ddp", device=device))
    found: dict[str, Any] = {"backend": world.peers.backend, "runs": {}}
    reference = train(
        plan(BenchConfig(scheme="serial", device="cpu", **EXACT)), World(Alone(), 0, torch.device("cpu"))
    )
    for name, config in RUNS.items():
        outcome = train(plan(replace(config, device=device)), world)
        assert outcome.state is not None and reference.state is not None
        entry = {
            "losses": outcome.losses,
            "device": {value.device.type for value in outcome.state.values()}.pop(),
            "details": dict(outcome.details),
            "held_out_loss": outcome.held_out_loss,
        }
        if config.dtype == "float64":
            entry["difference"] = max(
                float((outcome.state[key].cpu() - value).abs().max())
                for key, value in reference.state.items()
            )
        found["runs"][name] = entry
    world.peers.close()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main("cuda" if sys.argv[1:] == ["cuda"] else "cpu")
