"""From what was asked for to a job that can be run, or to one line that says why not."""

from __future__ import annotations

import torch

from perfscope.runners.config import BenchConfig, BenchError, check_config
from perfscope.runners.data.registry import check_data
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.registry import build_model
from perfscope.runners.models.shapes import ModelShape, describe
from perfscope.runners.schemes.registry import find_scheme


def describe_model(config: BenchConfig) -> ModelShape:
    """Shapes of the configured model, without memory for its weights."""
    with torch.device("meta"):
        model = build_model(config)
    return describe(model, config.input_shape)


def plan(config: BenchConfig) -> Job:
    """The job, if it can be run.

    Raises:
        BenchError: it cannot; one line with the reason and, where there is one, a way out.
    """
    check_config(config)
    scheme = find_scheme(config.scheme)
    mesh = Mesh(*config.mesh) if config.mesh else scheme.default_mesh(config.num_ranks)
    if mesh.num_ranks != config.num_ranks:
        raise BenchError(
            f"mesh {mesh} has {mesh.num_ranks} places, but there are {config.num_ranks} ranks; "
            f"make D x M x S equal to the number of ranks"
        )
    scheme.check_mesh(mesh)
    _check_batch(config, scheme.num_parts(mesh))
    if config.backend not in ("auto", *scheme.backends):
        fits = " or ".join(scheme.backends)
        raise BenchError(f"{scheme.name} cannot exchange over {config.backend}; use --backend {fits}")
    scheme.check_modifiers(config)
    check_data(config)
    job = Job(config=config, mesh=mesh, shape=describe_model(config))
    scheme.check(job)
    return job


def _check_batch(config: BenchConfig, num_parts: int) -> None:
    """Every part of the data gets as many samples as every other."""
    if num_parts > 0 and config.batch % num_parts:
        raise BenchError(
            f"a batch of {config.batch} cannot be cut into {num_parts} equal parts, one per trainer; "
            f"use {config.batch // num_parts * num_parts or num_parts}, or other ranks"
        )
