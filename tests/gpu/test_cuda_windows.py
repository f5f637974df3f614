"""A training on one GPU with NCCL through `perfscope run`: windows, layers' kernels, energy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.ingest.run import ingest_run
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.causes import Cause

pytestmark = pytest.mark.gpu

TRAIN = Path(__file__).with_name("train_cuda.py")
WIDTH, BATCH = 2048, 256  # of train_cuda.py


@pytest.fixture(scope="module")
def finished(cuda: Any, tmp_path_factory: pytest.TempPathFactory) -> RunReader:
    folder = tmp_path_factory.mktemp("cuda") / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    subprocess.run(
        [sys.executable, "-m", "perfscope", "run", "-o", str(folder), "--", *torchrun, str(TRAIN)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
        check=True,
        timeout=280,
    )
    ingest_run(RunReader(folder).path)
    return RunReader(folder)


@pytest.fixture(scope="module")
def analysis(finished: RunReader) -> RunAnalysis:
    return analyze_run(finished)


def test_device_time_is_found(analysis: RunAnalysis) -> None:
    (rank,) = analysis.ranks
    assert rank.num_traced_steps > 0
    device = rank.device_ns
    assert device is not None and device.num_events > 0
    assert 0 < device.compute <= device.span


def test_kernels_are_given_to_layers(analysis: RunAnalysis) -> None:
    """Two equal matrix products a layer and phase: forward 2·B·n·4n, backward twice that."""
    layers = {layer.layer: layer for layer in analysis.layers if layer.module_type == "Linear"}
    assert len(layers) == 2
    flops = 2 * BATCH * WIDTH * 4 * WIDTH
    for layer in layers.values():
        assert layer.forward_ns > 0 and layer.backward_ns > 0
        assert layer.forward_flops == pytest.approx(flops, rel=0.02)
    first, second = layers.values()
    assert first.forward_ns == pytest.approx(second.forward_ns, rel=0.6)


def test_collectives_of_one_rank_take_no_time(analysis: RunAnalysis) -> None:
    """NCCL launches nothing for an all-reduce in place among one rank."""
    assert not analysis.collectives
    (rank,) = analysis.ranks
    assert rank.comm_ns == 0
    assert any(entry.cause is Cause.NO_COMMUNICATION for entry in analysis.missing)


def test_the_gpu_was_sampled(finished: RunReader, analysis: RunAnalysis) -> None:
    (host,) = finished.hosts
    samples = finished.samples(host)
    assert samples is not None
    metrics = {series.metric for series in samples.series}
    assert {"gpu_memory_used", "gpu_temperature"} <= metrics
    assert analysis.machine is not None
    tracks = {track.group for track in analysis.machine.tracks}
    assert "gpu" in tracks
    if "gpu_energy" in metrics:
        assert any(energy.domain.startswith("GPU") for energy in analysis.machine.energy)
