"""A git reference checked out beside the working tree: real repositories, no network."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from perfscope.checkout.editable_check import interpreter, own_imports
from perfscope.checkout.git import CheckoutError
from perfscope.checkout.worktree import Worktree, checked_out
from perfscope.errors import PerfscopeError, UsageError

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


# Whose packages are imported.


@pytest.fixture
def packaged(project: Project) -> Project:
    """src/mine says `old` in the first of two commits; bin/go.py prints what it says."""
    project.write("src/mine/__init__.py", "WORD = 'old'")
    project.write("bin/go.py", "import mine; print(mine.WORD)")
    project.commit("a package")
    project.write("src/mine/__init__.py", "WORD = 'new'")
    project.commit("a newer package")
    return project


def environment_with(project: Project, tmp_path: Path, **files: str) -> str:
    """A virtual environment with these files in its site-packages; its python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    for name, text in files.items():
        (site / name.replace("__dot__", ".")).write_text(text)
    return str(tmp_path / "env" / "bin" / "python")


def test_pythonpath_leads_into_the_checkout(packaged: Project, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    packaged.write(".git/info/exclude", "vendored/\n")
    vendored = packaged.write("vendored/x.py", "").parent
    path = [str(packaged.top / "src"), "src", str(tmp_path / "outside"), "../outside", str(vendored), ""]
    with checked_out("HEAD~1", packaged.top, environment=packaged.environment) as base:
        changed = base.environment({"PYTHONPATH": os.pathsep.join(path), "PWD": str(packaged.top)})
        there, outside = str(base.path / "src"), str(tmp_path / "outside")
        assert changed["PYTHONPATH"].split(os.pathsep) == [there, there, outside, outside, str(vendored), ""]
        assert changed["PWD"] == str(base.folder)
        variables = {"PYTHONPATH": path[0]}
        assert run(base, sys.executable, "bin/go.py", environment=variables) == "old"


def test_an_editable_install_by_path_file_does_not_give_the_base_the_heads_code(
    packaged: Project, tmp_path: Path
) -> None:
    python = environment_with(packaged, tmp_path, mine__dot__pth=f"{packaged.top / 'src'}\n")
    words = [python, "bin/go.py"]
    with checked_out("HEAD~1", packaged.top, environment=packaged.environment) as base:
        assert run(base, *words) == "new"  # the trap is real
        imports = own_imports(base, words, packaged.environment)
        assert (imports.redirected, imports.shadowed) == (("mine",), ())
        assert "imports its own mine" in imports.notes[0]
        done = subprocess.run(
            words, cwd=base.folder, env=imports.environment, stdout=subprocess.PIPE, check=True
        )
        assert done.stdout == b"old\n"


FINDER = """
import importlib.util, sys
MAPPING = {"mine": %r}

class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in MAPPING:
            return importlib.util.spec_from_file_location(name, MAPPING[name] + "/__init__.py",
                submodule_search_locations=[MAPPING[name]])

def install():
    sys.meta_path.%s
"""


@pytest.mark.parametrize(
    ("place", "redirected", "shadowed"),
    [("append(Finder)", ("mine",), ()), ("insert(0, Finder)", (), ("mine",))],
    ids=["as setuptools does", "before everything else"],
)
def test_an_editable_install_by_finder_is_redirected_or_said(
    packaged: Project, tmp_path: Path, place: str, redirected: tuple[str, ...], shadowed: tuple[str, ...]
) -> None:
    python = environment_with(
        packaged,
        tmp_path,
        mine__dot__pth="import __editable___mine_finder; __editable___mine_finder.install()\n",
        __editable___mine_finder__dot__py=FINDER % (str(packaged.top / "src" / "mine"), place),
    )
    with checked_out("HEAD~1", packaged.top, environment=packaged.environment) as base:
        imports = own_imports(base, ["mpirun", "-n", "2", python, "bin/go.py"], packaged.environment)
    assert (imports.python, imports.redirected, imports.shadowed) == (python, redirected, shadowed)
    if shadowed:
        assert "would compare the head with itself" in imports.notes[0] and "--base-cmd" in imports.notes[0]


def test_packages_beside_the_script_need_nothing(packaged: Project, tmp_path: Path) -> None:
    packaged.write("src/go.py", "import mine; print(mine.WORD)")
    packaged.commit("third")
    python = environment_with(packaged, tmp_path, mine__dot__pth=f"{packaged.top / 'src'}\n")
    with checked_out("HEAD", packaged.top, environment=packaged.environment) as base:
        imports = own_imports(base, [python, "src/go.py"], packaged.environment)
        assert (imports.redirected, imports.shadowed, imports.notes) == ((), (), ())
        assert "PYTHONPATH" not in imports.environment


def test_where_the_interpreter_is_not_known_a_project_that_can_be_installed_is_warned(
    packaged: Project,
) -> None:
    with checked_out("HEAD~1", packaged.top, environment=packaged.environment) as base:
        assert own_imports(base, ["no-such-launcher"], packaged.environment).notes == ()
        packaged.write("pyproject.toml", "")
        for words in (["no-such-launcher"], ["./python", "x.py"]):
            assert "Not checked" in own_imports(base, words, packaged.environment).notes[0]


def test_the_interpreter_is_found_through_scripts_and_launchers(tmp_path: Path) -> None:
    long = tmp_path / "long"
    for name, text in (
        ("torchrun", f"#!{sys.executable}\n"),
        ("long", f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n"),
        ("other", "#!/bin/sh\nexec true\n"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": str(tmp_path)}
    assert interpreter(["torchrun", "--standalone", "train.py"], environment, tmp_path) == sys.executable
    assert interpreter(["mpirun", "-n", "2", sys.executable, "x.py"], environment, tmp_path) == sys.executable
    assert interpreter([str(long), "x.py"], environment, tmp_path) == sys.executable
    assert interpreter(["other", "x.py"], environment, tmp_path) == ""
    assert interpreter([], environment, tmp_path) == ""
