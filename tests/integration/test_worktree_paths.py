"""Files that only the working tree has: data, programs, and words of the command that name them."""

from __future__ import annotations

import sys

import pytest

from perfscope.checkout.worktree import checked_out
from perfscope.errors import UsageError
from tests.support.worktree_project import Project, project, pytestmark, run

__all__ = ["project", "pytestmark"]


def test_data_that_git_does_not_keep_is_named_and_can_be_linked(project: Project) -> None:
    project.write(".gitignore", "data/\n")
    project.write("data/train.bin", "12")
    project.write("read.py", "import sys; print(open(sys.argv[1]).read())")
    project.commit("third")
    words = (sys.executable, "read.py", "data/train.bin", "--cache=data", "nothing", "read.py")
    with checked_out("HEAD", project.top, environment=project.environment) as base:
        assert base.missing(words) == ("data/train.bin", "data")
    with checked_out("HEAD", project.top, environment=project.environment, link=("data/",)) as base:
        assert base.missing(words) == ()
        assert run(base, *words[:3]) == "12"
    assert (project.top / "data" / "train.bin").read_text() == "12"  # the link went, not what it leads to


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("train.py", "has it itself"),
        ("none", "no such path"),
        ("..", "not a path in"),
        (".git", "not a path in"),
    ],
)
def test_only_data_of_the_working_tree_is_linked(project: Project, link: str, said: str) -> None:
    with (
        pytest.raises(UsageError, match=said),
        checked_out("HEAD~1", project.top, environment=project.environment, link=(link,)),
    ):
        raise AssertionError("it was linked")


def test_programs_that_only_the_working_tree_has_are_used_from_there(project: Project) -> None:
    project.write(".gitignore", ".venv/\n")
    program = project.write(".venv/bin/say", "#!/bin/sh\necho said\n")
    program.chmod(0o755)
    project.commit("third")
    with checked_out("HEAD", project.top, environment=project.environment) as base:
        for word in (".venv/bin/say", "./.venv/bin/say", str(program)):
            assert run(base, word) == "said" and base.missing([word]) == ()


def test_what_is_outside_of_the_working_tree_is_named_where_it_is(project: Project) -> None:
    outside = project.top.parent / "data"
    outside.mkdir()
    with checked_out("HEAD~1", project.top / "exp", environment=project.environment) as base:
        words = (
            "../../data",
            "--data=../../data",
            "data.path=../../data",
            "--data",
            "../../none",
            "../train.py",
        )
        there = str(outside)
        wanted = (there, f"--data={there}", f"data.path={there}", "--data", "../../none", "../train.py")
        assert base.command(words) == wanted
        with_data = run(
            base, sys.executable, "-c", "import os, sys; print(os.listdir(sys.argv[1]))", "../../data"
        )
        assert with_data == "[]"


def test_words_too_long_for_a_path_are_left_as_they_are(project: Project) -> None:
    program = f"print({'1' * 300})"
    with checked_out("HEAD~1", project.top, environment=project.environment) as base:
        assert base.command(("python", "-c", program)) == ("python", "-c", program)
        assert base.missing(("python", "-c", program)) == ()
