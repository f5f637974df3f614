"""Asks git, and says in one line what it refuses. Nothing of the user's surroundings redirects it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from perfscope.errors import PerfscopeError, UsageError

EXIT_MEASUREMENT_FAILED = 5

# What makes git look elsewhere than at the directory it is started in (git rev-parse --local-env-vars), and
# what changes how paths are read. Configuration stays: CI systems hand over safe.directory by it.
REDIRECTING = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_QUARANTINE_PATH",
    "GIT_PREFIX",
    "GIT_NAMESPACE",
    "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_CONFIG",
    "GIT_LITERAL_PATHSPECS",
    "GIT_GLOB_PATHSPECS",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_ICASE_PATHSPECS",
)
# No hook of the repository runs, nothing is collected or watched, and no setting lands in its configuration.
_QUIET = (
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "advice.detachedHead=false",
    "submodule.recurse=false",
    "worktree.useRelativePaths=false",
    "log.showSignature=false",
    "gc.auto=0",
    "maintenance.auto=false",
)
_ASK_S = 60.0
_LONGEST_NAME = 100


class CheckoutError(PerfscopeError):
    """The base cannot be checked out, so nothing can be measured."""

    exit_code = EXIT_MEASUREMENT_FAILED


@dataclass(frozen=True, slots=True)
class GitResult:
    """What git said. `code` 124: it took too long."""

    code: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        """The line in which git says what is wrong."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
        return (fatal or lines or [f"exit code {self.code}"])[-1]


