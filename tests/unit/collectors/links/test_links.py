"""Measured links: real loopback and memory, made-up nodes for the matrix, known answers for fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.predict.measured_links import fitted_series
from perfscope.cli.doctor.links_text import link_lines
from perfscope.collectors.ceilings.host import LocalHost, LocalNode
from perfscope.collectors.context import live_context
from perfscope.collectors.links import cache
from perfscope.collectors.links.measure import Tools, measure_links, numa_cells, numa_plan
from perfscope.rundir.host_records import LinkCall, LinksRecord
from perfscope.rundir.typed import read_as

BUDGET_S = 16.0


def host(*nodes: LocalNode, threads: int) -> LocalHost:
    return LocalHost(
        nodes=nodes,
        threads=threads,
        cpus=tuple(cpu for node in nodes for cpu in node.cores),
        cpu_limit=None,
        free_bytes=8 << 30,
        cpu_model="made up",
        memory_bytes=16 << 30,
    )


def node(number: int, *cores: int) -> LocalNode:
    return LocalNode(number=number, cores=cores, free_bytes=2 << 30)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, list[str]]:
    """This machine, without torch and MPI."""
    folder, said = tmp_path_factory.mktemp("links"), list[str]()
    document = measure_links(
        live_context(),
        "here",
        Tools(torch_python=None, no_mpi="left out"),
        budget_s=BUDGET_S,
        say=said.append,
        cache_dir=folder,
    )
    assert document is not None
    return document, folder, said


def test_loopback_and_memory_of_this_machine(measured: tuple[dict[str, Any], Path, list[str]]) -> None:
    record = read_as(LinksRecord, measured[0])
    (tcp,) = [series for series in fitted_series(record) if series.transport == "tcp"]
    assert (tcp.num_ranks, tcp.hosts, tcp.link_class) == (2, ("here",), "loopback")
    assert tcp.largest_bytes >= 1 << 10  # how far the time went
    assert tcp.largest_bytes_per_s > 0
    assert tcp.alpha_s >= 0
    sources = {cell.cpu_node for cell in record.numa}
    assert len(record.numa) == len(sources) * len({cell.memory_node for cell in record.numa})
    for cell in record.numa:
        assert cell.bytes_per_s is None or cell.bytes_per_s > 0
        # A load beyond the caches takes longer than one cycle.
        assert cell.latency_s is None or cell.latency_s > 1e-9


def test_what_is_not_measured_has_its_reason(measured: tuple[dict[str, Any], Path, list[str]]) -> None:
    reasons = {gap["what"]: gap["reason"] for gap in measured[0]["missing"]}
    assert reasons["collectives of gloo"] == "no Python with torch was found"
    assert reasons["collectives of MPI"] == "left out"
    assert "one host" in reasons["links between hosts"]
    assert any(what.startswith("RDMA") for what in reasons)


def test_progress_names_the_part_and_its_limit(measured: tuple[dict[str, Any], Path, list[str]]) -> None:
    assert len(measured[2]) >= 3
    assert all("at most" in line for line in measured[2])


def test_links_are_kept_for_their_hosts_only(
    measured: tuple[dict[str, Any], Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    document, folder, _ = measured
    (kept,) = cache.load(live_context(), "here", folder)
    assert kept["cached"]
    assert kept["calls"] == document["calls"]
    assert cache.load(live_context(), "elsewhere", folder) == []
    monkeypatch.setenv(cache.ENV_EMULATED, "2x1@1gbit")
    assert cache.load(live_context(), "here", folder) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hosts": "here"}', '{"hosts": ["here"], "emulated": ""}'])
def test_a_damaged_file_of_the_cache_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "links-1-0123.json").write_text(text)
    assert cache.load(live_context(), "here", tmp_path) == []


def test_the_matrix_has_the_cpus_of_every_node_and_the_memory_of_every_node() -> None:
    """Two nodes with CPUs, one with memory only."""
    machine = host(node(0, 0, 1), node(1, 2, 3), node(2), threads=4)
    tasks = numa_plan(live_context(), machine)
    pairs = {(task["label"]["cpu_node"], task["label"]["memory_node"]) for task in tasks}
    assert pairs == {(source, target) for source in (0, 1) for target in (0, 1, 2)}
    assert {task["kind"] for task in tasks} == {"stream_triad", "latency"}
    far = next(task for task in tasks if task["label"]["cpu_node"] == 1 and task["kind"] == "stream_triad")
    assert far["workers"] == [(2, 0), (3, 0)]


def test_one_node_is_a_matrix_of_one_cell_without_a_memory_policy() -> None:
    tasks = numa_plan(live_context(), host(node(0, 0, 1), threads=2))
    assert [task["kind"] for task in tasks] == ["stream_triad", "latency"]
    assert tasks[1]["worker"] == (0, None)


def test_the_matrix_on_a_terminal() -> None:
    lines: list[dict[str, Any]] = [
        {"kind": "stream_triad", "cpu_node": 0, "memory_node": 0, "threads": 4, "value": 40e9},
        {"kind": "latency", "cpu_node": 0, "memory_node": 0, "threads": 1, "value": 90e-9},
        {"kind": "stream_triad", "cpu_node": 0, "memory_node": 1, "threads": 4, "value": 20e9},
        {"missing": {"kind": "latency", "cpu_node": 0, "memory_node": 1}, "reason": "no time was left"},
        {"kind": "latency", "cpu_node": 1, "memory_node": 0, "threads": 1, "value": 150e-9},
    ]
    document = {"hosts": ["here"], "numa": numa_cells(lines), "calls": [], "missing": []}
    text = [line for line, _ in link_lines([document])]
    assert text[:8] == [
        "NUMA bandwidth by STREAM triad, 4 threads per node",
        "              memory 0   memory 1",
        "  CPUs of 0  40.0 GB/s  20.0 GB/s",
        "  CPUs of 1          –          –",
        "NUMA latency of one load that misses the caches",
        "             memory 0  memory 1",
        "  CPUs of 0     90 ns         –",
        "  CPUs of 1    150 ns         –",
    ]


def calls(collective: str, alpha_s: float, beta: float, messages: int, share: float, hosts: list[str]) -> Any:
    """Calls of many sizes that take alpha x messages + bytes x share x beta, with noise of up to 2 %."""
    return tuple(
        LinkCall(
            transport="mpi",
            collective=collective,
            num_ranks=len(hosts),
            hosts=tuple(hosts),
            link_class="ethernet" if len(set(hosts)) > 1 else "loopback",
            bytes=size,
            seconds=tuple((alpha_s * messages + size * share * beta) * noise for noise in (1, 1.01, 1.02)),
        )
        for size in (256, 4096, 65_536, 1 << 20, 8 << 20)
    )


@pytest.mark.parametrize(
    ("collective", "messages", "share"),
    [("all_reduce", 6, 1.5), ("all_gather", 3, 0.75), ("all_to_all", 3, 0.75), ("send", 1, 1.0)],
)
def test_fits_find_latency_and_bandwidth_again(collective: str, messages: int, share: float) -> None:
    hosts = ["a"] * (2 if collective == "send" else 4)
    rows = calls(collective, 10e-6, 1e-9, messages, share, hosts)
    (fit,) = fitted_series(LinksRecord(calls=rows))
    assert fit.alpha_s == pytest.approx(10e-6, rel=0.05)
    assert fit.bytes_per_s == pytest.approx(1e9, rel=0.05)
    assert fit.residual_ratio < 0.02


def test_an_all_to_all_shares_the_link_of_its_host() -> None:
    """Two hosts of two ranks: each host sends 2 x 2/4 of S, where the formula of one rank says 3/4 of S."""
    rows = calls("all_to_all", 10e-6, 1e-9, 3, 1.0, ["a", "a", "b", "b"])
    (fit,) = fitted_series(LinksRecord(calls=rows))
    assert fit.bytes_per_s == pytest.approx(1e9, rel=0.05)


def test_calls_that_cannot_be_are_left_out() -> None:
    rows = (
        LinkCall(transport="mpi", collective="all_reduce", num_ranks=1, bytes=1, seconds=(1.0,)),
        LinkCall(transport="mpi", collective="all_reduce", num_ranks=2, bytes=1, seconds=()),
        LinkCall(transport="mpi", collective="all_reduce", num_ranks=2, bytes=1, seconds=(0.0,)),
        LinkCall(transport="mpi", collective="unheard of", num_ranks=2, bytes=1, seconds=(1.0,)),
    )
    assert fitted_series(LinksRecord(calls=rows)) == []
