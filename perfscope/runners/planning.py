"""From what was asked for to a job that can be run, or to one line that says why not."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import torch

from perfscope.messages.lists import counted
from perfscope.runners.config import LAYERWISE, BatchError, BenchConfig, BenchError, check_config
from perfscope.runners.data.registry import check_data
from perfscope.runners.job import Job
from perfscope.runners.models.registry import build_model, find_model
from perfscope.runners.models.shapes import ModelShape, describe
from perfscope.runners.schemes.base import Scheme
from perfscope.runners.schemes.compilation import check_compiler
from perfscope.runners.schemes.registry import find_scheme


def describe_model(config: BenchConfig) -> ModelShape:
    """Shapes of the configured model, without memory for its weights."""
    return _described(
        BenchConfig(
            scheme="serial",
            model=config.model,
            input_shape=config.input_shape,
            num_classes=config.num_classes,
            dropout=config.dropout,
            dtype=config.dtype,
        )
    )


@lru_cache(maxsize=32)
def _described(config: BenchConfig) -> ModelShape:
    with torch.device("meta"):
        model = build_model(config)
    return describe(model, config.input_shape)


def plan(config: BenchConfig, *, writes: bool = True) -> Job:
    """The job, if it can be run.

    Args:
        config: what is asked for.
        writes: whether this machine writes the weights: other ranks' hosts need not have the place for them.

    Raises:
        BenchError: it cannot; one line with the reason and, where there is one, a way out.
    """
    check_config(config)
    scheme = find_scheme(config.scheme)
    mesh = config.mesh.for_scheme(scheme.name) if config.mesh else scheme.default_mesh(config.num_ranks)
    if mesh.num_ranks != config.num_ranks:
        raise BenchError(
            f"mesh {mesh} has {mesh.num_ranks} places, but there are {config.num_ranks} ranks; "
            f"make the product of its axes equal to the number of ranks"
        )
    scheme.check_mesh(mesh)
    info = find_model(config.model)
    scheme.check_input(info.name, info.input)
    if scheme.cuts_layers and not info.divisible:
        raise BenchError(
            f"{scheme.name} cannot divide the layers of {info.name}; use dp.*, pp.* or another scheme of "
            f"whole layers"
        )
    _check_servers(config, scheme)
    _check_batch(config, scheme.num_parts(mesh, config.servers))
    if config.backend not in ("auto", *scheme.backends):
        fits = " or ".join(scheme.backends)
        raise BenchError(f"{scheme.name} cannot exchange over {config.backend}; use --backend {fits}")
    scheme.check_modifiers(config)
    _check_sums(config)
    scheme.check_update(config)
    scheme.check_passes(config)
    check_compiler(config)
    _check_accumulation(config, max(scheme.num_parts(mesh, config.servers), 1))
    check_data(config)
    if writes and config.save_weights is not None:
        check_weights_file(config.save_weights)
    job = Job(config=config, mesh=mesh, shape=describe_model(config))
    scheme.check(job)
    _check_norm(job, scheme)
    _check_noise(job)
    return job


def check_weights_file(path: str) -> None:
    """Raises BenchError where a file of that name cannot be written."""
    file = Path(path)
    folder = file.parent
    try:
        if not folder.is_dir():
            reason = f"{folder} is no directory that exists"
        elif file.is_dir():
            reason = "it is a directory"
        elif not os.access(folder, os.W_OK | os.X_OK):
            reason = f"{folder} cannot be written to"
        else:
            return
    except (OSError, ValueError) as error:  # a name that is too long, or holds a 0
        reason = getattr(error, "strerror", None) or str(error)
    raise BenchError(f"--save-weights {path}: {reason}; name a file in a directory that can be written to")


def _check_servers(config: BenchConfig, scheme: type[Scheme]) -> None:
    if config.staleness is not None and scheme.name != "ps.ssp":
        raise BenchError(f"{scheme.name} has no bound of staleness; leave out --staleness, or use ps.ssp")
    if config.servers == 1:
        return
    if not scheme.divides_servers:
        raise BenchError(f"{scheme.name} has no servers that could share weights; leave out --servers")
    if config.servers >= config.num_ranks:
        raise BenchError(
            f"{config.servers} servers of {config.num_ranks} ranks leave no worker; use fewer servers"
        )
    if config.optimizer in LAYERWISE or config.clip_norm is not None:
        what = "--clip-norm" if config.clip_norm is not None else f"--optimizer {config.optimizer}"
        raise BenchError(
            f"{scheme.name} cannot take {what} with --servers {config.servers}: each server has a part of "
            f"the gradient; leave one of them out"
        )


def _check_sums(config: BenchConfig) -> None:
    """MPI adds no 16-bit numbers."""
    halves = [modifier for modifier in config.modifiers if modifier.name in ("fp16", "bf16")]
    if halves and config.backend == "mpi":
        raise BenchError(f"+{halves[0]} sums 16-bit numbers, which MPI cannot; use --backend gloo, or +int8")


def _check_norm(job: Job, scheme: type[Scheme]) -> None:
    """A BatchNorm needs two values per channel of what goes through the model at once."""
    sizes = [layer.in_size // layer.in_shape[0] for layer in job.shape.layers if layer.kind == "norm"]
    parts = max(scheme.num_parts(job.mesh, job.config.servers), 1) * scheme.num_microbatches(job)
    if not sizes or min(sizes) * (job.config.batch // parts) >= 2:
        return
    size = "x".join(map(str, job.config.input_shape))
    raise BenchError(
        f"{job.config.model} normalizes over the samples that a rank takes at once and needs two of them at "
        f"an input of {size}; use a batch of at least {2 * parts}, or an input of at least 33 x 33"
    )


def _check_noise(job: Job) -> None:
    """The estimators hold for gradients that are means over samples; batch statistics make them none."""
    if job.config.noise_every is not None and any(layer.kind == "norm" for layer in job.shape.layers):
        raise BenchError(
            f"--noise-every needs gradients that are means over single samples, but {job.config.model} "
            f"normalizes over the batch; leave it out, or use a model without batch normalization"
        )


def _check_accumulation(config: BenchConfig, num_parts: int) -> None:
    part_batch = config.batch // num_parts
    if part_batch % config.accumulate:
        raise BenchError(
            f"the {counted(part_batch, 'sample')} of a rank cannot be cut into {config.accumulate} equal "
            f"micro-batches; choose an --accumulate that divides {part_batch}"
        )


def _check_batch(config: BenchConfig, num_parts: int) -> None:
    """Every part of the data gets as many samples as every other."""
    if num_parts > 0 and config.batch % num_parts:
        raise BatchError(config.batch, num_parts, "trainer", ", or other ranks")
