"""Checks a git reference out beside the working tree, so that the same command can run on older code.

The checkout is a detached worktree in a folder below `.git`: on the same file system as the working tree
(the same disk, seen by the same hosts), and out of the way. Index, stash, branches and configuration stay as
they are and no hook runs. Where the repository cannot be written to, its objects are borrowed instead
(`checkout.alternates`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfscope.checkout.alternates import borrow, checkout, fill_submodules, lfs_pointers
from perfscope.checkout.git import (
    CheckoutError,
    Git,
    Repository,
    find_repository,
    named,
    resolve_commit,
    undirected,
)
from perfscope.errors import UsageError
from perfscope.messages.lists import counted

PYTHONPATH = "PYTHONPATH"
_PREFIX, _LOCK = "base-", ".lock"
_ATTEMPTS = 20
_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.]*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worktree:
    """A reference, checked out.

    Attributes:
        path: root of the checkout.
        folder: where to start the command: what the folder that was asked from is in the checkout.
        repository: root of the working tree, which is the head.
        started_in: the folder that was asked from.
        commit, subject: of the checkout; the subject is free text.
        identical: whether the tracked files of both are the same, so that there is nothing to compare.
        notes: sentences that the one who reads the verdict should know, weightiest first.
    """

    path: Path
    folder: Path
    repository: Path
    started_in: Path
    reference: str
    commit: str
    subject: str
    identical: bool | None = None
    notes: tuple[str, ...] = ()

    def counterpart(self, path: Path) -> Path | None:
        """What `path` of the working tree is in the checkout, existing or not; None outside of it."""
        absolute = Path(os.path.abspath(self.started_in / path))  # noqa: PTH100 - resolve() would follow links out
        for candidate in (absolute, absolute.parent.resolve() / absolute.name):
            if candidate.is_relative_to(self.repository) and not candidate.is_relative_to(self.path):
                return self.path / candidate.relative_to(self.repository)
        return None

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """`environment` for a command in `folder`: PYTHONPATH leads there, nothing redirects git."""
        changed = undirected(environment)
        if "PWD" in changed:
            changed["PWD"] = str(self.folder)
        if changed.get(PYTHONPATH):
            entries = changed[PYTHONPATH].split(os.pathsep)
            changed[PYTHONPATH] = os.pathsep.join(self._python_entry(entry) for entry in entries)
        return changed

    def command(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The same command for the checkout.

        Absolute paths into the working tree become those of the checkout where it has them; programs that
        only the working tree has, as those of a virtual environment in it, are named where they are, and so
        is what relative paths find outside of the working tree.
        """
        return tuple(self._word(word) for word in argv)

    def missing(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Paths in the command that the working tree has and the checkout has not: git does not keep them."""
        missing = []
        for word in self.command(argv):
            _, path = _split(word)
            if path and path.is_absolute() and self._is_program(path):
                continue
            there = self.counterpart(path) if path else None
            if path and there and not os.path.lexists(there) and _exists(self.started_in / path):
                missing.append(str(path))
        return tuple(dict.fromkeys(missing))

    def _python_entry(self, entry: str) -> str:
        if not entry:  # Python takes it for the current folder, which already is the checkout's
            return entry
        there = self.counterpart(Path(entry))
        if there is not None:
            # What git does not keep (vendored packages) serves both sides.
            return str(there) if there.exists() else str(self.started_in / entry)
        return str(Path(os.path.abspath(self.started_in / entry)))  # noqa: PTH100 - as Python does

    def _word(self, word: str) -> str:
        start, path = _split(word)
        if path is None:
            return word
        there = self.counterpart(path)
        if there is None:  # outside; seen from the checkout, `../data` is another place
            outside = Path(os.path.abspath(self.started_in / path))  # noqa: PTH100 - as above
            return word if path.is_absolute() or not _exists(outside) else f"{start}{outside}"
        if _exists(there):
            return f"{start}{there}" if path.is_absolute() else word
        return str(self.started_in / path) if not start and self._is_program(path) else word

    def _is_program(self, path: Path) -> bool:
        started_path = self.started_in / path
        return (
            len(path.parts) > 1
            and _exists(started_path)
            and started_path.is_file()
            and os.access(started_path, os.X_OK)
        )


@contextlib.contextmanager
def checked_out(
    reference: str,
    repository: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    link: Sequence[str] = (),
    parent: Path | None = None,
) -> Iterator[Worktree]:
    """`reference`, checked out beside the working tree until the end of the block.

    Left-overs of checks that were killed are removed first; those of checks that are running are not touched.

    Args:
        repository: a folder in the working tree; None = the current one. The same folder of the checkout is
            `Worktree.folder`.
        environment: of git; None = this process's.
        link: paths of the working tree that git does not keep (data), relative to `repository`: the checkout
            gets symbolic links to them.
        parent: where to put the checkout; None = below the repository's .git folder.

    Raises:
        UsageError: there is no repository, no such reference or nothing to link.
        CheckoutError: git is missing, refuses, or fails.
    """
    environment = dict(os.environ if environment is None else environment)
    here = (Path.cwd() if repository is None else Path(repository)).absolute()
    git = Git(here, environment)
    repo = find_repository(git)
    commit = resolve_commit(git, reference, repo)
    if parent is not None and _dirties(parent.resolve(), repo):
        raise UsageError(f"{parent} is in the working tree, which a checkout there would change")
    with _own_folder(_parents(repo, environment, parent)) as folder:
        # The checkout is called as the working tree is: a project's folder can be its package's name.
        tree = folder / (repo.top.name or "tree")
        try:
            notes = _check_out(git.at(repo.top), repo, tree, commit)
            base = Worktree(
                path=tree,
                folder=tree / repo.inside,
                repository=repo.top,
                started_in=here,
                reference=reference,
                commit=commit,
                subject=git.ask("log", "-1", "--format=%s", commit) or "",
            )
            if not base.folder.is_dir():
                raise UsageError(
                    f"{named(reference)} has no folder {repo.inside}: start the check further up"
                )
            _link(base, repo, link)
            yield _compared(base, git.at(repo.top), notes)
        finally:
            _remove(folder, repo.common)


def _check_out(git: Git, repo: Repository, tree: Path, commit: str) -> list[str]:
    """Fills `tree`; sentences about what it lacks."""
    warnings = []
    try:
        warnings.append(checkout(git, "worktree", "add", "--quiet", "--detach", str(tree), commit))
    except CheckoutError:
        if os.access(repo.common, os.W_OK) and _can_make_folders(repo.common):
            raise
        shutil.rmtree(tree, ignore_errors=True)
        borrow(git, repo.common / "objects", repo.common / "shallow", tree, commit)
        warnings.append(
            "The repository cannot be written to; the base is a checkout that borrows its objects."
        )
    warnings += fill_submodules(git, repo.top, tree, commit)
    warnings.append(lfs_pointers(git, tree))
    return [sentence for sentence in warnings if sentence]


def _compared(base: Worktree, git: Git, notes: Sequence[str]) -> Worktree:
    """`base` with what the working tree is beside it."""
    head = git.ask("rev-parse", "--verify", "--quiet", "HEAD") or ""
    status = git.ask("status", "--porcelain", "--untracked-files=no")
    changed = None if status is None else len(status.splitlines())
    same = git.run("diff", "--quiet", "--no-ext-diff", "--no-textconv", base.commit, "--").code
    warnings = []
    if same == 0:
        warnings.append(
            f"{named(base.reference)} has the same tracked files as the working tree: both sides run the "
            "same code, so there is nothing to compare."
        )
    elif changed:
        warnings.append(
            f"The head is the working tree as it is: {counted(changed, 'tracked file')} "
            f"with changes on top of {head[:12] or 'no commit'}."
        )
    return replace(base, identical={0: True, 1: False}.get(same), notes=(*warnings, *notes))


def _link(base: Worktree, repo: Repository, link: Sequence[str]) -> None:
    for name in link:
        source = base.started_in / name
        there = base.counterpart(Path(name))
        if there is None or there == base.path or (base.repository / ".git") in (source, *source.parents):
            raise UsageError(
                f"cannot link {named(name)}: it is not a path in the working tree {base.repository} "
                "(paths outside are the same for both sides as they are)"
            )
        if not source.exists():
            raise UsageError(f"cannot link {named(name)}: the working tree has no such path")
        if os.path.lexists(there):
            raise UsageError(
                f"cannot link {named(name)}: {named(base.reference)} has it itself, and the base would run "
                "with the head's"
            )
        try:
            there.parent.mkdir(parents=True, exist_ok=True)
            there.symlink_to(source.absolute())
        except OSError as error:
            raise CheckoutError(f"cannot link {named(name)} into the base: {error.strerror}") from error


def _split(word: str) -> tuple[str, Path | None]:
    """The path that a word of a command may hold, and what stands before it: `data`, `--data=` and `data`.

    `env DATA=data` and `train.py data.path=data` name paths, too.
    """
    start = ""
    if word.startswith("-") or _ASSIGNMENT.match(word):
        option, equals, word = word.partition("=")
        if not equals:
            return "", None
        start = option + equals
    # A word can be anything; names that no file can have are none.
    return start, Path(word) if word and "\0" not in word and len(word) < 4096 else None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long, a folder that must not be entered: the command will say
        return False


def _dirties(parent: Path, repo: Repository) -> bool:
    return parent.is_relative_to(repo.top) and not parent.is_relative_to(repo.common)


def _parents(repo: Repository, environment: Mapping[str, str], parent: Path | None) -> list[Path]:
    if parent is not None:
        return [parent.resolve()]
    temporary = environment.get("TMPDIR") or tempfile.gettempdir()
    return [repo.common / "perfscope", Path(temporary).resolve() / f"perfscope-{os.geteuid()}"]


@contextlib.contextmanager
def _own_folder(parents: Sequence[Path]) -> Iterator[Path]:
    """A new folder that is known to be in use as long as this process lives, in the first parent that can be.

    The lock is taken before the folder is there, so a folder without a locked lock has no owner any more.
    """
    failure: OSError | None = None
    for parent in parents:
        try:
            _make_private(parent)
            _remove_left_overs(parent)
            folder, descriptor = _claim(parent)
        except OSError as error:
            failure = failure or error
            continue
        try:
            yield folder
        finally:
            lock = folder.with_name(folder.name + _LOCK)
            lock.unlink(missing_ok=True)
            os.close(descriptor)
            with contextlib.suppress(OSError):  # another check has its own in it
                parent.rmdir()
        return
    reason = failure.strerror if failure else ""
    raise CheckoutError(
        f"no folder for the base can be made in {parents[0]}: {reason}; set TMPDIR to one that can"
    )


def _make_private(parent: Path) -> None:
    """Makes the folder for checkouts. One that another user can write to is not touched.

    Its name below the folder for temporary files can be guessed, so another user could create it first, with
    links in it for the removal of left-overs to follow.

    Raises:
        OSError: it cannot be made, or is not ours alone.
    """
    for attempt in range(_ATTEMPTS):
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            status = parent.lstat()
            break
        except FileNotFoundError:  # another check's end has just taken it away
            if attempt == _ATTEMPTS - 1:
                raise
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(1, "it is a link", str(parent))
    if status.st_uid != os.geteuid():
        raise PermissionError(1, "it belongs to another user", str(parent))
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(1, "others may enter it, which they must not (mode 0700)", str(parent))


def _claim(parent: Path) -> tuple[Path, int]:
    for _ in range(_ATTEMPTS):
        _make_private(parent)
        folder = parent / f"{_PREFIX}{secrets.token_hex(4)}"
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
            descriptor = os.open(folder.with_name(folder.name + _LOCK), flags, 0o600)
        except (FileExistsError, FileNotFoundError):  # FileNotFound: another check's end took the parent away
            continue
        # Taken by the one who is looking for left-overs just now, or already thrown away: try again.
        if _locks(descriptor) and os.fstat(descriptor).st_nlink:
            folder.mkdir(mode=0o700)
            return folder.resolve(), descriptor
        os.close(descriptor)
    raise FileExistsError(17, "other checks keep taking the names", str(parent))


def _locks(descriptor: int) -> bool:
    """Whether the file is ours now. File systems without locks let everybody pass."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _remove_left_overs(parent: Path) -> None:
    """Removes what killed checks left: the kernel has let go of their locks."""
    for lock in parent.glob(f"{_PREFIX}*{_LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # its owner has just ended
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # in use, or no locks here: then it is not known
            continue
        else:
            folder = lock.with_name(lock.name.removesuffix(_LOCK))
            _remove(folder, None if folder.is_symlink() else _common_of(folder))
            if not os.path.lexists(folder):
                lock.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def _common_of(folder: Path) -> Path | None:
    """The git directory that a left-over checkout belongs to."""
    for git_file in folder.glob("*/.git"):
        with contextlib.suppress(OSError):  # a folder: it borrowed its objects and is not registered anywhere
            git_dir = Path(git_file.read_text(errors="surrogateescape").strip().removeprefix("gitdir: "))
            return git_dir.parent.parent if git_dir.parent.name == "worktrees" else None
    return None


def _remove(folder: Path, common: Path | None) -> None:
    """Removes a checkout's folder and what git remembers of it, by hand.

    `git worktree prune` would do the second, and would also forget worktrees of the user's whose disk is not
    mounted just now. .git/worktrees/*/gitdir is documented (gitrepository-layout(5)). What cannot be removed
    is left to the next check. A link in the folder's place goes, what it leads to stays.
    """
    if folder.is_symlink():
        with contextlib.suppress(OSError):
            folder.unlink()
        return
    for attempt in range(5):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        _allow_removal(folder)
        time.sleep(0.1 * attempt)  # something may still write into it: ranks on their way out
    remembered = common / "worktrees" if common else None
    if remembered is None or not remembered.is_dir() or folder.exists():
        return
    for entry in remembered.iterdir():
        with contextlib.suppress(OSError):
            if Path((entry / "gitdir").read_text(errors="surrogateescape")).is_relative_to(folder):
                shutil.rmtree(entry)
    with contextlib.suppress(OSError):  # the user has worktrees, too
        remembered.rmdir()


def _allow_removal(folder: Path) -> None:
    """A command may have left folders that nothing can be taken out of."""
    for parent_dir, folders, _ in os.walk(folder):  # does not follow links
        for name in folders:
            inner = Path(parent_dir, name)
            if not inner.is_symlink():
                with contextlib.suppress(OSError):
                    inner.chmod(stat.S_IRWXU)


def _can_make_folders(common: Path) -> bool:
    try:
        probe = tempfile.mkdtemp(dir=common)
    except OSError:
        return False
    Path(probe).rmdir()
    return True
