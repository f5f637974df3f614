"""Batches: the parts of a step's batch are the serial batch, on any rank, from any source; clear errors."""

from __future__ import annotations

import json
import pickle
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from PIL import Image

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data import sample_cache
from perfscope.runners.data.folder import ImageFolder
from perfscope.runners.data.registry import check_data, held_out, open_feed
from perfscope.runners.data.sample_cache import NodeMemory, SampleCache
from perfscope.runners.data.scale import scaled_bytes
from perfscope.runners.models.registry import find_model
from perfscope.runners.schemes.base import Batch, Feed
from perfscope.runners.schemes.shared_memory import SHARED_FOLDER
from perfscope.runners.world import Alone, World
from tests.integration.run_support import PERFSCOPE
from tests.runners.training import train_here

CLASSES, PER_CLASS, SIDE = 3, 20, 12


def config_of(**settings: Any) -> BenchConfig:
    defaults = {"scheme": "serial", "batch": 8, "input_shape": (3, SIDE, SIDE), "num_classes": CLASSES}
    return BenchConfig(**{**defaults, **settings})


def pixels(label: int, index: int, height: int = SIDE, width: int = SIDE) -> np.ndarray:
    """(H, W, 3): the class in one channel's brightness, the sample's number in the first pixel."""
    image = np.random.default_rng(index).integers(60, 120, (height, width, 3), dtype=np.uint8)
    image[:, :, label] += 100
    return image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for label, name in enumerate(("ant", "bee", "cat")):
        (root / name).mkdir()
        for index in range(PER_CLASS):
            suffix = (".png", ".JPG")[index % 2]
            image = Image.fromarray(pixels(label, index, height=20, width=30))
            image.save(root / name / f"{index:03}{suffix}", format="PNG" if index % 2 == 0 else "JPEG")
    (root / "ant" / "notes.txt").write_text("no image")
    (root / ".cache").mkdir()
    (root / "empty").mkdir()
    return root


@pytest.fixture(scope="module")
def array_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arrays") / "samples.npz"
    labels = np.arange(CLASSES * PER_CLASS) % CLASSES
    images = np.stack([pixels(int(label), index) for index, label in enumerate(labels)])
    images[:, 0, 0, 0] = np.arange(len(images))  # a sample's number
    np.savez(path, images=images, labels=labels)
    return path


def same(one: Batch, two: Batch) -> bool:
    return bool(torch.equal(one.inputs, two.inputs) and torch.equal(one.targets, two.targets))


def joined(batches: list[Batch]) -> Batch:
    return Batch(torch.cat([one.inputs for one in batches]), torch.cat([one.targets for one in batches]))


@pytest.fixture(params=["synthetic", "folder", "npz"])
def data(request: pytest.FixtureRequest, folder: Path, array_file: Path) -> str:
    return {"synthetic": "synthetic", "folder": str(folder), "npz": str(array_file)}[request.param]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_of_a_batch_are_bitwise_the_serial_batch_on_every_rank(data: str, dtype: str) -> None:
    config = config_of(data=data, dtype=dtype, seed=5)
    serial = open_feed(config)
    for step in (0, 1, 7, 40):
        whole = serial.batch(step, 0, 1)
        assert whole.inputs.shape == (8, 3, SIDE, SIDE)
        assert (whole.inputs.dtype, whole.targets.dtype) == (getattr(torch, dtype), torch.int64)
        for num_parts in (2, 4, 8):
            feeds = [open_feed(config) for _ in range(num_parts)]  # each rank has its own
            assert same(whole, joined([feed.batch(step, part, num_parts) for part, feed in enumerate(feeds)]))
    assert same(serial.batch(0, 0, 1), open_feed(config).batch(0, 0, 1))  # asked for out of order


