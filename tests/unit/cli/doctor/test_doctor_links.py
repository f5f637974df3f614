"""`perfscope doctor --links`, `--ceilings all`, `--cluster` and `--fits`: what is printed and refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfscope.cli.doctor import command as doctor
from perfscope.cli.doctor.memory_modes import fit_document, fit_lines, mode_lines, parse_copies
from perfscope.errors import PerfscopeError
from perfscope.rundir.host_records import NodeRow, PackageRow, TopologyRecord
from perfscope.runners.cluster.network import require_rights, require_tools
from perfscope.runners.config import BenchError
from tests.support import hardware
from tests.support.synthetic_topology import knl_topology, topology_record

RATE_BYTES_PER_S = 1e9 / 8
# The payload of TCP is 1448 of 1514 bytes. Buckets of 128 KiB at both ends of a link pass on at once what
# they hold, up to 6 % of the smallest message that the bandwidth is fitted to; other processes are busy, too.
TOLERANCE = 0.2


def said(*arguments: str) -> str:
    result = CliRunner().invoke(doctor.command, list(arguments))
    assert isinstance(result.exception, PerfscopeError), result.output
    return str(result.exception)


def shown(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "perfscope", "doctor", "--json", *arguments], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budget", "30"), "--budget bounds --links"),
        (("--links", "--budget", "nan"), "5 to 600 seconds"),
        (("--links", "--root", "x"), "--links needs the machine itself"),
        (("--ceilings", "all", "--root", "x"), "--ceilings needs the machine itself"),
        (("--fits", "0x5GB"), "4x500MB"),
        (("--fits", "4x0.3B"), "4x500MB"),
        (("--fits", "4x5"), "4x500MB"),
        (("--cluster", "2"), "HOSTSxRANKS@RATE"),
        (("--cluster", "1x1"), "2x1@1gbit"),
    ],
)
def test_wrong_options_are_one_line_that_says_what_to_do(arguments: tuple[str, ...], words: str) -> None:
    line = said(*arguments)
    assert words in line
    assert "\n" not in line


def test_a_knights_landing_in_snc4_flat_mode_is_named_and_asked_for_room() -> None:
    """16 GiB of MCDRAM in four nodes: 13 copies of 300 MB fit each."""
    machine = topology_record(knl_topology())
    assert list(mode_lines(machine)) == ["Cluster mode: SNC-4; memory mode: flat"]
    (yes,) = fit_lines(machine, parse_copies("52x300MiB"))
    assert "52 copies of 300 MiB (15.2 GiB) fit 16.0 GiB of MCDRAM" in yes
    assert yes.endswith("at most 52, 13 per node")
    (no,) = fit_lines(machine, parse_copies("53x300MiB"))
    assert "do not fit" in no
    document = fit_document(machine, parse_copies("53x300MiB"))
    assert (document["most_copies"], document["fits"]) == (52, False)


def test_a_captured_tree_names_its_sub_numa_clusters() -> None:
    root = str(hardware.tree("knl-flat-snc4-before"))
    text = CliRunner().invoke(doctor.command, ["--root", root, "--fits", "4x3MB"]).output
    assert "Sub-NUMA clustering: SNC-4, 4 NUMA nodes per socket" in text
    assert "no answer" in text


def test_modes_that_sysfs_does_not_distinguish_are_named_together() -> None:
    cache = TopologyRecord(
        cpu_model="Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz",
        packages=(PackageRow(package=0),),
        numa_nodes=(NodeRow(node=0, cpus="0-271", kind="cpu", package=0, memory_bytes=96 << 30),),
    )
    (line,) = mode_lines(cache)
    assert line.startswith("Cluster mode: quadrant, hemisphere or all-to-all")
    assert line.endswith("memory mode: cache")
    (answer,) = fit_lines(cache, parse_copies("4x1GB"))
    assert "boot in flat mode" in answer


def test_sub_numa_clusters_of_other_processors() -> None:
    nodes = tuple(NodeRow(node=n, cpus=f"{n}", kind="cpu", package=n // 2) for n in range(4))
    packages = (PackageRow(package=0), PackageRow(package=1))
    xeon = TopologyRecord(cpu_model="Intel(R) Xeon(R)", numa_nodes=nodes, packages=packages)
    assert list(mode_lines(xeon)) == ["Sub-NUMA clustering: SNC-2, 2 NUMA nodes per socket"]
    epyc = TopologyRecord(cpu_model="AMD EPYC 7763", numa_nodes=nodes, packages=packages)
    assert list(mode_lines(epyc)) == ["Sub-NUMA clustering: NPS2, 2 NUMA nodes per socket"]


def test_no_fast_memory_is_no_answer_instead_of_a_no() -> None:
    plain = TopologyRecord(numa_nodes=(NodeRow(node=0, cpus="0", kind="cpu", memory_bytes=1 << 40),))
    assert list(mode_lines(plain)) == []
    (answer,) = fit_lines(plain, parse_copies("4x1GB"))
    assert "no answer" in answer


@pytest.mark.slow  # imports torch, and several sizes of three collectives
def test_collectives_of_two_ranks_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    document = shown("--links", "--budget", "40")
    (links,) = document["links"]
    fits = {(fit["transport"], fit["collective"]): fit for fit in links["fits"]}
    for collective in ("all_reduce", "all_gather", "all_to_all"):
        fit = fits["gloo", collective]
        assert fit["num_ranks"] >= 2
        assert fit["link_class"] == "loopback"
        assert fit["largest_bytes_per_s"] > 1e6
        assert fit["alpha_s"] > 0
    (again,) = shown()["links"]
    assert again["cached"]
    assert again["calls"] == links["calls"]


@pytest.mark.slow  # two ranks with torch, and a link of 1 Gbit/s
def test_the_link_of_an_emulated_cluster_has_its_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        require_tools()
        require_rights()
    except BenchError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (links,) = shown("--cluster", "2x1@1gbit", "--budget", "35")["links"]
    assert (links["hosts"], links["emulated"]) == (["host0", "host1"], "2x1@1gbit")
    (wire,) = [
        fit for fit in links["fits"] if fit["hosts"] == ["host0", "host1"] and fit["collective"] == "send"
    ]
    assert wire["link_class"] == "ethernet"
    assert wire["bytes_per_s"] == pytest.approx(RATE_BYTES_PER_S, rel=TOLERANCE)
    assert wire["largest_bytes_per_s"] < RATE_BYTES_PER_S * (1 + TOLERANCE)
    sends = [call for call in links["calls"] if call["hosts"] == ["host0", "host1"]]
    assert {tuple(call["interfaces"]) for call in sends if call["collective"] == "send"} == {
        ("wire0", "wire0")
    }