@dataclass(frozen=True, slots=True)
class Git:
    """git in one directory."""

    directory: Path
    environment: Mapping[str, str]

    def run(self, *arguments: str, timeout: float | None = _ASK_S) -> GitResult:
        """Raises CheckoutError where there is no git."""
        settings = [word for setting in _QUIET for word in ("-c", setting)]
        try:
            done = subprocess.run(
                ["git", "--no-optional-locks", *settings, *arguments],
                cwd=self.directory,
                env={
                    **undirected(self.environment),
                    "LC_ALL": "C",
                    "LANGUAGE": "C",
                    "GIT_TERMINAL_PROMPT": "0",  # no one can type a password
                },
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
                # A Ctrl-C is for the command line, which then ends git itself and tidies up.
                start_new_session=True,
            )
        except FileNotFoundError as error:
            if not self.directory.is_dir():
                raise UsageError(f"{self.directory} is not a folder") from error
            raise CheckoutError(
                "git is not installed or not on PATH, and checking out a base needs it: install git, or name "
                "the base's own command with --base-cmd"
            ) from error
        except OSError as error:
            raise CheckoutError(f"git cannot be started: {error.strerror or error}") from error
        except subprocess.TimeoutExpired:
            return GitResult(124, "", f"fatal: git {arguments[0]} took longer than {timeout:g} s")
        return GitResult(done.returncode, os.fsdecode(done.stdout), os.fsdecode(done.stderr))

    def ask(self, *arguments: str) -> str | None:
        """Its answer without the last line's end; None where it refuses."""
        answer = self.run(*arguments)
        return answer.out.removesuffix("\n") if answer.code == 0 else None

    def at(self, directory: Path) -> Git:
        return Git(directory, self.environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository with a working tree.

    Attributes:
        top: root of the working tree, resolved.
        inside: the folder that was asked from, relative to `top`.
        common: its git directory (of all its worktrees).
    """

    top: Path
    inside: Path
    common: Path
    is_shallow: bool


def undirected(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without what redirects git to another repository, index or object store."""
    return {name: value for name, value in environment.items() if name not in REDIRECTING}


def find_repository(git: Git) -> Repository:
    """The repository around `git.directory`.

    Raises:
        UsageError: there is none, or it has no working tree here.
        CheckoutError: git refuses to look at it.
    """
    # The path comes last: it may hold anything.
    answer = git.run(
        "rev-parse",
        "--is-inside-work-tree",
        "--is-bare-repository",
        "--is-shallow-repository",
        "--git-common-dir",
    )
    if answer.code != 0:
        raise _why_none(answer, git.directory)
    in_tree, is_bare, shallow, common = answer.out.removesuffix("\n").split("\n", 3)
    if in_tree != "true":
        if is_bare == "true":
            raise UsageError(
                f"{git.directory} is a bare repository, so there is no working tree to compare a base with: "
                "run this in a clone"
            )
        raise UsageError(
            f"{git.directory} is not in the working tree of its repository: start the check there"
        )
    top = git.ask("rev-parse", "--show-toplevel")
    if top is None:
        raise CheckoutError(f"git does not say where the working tree of {git.directory} begins")
    root, here = Path(top).resolve(), git.directory.resolve()
    if not here.is_relative_to(root):  # core.worktree, or a file system that shows folders twice
        raise UsageError(f"the working tree of {here} is elsewhere, in {root}: start the check there")
    return Repository(
        top=root,
        inside=here.relative_to(root),
        common=(git.directory / common).resolve(),
        is_shallow=shallow == "true",
    )


def resolve_commit(git: Git, reference: str, repository: Repository) -> str:
    """The commit that `reference` names, in full.

    Raises:
        UsageError: it names none.
    """
    if not reference or reference.startswith("-") or not reference.isprintable():
        raise UsageError(
            f"{named(reference)} is not a git reference: name a branch, a tag or a commit, e.g. origin/main"
        )
    # In two steps: what is appended to `:/words of a subject` would be searched for, too.
    answer = git.run("rev-parse", "--verify", reference)
    object_id = answer.out.strip()
    if answer.code == 0 and re.fullmatch("[0-9a-f]{40,64}", object_id):
        commit = git.ask("rev-parse", "--verify", f"{object_id}^{{commit}}")
        if commit:
            return commit
    raise UsageError(_why_unknown(git, reference, repository, answer))


def named(reference: str) -> str:
    """A reference for a message, on one line and not too long."""
    text = reference if reference.isprintable() and reference else repr(reference)
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…"


def _why_none(answer: GitResult, directory: Path) -> PerfscopeError:
    if "dubious ownership" in answer.err or "unsafe repository" in answer.err:
        match = re.search(r"repository at '(.+)'", answer.err) or re.search(r"\('(.+)' is owned", answer.err)
        directory_name = match[1] if match else str(directory)
        return CheckoutError(
            f"git refuses {directory_name} because it belongs to another user: "
            f"git config --global --add safe.directory {shlex.quote(directory_name)}"
        )
    if "not a git repository" in answer.err:
        return UsageError(
            f"{directory} is not in a git repository, so no base can be checked out: run this in the "
            "project's clone, or name the base's own command with --base-cmd"
        )
    return CheckoutError(f"git cannot read the repository around {directory}: {answer.reason}")


def _why_unknown(git: Git, reference: str, repository: Repository, answer: GitResult) -> str:
    what = named(reference)
    if git.ask("rev-parse", "--verify", "--quiet", "HEAD") is None and reference in ("HEAD", "@"):
        return "this repository has no commit yet, so there is no base to check out"
    kind = git.ask("cat-file", "-t", reference)
    if kind is not None and kind != "tag":
        return f"{what} is a {kind}, not a commit"
    if "ambiguous" in answer.err and "short object ID" in answer.err:
        return f"{what} is the beginning of several commits' ids: give more of it"
    text = f"{what} is no branch, tag or commit of this repository"
    if repository.is_shallow:
        return (
            f"{text}, of which only the last commits were fetched: `git fetch --depth=1 origin "
            f"{_short(reference)}` and name FETCH_HEAD, or fetch all (`git fetch --unshallow`; in GitHub "
            "Actions `fetch-depth: 0` of actions/checkout)"
        )
    near = _near(git, reference)
    return f"{text}: did you mean {near}?" if near else f"{text}: `git fetch`, or see `git branch --all`"


def _short(reference: str) -> str:
    """What a remote calls it: `origin/main~3` -> `main`."""
    return named(reference).removeprefix("origin/").split("~")[0].split("^")[0] or "REF"


def _near(git: Git, reference: str) -> str:
    listed = git.ask("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes", "refs/tags")
    names = (listed or "").split("\n")[:5000]
    remote = next((name for name in names if name.endswith(f"/{reference}")), "")
    return remote or next(iter(get_close_matches(reference, names, 1, 0.7)), "")
