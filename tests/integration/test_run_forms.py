"""Each way to start training leaves a record of every rank, and the training does what it did before."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.run_support import (
    PERFSCOPE,
    TRAIN,
    attached,
    num_steps,
    read_manifest,
    run,
    said,
    user_environment,
)

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def test_plain_python_is_recorded_and_its_output_is_bitwise_the_same(tmp_path: Path) -> None:
    environment = user_environment(EXIT="3")
    plain = subprocess.run([sys.executable, TRAIN], env=environment, capture_output=True, check=False)
    ended = run("python", TRAIN, cwd=tmp_path, environment=environment)
    assert ended.stdout == plain.stdout
    assert ended.returncode == plain.returncode == 3
    own_lines = [line for line in ended.stderr.splitlines(True) if not line.startswith(b"perfscope: ")]
    assert b"".join(own_lines) == plain.stderr
    assert attached(tmp_path / "run") == [0]
    manifest = read_manifest(tmp_path / "run")
    assert manifest["launcher"] == "python"
    assert manifest["name"] == "train"
    assert manifest["status"] == "finished"
    assert manifest["exit"] == {"code": 3, "signal": None}
    assert manifest["attached_ranks"] == 1
    assert set(manifest["packages"]) == {"python", "torch"}
    assert said(ended.stderr)[0] == "attached 1 rank"
    assert f"next: perfscope report {'run'}" in said(ended.stderr)


def test_python_dash_m(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_bytes(Path(TRAIN).read_bytes())
    ended = run("python", "-m", "pkg.train", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert read_manifest(tmp_path / "run")["name"] == "pkg.train"
    assert num_steps(tmp_path / "run", 0) > 0


def test_torchrun_standalone_with_two_ranks(tmp_path: Path) -> None:
    ended = run("torchrun", "--standalone", "--nproc-per-node=2", TRAIN, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    run_dir = tmp_path / "run"
    assert attached(run_dir) == [0, 1]
    manifest = read_manifest(run_dir)
    assert (manifest["launcher"], manifest["expected_ranks"], manifest["world_size"]) == ("torchrun", 2, 2)
    assert manifest["attach_notes"] == []
    assert said(ended.stderr)[0] == "attached 2 of expected 2 ranks"
    # Traced windows are packed once training is over; nothing raw or half-written stays behind.
    windows = sorted(path.name for path in run_dir.glob("ranks/*/windows/*"))
    assert windows
    assert all(name.endswith(".json.gz") and not name.startswith(".") for name in windows)
    assert (run_dir / "hosts" / socket.gethostname() / "topology.json").is_file()


@pytest.mark.parametrize(
    "shared", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["own directories", "one directory"]
)
def test_torchrun_on_two_nodes_each_with_its_own_wrapper(tmp_path: Path, shared: bool) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    common = tmp_path / "run"
    nodes = []
    for node in range(2):
        where = [] if shared else ["-o", str(tmp_path / f"node{node}")]
        environment = user_environment(**({"PERFSCOPE_RUN_DIR": str(common)} if shared else {}))
        command = [
            *PERFSCOPE,
            "run",
            *where,
            "--",
            "torchrun",
            "--nnodes=2",
            "--nproc-per-node=1",
            f"--node-rank={node}",
        ]
        command += [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={endpoint}",
            "--rdzv-id=t",
            "--local-addr=127.0.0.1",
            TRAIN,
        ]
        nodes.append(
            subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    outputs = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    if not shared:
        assert sorted(attached(tmp_path / "node0") + attached(tmp_path / "node1")) == [0, 1]
        for node in range(2):
            manifest = read_manifest(tmp_path / f"node{node}")
            assert (manifest["expected_ranks"], manifest["attached_ranks"]) == (1, 1)
            assert manifest["world_size"] == 2
        return
    assert attached(common) == [0, 1]
    manifest = read_manifest(common)
    assert (manifest["expected_ranks"], manifest["attached_ranks"]) == (2, 2)
    assert manifest["status"] == "finished"
    assert manifest["exit"] == {"code": 0, "signal": None}


def test_multiprocessing_spawn(tmp_path: Path) -> None:
    ended = run("python", TRAIN, cwd=tmp_path, environment=user_environment(SPAWN="2"))
    assert ended.returncode == 0, ended.stderr
    assert attached(tmp_path / "run") == [0, 1]
    # No launcher told how many ranks there are; the ranks themselves did.
    assert said(ended.stderr)[0] == "attached 2 of expected 2 ranks"


def test_shell_script_that_starts_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(
        f"#!/bin/sh\nset -e\necho before\ntorchrun --standalone --nproc-per-node 2 {TRAIN}\necho after\n"
    )
    script.chmod(0o755)
    ended = run(str(script), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(b"before\n0 ")
    assert ended.stdout.endswith(b"after\n")
    assert attached(tmp_path / "run") == [0, 1]
    manifest = read_manifest(tmp_path / "run")
    assert (manifest["launcher"], manifest["name"]) == ("shell", "start")


def test_run_inside_a_run_records_into_the_outer_one(tmp_path: Path) -> None:
    inner = [*PERFSCOPE, "run", "-o", str(tmp_path / "inner"), "--", "python", TRAIN]
    ended = run(*inner, cwd=tmp_path, environment=user_environment(EXIT="5"))
    assert ended.returncode == 5
    assert not (tmp_path / "inner").exists()
    assert attached(tmp_path / "run") == [0]
    assert said(ended.stderr)[0].startswith("already inside a perfscope run")
    assert said(ended.stderr)[1] == "attached 1 rank"


def test_users_pythonpath_and_sitecustomize_still_work(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("import os\nos.environ['STEPS'] = '2'\nMARK = 7\n")
    (mine / "my_module.py").write_text("VALUE = 11\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import runpy, sitecustomize, my_module\n"
        "assert sitecustomize.MARK == 7 and my_module.VALUE == 11\n"
        f"runpy.run_path({TRAIN!r}, run_name='__main__')\n"
    )
    ended = run("python", str(script), cwd=tmp_path, environment=user_environment(PYTHONPATH=str(mine)))
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == 2
    assert attached(tmp_path / "run") == [0]


def test_training_goes_on_when_the_wrapper_is_killed(tmp_path: Path) -> None:
    command = [*PERFSCOPE, "run", "-o", str(tmp_path / "run"), "--", "python", TRAIN]
    environment = user_environment(PAUSE_AT="3", STEPS="6")
    wrapper = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert wrapper.stdin is not None and wrapper.stdout is not None and wrapper.stderr is not None
    for line in wrapper.stdout:
        if line == b"paused\n":
            break
    wrapper.kill()
    wrapper.wait()
    wrapper.stdin.write(b"\n")
    wrapper.stdin.close()
    # The training holds the pipe's other end: end of file means that it has ended.
    rest = wrapper.stdout.read().splitlines()
    assert [line.split()[0] for line in rest] == [b"3", b"4", b"5"]
    assert wrapper.stderr.read() == b""
    wrapper.stdout.close()
    wrapper.stderr.close()
    assert num_steps(tmp_path / "run", 0) >= 5
    assert read_manifest(tmp_path / "run")["status"] == "running"


def test_isolated_python_trains_unrecorded_and_perfscope_says_so(tmp_path: Path) -> None:
    ended = run(sys.executable, "-I", TRAIN, cwd=tmp_path, environment=user_environment(STEPS="1"))
    assert ended.returncode == 0, ended.stderr
    assert attached(tmp_path / "run") == []
    lines = said(ended.stderr)
    assert lines[0].startswith("warning: no rank will be recorded: `python -I`")
    assert "attached 0 ranks" in lines


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
def test_mpirun(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = user_environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    # Open MPI refuses root and more ranks than cores unless told; Hydra ignores the variables.
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment |= {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    ended = run("mpirun", "-np", "2", sys.executable, TRAIN, cwd=tmp_path, environment=environment)
    assert ended.returncode == 0, ended.stderr
    assert attached(tmp_path / "run") == [0, 1]
    manifest = read_manifest(tmp_path / "run")
    assert (manifest["launcher"], manifest["expected_ranks"]) == ("mpirun", 2)
