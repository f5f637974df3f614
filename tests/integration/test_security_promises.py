"""SECURITY.md: a test for each of its promises. More on each in the tests of its part."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import perfscope as package
from tests.integration.run_support import PERFSCOPE, user_environment
from tests.support.ingest_traces import GLOO

SECURITY = Path(__file__).parents[2] / "SECURITY.md"
_TESTED: dict[str, Callable[..., None]] = {}

# Runs a perfscope command and fails where it starts a program, unpickles or uses the network.
WATCHED = """
import sys
def hook(event, args):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile",
                 "pickle.find_class", "ctypes.dlopen.run", "socket.connect", "socket.getaddrinfo"):
        sys.stderr.write("WATCHED %s %r\\n" % (event, args))
        sys.stderr.flush()
sys.addaudithook(hook)
from perfscope.cli.main import main
main()
"""
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m$(touch pwned)`touch pwned`"


UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "yaml"}


def promise(number: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The decorated function tests that promise."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        _TESTED[number] = test
        return test

    return mark


def perfscope(*words: str, cwd: Path, watched: bool = False) -> subprocess.CompletedProcess[str]:
    start = (sys.executable, "-c", WATCHED) if watched else PERFSCOPE
    return subprocess.run(
        [*start, *words],
        cwd=cwd,
        env=user_environment(),
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an imported run whose names are an attack."""
    folder = tmp_path_factory.mktemp("hostile")
    data = zlib.decompress((GLOO / "rank0.json.gz").read_bytes(), 31)
    quoted = json.dumps(HOSTILE)[1:-1].encode()
    data = data.replace(b"perfscope.layer:", b"perfscope.layer:" + quoted).replace(b"aten::", quoted + b"::")
    (folder / "trace.json").write_bytes(data)
    done = perfscope("import", "trace.json", "-o", "run", "--name", HOSTILE, cwd=folder)
    assert done.returncode == 0, done.stderr
    document = json.loads((folder / "run" / "run.json").read_text())
    document.pop("checksum", None)
    document["command"] = ["sh", "-c", "touch pwned", HOSTILE]
    document["cwd"] = str(folder)
    (folder / "run" / "run.json").write_text(json.dumps(document))
    return folder


def copy_of(hostile: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(hostile / "run", tmp_path / "run"))


def test_every_promise_has_a_test() -> None:
    numbers = re.findall(r"^- \*\*(S\d+)\.", SECURITY.read_text(encoding="utf-8"), re.MULTILINE)
    assert numbers == [f"S{number}" for number in range(1, len(numbers) + 1)]
    assert set(_TESTED) == set(numbers)


