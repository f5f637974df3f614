"""Predicted bytes against what emulated hosts' interfaces counted: real ranks, a limited bridge, gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analysis.bench import BenchResult, bench_result
from perfscope.rundir.scheme_records import BenchRecord, SchemeRecord
from perfscope.rundir.typed import read_as
from perfscope.runners.config import BenchConfig, parse_scheme

CASES = Path(__file__).with_name("wire_cases.py")
BASE = BenchConfig(scheme="serial", model="mlp", batch=16, steps=3, threads=1, device="cpu")
WITHIN = 0.01
pytestmark = pytest.mark.torch


def measured(tmp_path: Path, cluster: str, num_hosts: int, num_ranks: int, *names: str) -> list[BenchResult]:
    """Runs each scheme for a few steps, all in one start of the cluster."""
    pytest.importorskip("torch")
    from perfscope.runners.identity import RankLocation, identity
    from perfscope.runners.planning import plan

    configs = []
    for name in names:
        scheme, modifiers = parse_scheme(name)
        named = replace(BASE, scheme=scheme, modifiers=modifiers)
        configs.append(replace(named, num_ranks=num_ranks, num_hosts=num_hosts))
    command = [sys.executable, "-m", "perfscope.runners.cluster", cluster, "--", sys.executable, str(CASES)]
    done = subprocess.run(
        [*command, str(tmp_path), *(config.to_json() for config in configs)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    if "needs" in done.stderr and done.returncode == 2:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    hosts = json.loads((tmp_path / "hosts.json").read_text())
    assert len(set(hosts)) == num_hosts
    results = []
    for number, config in enumerate(configs):
        ranks = {
            rank: read_as(BenchRecord, json.loads((tmp_path / f"{number}-{rank}.json").read_text()))
            for rank in range(num_ranks)
        }
        record = read_as(SchemeRecord, identity(plan(config), [RankLocation(host=host) for host in hosts]))
        found, missing = bench_result(record, ranks)
        assert found is not None and not missing
        results.append(found)
    return results


def test_two_hosts_put_on_the_wire_what_was_predicted(tmp_path: Path) -> None:
    names = ("dp.packed", "dp.dist_update", "dp.packed+fp16", "easgd.sync_ar", "easgd.sync2", "ps.async_sgd")
    for result in measured(tmp_path, "2x1@1gbit", 2, 2, *names):
        (link,) = result.links
        assert link.link_class == "ethernet", result.scheme
        assert link.recorded == pytest.approx(link.predicted, abs=1), result.scheme
        assert link.wire == pytest.approx(link.predicted_wire, rel=WITHIN), result.scheme


def test_ranks_of_one_host_keep_their_bytes_off_the_wire(tmp_path: Path) -> None:
    names = ("dp.packed", "dp.dist_update", "hy.numa_replica")
    for result in measured(tmp_path, "2x2@1gbit", 2, 4, *names):
        links = {link.link_class: link for link in result.links}
        assert set(links) == {"ethernet", "loopback"}, result.scheme
        for link in links.values():
            assert link.recorded == pytest.approx(link.predicted, abs=1), (result.scheme, link)
            assert link.wire == pytest.approx(link.predicted_wire, rel=WITHIN), (result.scheme, link)
