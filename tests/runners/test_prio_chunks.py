"""Chunks of +prio: cut for the link, the same on every rank, recorded with what they are from."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.cli.bench.chunks import with_known_link
from perfscope.cli.doctor import links as doctor_links
from perfscope.rundir.host_records import LinkCall, LinksRecord
from perfscope.runners.cluster.spec import parse_cluster
from perfscope.runners.config import BenchConfig, parse_scheme
from perfscope.runners.job import Job
from perfscope.runners.planning import plan
from perfscope.runners.schemes.chunks import (
    DEFAULT_KIB,
    LEAST_KIB,
    MOST_KIB,
    Link,
    chunk_kib,
    link_of,
    settled,
)
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.world import World
from perfscope.vocabulary.links import LinkClass
from tests.integration.run_support import PERFSCOPE, user_environment
from tests.runners.ranks import run_ranks
from tests.runners.test_cluster import namespaces as namespaces
from tests.runners.training import expected_calls, train_here


def job_of(num_ranks: int = 2, **settings: Any) -> Job:
    scheme, modifiers = parse_scheme("dp.fwd_overlap+prio")
    defaults = {"model": "mlp", "batch": 8, "steps": 4, "input_shape": (3, 16, 16), "device": "cpu"}
    return plan(
        BenchConfig(scheme=scheme, modifiers=modifiers, num_ranks=num_ranks, **{**defaults, **settings})
    )


def test_latency_is_a_tenth_of_each_message() -> None:
    alpha, beta = 1e-3, 8 / 1e9
    chunk = chunk_kib(Link(alpha, beta, ""), 4) * 1024
    assert alpha / (alpha + chunk / 4 * beta) == pytest.approx(0.1, rel=1e-3)


def test_a_slower_link_gets_smaller_chunks_within_bounds() -> None:
    sizes = [chunk_kib(Link(1e-3, 8 / rate, ""), 2) for rate in (1e6, 1e8, 1e9, 1e12)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (LEAST_KIB, MOST_KIB)
    assert LEAST_KIB < sizes[1] < sizes[2] < MOST_KIB
    assert chunk_kib(Link(1e-3, 0.0, ""), 2) == DEFAULT_KIB


@pytest.mark.parametrize("spec", ["2x1", "2x1@1gbit", "1x2@1gbit,1ms"])
def test_a_cluster_that_does_not_give_both_is_measured(spec: str) -> None:
    cluster = parse_cluster(spec)
    assert link_of(cluster) is None
    assert with_known_link(job_of(), cluster, {}).config.chunk_kb is None


def test_a_cluster_with_rate_and_latency_settles_the_chunk_in_the_plan() -> None:
    slow, fast = (
        with_known_link(job_of(), parse_cluster(f"2x1@{rate},1ms"), {}).config
        for rate in ("100mbit", "1gbit")
    )
    assert (slow.chunk_kb, fast.chunk_kb) == (220, 2197)  # 2 ranks, 9 ms of each rate
    assert slow.chunk_from == "--cluster: 1.00 ms, 11.9 MiB/s"


def test_measured_links_of_the_doctor_settle_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, beta = 5e-5, 1e-9
    calls = tuple(
        LinkCall(
            transport="gloo",
            what="send",
            collective="send",
            num_ranks=2,
            hosts=("here", "here"),
            link_class=LinkClass.LOOPBACK.value,
            bytes=size,
            seconds=(alpha + beta * size,) * 8,
        )
        for size in (8, 1 << 10, 1 << 16, 1 << 20, 1 << 24)
    )
    monkeypatch.setattr(doctor_links, "kept_records", lambda: [LinksRecord(calls=calls)])
    config = with_known_link(job_of(), None, {}).config
    assert config.chunk_kb == pytest.approx(2 * 9 * alpha / beta / 1024, rel=0.02)
    assert config.chunk_from.startswith("doctor --links: ")
    given = with_known_link(job_of(chunk_kb=100), None, {}).config
    assert (given.chunk_kb, given.chunk_from) == (100, "")


def settle(world: World) -> list[dict[str, Any]]:
    """On each rank: where ranks know different chunks, and where none knows one."""
    found = []
    owns: tuple[dict[str, Any], ...] = ({"chunk_kb": 70 + world.rank, "chunk_from": f"rank {world.rank}"}, {})
    for own in owns:
        job = job_of(world.size)
        job = settled(replace(job, config=replace(job.config, **own)), world)
        outcome = train_here(world, job.config)
        traffic = find_scheme(job.config.scheme).traffic(job, world.rank)
        found.append(
            {
                "details": dict(outcome.details),
                "calls": {tuple(call): count for call, count in outcome.calls.items()},
                "predicted": dict(expected_calls(traffic, job.config.steps)),
            }
        )
    return found


def test_all_ranks_cut_alike_and_send_what_is_predicted() -> None:
    ranks = run_ranks(2, f"{__name__}:settle")
    for first, second in zip(*ranks, strict=True):
        assert first["details"] == second["details"]
        assert first["calls"] == first["predicted"] == second["calls"]
    agreed, measured = (one["details"] for one in ranks[0])
    assert agreed == {"chunk_bytes": 70 << 10, "chunk_from": "rank 0"}
    assert LEAST_KIB << 10 <= measured["chunk_bytes"] <= MOST_KIB << 10
    assert measured["chunk_from"].startswith("measured at the start: ")


@pytest.mark.usefixtures("namespaces")
def test_a_run_records_the_chunk_of_its_emulated_link(tmp_path: Path) -> None:
    words = ("dp.perlayer+prio", "--model", "mlp", "--input", "3x16x16", "--batch", "8", "--steps", "6")
    cluster = ("--cluster", "2x1@1gbit", "--no-trace", "--json", "-o", str(tmp_path / "run"))
    command = [*PERFSCOPE, "bench", "run", *words, *cluster]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=user_environment())
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert figures["details"]["chunk_from"].startswith("measured latency, rate of --cluster: ")
    assert LEAST_KIB << 10 <= figures["details"]["chunk_bytes"] <= MOST_KIB << 10
    amounts = figures["bytes_per_step"]
    assert sum(amounts["recorded"].values()) == pytest.approx(sum(amounts["predicted"].values()))