def test_steps_and_seeds_differ_and_the_callers_random_state_is_left_alone(data: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    feed, other = (open_feed(config_of(data=data, seed=seed)) for seed in (0, 1))
    batches = [feed.batch(step, 0, 1) for step in range(6)]
    assert torch.equal(torch.get_rng_state(), before)
    for index, one in enumerate(batches):
        assert not any(torch.equal(one.inputs, two.inputs) for two in batches[:index])
        assert not torch.equal(one.inputs, other.batch(index, 0, 1).inputs)


def test_held_out_samples_are_never_trained_on(data: str) -> None:
    config = config_of(data=data)
    unseen = held_out(config, num=5)
    assert len(unseen.targets) == 5
    assert same(unseen, held_out(config, num=5))
    feed = open_feed(config)
    trained = torch.cat([feed.batch(step, 0, 1).inputs for step in range(30)])
    assert not any((trained == one).flatten(1).all(dim=1).any() for one in unseen.inputs)


def test_the_callers_batch_may_be_overwritten(data: str) -> None:
    feed = open_feed(config_of(data=data))
    first = feed.batch(0, 0, 1)
    kept = first.inputs.clone()
    first.inputs.zero_()
    assert torch.equal(feed.batch(0, 0, 1).inputs, kept)


def test_synthetic_samples_have_unit_variance_and_separate_classes() -> None:
    config = config_of(batch=512, input_shape=(3, 24, 24), num_classes=16)
    batch = open_feed(config).batch(3, 0, 1)
    assert float(batch.inputs.mean()) == pytest.approx(0, abs=0.1)
    assert float(batch.inputs.std()) == pytest.approx(1, abs=0.1)
    assert torch.bincount(batch.targets, minlength=16).min() > 10
    of_class = [batch.inputs[batch.targets == label] for label in range(16)]
    centers = torch.stack([one.mean(dim=0).flatten() for one in of_class])
    unseen = held_out(config, num=200)
    nearest = torch.cdist(unseen.inputs.flatten(1), centers).argmin(dim=1)
    assert torch.equal(nearest, unseen.targets)
    wide = held_out(replace(config, dtype="float64"), num=200)
    assert float((wide.inputs - unseen.inputs).abs().max()) < 1e-6


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 2), (3, 224, 224), (3, 2, 90)])
def test_synthetic_samples_of_any_size(shape: tuple[int, int, int]) -> None:
    batch = open_feed(config_of(input_shape=shape, num_classes=1000, batch=4)).batch(0, 1, 2)
    assert batch.inputs.shape == (2, *shape)
    assert bool(torch.isfinite(batch.inputs).all())


def test_a_synthetic_batch_costs_far_less_than_a_training_step() -> None:
    """A ratio of medians on this machine; a batch takes about a tenth of the step of even a small network."""
    from perfscope.runners.models.registry import build_model
    from perfscope.runners.schemes.local import loss_of

    config = config_of(batch=32, input_shape=(3, 32, 32))
    feed, model = open_feed(config), build_model(config)

    def median_s(work: Callable[[int], object]) -> float:
        took = []
        for step in range(9):
            start = time.thread_time()
            work(step)
            took.append(time.thread_time() - start)
        return sorted(took)[4]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        making = median_s(lambda step: feed.batch(step, 0, 1))
        training = median_s(lambda step: loss_of(model, feed.batch(0, 0, 1)).backward())
    finally:
        torch.set_num_threads(threads)
    assert making < 0.5 * training


def numbers_of(feed: Feed, steps: range) -> list[int]:
    """The samples' numbers, which `array_file` holds in the first pixel."""
    return [
        round(float(value) * 63.75 + 127.5)
        for step in steps
        for value in feed.batch(step, 0, 1).inputs[:, 0, 0, 0]
    ]


def test_an_epoch_takes_each_sample_once_and_the_next_one_in_another_order(array_file: Path) -> None:
    feed = open_feed(config_of(data=str(array_file)))
    per_epoch = (60 - 6) // 8  # a tenth is held out, the rest of the division dropped
    epochs = [numbers_of(feed, range(start, start + per_epoch)) for start in (0, per_epoch, 2 * per_epoch)]
    for epoch in epochs:
        assert len(set(epoch)) == per_epoch * 8
        assert epoch != sorted(epoch)
    assert epochs[0] != epochs[1] != epochs[2]
    used = set().union(*epochs)
    unseen = held_out(config_of(data=str(array_file)))
    kept = {round(float(value) * 63.75 + 127.5) for value in unseen.inputs[:, 0, 0, 0]}
    assert len(kept) == 6
    assert not kept & used


