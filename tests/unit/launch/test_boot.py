"""Our sitecustomize: loads the agent, then leaves the interpreter as it would have been."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import perfscope

SITE = Path(perfscope.__file__).parent / "probes" / "bootstrap" / "site"
AGENT = """
import os
def start():
    os.environ["AGENT_STARTS"] = str(int(os.environ.get("AGENT_STARTS", "0")) + 1)
"""


def python(
    tmp_path: Path,
    code: str,
    *arguments: str,
    path: str | None = None,
    agent: str | None = AGENT,
    injected: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run `code` with the probe's environment (or without, to compare), PYTHONPATH `path` behind it."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    parts = ([str(SITE)] if injected else []) + ([path] if path is not None else [])
    if parts:
        environment["PYTHONPATH"] = os.pathsep.join(parts)
    if injected:
        agent_file = tmp_path / "agent.py"
        if agent is not None:
            agent_file.write_text(agent)
        environment |= {"PERFSCOPE_AGENT": str(agent_file), "PERFSCOPE_RUN_DIR": str(tmp_path)}
    return subprocess.run(
        [sys.executable, *arguments, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def make_sitecustomize(directory: Path, text: str) -> str:
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(text)
    return str(directory)


def test_agent_is_started_once_under_its_private_name(tmp_path: Path) -> None:
    ended = python(
        tmp_path, "import os, sys; print(os.environ['AGENT_STARTS'], '_perfscope_agent' in sys.modules)"
    )
    assert (ended.stdout, ended.stderr) == ("1 True\n", "")


def test_sys_path_and_modules_are_as_without_us(tmp_path: Path) -> None:
    code = "import sys; print(sys.path, 'sitecustomize' in sys.modules, 'perfscope' in sys.modules)"
    assert python(tmp_path, code).stdout == python(tmp_path, code, injected=False).stdout


def test_importing_a_missing_sitecustomize_fails_as_without_us(tmp_path: Path) -> None:
    code = "import sitecustomize"
    ended, plain = python(tmp_path, code, agent="def start(): pass"), python(tmp_path, code, injected=False)
    assert ended.stderr == plain.stderr
    if plain.returncode == 0:
        pytest.skip("this Python has a sitecustomize of its own")
    assert "No module named 'sitecustomize'" in plain.stderr


@pytest.mark.parametrize(
    "text",
    [
        "X = 5\nprint('mine', __name__)\n",
        "raise ValueError('mine')\n",
        "raise ImportError('mine')\n",
        "import nonexistent_module_of_mine\n",
        "raise SystemExit(3)\n",
        "x = (\n",
        "import sys\ndel sys.modules['sitecustomize']\nimport sitecustomize\n",
    ],
    ids=[
        "prints",
        "raises",
        "raises ImportError",
        "missing import",
        "exits",
        "syntax error",
        "imports itself",
    ],
)
def test_users_sitecustomize_behaves_as_without_us(tmp_path: Path, text: str) -> None:
    path = make_sitecustomize(tmp_path / "mine", text)
    code = "import sys; m = sys.modules.get('sitecustomize'); print(m and (m.__file__, vars(m).get('X')))"
    ended, plain = python(tmp_path, code, path=path), python(tmp_path, code, path=path, injected=False)
    assert (ended.returncode, ended.stdout) == (plain.returncode, plain.stdout)
    assert ended.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]


def test_another_tools_sitecustomize_that_chains_as_well(tmp_path: Path) -> None:
    # As tracing tools do: take the own directory off the path, import the next one.
    tool = make_sitecustomize(
        tmp_path / "tool",
        "import sys, os\nsys.path.remove(os.path.dirname(__file__))\ndel sys.modules['sitecustomize']\n"
        "print('tool')\nimport sitecustomize\n",
    )
    mine = make_sitecustomize(tmp_path / "mine", "print('mine')\n")
    code = "import os; print(os.environ['AGENT_STARTS'])"
    assert python(tmp_path, code, path=f"{tool}{os.pathsep}{mine}").stdout == "tool\nmine\n1\n"
    # And the other way round: the tool's directory stands before ours.
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([tool, str(SITE), mine]),
        "PERFSCOPE_AGENT": str(tmp_path / "agent.py"),
        "PERFSCOPE_RUN_DIR": str(tmp_path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.stdout, ended.stderr) == ("tool\nmine\n1\n", "")


@pytest.mark.parametrize("agent", ["raise RuntimeError('no\\nway')", "def start(): 1/0", "x = (", "pass"])
def test_fault_in_the_agent_is_noted_in_the_run_and_nowhere_else(tmp_path: Path, agent: str) -> None:
    ended = python(tmp_path, "import sys; print('_perfscope_agent' in sys.modules)", agent=agent)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False\n", "")
    lines = (tmp_path / "boot-errors.txt").read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("pid ")


def test_fault_with_a_vanished_run_directory_is_silent(tmp_path: Path) -> None:
    agent = "import os\nos.environ['PERFSCOPE_RUN_DIR'] = '/nonexistent/x'\nraise OSError"
    ended = python(tmp_path, "print('ok')", agent=agent)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ok\n", "")


def test_errors_of_thousands_of_processes_do_not_fill_the_disk(tmp_path: Path) -> None:
    (tmp_path / "boot-errors.txt").write_bytes(b"x" * 70_000)
    python(tmp_path, "", agent="raise OSError")
    assert (tmp_path / "boot-errors.txt").stat().st_size == 70_000


def test_vanished_agent_is_silence(tmp_path: Path) -> None:
    ended = python(tmp_path, "print('ok')", agent=None)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ok\n", "")
    assert not (tmp_path / "boot-errors.txt").exists()


def test_child_processes_are_reached_too(tmp_path: Path) -> None:
    show = "import os; print(os.environ['AGENT_STARTS'])"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {show!r}])"
    assert python(tmp_path, code).stdout == "2\n"


@pytest.mark.parametrize("option", ["-E", "-I", "-S"])
def test_isolated_interpreters_are_out_of_reach_and_unharmed(tmp_path: Path, option: str) -> None:
    ended = python(tmp_path, "import os; print(os.environ.get('AGENT_STARTS'))", option)
    assert (ended.stdout, ended.stderr) == ("None\n", "")


def test_only_sitecustomize_lies_in_the_directory() -> None:
    # Anything else there could shadow a module of the user's.
    assert [path.name for path in SITE.iterdir() if path.name != "__pycache__"] == ["sitecustomize.py"]


def test_source_is_readable_for_old_interpreters() -> None:
    text = (SITE / "sitecustomize.py").read_text(encoding="ascii")
    tree = ast.parse(text, feature_version=(3, 4))
    # Python 2 tools (found on clusters) parse it as well: nothing newer than both understand.
    newer = (ast.JoinedStr, ast.AnnAssign, ast.Nonlocal, ast.Starred, ast.AsyncFunctionDef)
    assert not [node for node in ast.walk(tree) if isinstance(node, newer)]
    assert not [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and (node.returns or node.args.kwonlyargs)
    ]
