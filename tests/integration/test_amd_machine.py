"""`perfscope run` and `perfscope doctor` where /sys is that of a simulated machine with AMD GPUs.

Everything is real except the files of amdgpu and amdkfd: a mount namespace puts them into /sys, and the
training rewrites GPU 0's table as the firmware would.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfscope.cli.report import command as report_command
from perfscope.rundir.layout import host_name
from tests.integration.run_support import PERFSCOPE, user_environment
from tests.support.amd_machine import card_folder, write_machine

REPOSITORY = Path(__file__).parents[2]
# The machine's own /proc stays, so of /sys what belongs to it stays, too. $1 is the simulated /sys.
NAMESPACE = """
for name in devices/system class/net fs/cgroup; do
    mkdir -p "$1/$name" && mount --rbind "/sys/$name" "$1/$name" || exit 125
done
mount --rbind "$1" /sys || exit 125
shift
exec "$@"
"""
# 600 W, always at the power limit, half of the time slowed by heat, 5 GB/s over XGMI.
TRAINING = """
import sys, time
sys.path.append(sys.argv[2])
import perfscope
from tests.support.amd_machine import busy
begin = time.monotonic()
while (seconds := time.monotonic() - begin) < 2.5:
    ticks = round(1000 * seconds)
    with open(sys.argv[1], "r+b") as file:
        file.write(
            busy(
                round(600 * seconds * 2**16),
                ticks,
                ppt_residency_acc=ticks,
                socket_thm_residency_acc=ticks // 2,
                xgmi_write_data_acc=[0, round(5e9 * seconds / 1024)],
            )
        )
    time.sleep(0.02)
    perfscope.step()
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    root = write_machine(tmp_path / "machine")
    if on_machine(root, "true").returncode:
        pytest.skip("needs user and mount namespaces: unshare -Urm")
    return root


def on_machine(root: Path, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command that finds the machine's files in /sys."""
    namespace = ("unshare", "-Urm", "sh", "-c", NAMESPACE, "sh", str(root / "sys"))
    return subprocess.run(
        [*namespace, *command],
        cwd=cwd,
        env=user_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_recorded_run_reports_amd_gpus(machine: Path, tmp_path: Path) -> None:
    options = ("--ceilings", "off", "-o", "run", "--", sys.executable, "-c", TRAINING)
    table = f"/{card_folder(0)}/gpu_metrics"
    done = on_machine(machine, *PERFSCOPE, "run", *options, table, str(REPOSITORY), cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    report = CliRunner().invoke(report_command, [str(tmp_path / "run"), "--json", "--text"])
    assert report.exit_code == 0, report.output
    document = json.loads(report.stdout)["machine"]
    tracks = {one["title"]: one for one in document["tracks"] if one["title"].startswith("GPU 0")}
    means = {title: sum(one["mean"]) / len(one["mean"]) for title, one in tracks.items()}
    near = pytest.approx
    assert means == {
        "GPU 0 busy": near(0.97),
        "GPU 0 memory busy": near(0.43),
        "GPU 0 memory in use": 17 << 30,
        "GPU 0 throttled: PPT": near(1, abs=0.1),
        "GPU 0 throttled: socket thermal": near(0.5, abs=0.1),
        "GPU 0 XGMI sent": near(5e9, rel=0.2),
        "GPU 0 PCIe": near(3e9),
        "GPU 0": near(612),
        "GPU 0 temperature": near(71),
        "GPU 0 memory temperature": near(58),
        "GPU 0 clock": near(2.05e9),
        "GPU 0 memory clock": near(1.3e9),
    }
    topology = document["topologies"][host_name()]
    assert [gpu["name"] for gpu in topology["gpus"]] == ["AMD Instinct MI300X"] * 2

    text = " ".join(report.stderr.split())
    assert "GPU 0 busy" in text and "mean 97.0 %" in text
    assert "GPU 0 XGMI" in text
    assert "was at its power limit in 100 % of the steps' time" in text


def test_the_doctor_names_the_gpus_and_what_cannot_be_read(machine: Path) -> None:
    (machine / card_folder(1) / "gpu_metrics").write_bytes(b"\x08\x00\x09\x09\x00\x00\x00\x00")
    done = on_machine(machine, *PERFSCOPE, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    sources: dict[str, Any] = {one["collector"]: one for one in document["sources"]}
    assert sources["gpu.amd"]["available"] and sources["gpu.amd"]["detail"] == "2 GPUs"
    absent = {one["what"]: one["reason"] for one in sources["gpu.amd"]["absent"]}
    assert absent["gpu_metrics"] == "gpu_metrics 9.9 is not known to this perfscope (GPU 1)"
    assert sources["gpu.amd.pcie_rate"]["reason"] == "these GPUs have no pcie_bw"
    assert sources["gpu.amd.processes"]["reason"] == "/sys/class/kfd/kfd/proc is not there"
    assert [gpu["name"] for gpu in document["topology"]["gpus"]] == ["AMD Instinct MI300X"] * 2