def test_stored_samples_keep_their_labels(array_file: Path, folder: Path) -> None:
    for path in (array_file, folder):
        feed = open_feed(config_of(data=str(path)))
        for step in range(3):
            batch = feed.batch(step, 0, 1)
            assert torch.equal(batch.inputs.mean(dim=(2, 3)).argmax(dim=1), batch.targets)


def test_images_are_scaled_to_cover_the_input_and_cut_at_the_middle(tmp_path: Path) -> None:
    """A 40 x 20 image with a red left and a blue right quarter: a square cut keeps the green middle."""
    image = np.zeros((20, 40, 3), dtype=np.uint8)
    image[:, :10, 0], image[:, 10:30, 1], image[:, 30:, 2] = 255, 255, 255
    (tmp_path / "only").mkdir()
    for index in range(3):
        Image.fromarray(image).save(tmp_path / "only" / f"{index}.png")
    found = ImageFolder(tmp_path, (3, 10, 10)).samples([0])
    assert found.shape == (1, 3, 10, 10)
    assert found.dtype == torch.float32
    inner = found[0, :, :, 2:-2]
    assert torch.equal(inner, torch.tensor([-2.0, 2.0, -2.0]).view(3, 1, 1).expand_as(inner))
    grey = ImageFolder(tmp_path, (1, 6, 18)).samples([0, 2])
    assert grey.shape == (2, 1, 6, 18)


def test_samples_come_from_the_nearest_level_that_has_them(folder: Path) -> None:
    """Room for two samples in the process, and for the first ten in the memory of the host."""
    size = 3 * SIDE * SIDE
    plain, cached = ImageFolder(folder, (3, SIDE, SIDE)), ImageFolder(folder, (3, SIDE, SIDE))
    node = NodeMemory.shared(10 * (size + 1), World(Alone(), 0, torch.device("cpu")))
    cached.cache = SampleCache(len(cached.labels), cached.shape, 2 * size, node)
    wanted = [30, 5, 5, 9, 30, 9, 59, 59]
    assert torch.equal(cached.samples(wanted), plain.samples(wanted))
    neighbor = ImageFolder(folder, (3, SIDE, SIDE))
    neighbor.cache = SampleCache(len(neighbor.labels), neighbor.shape, 0, node)
    assert torch.equal(neighbor.samples([9, 8]), plain.samples([9, 8]))
    for cache, taken in ((cached.cache, (2, 1, 5)), (neighbor.cache, (0, 1, 1))):
        assert tuple(entry["samples"] for entry in cache.record()) == taken
        assert [entry["bytes"] for entry in cache.record()[:2]] == [size * taken[0], size * taken[1]]
        assert cache.record()[1]["capacity_bytes"] == 10 * size
    stored = sum(plain.read(index)[1] for index in (30, 5, 9, 59, 59))
    assert cached.cache.record()[2]["bytes"] == stored
    assert not list(SHARED_FOLDER.glob("perfscope-samples-*"))


