"""Readers of published formats: MNIST's and CIFAR's files, tar shards, tokens, clicks; clear errors."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from PIL import Image

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.registry import check_data, held_out, open_feed
from perfscope.runners.data.scale import scaled_bytes
from perfscope.runners.models.registry import find_model
from perfscope.runners.world import Alone, World
from tests.runners.training import train_here

RANDOM = np.random.default_rng(0)


def config_of(data: Path, **settings: Any) -> BenchConfig:
    return BenchConfig(**{"scheme": "serial", "batch": 8, "data": str(data), "device": "cpu", **settings})


def refused(config: BenchConfig, pattern: str) -> None:
    with pytest.raises(BenchError, match=pattern) as error:
        check_data(config)
    assert "\n" not in str(error.value)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    for name, num in (("train", 40), ("t10k", 10)):
        images = np.full((num, 28, 28), 10 if name == "train" else 200, np.uint8)
        labels = (np.arange(num) % 10).astype(np.uint8)
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels))
    return tmp_path


MNIST = {"model": "lenet", "input_shape": (1, 28, 28), "num_classes": 10}


def test_the_test_files_of_mnist_are_what_is_held_out(mnist: Path) -> None:
    config = config_of(mnist, **MNIST)
    kept = held_out(config, num=None)
    assert kept.targets.tolist() == list(range(10))
    assert torch.equal(kept.inputs, scaled_bytes(np.full((10, 1, 28, 28), 200, np.uint8)))
    batches = [open_feed(config).batch(step, 0, 1) for step in range(5)]
    assert all((batch.inputs == scaled_bytes(np.full(1, 10, np.uint8))).all() for batch in batches)
    assert sorted(torch.cat([batch.targets for batch in batches]).tolist()) == sorted([*range(10)] * 4)


def test_files_of_mnist_that_are_damaged_or_missing_are_named(mnist: Path) -> None:
    refused(config_of(mnist, **{**MNIST, "input_shape": (1, 32, 32)}), "1x28x28, but the input .* is 1x32x32")
    labels = mnist / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    refused(config_of(mnist, **MNIST), "t10k-labels-idx1-ubyte is damaged")
    labels.unlink()
    refused(config_of(mnist, **MNIST), "has no t10k-labels-idx1-ubyte")


@pytest.mark.parametrize("classes", [10, 100])
def test_records_of_cifar_are_labels_and_then_channels(tmp_path: Path, classes: int) -> None:
    names = [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]
    names = names if classes == 10 else ["train.bin", "test.bin"]
    images = RANDOM.integers(0, 256, (len(names), 8, 3072)).astype(np.uint8)
    for name, pixels in zip(names, images, strict=True):
        coarse = np.full((8, classes // 100), 19, np.uint8)
        labels = np.arange(8, dtype=np.uint8)[:, None]
        (tmp_path / name).write_bytes(np.concatenate((coarse, labels, pixels), 1).tobytes())
    config = config_of(tmp_path, num_classes=classes)
    kept = held_out(config, num=None)
    assert kept.targets.tolist() == list(range(8))
    assert torch.equal(kept.inputs, scaled_bytes(images[-1].reshape(8, 3, 32, 32)))
    (tmp_path / names[0]).write_bytes(b"cut")
    refused(config, f"{names[0]} has 3 bytes, which are no records of")


def shard(path: Path, entries: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def png(value: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (20, 20), (value, value, value)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize("how", ["cls", "folders"])
def test_images_of_tar_shards_come_with_their_classes(tmp_path: Path, how: str) -> None:
    for number in range(3):
        entries: list[tuple[str, bytes]] = []
        for index in range(10):
            key = f"{'ab'[index % 2]}/{number}{index}"
            entries.append((f"{key}.png", png(100 * (index % 2))))
            if how == "cls":
                entries.append((f"{key}.cls", f"{index % 2}\n".encode()))
        shard(tmp_path / f"part-{number}.tar", entries)
    batch = open_feed(config_of(tmp_path, input_shape=(3, 8, 8), num_classes=2, batch=27)).batch(0, 0, 1)
    assert torch.equal(batch.inputs[:, 0, 0, 0], scaled_bytes(100 * batch.targets.numpy().astype(np.uint8)))
    assert len(batch.targets) == 27


def test_shards_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    path = tmp_path / "one.tar"
    shard(path, [("a.png", png(1)), ("a.cls", b"one")])
    refused(config_of(path), "a.cls in .*one.tar holds no class")
    shard(path, [("a.png", png(1)), ("b.png", png(1)), ("b.cls", b"1")])
    refused(config_of(path), "a.png in .*one.tar has no class")
    path.write_bytes(gzip.compress(path.read_bytes()))
    refused(config_of(path), "one.tar is no uncompressed tar file")


TEXT = {"model": "gpt-nano", "input_shape": (16,), "num_classes": 40, "batch": 4}


@pytest.mark.parametrize("header", [b"", struct.pack("<256i", 20240520, 1, 401, *[0] * 253)])
def test_targets_of_tokens_are_the_next_ones(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "text.bin").write_bytes(header + (np.arange(401) % 40).astype("<u2").tobytes())
    batch = open_feed(config_of(tmp_path / "text.bin", **TEXT)).batch(3, 0, 1)
    assert batch.inputs.shape == (4, 16) and batch.inputs.dtype == torch.int64
    assert torch.equal((batch.inputs + 1) % 40, batch.targets)


def test_of_two_files_of_tokens_the_second_is_held_out(tmp_path: Path) -> None:
    for name, token in (("train", 3), ("val", 7)):
        (tmp_path / f"{name}.bin").write_bytes(np.full(200, token, "<u4").tobytes())
    config = config_of(tmp_path, **{**TEXT, "num_classes": 70_000})
    assert (open_feed(config).batch(2, 0, 1).targets == 3).all()
    assert (held_out(config, num=None).inputs == 7).all()


def test_tokens_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.bin"
    path.write_bytes(np.array([1, 2, 41] * 50, "<u2").tobytes())
    refused(config_of(path, **TEXT), "has the token 41, but the model's vocabulary has 40; set --classes")
    path.write_bytes(b"\1\0" * 10)
    refused(config_of(path, **TEXT), "has 10 tokens; a sequence of 16 needs 17")
    path.write_bytes(b"odd")
    refused(config_of(path, **TEXT), "3 bytes, which are no tokens of 2 bytes")


CLICKS = {"model": "dlrm-nano", "input_shape": (10,), "num_classes": 2}


def click(label: int, dense: list[str], categories: list[str]) -> str:
    return "\t".join([str(label), *dense, *categories])


def test_columns_of_clicks_become_features_and_rows_of_tables(tmp_path: Path) -> None:
    rows = find_model("dlrm-nano").tables
    path = tmp_path / "train.txt"
    lines = [click(n % 2, ["-2", ["", "7"][n % 2]], ["ff", "", *["68fd1e64"] * 6]) for n in range(20)]
    path.write_text("\n".join(lines))
    batch = open_feed(config_of(path, **CLICKS)).batch(0, 0, 1)
    assert batch.inputs[:, 0].eq(0).all()  # below 0
    assert torch.allclose(batch.inputs[:, 1], batch.targets * np.log(8.0), atol=1e-6)
    wanted = [0xFF % rows[0], 0, *(0x68FD1E64 % size for size in rows[2:])]
    assert batch.inputs[0, 2:].tolist() == wanted


def test_lines_of_clicks_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("1\t2\n" * 20)
    refused(config_of(path, **CLICKS), "line 1 has 2 columns separated by tabs, not 11: a label, 2 dense")
    path.write_text((click(2, ["", ""], [""] * 8) + "\n") * 20)
    refused(config_of(path, **CLICKS), "line 1 begins with b'2', not with 0 or 1")
    path.write_text("")
    refused(config_of(path, **CLICKS), "train.txt cannot be read: it is empty")


def test_a_model_trains_on_stored_tokens(tmp_path: Path) -> None:
    """A text that repeats four tokens: the loss falls far below that of guessing, log 40 = 3.7."""
    (tmp_path / "text.bin").write_bytes((np.arange(2000) % 4).astype("<u2").tobytes())
    config = config_of(tmp_path / "text.bin", **TEXT, steps=30, optimizer="adamw", learning_rate=3e-3)
    outcome = train_here(World(Alone(), 0, torch.device("cpu")), config)
    assert (outcome.held_out_loss or 9) < 1.0
