"""A repository with two versions of a program, and a command run on the older one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from perfscope.checkout.worktree import Worktree, checked_out
from perfscope.errors import PerfscopeError

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


class Project:
    """A repository with two commits: `train.py` prints `old`, then `new`."""

    def __init__(self, top: Path) -> None:
        self.top = top
        # No configuration of the machine that the tests run on.
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(top.parent),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "A",
            "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "A",
            "GIT_COMMITTER_EMAIL": "a@example.org",
        }
        top.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        self.write("train.py", "print('old')")
        self.write("exp/job.py", "print('old job')")
        self.first = self.commit("first: slow & steady")
        self.write("train.py", "print('new')")
        self.second = self.commit("second")

    def git(self, *arguments: str, **more: str) -> str:
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *arguments],
            cwd=self.top,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def write(self, name: str, text: str) -> Path:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def commit(self, subject: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def state(self) -> tuple[object, ...]:
        """Everything that a check must leave as it is."""
        return (
            self.git("status", "--porcelain"),
            self.git("stash", "list"),
            self.git("for-each-ref"),
            self.git("worktree", "list"),
            (self.top / ".git" / "config").read_text(),
            (self.top / ".git" / "index").read_bytes(),
            sorted(path.name for path in (self.top / ".git").iterdir()),
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def run(base: Worktree, *words: str, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        base.command(words),
        cwd=base.folder,
        env=base.environment(environment or {"PATH": os.environ["PATH"]}),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def refusal(project: Project, reference: str, folder: Path | None = None) -> PerfscopeError:
    with (
        pytest.raises(PerfscopeError) as caught,
        checked_out(reference, folder or project.top, environment=project.environment),
    ):
        raise AssertionError("it was checked out")
    assert "\n" not in str(caught.value)
    return caught.value