def test_ranks_of_a_host_share_what_one_of_them_decoded(folder: Path, tmp_path: Path) -> None:
    """Two ranks, two epochs: each image is decoded about once in all, as all ranks together count."""
    settings = (
        "--data",
        str(folder),
        "--input",
        f"3x{SIDE}x{SIDE}",
        "--classes",
        str(CLASSES),
        "--batch",
        "18",
    )
    caches = ("--process-cache-mb", "0", "--node-cache-mb", "1", "--steps", "12")
    command = ("bench", "run", "dp.packed", "--ranks", "2", "--model", "smallcnn", "-o", "run", "--no-trace")
    for arguments in ((*command, *settings, *caches), ("report", "run", "--json")):
        done = subprocess.run(
            (*PERFSCOPE, *arguments), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
    levels = {entry["level"]: entry for entry in json.loads(done.stdout)["bench"]["caches"]}
    total = sum(entry["samples"] for entry in levels.values())
    assert 12 * 18 <= total <= 12 * 18 + 2 * 9  # a batch of each rank may have been made ahead
    assert levels["storage"]["samples"] <= 54 + 9  # both may decode what they want at the same time
    assert levels["node"]["share"] > 0.6
    assert levels["process"]["samples"] == 0


def test_a_cache_without_room_in_shared_memory_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sample_cache, "SHARED_FOLDER", tmp_path / "missing")
    assert NodeMemory.shared(1 << 20, World(Alone(), 0, torch.device("cpu"))).size == 0


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NHW"])
@pytest.mark.parametrize("kind", ["uint8", "float32", "float64", "float16"])
def test_arrays_of_every_layout_and_type(tmp_path: Path, layout: str, kind: str) -> None:
    grey = layout == "NHW"
    truth = np.random.default_rng(0).integers(0, 256, (20, 1 if grey else 3, 6, 4)).astype(np.uint8)
    stored = {"NHWC": truth.transpose(0, 2, 3, 1), "NCHW": truth, "NHW": truth[:, 0]}[layout].astype(kind)
    path = tmp_path / "some.npz"
    np.savez_compressed(path, images=stored, labels=np.zeros(20, dtype=np.int32))
    config = config_of(data=str(path), input_shape=truth.shape[1:], batch=18)
    inputs = open_feed(config).batch(0, 0, 1).inputs
    as_trained = scaled_bytes(truth)
    if kind != "uint8":
        as_trained = torch.from_numpy((truth - truth.mean()) / truth.std()).float()
    for one in inputs:
        assert (as_trained - one).abs().flatten(1).amax(dim=1).min() < 1e-3


@pytest.mark.parametrize("source", ["npz", "folder"])
def test_serial_training_on_stored_data_lowers_the_held_out_loss(
    source: str, folder: Path, array_file: Path
) -> None:
    path = {"npz": array_file, "folder": folder}[source]
    before, after = (serial_loss(config_of(data=str(path), steps=steps)) for steps in (1, 40))
    assert after < 0.5 * before


@pytest.mark.parametrize("model", ["smallcnn", "lenet", "mlp"])
def test_serial_training_on_synthetic_data_lowers_the_held_out_loss(model: str) -> None:
    settings: dict[str, Any] = {"model": model, "batch": 16, "input_shape": (3, 16, 16), "num_classes": 16}
    settings["learning_rate"] = find_model(model).learning_rate
    before, after = (serial_loss(config_of(steps=steps, **settings)) for steps in (1, 40))
    assert before > 2
    assert after < 0.5 * before


def serial_loss(config: BenchConfig) -> float:
    settled = replace(config, device="cpu")
    loss = train_here(World(Alone(), 0, torch.device("cpu")), settled).held_out_loss
    assert loss is not None
    return loss


# --- errors -------------------------------------------------------------------------------------------------


def images_of(num: int = 20, **others: Any) -> dict[str, Any]:
    return {"images": np.zeros((num, 12, 12, 3), np.uint8), "labels": np.zeros(num, np.int64), **others}


