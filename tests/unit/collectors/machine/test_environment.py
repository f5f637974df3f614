"""What the doctor says about the machine around a run: limits, virtualisation, tools, and no secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.collectors.context import Context, live_context
from perfscope.collectors.machine import environment


def machine(root: Path, files: dict[str, str]) -> Context:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Context(root=root)


def test_the_tightest_limit_of_all_control_groups_above_counts(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    ctx = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
            f"{base}/cgroup.controllers": "cpu memory\n",
            f"{base}/slurm/cpu.max": "max 100000\n",
            f"{base}/slurm/memory.max": "8589934592\n",
            f"{base}/slurm/job_7/cpu.max": "250000 100000\n",
            f"{base}/slurm/job_7/memory.max": "max\n",
            f"{base}/slurm/job_7/step_0/cpu.max": "800000 100000\n",
            f"{base}/slurm/job_7/step_0/memory.max": "17179869184\n",
            f"{base}/slurm/job_7/cpuset.cpus.effective": "4-7\n",
        },
    )
    assert environment.control_group(ctx) == {
        "version": "v2",
        "cpus": 2.5,
        "memory_bytes": 8 << 30,
        "cpuset": "4-7",
    }


def test_limits_of_the_first_version_of_control_groups(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    ctx = machine(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/x\n3:cpuset:/docker/x\n2:cpu,cpuacct:/docker/x\n",
            f"{base}/cpu/docker/x/cpu.cfs_quota_us": "-1\n",
            f"{base}/cpu/docker/x/cpu.cfs_period_us": "100000\n",
            f"{base}/cpu/docker/cpu.cfs_quota_us": "150000\n",
            f"{base}/cpu/docker/cpu.cfs_period_us": "100000\n",
            f"{base}/memory/docker/x/memory.limit_in_bytes": "1073741824\n",
            f"{base}/memory/memory.limit_in_bytes": "9223372036854771712\n",
            f"{base}/cpuset/docker/x/cpuset.cpus": "0-1\n",
        },
    )
    expected = {"version": "v1", "cpus": 1.5, "memory_bytes": 1 << 30, "cpuset": "0-1"}
    assert environment.control_group(ctx) == expected


def test_no_limit_is_none_and_no_control_group_is_no_version(tmp_path: Path) -> None:
    none = {"version": None, "cpus": None, "memory_bytes": None, "cpuset": None}
    assert environment.control_group(Context(root=tmp_path)) == none
    unlimited = machine(
        tmp_path,
        {
            "proc/self/cgroup": "rubbish\n0::/../../elsewhere\n",
            "sys/fs/cgroup/cgroup.controllers": "",
            "sys/fs/cgroup/cpu.max": "max 0\n",
        },
    )
    assert environment.control_group(unlimited) == {**none, "version": "v2"}


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"sys/class/dmi/id/sys_vendor": "QEMU\n"}, "QEMU"),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}, "Amazon EC2"),
        (
            {
                "sys/class/dmi/id/sys_vendor": "Microsoft\n",
                "sys/class/dmi/id/product_name": "Virtual Machine",
            },
            "Hyper-V",
        ),
        ({"sys/class/dmi/id/sys_vendor": "Dell Inc.\n", "proc/cpuinfo": "flags\t: fpu vme\n"}, None),
        ({"proc/cpuinfo": "processor: 0\nflags\t: fpu hypervisor vme\n"}, "unknown kind"),
        ({"sys/hypervisor/type": "xen\n"}, "xen"),
        ({}, None),
    ],
)
def test_virtual_machines_are_recognized(tmp_path: Path, files: dict[str, str], kind: str | None) -> None:
    assert environment.virtual_machine(machine(tmp_path, files)) == kind


@pytest.mark.parametrize(
    ("files", "runtime"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        ({"proc/1/cgroup": "0::/kubepods/burstable/pod7\n"}, "kubepods"),
        ({"proc/1/cgroup": "0::/init.scope\n"}, None),
    ],
)
def test_containers_are_recognized(tmp_path: Path, files: dict[str, str], runtime: str | None) -> None:
    assert environment.container(machine(tmp_path, files)) == runtime


def test_of_a_captured_tree_nothing_of_this_machine_is_told(tmp_path: Path) -> None:
    found = environment.read_surroundings(Context(root=tmp_path))
    assert not {"python", "packages", "launchers", "environment", "limits"} & set(found)
    assert found["kernel"] is None
    assert json.loads(json.dumps(found)) == found


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_launchers_answer_with_their_version_if_they_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, "mpirun", "echo 'mpirun (Open MPI) 4.1.6 --token=hf_abcdefghijkl'; echo more")
    tool(tmp_path, "srun", "exec sleep 30")
    tool(tmp_path, "mpiexec", "exit 1")
    tool(tmp_path, "torchrun", "touch started")
    monkeypatch.setattr(environment, "_TOOL_TIMEOUT_S", 0.3)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    found = environment.read_surroundings(live_context())["launchers"]
    assert isinstance(found, dict)
    assert found["mpirun"] == "mpirun (Open MPI) 4.1.6 --token=<redacted>"
    assert found["srun"] == "found, does not answer"
    assert found["mpiexec"] == found["torchrun"] == "found"
    assert found["horovodrun"] is None
    assert not (tmp_path / "started").exists()


def test_the_version_of_mpich_is_below_a_title() -> None:
    answer = (
        "HYDRA build details:\n    Version:                                 4.2.1\n    Release Date: 2024\n"
    )
    assert environment.version_line(answer) == "HYDRA 4.2.1"
    assert environment.version_line("HYDRA build details:\n") == "HYDRA"
    assert environment.version_line("mpirun (Open MPI) 4.1.6\n\nReport bugs") == "mpirun (Open MPI) 4.1.6"
    assert environment.version_line("") == ""


def test_secrets_of_the_environment_do_not_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JWT", "eyJhbGciOiJIUzI1NiJ9.secretsecret.x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "verysecret")
    monkeypatch.setenv("UCX_PROXY", "http://user:verysecret@proxy:1")
    text = json.dumps(environment.read_surroundings(live_context()))
    assert "secret" not in text.lower()
    assert '"SLURM_JOB_ID": "4711"' in text
