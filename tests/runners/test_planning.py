"""What planning refuses before anything is started, and what run.json says of a planned run."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from perfscope.runners.config import BenchConfig, BenchError, Modifier
from perfscope.runners.identity import RankLocation, all_traffic, bytes_by_link, identity, link_class
from perfscope.runners.mesh import Mesh
from perfscope.runners.planning import plan
from perfscope.runners.schemes.registry import SCHEMES
from perfscope.volumes import edges

pytestmark = pytest.mark.torch


def config_of(scheme: str, **settings: Any) -> BenchConfig:
    return BenchConfig(
        **{"scheme": scheme, "num_ranks": 2, "batch": 8, "input_shape": (3, 16, 16), **settings}
    )


def refused(config: BenchConfig, pattern: str) -> None:
    with pytest.raises(BenchError, match=pattern) as error:
        plan(config)
    assert "\n" not in str(error.value)


# --- norms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "settings", "least"),
    [
        ("dp.packed", {"batch": 2}, 4),  # no mesh given: the scheme's own
        ("dp.packed", {"batch": 2, "mesh": Mesh.positional(2, 1, 1)}, 4),
        (
            "dp.hsdp",
            {"num_ranks": 4, "batch": 4, "mesh": Mesh.positional(2, 2, 1)},
            8,
        ),  # every rank has own samples, M, too
        ("ps.sync", {"num_ranks": 3, "batch": 2}, 4),  # the server has none
        ("serial", {"num_ranks": 1, "batch": 1}, 2),
    ],
)
def test_one_value_per_channel_is_refused_by_what_a_rank_really_takes(
    scheme: str, settings: dict[str, Any], least: int
) -> None:
    config = config_of(scheme, model="resnet50", input_shape=(3, 8, 8), **settings)
    refused(config, f"resnet50 normalizes .* needs two .* batch of at least {least}, or an input of at least")
    plan(replace(config, batch=least))
    plan(replace(config, input_shape=(3, 33, 33)))
    plan(replace(config, model="googlenet"))


def test_a_setting_for_pipelines_does_not_make_other_schemes_refuse_a_norm() -> None:
    plan(config_of("dp.packed", model="resnet50", batch=4, num_microbatches=10**9))
    refused(
        config_of("pp.gpipe", model="resnet50", batch=2, input_shape=(3, 8, 8), num_microbatches=2),
        "normalize over one value per microbatch",
    )


# --- the file for the weights ---------------------------------------------------------------------------


def test_weights_that_cannot_be_written_are_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere, below, folder = tmp_path / "nowhere" / "w.pt", tmp_path / "file" / "w.pt", tmp_path
    for path, reason in (
        (nowhere, "/nowhere is no directory that exists"),
        (below, "/file is no directory that exists"),
        (folder, "it is a directory"),
        ("/proc/w.pt", "/proc cannot be written to"),
        (tmp_path / ("n" * 300) / "w.pt", ""),
    ):
        if path == "/proc/w.pt" and _is_root():
            continue  # may write anywhere, as far as the permissions tell
        refused(
            config_of("serial", num_ranks=1, save_weights=str(path)), f"--save-weights .*: .*{reason}.*; name"
        )
    plan(config_of("serial", num_ranks=1, save_weights=str(tmp_path / "w.pt")))
    plan(config_of("serial", num_ranks=1, save_weights=str(nowhere)), writes=False)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file"]


def _is_root() -> bool:
    import os

    return os.geteuid() == 0


# --- equal to serial, or why not ------------------------------------------------------------------------


def equality_of(scheme: str, **settings: Any) -> tuple[bool, str]:
    record = identity(plan(config_of(scheme, **settings)))
    return record["equals_serial"], record["criterion"]


@pytest.mark.parametrize(
    ("scheme", "settings", "reason"),
    [
        ("dp.packed", {"dropout": 0.5}, "dropout draws per rank"),
        ("mp.filter", {"dropout": 0.5}, "dropout draws per rank"),
        ("pp.gpipe", {"dropout": 0.5}, "dropout draws per rank"),
        ("dp.packed", {"model": "resnet50"}, "per-replica batch statistics"),
        ("pp.gpipe", {"model": "resnet50", "input_shape": (3, 33, 33)}, "per-microbatch batch statistics"),
        ("dp.packed", {"modifiers": (Modifier("fp16"),)}, r"\+fp16 changes the gradients"),
    ],
)
def test_a_run_that_cannot_equal_serial_says_so_and_why(
    scheme: str, settings: dict[str, Any], reason: str
) -> None:
    equal, criterion = equality_of(scheme, **settings)
    assert not equal
    assert reason.replace("\\", "") in criterion


def test_norms_and_dropout_change_nothing_where_no_samples_are_split() -> None:
    assert equality_of("serial", num_ranks=1, dropout=0.5, model="resnet50") == (True, "")
    assert equality_of("dp.packed")[0]
    assert equality_of("mp.filter", model="resnet50", num_classes=16)[0]
    assert equality_of("dp.perlayer", modifiers=(Modifier("prio"),))[0]
    assert not equality_of("easgd.sync_ar")[0]


# --- predictions ----------------------------------------------------------------------------------------


def test_bytes_by_link_are_those_of_every_edge_of_every_call() -> None:
    """The short way against the long one: all edges of each call, those that its sender lists."""
    checked = 0
    for scheme in SCHEMES:
        try:
            job = plan(config_of(scheme.name, num_ranks=4, batch=24, num_hosts=1 + (not scheme.one_host)))
        except BenchError:
            continue
        places = tuple(RankLocation(host=f"h{rank // 2}", numa=rank % 2) for rank in range(4))
        expected: dict[str, float] = defaultdict(float)
        traffic = all_traffic(job)
        for rank, calls in traffic.items():
            for call in calls:
                for sender, receiver, share in edges(call.collective, call.members):
                    if sender == rank:
                        amount = share * call.bytes * call.count / call.every
                        expected[link_class(places[sender], places[receiver])] += amount
        found = bytes_by_link(traffic, places)
        assert found == pytest.approx(dict(expected)), scheme.name
        checked += bool(found)
    assert checked > 15


@pytest.mark.parametrize(("steps", "calls"), [(3, 1), (4, 1), (5, 2), (8, 2), (11, 3)])
def test_a_cut_period_is_in_the_predicted_bytes_of_the_run(steps: int, calls: int) -> None:
    """Two ranks, an all_reduce of |W| each: |W| e per rank and call."""
    job = plan(config_of("dp.local_sgd", steps=steps, period=4))
    predicted = identity(job)["predicted"]
    assert predicted["bytes_algorithmic_per_step"] == pytest.approx(
        {"loopback": 2 * job.model_bytes * calls / steps}
    )
    assert [row["calls"] for rows in predicted["calls_of_rank"].values() for row in rows] == [calls] * 2


@pytest.mark.parametrize("scheme", ["dp.packed", "dp.local_sgd", "easgd.sync_ar", "dp.ddp"])
def test_thousands_of_ranks_are_planned_in_seconds(scheme: str) -> None:
    begin = time.process_time()
    record = identity(plan(config_of(scheme, num_ranks=4096, batch=4096)))
    assert time.process_time() - begin < 30  # it was minutes
    assert len(record["predicted"]["calls_of_rank"]) <= 4096
    [(_, amount)] = record["predicted"]["bytes_algorithmic_per_step"].items()
    whole = 2 * 4095 * 4 * record["num_params"]
    assert amount == pytest.approx(whole if scheme != "dp.local_sgd" else whole / 4)


def test_not_every_ranks_calls_are_listed_where_they_are_many() -> None:
    job = plan(config_of("dp.perlayer", model="resnet50", num_ranks=4096, batch=8192))
    listed = identity(job)["predicted"]["calls_of_rank"]
    assert 500 < len(listed) < 4096
    assert sum(map(len, listed.values())) < (1 << 16) + 200


def test_large_inputs_are_planned_at_once() -> None:
    begin = time.process_time()
    plan(config_of("dp.packed", input_shape=(1, 1 << 14, 1 << 14), model="vgg16"))
    assert time.process_time() - begin < 30