WRONG_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"images": np.zeros((4, 12, 12, 3), np.uint8)}, r"no array 'labels' \(it holds images\)"),
    "other names": ({"x": np.zeros(3)}, r"no array 'images' \(it holds x\)"),
    "lengths": (images_of(labels=np.zeros(19, np.int64)), r"labels have the shape \(19,\).* 20 images"),
    "float labels": (images_of(labels=np.zeros(20)), "labels are float64, not integers"),
    "negative label": (images_of(labels=np.full(20, -1)), "labels count from 0, but one is -1"),
    "classes": (
        images_of(labels=np.arange(20)),
        "20 classes.*tells 3 apart; set the number of classes to 20",
    ),
    "size": (
        images_of(images=np.zeros((20, 8, 8, 3), np.uint8)),
        r"images are 8x8x3, but .* 3x12x12 \(CxHxW\)",
    ),
    "channels": (images_of(images=np.zeros((20, 12, 12), np.uint8)), r"images are 1x12x12, but .* 3x12x12"),
    "vectors": (images_of(images=np.zeros((20, 432), np.uint8)), "images are 432, but"),
    "type": (
        images_of(images=np.zeros((20, 12, 12, 3), np.int64)),
        "images are int64, not uint8 or floating",
    ),
    "nan": (images_of(images=np.full((20, 12, 12, 3), np.nan, np.float32)), "not finite"),
    "few": (images_of(5), "holds 5 samples, 1 of them kept .* batch of 8; make the batch 4 at most"),
    "one": (images_of(1), "holds 1 samples?; at least 2 are needed"),
    "none": (images_of(0), "holds no samples"),
    "objects": (
        images_of(labels=np.array([object()] * 20)),
        "no .npz file that can be read: it holds objects, not numbers",
    ),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_wrong_arrays_end_in_one_clear_line(tmp_path: Path, case: str) -> None:
    arrays, pattern = WRONG_ARRAYS[case]
    path = tmp_path / "wrong.npz"
    np.savez(path, **arrays)
    refused(config_of(data=str(path)), f"wrong.npz.*{pattern}")


def test_files_that_are_no_arrays_end_in_one_clear_line(tmp_path: Path) -> None:
    for name, content in (("text.npz", b"hello"), ("empty.npz", b""), ("pickle.npz", pickle.dumps([1, 2]))):
        (tmp_path / name).write_bytes(content)
        refused(config_of(data=str(tmp_path / name)), rf"{name} is no .npz file; make one with numpy.savez\(")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    refused(config_of(data=str(tmp_path / "cut.npz")), "cut.npz is no .npz file that can be read")
    np.save(tmp_path / "one.npy", np.zeros(3))
    refused(config_of(data=str(tmp_path / "one.npy")), "holds one array; save two")
    np.savez(tmp_path / "whole.npz", **images_of())
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    refused(config_of(data=str(tmp_path / "half.npz")), "no .npz file that can be read")


def test_without_pillow_a_folder_of_images_ends_in_one_clear_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfscope.runners.data.folder.find_spec", lambda name: None)
    refused(config_of(data=str(folder)), "images need Pillow: pip install")


def test_folders_without_usable_images_end_in_one_clear_line(tmp_path: Path, folder: Path) -> None:
    refused(config_of(data=str(tmp_path / "nowhere")), "there is no data at .*nowhere; give a folder")
    refused(config_of(data=str(tmp_path)), "holds no images in sub-folders; put .png or .jpg")
    Image.fromarray(pixels(0, 0)).save(tmp_path / "loose.png")
    refused(config_of(data=str(tmp_path)), "holds no images in sub-folders")
    refused(config_of(data=str(folder), num_classes=2), "3 classes, but the model tells 2 apart")
    refused(config_of(data=str(folder), batch=64), "fewer than a batch of 64; make the batch 54 at most")
    refused(config_of(data=str(folder), input_shape=(4, 8, 8)), "images have 1 or 3 channels, not 4")


def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    good = tmp_path / "class" / "good.png"
    Image.fromarray(pixels(0, 0)).save(good)
    (tmp_path / "class" / "bad.png").write_bytes(b"no picture")
    (tmp_path / "class" / "cut.png").write_bytes(good.read_bytes()[:200])
    source = ImageFolder(tmp_path, (3, 8, 8))
    for index, name in ((0, "bad"), (1, "cut")):
        with pytest.raises(BenchError, match=f"{name}.png is no image that can be read") as error:
            source.samples([index])
        assert "\n" not in str(error.value)


def refused(config: BenchConfig, pattern: str) -> None:
    for opening in (open_feed, check_data):
        with pytest.raises(BenchError, match=pattern) as error:
            opening(config)
        assert "\n" not in str(error.value)
