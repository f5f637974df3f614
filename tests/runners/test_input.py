"""The loader of the bench runners: the same batches whatever its threads, and its waits in the report."""

from __future__ import annotations

import io
import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from PIL import Image

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.folder import ImageFolder
from perfscope.runners.data.loader import LoadedFeed
from perfscope.runners.data.registry import input_workers, open_feed
from perfscope.runners.data.sample_cache import NodeMemory, SampleCache
from perfscope.runners.schemes.base import Batch
from tests.integration.run_support import PERFSCOPE, user_environment

CPU = torch.device("cpu")
SMALL = ("--ceilings", "off", "--sample-interval", "off", "--input", "3x16x16", "--classes", "2")


def images(root: Path, per_class: int, side: int) -> Path:
    """Two classes of JPEG files with some texture, so that decoding them costs what photographs cost."""
    generator = np.random.default_rng(0)
    kinds = []
    for _ in range(10):  # files repeat: the cache of decoded images goes by file
        stream = io.BytesIO()
        coarse = generator.integers(0, 256, (90, 90, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((side, side)).save(stream, "JPEG", quality=90)
        kinds.append(stream.getvalue())
    for name in ("ant", "bee"):
        (root / name).mkdir(parents=True)
        for index in range(per_class):
            (root / name / f"{index:03}.jpg").write_bytes(kinds[index % 10])
    return root


@pytest.fixture(scope="module")
def small_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images(tmp_path_factory.mktemp("small") / "images", 20, 24)


@pytest.fixture(scope="module")
def large_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """900 x 900: the decoding of a batch takes many times the step of a small network."""
    return images(tmp_path_factory.mktemp("large") / "images", 110, 900)


def config_of(**settings: Any) -> BenchConfig:
    defaults = {"scheme": "serial", "batch": 8, "input_shape": (3, 16, 16), "num_classes": 2}
    return BenchConfig(**{**defaults, **settings})


def same(one: Batch, two: Batch) -> bool:
    return bool(torch.equal(one.inputs, two.inputs) and torch.equal(one.targets, two.targets))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_and_their_order_do_not_depend_on_the_threads(
    small_images: Path, stored: bool, workers: int
) -> None:
    """Over several epochs of four batches, from any step on, and with the caller's random state untouched."""
    config = config_of(data=str(small_images) if stored else "synthetic")
    plain, threads, state = open_feed(config), threading.active_count(), torch.get_rng_state()
    with LoadedFeed(open_feed(config), 11, workers, CPU) as feed:
        assert all(same(feed.batch(step, 1, 2), plain.batch(step, 1, 2)) for step in range(11))
        assert same(feed.batch(4, 0, 2), plain.batch(4, 0, 2))
        assert same(feed.batch(40, 0, 2), plain.batch(40, 0, 2))  # beyond the run
    assert torch.equal(torch.get_rng_state(), state)
    assert threading.active_count() == threads


def test_threads_that_share_a_folder_keep_to_its_cache(small_images: Path) -> None:
    one = 3 * 16 * 16
    folder = ImageFolder(small_images, (3, 16, 16))
    cache = folder.cache = SampleCache(len(folder.labels), folder.shape, 10 * one, NodeMemory(None))
    waits = [threading.Thread(target=folder.samples, args=(range(20),)) for _ in range(4)]
    for thread in waits:
        thread.start()
    for thread in waits:
        thread.join()
    decoded = cache.record()[2]["samples"]
    folder.samples(range(20))
    kept, _, stored = (entry["samples"] for entry in cache.record())
    assert stored == decoded + 10
    assert kept + stored == 5 * 20


def test_stored_data_has_a_thread_of_its_own_unless_asked_otherwise(small_images: Path) -> None:
    stored = str(small_images)
    assert input_workers(config_of()) == 0
    assert input_workers(config_of(data=stored)) == 1
    assert input_workers(config_of(data=stored, workers=0)) == 0
    assert input_workers(config_of(workers=2)) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_cannot_be_read_is_an_error_where_the_batch_is_asked_for(
    tmp_path: Path, workers: int
) -> None:
    root = images(tmp_path / "images", 20, 24)
    for file in root.glob("*/01*.jpg"):
        file.write_bytes(b"no picture")
    config, threads = config_of(data=str(root)), threading.active_count()
    with (
        LoadedFeed(open_feed(config), 8, workers, CPU) as feed,
        pytest.raises(BenchError, match="is no image that can be read"),
    ):
        for step in range(8):
            feed.batch(step, 0, 1)
    assert threading.active_count() == threads


def bench(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`perfscope bench run <words>` to its end."""
    return subprocess.run(
        [*PERFSCOPE, "bench", "run", *words, *SMALL],
        cwd=cwd,
        env=user_environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_a_rank_whose_thread_cannot_read_an_image_ends_the_run(tmp_path: Path) -> None:
    """One line names the file, every rank ends, and no thread keeps the program alive."""
    root = images(tmp_path / "images", 20, 24)
    for file in root.glob("*/01*.jpg"):
        file.write_bytes(b"no picture")
    words = ("--data", str(root), "--batch", "8", "--steps", "8", "--workers", "2", "--no-trace")
    found = bench("dp.ddp", *words, cwd=tmp_path)
    assert found.returncode not in (0, 125)
    assert "is no image that can be read" in found.stderr


@pytest.mark.parametrize("workers", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_decoding_large_images_is_reported_as_input(tmp_path: Path, large_images: Path, workers: str) -> None:
    """A small input and network beside 900 x 900 images, decoded in the loop or on a thread beside it."""
    words = ("--data", str(large_images), "--batch", "16", "--steps", "10", "--workers", workers, "-o", "run")
    found = bench("dp.ddp", *words, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    command = [*PERFSCOPE, "report", "run", "--json"]
    text = subprocess.run(command, cwd=tmp_path, env=user_environment(), capture_output=True, check=True)
    report = json.loads(text.stdout)
    assert report["findings"][0]["id"] == "input_bound", report["findings"][0]["title"]
    for rank in report["ranks"]:
        assert rank["breakdown_ns"]["input_wait"] > 0
        assert rank["input_wait_ns"] > 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["scheme"]["input_workers"] == int(workers)
