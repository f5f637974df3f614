"""References and repositories that cannot be checked out, and the line that says why."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from perfscope.checkout.worktree import checked_out
from tests.support.worktree_project import Project, project, pytestmark, refusal, run

__all__ = ["project", "pytestmark"]


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("no-such", "is no branch, tag or commit"),
        ("--upload-pack=touch x", "is not a git reference"),
        ("-h", "is not a git reference"),
        ("", "is not a git reference"),
        ("a\nb\x1b[2J", "'a\\nb\\x1b[2J' is not a git reference"),
        ("HEAD:train.py", "is a blob, not a commit"),
        ("main..HEAD", "is no branch"),
        ("^main", "is no branch"),
        ("featur", "did you mean feature?"),
        ("x" * 500, "x…"),
    ],
)
def test_what_is_no_commit_is_refused_as_wrong_usage(project: Project, reference: str, said: str) -> None:
    project.git("branch", "feature")
    before = project.state()
    error = refusal(project, reference)
    assert said in str(error) and error.exit_code == 2
    assert project.state() == before


def test_a_branch_that_only_the_remote_has_is_suggested(project: Project, tmp_path: Path) -> None:
    project.git("branch", "develop")
    project.git("clone", "-q", str(project.top), str(tmp_path / "clone"))
    assert "did you mean origin/develop?" in str(refusal(project, "develop", tmp_path / "clone"))


def test_a_shallow_clone_is_told_what_to_fetch(project: Project, tmp_path: Path) -> None:
    project.git("clone", "-q", "--depth", "1", f"file://{project.top}", str(tmp_path / "clone"))
    said = str(refusal(project, "HEAD~1", tmp_path / "clone"))
    assert "git fetch --depth=1 origin" in said and "fetch-depth: 0" in said
    with checked_out("HEAD", tmp_path / "clone", environment=project.environment) as base:
        assert run(base, sys.executable, "train.py") == "new"


def test_where_there_is_no_working_tree_it_is_said(project: Project, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    error = refusal(project, "HEAD", tmp_path / "plain")
    assert "is not in a git repository" in str(error) and error.exit_code == 2
    project.git("clone", "-q", "--bare", str(project.top), str(tmp_path / "bare"))
    assert "is a bare repository" in str(refusal(project, "HEAD", tmp_path / "bare"))
    assert "is not in the working tree of its repository" in str(
        refusal(project, "HEAD", project.top / ".git")
    )
    assert "is not a folder" in str(refusal(project, "HEAD", tmp_path / "absent"))
    project.git("init", "-q", str(tmp_path / "empty"))
    assert "no commit yet" in str(refusal(project, "HEAD", tmp_path / "empty"))


def test_without_git_one_line_says_what_to_do(project: Project, tmp_path: Path) -> None:
    project.environment["PATH"] = str(tmp_path)
    error = refusal(project, "HEAD")
    assert "git is not installed" in str(error) and "--base-cmd" in str(error) and error.exit_code == 5


def test_a_repository_of_somebody_else_is_refused_with_the_way_out(project: Project) -> None:
    project.environment["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"  # git's own means to test this
    error = refusal(project, "HEAD", project.top / "exp")
    assert f"git config --global --add safe.directory {project.top}" in str(error) and error.exit_code == 5
    settings = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    with checked_out("HEAD", project.top, environment=project.environment | settings):
        pass


def test_variables_that_point_git_elsewhere_do_not(project: Project, tmp_path: Path) -> None:
    other = Project(tmp_path / "other")
    hostile = {
        "GIT_DIR": str(other.top / ".git"),
        "GIT_WORK_TREE": str(other.top),
        "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_OBJECT_DIRECTORY": str(tmp_path / "objects"),
    }
    before = other.state()
    with checked_out("HEAD~1", project.top, environment=project.environment | hostile) as base:
        assert base.repository == project.top
        assert run(base, "git", "rev-parse", "HEAD", environment={**os.environ, **hostile}) == project.first
    assert other.state() == before


def test_a_folder_that_the_base_has_not_is_refused(project: Project) -> None:
    project.write("later/train.py", "print(1)")
    project.commit("third")
    assert "has no folder later" in str(refusal(project, "HEAD~1", project.top / "later"))
