"""A git reference checked out beside the working tree: real repositories, no network."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.checkout.git import CheckoutError
from perfscope.checkout.worktree import checked_out
from perfscope.errors import UsageError
from tests.support.worktree_project import Project, project, pytestmark, refusal, run

__all__ = ["project", "pytestmark"]


def test_the_same_command_runs_on_the_older_code_in_the_same_folder(project: Project) -> None:
    before = project.state()
    with checked_out("HEAD~1", project.top / "exp", environment=project.environment) as base:
        assert (base.commit, base.subject) == (project.first, "first: slow & steady")
        assert base.identical is False
        assert base.folder == base.path / "exp" and base.path.name == "project"
        assert run(base, sys.executable, "../train.py") == "old"
        assert run(base, sys.executable, str(project.top / "train.py")) == "old"  # the absolute one, too
        assert project.git("status", "--porcelain") == "" and base.notes == ()
        assert run(base, "git", "rev-parse", "HEAD") == project.first
    assert not base.path.exists()
    assert project.state() == before


def test_tags_branches_and_expressions_name_commits(project: Project) -> None:
    project.git("tag", "-a", "v1", project.first, "-m", "a tag")
    project.git("branch", "feature/x", project.first)
    for reference in ("v1", "feature/x", project.first[:10], "main^", ":/slow & steady"):
        with checked_out(reference, project.top, environment=project.environment) as base:
            assert base.commit == project.first


def test_folders_with_odd_names_are_no_matter(tmp_path: Path) -> None:
    project = Project(tmp_path / "a b" / "'$(x)\n-ü")
    before = project.state()
    with checked_out("HEAD~1", project.top / "exp", environment=project.environment) as base:
        assert run(base, sys.executable, "../train.py") == "old"
        assert project.git("status", "--porcelain") == ""
    assert project.state() == before


def test_a_repository_of_which_the_working_tree_is_elsewhere_is_refused(
    project: Project, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    project.git("config", "core.worktree", str(tmp_path / "elsewhere"))
    assert "is not in the working tree of its repository" in str(refusal(project, "HEAD"))


def test_an_interrupted_check_leaves_nothing(project: Project) -> None:
    before = project.state()
    for error in (KeyboardInterrupt, RuntimeError, SystemExit):
        with (
            pytest.raises(error),
            checked_out("HEAD~1", project.top, environment=project.environment) as base,
        ):
            (base.path / "made").mkdir(mode=0o500)
            raise error
    assert project.state() == before


def test_interrupt_signal_while_the_command_runs_cleans_up(project: Project) -> None:
    before = project.state()
    with holding(project, "HEAD~1") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) != 0
    assert project.state() == before


@contextlib.contextmanager
def holding(project: Project, reference: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has checked `reference` out and waits to be ended."""
    code = """
        import os, sys, time
        from pathlib import Path
        from perfscope.checkout.worktree import checked_out
        with checked_out(sys.argv[1], Path(sys.argv[2]), environment=dict(os.environ)) as base:
            print(base.path, flush=True)
            time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), reference, str(project.top)],
        env={**os.environ, **project.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().strip()
            yield process
        finally:
            process.send_signal(signal.SIGINT)


def test_what_a_killed_check_left_is_removed_by_the_next(project: Project) -> None:
    before = project.state()
    with holding(project, "HEAD~1") as killed:
        killed.kill()
        killed.wait()
    assert len(project.git("worktree", "list").splitlines()) == 2
    with checked_out("HEAD~1", project.top, environment=project.environment):
        assert len(project.git("worktree", "list").splitlines()) == 2  # its own
    assert project.state() == before


def test_two_checks_at_once_do_not_meet(project: Project) -> None:
    before = project.state()
    with holding(project, "HEAD~1"):
        with checked_out("HEAD", project.top, environment=project.environment) as base:
            assert len(project.git("worktree", "list").splitlines()) == 3
            assert run(base, sys.executable, "train.py") == "new"
        assert len(project.git("worktree", "list").splitlines()) == 2  # the other's is still there
    assert project.state() == before


def test_worktrees_of_the_user_are_left_alone_even_where_their_disk_is_away(
    project: Project, tmp_path: Path
) -> None:
    project.git("worktree", "add", "-q", str(tmp_path / "mine"), "-b", "mine")
    (tmp_path / "mine").rename(tmp_path / "unmounted")
    with checked_out("HEAD~1", project.top, environment=project.environment):
        pass
    (tmp_path / "unmounted").rename(tmp_path / "mine")
    assert project.git("-C", str(tmp_path / "mine"), "status", "--porcelain") == ""


def test_a_linked_worktree_can_be_the_head(project: Project, tmp_path: Path) -> None:
    project.git("worktree", "add", "-q", str(tmp_path / "linked"), "-b", "linked")
    with checked_out("HEAD~1", tmp_path / "linked", environment=project.environment) as base:
        assert base.repository == tmp_path / "linked"
        assert run(base, sys.executable, "train.py") == "old"
    assert len(project.git("worktree", "list").splitlines()) == 2


def test_hooks_do_not_run_and_stash_and_index_survive(project: Project) -> None:
    hook = project.write(".git/hooks/post-checkout", "#!/bin/sh\ntouch ran-the-hook\n")
    hook.chmod(0o755)
    project.write("train.py", "print('stashed')")
    project.git("stash")
    project.write("train.py", "print('staged')")
    project.git("add", "train.py")
    before = project.state()
    with checked_out("HEAD~1", project.top, environment=project.environment) as base:
        assert not (base.path / "ran-the-hook").exists()
        assert "1 tracked file with changes" in base.notes[0]
    assert project.state() == before


def test_the_same_code_on_both_sides_is_said(project: Project) -> None:
    project.git("commit", "-q", "--allow-empty", "-m", "nothing")
    for reference in ("HEAD", "HEAD~1"):  # another commit with the same files is no other code
        with checked_out(reference, project.top, environment=project.environment) as base:
            assert base.identical is True and "nothing to compare" in base.notes[0]
    project.write("train.py", "print('newer')")
    with checked_out("HEAD", project.top, environment=project.environment) as base:
        assert base.identical is False and run(base, sys.executable, "train.py") == "new"


@pytest.fixture
def temporary(project: Project, tmp_path: Path) -> Path:
    """The folder that checkouts go to where the repository has no room for them."""
    (project.top / ".git" / "perfscope").write_text("in the way")
    folder = tmp_path / "temporary"
    folder.mkdir()
    project.environment["TMPDIR"] = str(folder)
    return folder / f"perfscope-{os.geteuid()}"


def test_links_that_somebody_laid_among_left_overs_are_not_followed(
    project: Project, temporary: Path
) -> None:
    victim = temporary.parent / "victim"
    (victim / "inner").mkdir(parents=True)
    (victim / "inner").chmod(0o500)
    temporary.mkdir(mode=0o700)
    (temporary / "base-x").symlink_to(victim)
    (temporary / "base-x.lock").write_text("")
    with checked_out("HEAD~1", project.top, environment=project.environment) as base:
        assert base.path.is_relative_to(temporary)
    assert (victim / "inner").stat().st_mode & 0o777 == 0o500
    assert not temporary.exists()


@pytest.mark.parametrize("whose", ["link", "open to others", "somebody else's"])
def test_a_folder_for_checkouts_that_is_not_ours_alone_is_not_touched(
    project: Project, temporary: Path, whose: str
) -> None:
    real = temporary.parent / "real" if whose == "link" else temporary
    real.mkdir(mode=0o700)
    lock = real / "base-x.lock"
    lock.write_text("")
    if whose == "link":
        temporary.symlink_to(real)
    elif whose == "open to others":
        temporary.chmod(0o777)
    else:
        try:
            os.chown(temporary, 12345, 12345)
        except PermissionError:
            pytest.skip("only root gives folders away")
    error = refusal(project, "HEAD~1")
    assert isinstance(error, CheckoutError) and "no folder for the base can be made" in str(error)
    assert lock.exists()


def test_submodules_are_filled_from_the_working_tree_without_a_network(
    project: Project, tmp_path: Path
) -> None:
    part = Project(tmp_path / "part")
    project.git("submodule", "add", "-q", str(part.top), "parts/one")
    project.git("-C", "parts/one", "checkout", "-q", part.first)
    project.commit("with a part")
    project.git("-C", "parts/one", "checkout", "-q", part.second)
    project.commit("with a newer part")
    shutil.rmtree(part.top)  # nothing can be fetched
    before = project.state(), project.git("-C", "parts/one", "status")
    with checked_out("HEAD~1", project.top, environment=project.environment) as base:
        assert run(base, sys.executable, "parts/one/train.py") == "old"
        assert base.notes == ()
    assert (project.state(), project.git("-C", "parts/one", "status")) == before
    project.git("submodule", "deinit", "-q", "-f", "parts/one")
    with checked_out("HEAD~1", project.top, environment=project.environment) as base:
        assert any("git submodule update --init parts/one" in note for note in base.notes)


def test_git_lfs_pointers_are_said_even_where_git_lfs_is_configured_but_missing(project: Project) -> None:
    project.write(".gitattributes", "*.bin filter=lfs\n")
    project.write("weights.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    project.commit("a pointer")
    with checked_out("HEAD", project.top, environment=project.environment) as base:
        assert any("weights.bin hold git LFS pointers" in note for note in base.notes)
    for name, value in (("smudge", "git-lfs-not-there"), ("required", "true")):
        project.git("config", f"filter.lfs.{name}", value)
    with checked_out("HEAD~1", project.top, environment=project.environment) as base:
        assert run(base, sys.executable, "train.py") == "new"
    with checked_out("HEAD", project.top, environment=project.environment) as base:
        assert any("git-lfs is not there" in note for note in base.notes)


def test_a_checkout_in_the_working_tree_itself_is_refused(project: Project, tmp_path: Path) -> None:
    def place(parent: Path) -> Path:
        with checked_out("HEAD~1", project.top, environment=project.environment, parent=parent) as base:
            return base.path

    with pytest.raises(UsageError, match="is in the working tree"):
        place(project.top / "exp")
    assert place(tmp_path / "elsewhere").is_relative_to(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_a_repository_that_cannot_be_written_to_lends_its_objects(project: Project, tmp_path: Path) -> None:
    code = """
        import os, subprocess, sys
        from pathlib import Path
        from perfscope.checkout.worktree import checked_out
        with checked_out("HEAD~1", Path(sys.argv[1]), environment=dict(os.environ)) as base:
            print(subprocess.run([sys.executable, "train.py"], cwd=base.folder, capture_output=True).stdout)
            print(base.path, base.notes)
    """
    mount = f'mount --bind "{project.top}" "{project.top}" && mount -o remount,bind,ro "{project.top}"'
    probe = subprocess.run(["unshare", "-Urm", "sh", "-c", mount], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no user namespaces to mount a repository read-only in")
    ask = [sys.executable, "-c", textwrap.dedent(code), str(project.top)]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", f'{mount} && exec "$@"', "sh", *ask],
        env={**os.environ, **project.environment, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "old" in done.stdout and "borrows its objects" in done.stdout and str(temporary) in done.stdout
    assert list(temporary.iterdir()) == []


def test_no_room_for_a_checkout_is_one_line(project: Project, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CheckoutError, match="no folder for the base can be made"),
        checked_out("HEAD", project.top, environment=project.environment, parent=tmp_path / "file"),
    ):
        raise AssertionError("it was checked out")
