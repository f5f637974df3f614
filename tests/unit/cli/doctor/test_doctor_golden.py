"""What the doctor prints, kept whole: for a made-up machine with everything, and for captured ones.

Update after a wanted change:  PERFSCOPE_UPDATE_GOLDEN=1 python -m pytest THIS_FILE
and read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope import __version__
from perfscope.cli.doctor import command as doctor
from perfscope.cli.doctor.text import in_ascii, render
from perfscope.collectors.base import SECOND_NS, Absent, Capability
from perfscope.collectors.survey import SourceStatus, Survey
from perfscope.collectors.trial import CollectorTrial
from perfscope.rundir.metrics import COUNTER, GAUGE, Metric
from tests.support import hardware

GOLDEN = Path(__file__).parents[3] / "golden" / "doctor"
ACTUAL = Path(__file__).parents[3] / "golden" / "actual"


def check(name: str, actual: str) -> None:
    path = GOLDEN / name
    if os.environ.get("PERFSCOPE_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(actual, encoding="utf-8")
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if actual != expected:
        ACTUAL.mkdir(parents=True, exist_ok=True)
        (ACTUAL / f"doctor-{name}").write_text(actual, encoding="utf-8")
        pytest.fail(f"{path} differs from {ACTUAL / f'doctor-{name}'}; see this file's docstring")


def metric(name: str, unit: str, resolution: str = "") -> Metric:
    kind = GAUGE if unit in ("watts", "ratio") else COUNTER
    return Metric(
        name=name, unit=unit, kind=kind, source="FILE", description="A figure.", resolution=resolution
    )


def source(
    collector: str, *metrics: Metric, slow: bool = False, foreign: bool = False, **fields: object
) -> SourceStatus:
    capability = Capability(
        collector=collector,
        available=not fields.get("reason"),
        metrics=metrics,
        **fields,  # type: ignore[arg-type]
    )
    return SourceStatus(capability=capability, slow=slow, foreign=foreign)


def made_up() -> Survey:
    """Two sockets, memory of three kinds, two GPUs, a fabric; every kind of answer."""
    paranoid = "kernel.perf_event_paranoid is 3: counters of the whole machine need CAP_PERFMON"
    allow = "sudo sysctl kernel.perf_event_paranoid=0"
    root_only = Absent(what="psys", reason="energy_uj: Permission denied", remedy="sudo chmod a+r FILE")
    return Survey(
        host="node17",
        captured="",
        taken_unix_ns=0,
        sources=(
            source(
                "numa",
                metric("numa_hit", "pages"),
                metric("numa_miss", "pages"),
                source="/sys/devices/system/node/nodeN/numastat",
                detail="3 nodes",
            ),
            source("cpu", metric("cpu_busy", "ns", "10 ms"), source="/proc/stat"),
            source("membw", reason=paranoid, remedy=allow),
            source("membw.perf_stat", reason=paranoid, remedy=allow),
            source("membw.resctrl", reason="/sys/fs/resctrl is not mounted"),
            source(
                "power",
                metric("rapl_energy", "joules", "61 µJ"),
                source="/sys/class/powercap/intel-rapl:P/energy_uj",
                absent=(root_only,),
            ),
            source(
                "gpu.nvidia",
                metric("gpu_power", "watts"),
                slow=True,
                min_interval_ns=SECOND_NS,
                source="NVML",
            ),
            source("acme.switch", metric("port_bytes", "bytes"), foreign=True, source="acme"),
            source(
                "acme.broken",
                reason="the collector failed: KeyError: 'x'",
                remedy="report this",
                foreign=True,
            ),
        ),
        surroundings={
            "perfscope": __version__,
            "python": "CPython 3.12.4",
            "kernel": "5.14.0-427.el9.x86_64",
            "machine": "x86_64",
            "distribution": "Red Hat Enterprise Linux 9.4 (Plow)",
            "virtual_machine": None,
            "container": None,
            "cgroup": {"version": "v2", "cpus": 32.0, "memory_bytes": 1 << 38, "cpuset": "0-31"},
            "kernel_settings": {"perf_event_paranoid": 3, "ptrace_scope": None, "pressure": False},
            "packages": {"torch": "2.5.1", "py-spy": None},
            "launchers": {"torchrun": "found", "mpirun": "mpirun (Open MPI) 4.1.6", "srun": None},
            "tools": {"perf": True, "rdma": False},
            "environment": {"OMP_NUM_THREADS": "8", "SLURM_JOB_ID": "4711"},
            "limits": {"open_files": 1024, "locked_memory_bytes": None},
        },
        topology={
            "cpu_model": "Intel(R) Xeon(R) Platinum 8480+",
            "logical_cpus": 112,
            "sockets": 2,
            "memory_bytes": 540 << 30,
            "packages": [
                {"package": 0, "cpus": "0-55", "nodes": [0]},
                {"package": 1, "cpus": "56-111", "nodes": [1]},
            ],
            "numa_nodes": [
                {"node": 0, "cpus": "0-55", "memory_bytes": 256 << 30, "kind": "cpu", "package": 0},
                {"node": 1, "cpus": "56-111", "memory_bytes": 256 << 30, "kind": "cpu", "package": 1},
                {"node": 2, "cpus": "", "memory_bytes": 28 << 30, "kind": "fast", "package": 0},
            ],
            "gpus": [
                {
                    "index": 0,
                    "name": "NVIDIA H100 80GB HBM3",
                    "memory_bytes": 80 << 30,
                    "numa_node": 0,
                    "pcie": {"width": 16},
                },
                {"index": 1, "name": None, "memory_bytes": None, "numa_node": None, "pcie": None},
            ],
            "nics": [
                {"name": "eth0", "numa_node": 1, "speed_bits_per_s": 25_000_000_000, "state": "up"},
                {"name": "docker0", "numa_node": None, "virtual": True},
            ],
            "fabric_ports": [
                {
                    "device": "mlx5_0",
                    "port": 1,
                    "kind": "infiniband",
                    "rate_bits_per_s": 400_000_000_000,
                    "state": "ACTIVE",
                    "numa_node": 0,
                }
            ],
            "links": [
                {
                    "a": "gpu:0",
                    "b": "gpu:1",
                    "class": "gpu_link",
                    "kind": "NVLink",
                    "path": "NV18",
                    "num_links": 18,
                    "peak_bytes_per_s": 450e9,
                }
            ],
            "notes": ["the firmware gives no NUMA node for GPU 1"],
        },
        ceilings={
            "how": "numpy 2.1.0, OpenBLAS 0.3.27",
            "cached": True,
            "entries": [
                {
                    "kind": "stream_triad",
                    "device": "cpu",
                    "node": 0,
                    "threads": 56,
                    "dtype": None,
                    "value": 2.2e11,
                    "unit": "bytes_per_s",
                    "runs": 5,
                    "spread_ratio": 0.03,
                },
                {
                    "kind": "gemm",
                    "device": "cpu",
                    "node": None,
                    "threads": 112,
                    "dtype": "float32",
                    "value": 7.1e12,
                    "unit": "flops_per_s",
                    "runs": 3,
                    "spread_ratio": 0.01,
                },
                {
                    "kind": "device_gemm",
                    "device": "cuda:0",
                    "node": None,
                    "threads": None,
                    "dtype": "bfloat16",
                    "value": 7.7e14,
                    "unit": "flops_per_s",
                    "runs": 1,
                    "spread_ratio": None,
                },
            ],
            "theoretical": [
                {
                    "what": "DRAM",
                    "where": "socket 0",
                    "value": 3.072e11,
                    "unit": "bytes_per_s",
                    "source": "8 channels of DDR5-4800",
                }
            ],
            "missing": [{"what": "STREAM triad on node 2", "reason": "it has no CPUs"}],
        },
        problems=("collector acme.gone (acme:Gone): ModuleNotFoundError: No module named 'acme'",),
    )


def trials() -> list[CollectorTrial]:
    return [
        CollectorTrial(collector="numa", samples=20, readings=240, cpu_ns=800_000),
        CollectorTrial(collector="cpu", samples=20, readings=0, failed=20, cpu_ns=200_000),
        CollectorTrial(
            collector="power", samples=20, readings=38, failed=2, stopped=["rapl_energy: psys is gone"]
        ),
        CollectorTrial(collector="gpu.nvidia", fault="cannot be opened: [Errno 5] gone"),
    ]


def test_golden_of_a_machine_with_everything() -> None:
    check("made-up.txt", render(made_up(), trials(), width=100).replace(__version__, "<version>"))


@pytest.mark.parametrize("width", [80, 120])
def test_golden_by_width_of_the_terminal(width: int) -> None:
    text = render(made_up(), trials(), width=width).replace(__version__, "<version>")
    assert max(map(len, text.splitlines())) <= width
    check(f"made-up-{width}.txt", text)


@pytest.mark.parametrize("name", ["two-socket-before", "knl-flat-snc4-before", "knl-opa-before"])
def test_golden_of_a_captured_machine(name: str) -> None:
    tree = hardware.tree(name)
    done = CliRunner().invoke(doctor.command, ["--root", str(tree)], env={"COLUMNS": "100"})
    assert done.exit_code == 0
    check(f"{name}.txt", done.output.replace(str(tree), f"<trees>/{name}").replace(__version__, "<version>"))


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = render(made_up(), trials(), width=width).splitlines()
    assert max(map(len, lines)) <= max(80, min(width, 120))


def test_color_changes_nothing_but_color() -> None:
    import re

    colored = render(made_up(), trials(), color=True)
    assert "\x1b[32m✓\x1b[0m" in colored
    assert re.sub(r"\x1b\[\d+m", "", colored) == render(made_up(), trials())


def test_ascii_keeps_the_marks_apart() -> None:
    text = in_ascii(render(made_up(), trials()))
    assert text.isascii()
    assert "  + numa" in text
    assert "  - membw" in text
    assert "  ! power" in text