@promise("S1")
def test_no_code_runs(hostile: Path, tmp_path: Path) -> None:
    copy_of(hostile, tmp_path)
    for words in (("report", "run"), ("export", "run", "--format", "perfetto")):
        done = perfscope(*words, cwd=tmp_path, watched=True)
        assert done.returncode == 0, done.stderr
        assert "WATCHED" not in done.stderr
    attack = b"\x80\x02}X\x09\x00\x00\x00pg_statuscos\nmkdir\nX\x05\x00\x00\x00pwned\x85Rs."
    (tmp_path / "nccl_trace_rank_0").write_bytes(attack)
    done = perfscope("import", "nccl_trace_rank_0", "-o", "dump", cwd=tmp_path, watched=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "asks for code to be run" in done.stderr
    assert not list(tmp_path.rglob("pwned"))
    assert not (hostile / "pwned").exists()
    assert unsafe_calls() == []


def unsafe_calls() -> list[str]:
    """Where the package unpickles, evaluates text, or gives a text to a shell."""
    found = []
    for path in sorted(Path(package.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            reason = unsafe(node)
            if reason:
                found.append(f"{path.name}:{getattr(node, 'lineno', 0)} {reason}")
    return found


def unsafe(node: ast.AST) -> str | None:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
        return next((name for name in names if name.split(".")[0] in UNSAFE_MODULES), None)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id if node.func.id in ("eval", "exec") else None
    if isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle"):
        is_off = isinstance(node.value, ast.Constant) and node.value.value is False
        return None if is_off else node.arg
    return None


@promise("S2")
def test_no_file_outside_is_written(hostile: Path, tmp_path: Path) -> None:
    run = copy_of(hostile, tmp_path)
    (tmp_path / "mine").write_text("mine")
    for name in ("report.html", "report.pdf"):
        (run / name).symlink_to(tmp_path / "mine")
    assert perfscope("report", "run", cwd=tmp_path).returncode == 0
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (run / "report.html").is_symlink()
    shutil.rmtree(run / "derived")
    (tmp_path / "folder").mkdir()
    (run / "derived").symlink_to(tmp_path / "folder")
    done = perfscope("report", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"perfscope: {run / 'derived'} is a symbolic link")
    assert not list((tmp_path / "folder").iterdir())


@promise("S3")
def test_no_file_outside_is_read(hostile: Path, tmp_path: Path) -> None:
    run = copy_of(hostile, tmp_path)
    (run / "ranks" / "7").symlink_to("/etc")
    for words in (("report", "run"), ("collect", "run", "-o", "all")):
        done = perfscope(*words, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "ranks/7 is a symbolic link" in done.stderr
    (run / "ranks" / "7").unlink()
    (run / "ranks" / "0" / "layers.json").unlink(missing_ok=True)
    os.mkfifo(run / "ranks" / "0" / "layers.json")  # without a writer: reading it would wait for ever
    assert perfscope("report", "run", "--json", cwd=tmp_path).returncode in (0, 1)


@promise("S4")
def test_memory_and_time_are_bounded(tmp_path: Path) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = b"[" * (1 << 20)
    parts = [packer.compress(piece) for _ in range(256)]
    (tmp_path / "trace.json.gz").write_bytes(b"".join([*parts, packer.flush()]))
    done = perfscope("import", "trace.json.gz", "-o", "run", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "unpacks to more than" in done.stderr


@promise("S5")
def test_nothing_live_is_shown(hostile: Path, tmp_path: Path) -> None:
    run = copy_of(hostile, tmp_path)
    done = perfscope("report", "run", "--full", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "alert(1)" in done.stdout  # it is shown, as text
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "\x1b" not in page
    assert re.search(r"Content-Security-Policy[^>]*default-src 'none'", page)
    assert b"/JavaScript" not in (run / "report.pdf").read_bytes()


@promise("S6")
def test_secrets_are_redacted_before_they_are_written(tmp_path: Path) -> None:
    secret = "correcthorse-battery-41"
    words = ("run", "--ceilings", "off", "-o", "run", "--label", f"password={secret}")
    code = "import perfscope; [perfscope.step() for _ in range(30)]"
    done = perfscope(*words, "--", sys.executable, "-c", code, f"--api-token={secret}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    assert secret not in done.stderr


@promise("S7")
def test_damage_is_noticed(tmp_path: Path) -> None:
    from perfscope.gate.store import BaselineError, open_store
    from tests.support.gate_store_runs import numbered

    path = tmp_path / "baseline.json"
    open_store(path, create=True).put("cnn", [numbered(1)])
    text = path.read_text()
    at = text.index('"step_p10":') + len('"step_p10":')
    path.write_text(f"{text[:at]}{(int(text[at]) + 1) % 9 + 1}{text[at + 1 :]}")
    with pytest.raises(BaselineError, match="checksum"):
        open_store(path)


@promise("S8")
def test_nothing_is_sent(hostile: Path, tmp_path: Path) -> None:
    copy_of(hostile, tmp_path)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    for words in (
        ("report", "run", "--json"),
        ("compare", "run", "other"),
        ("import", "run/run.json", "-o", "x"),
    ):
        done = perfscope(*words, cwd=tmp_path, watched=True)
        assert done.returncode in (0, 1)
        assert "WATCHED" not in done.stderr, done.stderr
        assert "internal error" not in done.stderr


@promise("S9")
def test_a_run_that_is_being_recorded_is_not_deleted(hostile: Path, tmp_path: Path) -> None:
    run = copy_of(hostile, tmp_path)
    (run / "notes.txt").write_text("mine")
    code = "import sys; from pathlib import Path; from perfscope.rundir.recording import claim; "
    code += "claim(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        words = ("import", str(GLOO / "rank0.json.gz"), "--force", "-o", "run")
        done = perfscope(*words, cwd=tmp_path)
        assert done.returncode == 1
        assert f"perfscope: process {holder.pid} on " in done.stderr
        assert (run / "run.json").exists()
        holder.communicate("", timeout=60)
    assert perfscope(*words, cwd=tmp_path).returncode == 0
    assert (run / "notes.txt").read_text() == "mine"
