"""Checkouts that borrow the objects of another repository and write nothing into it.

For submodules, which `git worktree add` leaves empty, and for repositories that must not be written to.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from perfscope.checkout.git import CheckoutError, Git
from perfscope.messages.lists import first_of

_DEEPEST = 8
_MOST_NAMED = 3
_LFS_MARK = b"version https://git-lfs.github.com/spec/"
# Where git-lfs is configured but missing, a checkout fails as a whole; without the filter it leaves pointers.
WITHOUT_LFS = (
    "-c",
    "filter.lfs.process=",
    "-c",
    "filter.lfs.smudge=",
    "-c",
    "filter.lfs.clean=",
    "-c",
    "filter.lfs.required=false",
)


def borrow(source: Git, objects: Path, shallow: Path, tree: Path, commit: str) -> None:
    """A repository of its own in `tree` with `commit` checked out; its objects stay where they are.

    Args:
        source: git in the repository whose objects are borrowed.
        objects, shallow: its object store and its file of commits without parents (may be absent).

    Raises:
        CheckoutError: git cannot check the commit out.
    """
    new_git = source.at(tree)
    tree.mkdir(parents=True, exist_ok=True)
    kind = source.ask("rev-parse", "--show-object-format") or "sha1"
    format_ = () if kind == "sha1" else (f"--object-format={kind}",)
    made = new_git.run("init", "--quiet", "--template=", *format_)
    if made.code != 0:
        raise CheckoutError(f"git cannot make a repository in {tree}: {made.reason}")
    alternates = tree / ".git" / "objects" / "info" / "alternates"
    alternates.parent.mkdir(parents=True, exist_ok=True)
    alternates.write_bytes(os.fsencode(objects) + b"\n")
    if shallow.is_file():
        shutil.copyfile(shallow, tree / ".git" / "shallow")
    checkout(new_git, "checkout", "--quiet", "--detach", commit)


def checkout(git: Git, *arguments: str) -> str:
    """Runs a git command that fills a working tree; '' or a sentence about what it lacks.

    Raises:
        CheckoutError: it fails.
    """
    done = git.run(*arguments, timeout=None)
    if done.code == 0:
        return ""
    if "lfs" in done.err:
        done = git.run(*WITHOUT_LFS, *arguments, timeout=None)
        if done.code == 0:
            return "git-lfs is not there or could not fetch, so files that it keeps are pointers in the base."
    raise CheckoutError(f"git cannot check the base out: {done.reason}")


def fill_submodules(git: Git, top: Path, tree: Path, commit: str, depth: int = 0) -> Iterator[str]:
    """Checks the submodules of `commit` out where the working tree has them; sentences about those it cannot.

    Args:
        git: in `top`, the root of the working tree; `tree` is the checkout of `commit`.
    """
    for path, wanted in _links(git, commit):
        there = top / path
        if not (there / ".git").exists():
            yield (
                f"The submodule {path} is not checked out, here or in the base: "
                f"git submodule update --init {path}"
            )
            continue
        submodule = git.at(there)
        common = submodule.ask("rev-parse", "--git-common-dir")
        if common is None or submodule.ask("cat-file", "-e", f"{wanted}^{{commit}}") is None:
            yield (
                f"The submodule {path} is empty in the base, which wants its commit {wanted[:12]}: "
                f"git -C {path} fetch origin {wanted}"
            )
            continue
        base = (there / common).resolve()
        borrow(submodule, base / "objects", base / "shallow", tree / path, wanted)
        if depth < _DEEPEST:
            for sentence in fill_submodules(submodule, there, tree / path, wanted, depth + 1):
                yield f"In {path}: {sentence}"


def lfs_pointers(git: Git, tree: Path) -> str:
    """A sentence about files of the checkout that are git LFS pointers; '' if none is."""
    listed = git.at(tree).ask("ls-files", "-z", "--", ":(attr:filter=lfs)")
    pointers = [path for path in (listed or "").split("\0") if path and _is_pointer(tree / path)]
    if not pointers:
        return ""
    return (
        f"In the base {first_of(pointers, _MOST_NAMED)} hold git LFS pointers instead of contents: "
        "git lfs fetch origin REF"
    )


def _links(git: Git, commit: str) -> Iterator[tuple[str, str]]:
    """(path, commit) of the submodules of a commit."""
    listed = git.ask("ls-tree", "-r", "-z", "--full-tree", commit)
    for line in (listed or "").split("\0"):
        facts, _, path = line.partition("\t")
        if facts.startswith("160000 "):
            yield path, facts.split(" ")[2]


def _is_pointer(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_LFS_MARK)) == _LFS_MARK
    except OSError:
        return False
