"""Exit codes, standard streams and refusals of `perfscope run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.run_support import PERFSCOPE, read_manifest, run, said, user_environment


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [
        ("exit 0", 0, None),
        ("exit 3", 3, None),
        ("exit 255", 255, None),
        ("kill -TERM $$", 128 + signal.SIGTERM, int(signal.SIGTERM)),
        ("kill -KILL $$", 128 + signal.SIGKILL, int(signal.SIGKILL)),
        ("kill -SEGV $$", 128 + signal.SIGSEGV, int(signal.SIGSEGV)),
    ],
)
def test_exit_code_is_the_commands_own(tmp_path: Path, script: str, code: int, number: int | None) -> None:
    ended = run("sh", "-c", script, cwd=tmp_path)
    assert ended.returncode == code
    manifest = read_manifest(tmp_path / "run")
    assert manifest["exit"] == {"code": code, "signal": number}
    assert manifest["status"] == "finished"
    assert "attached 0 ranks" in said(ended.stderr)


def test_command_that_does_not_exist_is_127_and_leaves_nothing(tmp_path: Path) -> None:
    ended = run("no-such-command-here", cwd=tmp_path)
    assert ended.returncode == 127
    assert said(ended.stderr) == ["no-such-command-here: command not found"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["plain file", "directory"])
def test_command_that_cannot_be_executed_is_126(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "thing"
    if kind == "directory":
        target.mkdir()
    else:
        target.write_text("echo no\n")
    ended = run(str(target), cwd=tmp_path)
    assert ended.returncode == 126
    assert len(said(ended.stderr)) == 1
    assert not (tmp_path / "run").exists()


def test_script_with_a_missing_interpreter_is_127(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    ended = run(str(script), cwd=tmp_path)
    assert ended.returncode == 127
    assert said(ended.stderr)[-1] == f"{script}: No such file or directory"


def test_script_without_an_interpreter_line_runs_as_from_a_shell(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('echo "got $1"; exit 4\n')
    script.chmod(0o755)
    ended = run(str(script), "a b", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (4, b"got a b\n")


def test_stdin_and_stdout_pass_through_byte_for_byte(tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    ended = run("cat", cwd=tmp_path, stdin=data)
    assert ended.returncode == 0
    assert ended.stdout == data


def test_command_keeps_stderr_and_the_words_of_perfscope_are_prefixed(tmp_path: Path) -> None:
    ended = run("sh", "-c", "echo out; echo err >&2", cwd=tmp_path)
    assert ended.stdout == b"out\n"
    lines = ended.stderr.splitlines()
    assert lines[0] == b"err"
    assert all(line.startswith(b"perfscope: ") for line in lines[1:])


def test_closed_stderr_changes_nothing(tmp_path: Path) -> None:
    command = [*PERFSCOPE, "run", "-o", str(tmp_path / "run"), "--", "sh", "-c", "echo hi; exit 6"]
    script = 'exec "$@" 2>&-'
    ended = subprocess.run(
        ["sh", "-c", script, "sh", *command], env=user_environment(), stdout=subprocess.PIPE, check=False
    )
    assert (ended.returncode, ended.stdout) == (6, b"hi\n")


def test_arguments_reach_the_command_untouched(tmp_path: Path) -> None:
    hostile = [
        b"--token",
        b"hf_0123456789abcdef",
        b"caf\xe9",
        b"new\nline",
        b"</script>",
        b"",
        b"-o",
        b"--",
        b"*",
    ]
    show = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    ended = subprocess.run(
        [*PERFSCOPE, "run", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", show, *hostile],
        env=user_environment(),
        capture_output=True,
        check=False,
    )
    assert ended.stdout.split(b"\0") == hostile
    text = (tmp_path / "run" / "run.json").read_text(encoding="utf-8")
    assert "hf_0123" not in text
    assert read_manifest(tmp_path / "run")["command"][3:] == [
        *("--token", "<redacted>", "caf\\xe9", "new\nline", "</script>", "", "-o", "--", "*")
    ]


def test_no_file_of_a_run_holds_a_secret_and_keep_command_line_is_the_way_out(tmp_path: Path) -> None:
    secret = "swordfish77"
    words = ["--db-pass", secret, "-u", f"joe:{secret}", f"postgres://joe:a/{secret}@db/x"]
    program = tmp_path / "train.py"
    program.write_text("import time; time.sleep(0.5)")
    record = [*PERFSCOPE, "run", "--name", f"try --token {secret}", "--label", f"password={secret}"]
    environment = {**user_environment(), "NCCL_TOKEN": secret, "GLOO_KEY": secret, "NCCL_DEBUG": "WARN"}
    for options in ([], ["-o", "kept", "--keep-command-line"]):
        subprocess.run(
            [*record, *options, "--", sys.executable, str(program), *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            check=True,
        )
    [run] = [one for one in (tmp_path / "perfscope-runs").glob("2*") if (one / "run.json").is_file()]
    assert secret not in run.name
    files = [one for one in run.rglob("*") if one.is_file()]
    assert files
    assert not [one for one in files if secret.encode() in one.read_bytes()]
    manifest = read_manifest(run)
    assert manifest["labels"] == {"password": "<redacted>"}
    assert manifest["environment"]["NCCL_DEBUG"] == "WARN"
    assert not {"NCCL_TOKEN", "GLOO_KEY"} & set(manifest["environment"])
    kept = read_manifest(tmp_path / "kept")
    assert kept["command"][2:] == words
    assert kept["labels"] == {"password": "<redacted>"}


def test_options_of_the_command_need_no_double_dash(tmp_path: Path) -> None:
    command = [*PERFSCOPE, "run", "-o", str(tmp_path / "run"), "echo", "--name", "x", "-o", "y", "--help"]
    ended = subprocess.run(command, env=user_environment(), capture_output=True, check=False)
    assert ended.stdout == b"--name x -o y --help\n"


def test_environment_of_the_command_gets_no_empty_path_component(tmp_path: Path) -> None:
    ended = run("sh", "-c", 'printf %s "$PYTHONPATH"', cwd=tmp_path)
    assert Path(os.fsdecode(ended.stdout)).name == "site"
    assert b":" not in ended.stdout
    (tmp_path / "second").mkdir()
    environment = user_environment(PYTHONPATH="/a::/b")
    ended = run("sh", "-c", 'printf %s "$PYTHONPATH"', cwd=tmp_path / "second", environment=environment)
    assert ended.stdout.endswith(b"site:/a::/b")


def test_secrets_in_the_environment_stay_out_of_the_run(tmp_path: Path) -> None:
    secrets = {"AWS_SECRET_ACCESS_KEY": "s3cr3t-one", "HF_TOKEN": "s3cr3t-two", "SLURM_JWT": "s3cr3t-three"}
    environment = user_environment(**secrets, OMP_NUM_THREADS="3", SLURM_JOB_ID="17")
    run("true", cwd=tmp_path, environment=environment)
    everything = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"s3cr3t" not in everything
    stored = read_manifest(tmp_path / "run")["environment"]
    assert stored["OMP_NUM_THREADS"] == "3"
    assert stored["SLURM_JOB_ID"] == "17"


def test_no_command_is_a_usage_error(tmp_path: Path) -> None:
    for arguments in ([], ["--"]):
        ended = subprocess.run(
            [*PERFSCOPE, "run", *arguments],
            cwd=tmp_path,
            env=user_environment(),
            capture_output=True,
            check=False,
        )
        assert ended.returncode == 2
        assert b"no command given" in ended.stderr
        assert ended.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--overhead", "x"],
        ["--overhead", "120%"],
        ["--label", "novalue"],
        ["--label", "1x=2"],
        ["--label", "a=1", "--label", "a=2"],
        ["--windows", "-1"],
        ["--steps-per-window", "0"],
        ["--samples-per-step", "0"],
        ["--name", " "],
    ],
)
def test_wrong_options_are_usage_errors_and_start_nothing(tmp_path: Path, options: list[str]) -> None:
    ended = run("touch", str(tmp_path / "started"), cwd=tmp_path, options=options)
    assert ended.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_options_are_kept_with_the_run_and_reach_the_probe(tmp_path: Path) -> None:
    options = ["--overhead", "0.5%", "--windows", "7", "--steps-per-window", "2", "--samples-per-step", "96"]
    options += ["--sample-interval", "250ms"]
    options += ["--name", "my run", "--label", "batch=64", "--label", "note=a b"]
    ended = run("sh", "-c", 'printf %s "$PERFSCOPE_CONFIG"', cwd=tmp_path, options=options)
    expected = {
        "overhead": 0.005,
        "windows": 7,
        "steps_per_window": 2,
        "layer_counters": False,
        "allocations": False,
        "trace": True,
        "samples_per_step": 96,
        "hang_after_s": 60.0,
        "sampling": {"interval_ms": 250.0, "stacks": False},
    }
    assert json.loads(ended.stdout) == expected
    manifest = read_manifest(tmp_path / "run")
    assert manifest["name"] == "my run"
    assert manifest["labels"] == {"batch": "64", "note": "a b"}
    assert manifest["options"]["windows"] == 7


def test_no_trace_turns_windows_off(tmp_path: Path) -> None:
    ended = run("sh", "-c", 'printf %s "$PERFSCOPE_CONFIG"', cwd=tmp_path, options=["--no-trace"])
    assert b'"trace":false' in ended.stdout


def test_used_output_directory_is_refused_and_force_replaces_a_run_only(tmp_path: Path) -> None:
    assert run("true", cwd=tmp_path).returncode == 0
    again = run("touch", str(tmp_path / "started"), cwd=tmp_path)
    assert again.returncode == 125
    assert not (tmp_path / "started").exists()
    assert len(again.stderr.splitlines()) == 1
    assert b"already holds a run" in again.stderr
    assert run("sh", "-c", "exit 2", cwd=tmp_path, options=["--force"]).returncode == 2
    assert read_manifest(tmp_path / "run")["exit"]["code"] == 2


def test_dry_run_prints_the_change_and_makes_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*PERFSCOPE, "run", "--dry-run", "--", "env", "PYTHONPATH=/mine", "sh", "-c", "touch started"],
        cwd=tmp_path,
        env=user_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0
    assert ended.stderr == ""
    assert "launcher: shell\n" in ended.stdout
    assert "PERFSCOPE_RUN_DIR=" in ended.stdout
    assert "site:/mine sh -c 'touch started'\n" in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_default_place_and_latest_link(tmp_path: Path) -> None:
    for code in (0, 1):
        ended = subprocess.run(
            [*PERFSCOPE, "run", "--", "sh", "-c", f"exit {code}"],
            cwd=tmp_path,
            env=user_environment(),
            capture_output=True,
            check=False,
        )
        assert ended.returncode == code
    runs = tmp_path / "perfscope-runs"
    assert len([path for path in runs.iterdir() if path.is_dir()]) == 3  # with the link `latest`
    assert read_manifest(runs / "latest")["exit"]["code"] == 1
    assert not (runs / "latest").readlink().is_absolute()


def test_help_loads_neither_arrow_nor_plotting() -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "perfscope", "run", "--help"],
        env=user_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Examples:" in ended.stdout
    for heavy in ("pyarrow", "matplotlib", "numpy", "torch", "rich"):
        assert f"| {heavy}\n" not in ended.stderr.replace("|   ", "| ")
        assert f" {heavy}." not in ended.stderr
    assert "\x1b" not in ended.stdout
