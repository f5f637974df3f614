"""The files that a framework's program reads: its settings, initial weights and samples.

Weights and samples are those of the torch runners: `build_model` and `open_feed` with the same seed give the
same numbers, so that `perfscope bench run serial` trains the same thing once more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.registry import check_data, open_feed
from perfscope.runners.frameworks.layouts import images_to_nhwc
from perfscope.runners.frameworks.request import FrameworkRun
from perfscope.runners.frameworks.structure import Layer, layers_of
from perfscope.runners.inputs import InputKind
from perfscope.runners.models.registry import build_model, find_model

CONFIG_JSON, WEIGHTS, INPUTS, LABELS = "config.json", "weights.npz", "inputs.npy", "labels.npy"
OTHERS_ENDED = "others-ended"  # appears when every process but rank 0 has ended
_MOST_BYTES = 8 << 30  # of samples


def check(run: FrameworkRun) -> list[Layer]:
    """The network's layers.

    Raises:
        BenchError: the model, its layers or the data cannot be used; one line.
    """
    config = run.config
    if (kind := find_model(config.model).input) is not InputKind.IMAGE:
        raise BenchError(f"{config.model} takes {kind} inputs; --framework trains models of images")
    with torch.device("meta"):
        model = build_model(config)
    check_data(config)
    size = config.steps * config.batch * math.prod(config.input_shape) * 4
    if size > _MOST_BYTES:
        raise BenchError(
            f"the samples of {config.steps:,} steps take {size / 2**30:.1f} GiB, which all frameworks read "
            f"from one file; at most {_MOST_BYTES >> 30} GiB fit: use fewer --steps or a smaller --batch"
        )
    layers = layers_of(model, config.input_shape)
    if any(layer["op"] in ("norm", "residual") for layer in layers):
        _check_norm(run)
    return layers


def prepare(run: FrameworkRun, layers: list[Layer], folder: Path) -> tuple[Path, dict[str, str]]:
    """Writes the program's files into a folder that exists.

    Returns:
        (config.json, digests of weights and samples by name: equal digests, equal numbers).

    Raises:
        BenchError: the folder cannot hold them.
    """
    config = run.config
    document = {
        **run.settings,
        "framework": run.framework.name,
        "layers": layers,
        "weights": str(folder / WEIGHTS),
        "inputs": str(folder / INPUTS),
        "labels": str(folder / LABELS),
        "others_ended": "" if run.framework.parts_itself else str(folder / OTHERS_ENDED),
        "folder": str(folder),
    }
    try:
        weights = initial_weights(config)
        np.savez(folder / WEIGHTS, **weights)  # type: ignore[arg-type] # its stub takes names for options
        digests = {"weights": _digest(weights), "samples": _write_samples(run, folder)}
        (folder / CONFIG_JSON).write_text(json.dumps(document), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise BenchError(
            f"cannot write weights and samples into {folder}: {reason}; set TMPDIR to a folder with space"
        ) from error
    return folder / CONFIG_JSON, digests


def initial_weights(config: BenchConfig) -> dict[str, np.ndarray]:
    """Every parameter by its name in the model's state dict, float32, in torch's layout."""
    model = build_model(config)
    return {name: param.detach().numpy() for name, param in model.named_parameters()}


def _write_samples(run: FrameworkRun, folder: Path) -> str:
    """inputs.npy (steps, B, C, H, W) float32 and labels.npy (steps, B) int32, in the order of training.

    For frameworks that keep channels last inputs are (steps, B, H, W, C): turning them in the loop would be
    counted as these frameworks' time. The digest is of the samples, whatever their layout.
    """
    config = run.config
    feed = open_feed(config)
    channels, height, width = config.input_shape
    last = run.framework.channels_last
    sample_shape = (height, width, channels) if last else (channels, height, width)
    shape = (config.steps, config.batch, *sample_shape)
    inputs = np.lib.format.open_memmap(folder / INPUTS, mode="w+", dtype=np.float32, shape=shape)
    labels = np.empty(shape[:2], dtype=np.int32)
    digest = sha256()
    for step in range(config.steps):
        batch = feed.batch(step, 0, 1)
        images, labels[step] = batch.inputs.numpy(), batch.targets.numpy()
        inputs[step] = images_to_nhwc(images) if last else images
        digest.update(images.tobytes())
    inputs.flush()
    np.save(folder / LABELS, labels)
    digest.update(labels.tobytes())
    return digest.hexdigest()[:16]


def _digest(arrays: Mapping[str, Any]) -> str:
    digest = sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()[:16]


def _check_norm(run: FrameworkRun) -> None:
    """Whether BatchNorm can be what it is in torch: over two samples or more, and over a process's own."""
    config, name = run.config, run.framework.name
    if config.batch // config.num_ranks < 2:  # one value per channel has no variance, and torch refuses it
        raise BenchError(
            f"{config.model} normalizes over the samples of a process and needs two of them; "
            f"use a batch of at least {2 * config.num_ranks}"
        )
    if run.framework.joins_norm and config.num_ranks > 1:
        raise BenchError(
            f"{name} on {config.num_ranks} processes normalizes over the samples of all of them, the others "
            f"over those of each: {config.model} would be another training; a model without BatchNorm is not"
        )
