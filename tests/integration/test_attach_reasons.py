"""Where a training leaves no record, the reason given is the true one."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.rundir import last_word
from tests.integration.run_support import PERFSCOPE, read_manifest, run, said, user_environment

QUIET = ("--ceilings", "off")
STEPS = """
import time, perfscope
for _ in range(30):
    perfscope.step()
    time.sleep(0.02)
"""
NO_DESCRIPTOR_LEFT = """
import contextlib, os, resource, time, perfscope
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with contextlib.suppress(OSError):
    while True:
        os.dup(0)
"""
LOST = {
    "removed": "import os, shutil\nwhile os.path.isdir('run'): shutil.rmtree('run', ignore_errors=True)\n",
    "replaced by another": "import os\nos.rename('run', 'before')\nos.mkdir('run')\n",
}


def closing_lines(tmp_path: Path, program: str, *command: str) -> list[str]:
    """What perfscope says of `program`, run as `command` says or by this Python."""
    (tmp_path / "train.py").write_text(program)
    ended = run(*(command or (sys.executable, "train.py")), cwd=tmp_path, options=QUIET)
    assert ended.returncode == 0, ended
    assert b"Traceback" not in ended.stderr
    return said(ended.stderr)


def test_a_program_that_replaces_pythonpath(tmp_path: Path) -> None:
    lines = closing_lines(
        tmp_path, STEPS, "sh", "-c", f"PYTHONPATH={tmp_path} {sys.executable} train.py; exit 0"
    )
    name = Path(os.path.realpath(sys.executable)).name
    reason = next(line for line in lines if "without perfscope's agent" in line)
    assert "PYTHONPATH was replaced" in reason
    assert "train.py" in reason, (reason, name)
    assert not any("no training was seen" in line for line in lines)
    assert any("PYTHONPATH was replaced" in note for note in read_manifest(tmp_path / "run")["attach_notes"])


@pytest.mark.parametrize(
    ("starting", "reason"),
    [
        ("[sys.executable, '-I', 'train.py']", "option -I"),
        ("[sys.executable, '-W', 'ignore', '-Es', 'train.py']", "option -E"),
        ("['env', '-i', sys.executable, 'train.py']", "environment was emptied"),
    ],
)
def test_a_program_that_keeps_the_agent_out(tmp_path: Path, starting: str, reason: str) -> None:
    (tmp_path / "launcher.py").write_text(f"import subprocess, sys\nsubprocess.run({starting}, check=True)\n")
    lines = closing_lines(tmp_path, STEPS, sys.executable, "launcher.py")
    assert [line for line in lines if reason in line and "without perfscope's agent" in line], lines


def test_a_program_with_no_descriptor_left(tmp_path: Path) -> None:
    lines = closing_lines(tmp_path, NO_DESCRIPTOR_LEFT + STEPS)
    assert any(line.endswith(f"record: {os.strerror(errno.EMFILE)}") for line in lines), lines
    assert not any("no training was seen" in line for line in lines)
    assert not list((tmp_path / "run").glob("unwritten-*"))


@pytest.mark.parametrize("how", LOST)
def test_a_run_directory_that_is_lost(tmp_path: Path, how: str) -> None:
    lines = closing_lines(tmp_path, STEPS + LOST[how] + STEPS)
    assert any(f"the run directory was {how}" in line for line in lines), lines
    assert not any("no training was seen" in line for line in lines)


def test_a_program_that_trains_nothing(tmp_path: Path) -> None:
    lines = closing_lines(tmp_path, "import json\n")
    assert [line for line in lines if line.startswith("no training was seen")], lines


def test_words_reach_the_listener_once_and_only_of_its_own_run(tmp_path: Path) -> None:
    listener = last_word.Listener(str(tmp_path))
    other = last_word.Listener(str(tmp_path / "other"))
    try:
        for number in (errno.ENOSPC, errno.ENOSPC):
            last_word.send(str(tmp_path), OSError(number, ""))
        (tmp_path / f"unwritten-12-{errno.EMFILE}").mkdir()
        assert listener.heard() == sorted([(os.getpid(), errno.ENOSPC), (12, errno.EMFILE)])
        assert listener.heard() == []
        assert other.heard() == []
    finally:
        listener.close()
        other.close()
    last_word.send(str(tmp_path), OSError(errno.ENOSPC, ""))  # to a wrapper on another host, say
    assert [path.name for path in tmp_path.iterdir()] == [f"unwritten-{os.getpid()}-{errno.ENOSPC}"]


@pytest.mark.torch
def test_a_run_of_one_step_does_not_speak_of_a_traced_window(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = """
import torch
model = torch.nn.Linear(64, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(32, 64)).sum().backward()
optimizer.step()
"""
    closing_lines(tmp_path, program)
    shown = subprocess.run(
        [*PERFSCOPE, "report", "run", "--json"],
        cwd=tmp_path,
        env=user_environment(),
        capture_output=True,
        check=True,
    )
    report = json.loads(shown.stdout)
    text = json.dumps(report)
    assert "1 step was recorded; windows begin after 3 steps" in text
    assert "never seen" not in text
    assert "first window is traced" not in text


SITE = """
import os
with open(os.environ["COUNTER"], "a") as file:
    file.write("%d\\n" % os.getpid())
"""


@pytest.mark.parametrize("options", [(), QUIET])
def test_the_users_sitecustomize_runs_in_the_training_and_the_wrapper_alone(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sitecustomize.py").write_text(SITE)
    (tmp_path / "train.py").write_text(
        "import os, subprocess, sys\nprint(os.getpid())\n"
        "if sys.argv[1:]: subprocess.run([sys.executable, 'train.py'], check=True)\n" + STEPS
    )
    counter = tmp_path / "counter"
    environment = user_environment(PYTHONPATH=str(tmp_path / "lib"), COUNTER=str(counter))
    wrapper = subprocess.Popen(
        [*PERFSCOPE, "run", *options, "-o", "run", "--", sys.executable, "train.py", "two"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    out, _ = wrapper.communicate(timeout=120)
    assert wrapper.returncode == 0
    assert (tmp_path / "run" / "hosts").is_dir()
    expected = sorted([wrapper.pid, *map(int, out.split())])
    assert sorted(map(int, counter.read_text().split())) == expected
