"""torch.compile of a model, block by block, before the timed steps.

As torchtitan does (arXiv 2410.06511): blocks of a model have the same code, which is compiled once, and what
is between them (hooks of fully_shard, marks of layers) stays as it is.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.job import Job
from perfscope.runners.schemes.recomputation import blocks_of, through

_EAGER = "aot_eager"  # a backend: the passes are traced and differentiated ahead, operators stay torch's own
_GRAPHS = 3  # passes until CUDA graphs are replayed: the second warms up, the third records


def check_compiler(config: BenchConfig) -> None:
    """Raises BenchError where this machine cannot compile what `--compile` asks for."""
    if config.compile in ("none", _EAGER):
        return
    if config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available()):
        missing = None if find_spec("triton") else "Triton, which is not installed"
    else:
        missing = _missing_for_cpu()
    if missing:
        raise BenchError(
            f"--compile {config.compile} needs {missing}; install it, or use --compile {_EAGER}, which "
            f"generates no code"
        )


def _missing_for_cpu() -> str | None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"a C++ compiler, and {compiler} is not found (CXX names another)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python's headers, which are not installed"
    return None


def require_blocks(scheme: str, job: Job, option: str, why: str) -> None:
    """Raises BenchError where the model has no blocks that `option` could take one by one."""
    if not any("." in layer.name for layer in job.shape.layers):
        raise BenchError(
            f"{scheme} cannot take {option} with {job.config.model}, which has no blocks: "
            f"{why}; use a model with blocks, such as transformer or resnet50, or dp.ddp"
        )


def compile_model(model: nn.Module, config: BenchConfig) -> None:
    """Compiles each block in place, a model without blocks as a whole; names and state stay as they are."""
    parts = blocks_of(model)
    if not parts:
        parts = [model]
        if "forward" not in vars(model):  # torch does not look into a frame of its own, as nn.Sequential's is
            model.forward = partial(through, list(model.children()))
    # All blocks share the code of nn.Module's call: torch would give up after 8 blocks that differ.
    limit = 8 + 2 * len(parts)
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, limit)
    for part in parts:
        if config.compile == _EAGER:
            part.compile(backend=_EAGER, dynamic=False)
        else:
            part.compile(mode=config.compile, dynamic=False)


def compile_ahead(
    model: nn.Module, config: BenchConfig, device: torch.device, passes: Callable[[], None]
) -> int:
    """Compiles a model that is laid out, and runs it until nothing is left to be compiled.

    Args:
        model: of this rank; its gradients are 0 afterwards, its buffers as before.
        config: of the run.
        device: of the rank.
        passes: one forward and one backward pass of the rank's batch.

    Returns:
        Nanoseconds that it took.
    """
    start = time.monotonic_ns()
    compile_model(model, config)
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    for _ in range(_GRAPHS if device.type == "cuda" and config.compile != _EAGER else 1):
        passes()
        for param in model.parameters():
            if param.grad is not None:
                param.grad.zero_()
    with torch.no_grad():
        for buffer, value in before:
            buffer.copy_(value)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic_ns() - start
