"""From `--data` to samples."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.feeds import synthetic_feed, synthetic_held_out
from perfscope.runners.data.sample_cache import cache_of
from perfscope.runners.data.stored import DecodedStore, SampleStore, StoredFeed
from perfscope.runners.data.synthetic import TOKEN_NOISE
from perfscope.runners.inputs import InputKind
from perfscope.runners.models.registry import find_model
from perfscope.runners.schemes.base import Batch, Feed

if TYPE_CHECKING:
    from perfscope.runners.world import World

SYNTHETIC = "synthetic"
_KINDS = {  # what holds samples of a kind, for messages
    InputKind.IMAGE: "a folder (of one sub-folder of images per class, MNIST's or CIFAR's files, or tar "
    "shards), a .tar or an .npz file",
    InputKind.TOKENS: "a .bin file of tokens, or a folder with train.bin and val.bin",
    InputKind.CLICKS: "a file of lines as Criteo's",
}


def open_feed(config: BenchConfig, device: torch.device | str = "cpu", world: World | None = None) -> Feed:
    """The training samples of a run, for any rank; `batch` may be called from several threads at once.

    Stored samples are read into host memory, synthetic ones are made on `device`. With a `world`, all of
    whose ranks call it, the ranks of a host share decoded samples.

    Raises:
        BenchError: the data is not there or does not fit the run; one line.
    """
    if config.data == SYNTHETIC:
        return synthetic_feed(config, torch.device(device), find_model(config.model).input)
    return StoredFeed(config, _open(config, world))


def input_workers(config: BenchConfig) -> int:
    """Threads of each rank that make batches ahead: as asked for, else one for stored data.

    Synthetic samples cost a copy; making them on another thread would only take a core from the training.
    """
    if config.workers is not None:
        return config.workers
    return 0 if config.data == SYNTHETIC else 1


def data_id(config: BenchConfig) -> str | None:
    """Tells stored data apart without saying where they are; None: synthetic."""
    if config.data == SYNTHETIC:
        return None
    path = str(Path(config.data).expanduser().resolve())
    return hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:8]


def label_noise(config: BenchConfig) -> float | None:
    """Share of synthetic targets that are drawn anew; None: none was asked for, or stored data."""
    is_chain = config.data == SYNTHETIC and find_model(config.model).input is InputKind.TOKENS
    return TOKEN_NOISE if is_chain and config.label_noise is None else config.label_noise


def held_out(config: BenchConfig, device: torch.device | str = "cpu", num: int | None = 256) -> Batch:
    """Up to `num` samples (None: all) that `open_feed` never gives.

    They are the same on every rank and in every run of that seed.

    Of stored data a tenth is kept for this, MOST_HELD_OUT samples at most; of synthetic, config.held_out.

    Raises:
        BenchError: as open_feed.
    """
    where = torch.device(device)
    if config.data == SYNTHETIC:
        wanted = config.held_out if num is None else num
        return synthetic_held_out(config, where, wanted, find_model(config.model).input)
    samples = StoredFeed(config, _open(config)).held_out(num)
    return Batch(samples.inputs.to(where), samples.targets.to(where))


def check_data(config: BenchConfig) -> None:
    """Looks at stored data before any rank is started; images are listed, not decoded.

    Raises:
        BenchError: as open_feed.
    """
    if config.data != SYNTHETIC:
        StoredFeed(config, _open(config))


def _open(config: BenchConfig, world: World | None = None) -> SampleStore:
    store = _found(config)
    if isinstance(store, DecodedStore):
        store.cache = cache_of(config, len(store.labels), store.shape, world)
    return store


def _found(config: BenchConfig) -> SampleStore:
    info = find_model(config.model)
    if info.input not in _KINDS:
        raise BenchError(
            f"stored data holds images, tokens or clicks, but {config.model} takes {info.input} inputs; use "
            f"--data {SYNTHETIC}"
        )
    path = Path(config.data).expanduser()
    if not path.exists():
        raise BenchError(f"there is no data at {config.data}; give {_KINDS[info.input]}, or {SYNTHETIC!r}")
    if info.input is InputKind.TOKENS:
        from perfscope.runners.data.tokens import TokenFile

        return TokenFile(path, config.input_shape[0], config.num_classes)
    if info.input is InputKind.CLICKS:
        from perfscope.runners.data.clicks_file import ClickFile

        return ClickFile(path, config.input_shape[0] - len(info.tables), info.tables)
    return _open_images(path, config.input_shape)


def _is_of_shards(folder: Path) -> bool:
    """Whether it has tar files and no folders, which would be classes that were unpacked from them."""
    names = [child for child in folder.iterdir() if not child.name.startswith(".")]
    return any(child.suffix == ".tar" for child in names) and not any(child.is_dir() for child in names)


def _open_images(path: Path, input_shape: tuple[int, ...]) -> SampleStore:
    channels, height, width = input_shape
    shape = (channels, height, width)
    if path.suffix == ".tar" or (path.is_dir() and _is_of_shards(path)):
        from perfscope.runners.data.shards import TarShards

        return TarShards(path, shape)
    if path.is_dir():
        from perfscope.runners.data.binaries import open_binaries
        from perfscope.runners.data.folder import ImageFolder

        return open_binaries(path, shape) or ImageFolder(path, shape)
    from perfscope.runners.data.arrays import ArrayFile

    return ArrayFile(path, shape)
