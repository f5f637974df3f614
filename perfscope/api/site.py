"""The runs and studies below a folder as a dashboard publishes them; only what changed is read again."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from perfscope import __version__
from perfscope.api.listing import VERDICT_JSON, ListedRun, listed_run
from perfscope.errors import PerfscopeError, UnreadableFileError
from perfscope.messages.lists import counted
from perfscope.reports.dashboard.records import INDEX_VERSION, SiteIndex, SiteRun, SiteStudy
from perfscope.rundir import layout
from perfscope.rundir.files import names_in, replacing
from perfscope.rundir.opening import read_bounded, reason_of
from perfscope.rundir.publish import Publisher
from perfscope.rundir.redact import redact_argv, redact_labels

INDEX_JSON, REPORTS = "index.json", "reports"
REPORT_HTML, STUDY_JSON = "report.html", "study.json"
STUDY_PAGES = ("compare.html", "study.html", REPORT_HTML)
LINK, COPY, NONE = "link", "copy", "none"
_COMMIT = re.compile(r"[0-9a-f]{4,64}")  # no secret, although it looks random
_COPY = re.compile(rf"{REPORTS}/[0-9a-f]{{16}}\.html")


class _Run(msgspec.Struct):
    status: str = ""


class _Cell(msgspec.Struct):
    runs: list[_Run] = msgspec.field(default_factory=list)
    wanted: bool = True  # False: the sweep file no longer asks for it


class _Kind(msgspec.Struct):
    kind: str = ""


class _Study(msgspec.Struct):
    title: str = ""
    cells: list[_Cell] = msgspec.field(default_factory=list)


class Site:
    """A dashboard's folder.

    Args:
        folder: runs and studies are looked for below it. Links are not followed.
        site: the page's folder; is made.
        reports: LINK: to reports where they are, if the link shows nothing of where that is; COPY: into the
            site; NONE.
        keep_users: users' names and paths stay.
    """

    def __init__(self, folder: Path, site: Path, *, reports: str = LINK, keep_users: bool = False) -> None:
        self._folder, self._site, self._reports = folder.resolve(), site.resolve(), reports
        self._settings = {"reports": reports, "users": "kept" if keep_users else "replaced"}
        self._publisher = Publisher(keep_users=keep_users)
        self.num_read = 0
        self.num_unlinked = 0  # reports that are there and are not linked: the link would show a path
        self.uncopied: list[str] = []  # reports that could not be copied, each with the reason

    def index(self, progress: Callable[[int, int], None]) -> SiteIndex:
        """Every run and study; those of the site's index whose files did not change are taken from there."""
        runs, studies = _found(self._folder, self._site)
        self._publisher.learn(self._folder, (str(self._folder), str(self._site)))
        for path in runs:  # before any text is published: a name may be in several runs
            self._publisher.learn(path, (_manifest(path),))
        previous = {run.mark: run for run in self._known().runs}
        made = []
        for number, path in enumerate(runs):
            progress(number, len(runs))
            made.append(self._run(path, previous))
        made.sort(key=lambda run: (run.started_unix_ns or 0, run.path), reverse=True)
        return SiteIndex(
            perfscope_version=__version__,
            settings=self._settings,
            runs=tuple(made),
            studies=tuple(self._study(path) for path in studies),
        )

    def write(self, index: SiteIndex, page: str) -> None:
        """Writes index.json and index.html, and deletes the copies that only the index before this one had.

        Other files in the folder of copies stay: they may be the user's.
        """
        before = _addresses(self._written() or SiteIndex())
        content = msgspec.json.format(msgspec.json.encode(index), indent=1) + b"\n"
        with replacing(self._site / INDEX_JSON) as file:
            file.write(content)
        with replacing(self._site / "index.html") as file:
            file.write(page.encode("utf-8", "replace"))
        for address in before - _addresses(index):
            if _COPY.fullmatch(address):
                (self._site / address).unlink(missing_ok=True)

    def _known(self) -> SiteIndex:
        """The index that is there; an empty one where it cannot be used."""
        written = self._written()
        if (
            written is None
            or written.schema_version != INDEX_VERSION
            or written.perfscope_version != __version__
        ):
            return SiteIndex()
        return written if written.settings == self._settings else SiteIndex()

    def _written(self) -> SiteIndex | None:
        """The index that is there, of any version and settings; None where it cannot be read."""
        try:
            return msgspec.json.decode(read_bounded(self._site / INDEX_JSON), type=SiteIndex)
        except (OSError, ValueError, UnreadableFileError):
            return None

    def _run(self, path: Path, previous: dict[str, SiteRun]) -> SiteRun:
        mark = _mark(self._folder, path, self._publisher.users)
        report = self._report(path, (REPORT_HTML,))
        if (old := previous.get(mark)) is not None and old.state != "running":
            return msgspec.structs.replace(old, report=report)
        self.num_read += 1
        run = listed_run(path)
        clean = self._publisher
        labels = redact_labels(run.labels)
        return SiteRun(
            mark=mark,
            path=clean.text(path.relative_to(self._folder).as_posix()),
            name=clean.argument(run.name),
            started_unix_ns=run.started_unix_ns,
            state=run.state,
            ranks=run.ranks,
            expected=run.expected,
            step_ns=run.step_ns,
            samples_per_s=run.samples_per_s,
            verdict=clean.text(run.verdict),
            command=clean.command(redact_argv(run.command)),
            labels=tuple(sorted(clean.argument(f"{key}={value}") for key, value in labels.items())),
            commit=run.commit if _COMMIT.fullmatch(run.commit) else clean.text(run.commit),
            hosts=tuple(map(clean.text, run.hosts)),
            machine=clean.text(_machine(run)),
            framework=clean.text(run.framework),
            report=report,
        )

    def _study(self, path: Path) -> SiteStudy:
        clean = self._publisher
        name = clean.text(path.relative_to(self._folder).as_posix())
        try:
            study = msgspec.json.decode(read_bounded(path / STUDY_JSON), type=_Study)
        except (OSError, ValueError, UnreadableFileError):
            return SiteStudy(path=name, title="", done=0, total=0)
        runs = [run for cell in study.cells if cell.wanted for run in cell.runs]
        return SiteStudy(
            path=name,
            title=clean.text(study.title),
            done=sum(run.status == "done" for run in runs),
            total=len(runs),
            report=self._report(path, STUDY_PAGES),
        )

    def _report(self, path: Path, names: tuple[str, ...]) -> str:
        """The address of a run's report, from the page; "" without one."""
        there = next((path / name for name in names if _is_file(path / name)), None)
        if there is None or self._reports == NONE:
            return ""
        if self._reports == COPY:
            try:
                return self._copied(there)
            except UnreadableFileError as error:
                self.uncopied.append(str(error))
            except OSError as error:
                self.uncopied.append(f"{there}: {reason_of(error)}")
            return ""
        inside = there.is_relative_to(self._site.parent) or self._site.is_relative_to(self._folder)
        relative = Path(os.path.relpath(there, self._site)).as_posix()
        address = quote(os.fsencode(relative))  # a name may be any bytes
        if inside and self._publisher.shows(re.sub(r"^(?:\.\./)+", "", relative)):
            return address if address.startswith(".") else f"./{address}"
        self.num_unlinked += 1
        return ""

    def _copied(self, there: Path) -> str:
        name = hashlib.sha256(os.fsencode(there.relative_to(self._folder))).hexdigest()[:16]
        copy = self._site / REPORTS / f"{name}.html"
        copy.parent.mkdir(parents=True, exist_ok=True)
        if _state_of(copy) != _state_of(there):
            modified = there.stat().st_mtime_ns
            with replacing(copy) as file:
                file.write(read_bounded(there))
            os.utime(copy, ns=(modified, modified))  # tells later whether the report is another one
        return f"{REPORTS}/{copy.name}"


def check_site(site: Path) -> None:
    """Makes the folder of a site.

    Raises:
        PerfscopeError: it is no folder, has an index.html or index.json of someone else, or its folder of
            copies is a link.
    """
    try:
        site.mkdir(parents=True, exist_ok=True)
        page = (site / "index.html").read_bytes()[:8192] if (site / "index.html").exists() else None
    except OSError as error:
        raise PerfscopeError(f"cannot write to {site}: {error.strerror or error}; name a folder") from None
    if page is not None and b'content="perfscope ' not in page:
        raise PerfscopeError(
            f"{site}/index.html is not a page of perfscope: name another folder with --output"
        )
    if not _may_replace(site / INDEX_JSON, has_page=page is not None):
        raise PerfscopeError(
            f"{site}/{INDEX_JSON} is not the index of a dashboard: name another folder with --output"
        )
    copies = site / REPORTS
    if copies.is_symlink() or (copies.exists() and not copies.is_dir()):
        raise PerfscopeError(f"{copies} is not a directory: name another folder with --output")


def _may_replace(index: Path, *, has_page: bool) -> bool:
    """Whether an index.json is a dashboard's, or a damaged file beside a dashboard's page."""
    try:
        return msgspec.json.decode(read_bounded(index), type=_Kind).kind == SiteIndex().kind
    except FileNotFoundError:
        return True
    except (msgspec.ValidationError, OSError, UnreadableFileError):
        return False
    except ValueError:  # no JSON
        return has_page


def _addresses(index: SiteIndex) -> set[str]:
    """Of all reports of an index."""
    return {run.report for run in index.runs} | {study.report for study in index.studies}


def _found(folder: Path, site: Path) -> tuple[list[Path], list[Path]]:
    """Runs and studies below `folder`, by their paths; what is inside a run or hidden is left out."""
    runs, studies = [], []
    for path, names, files in _walked(folder):
        if layout.RUN_JSON in files:
            runs.append(path)
            names.clear()
            continue
        if STUDY_JSON in files:
            studies.append(path)
        names[:] = sorted(name for name in names if not name.startswith(".") and path / name != site)
    return runs, studies


def _walked(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    for path, names, files in os.walk(folder):
        yield Path(path), names, files


def _manifest(path: Path) -> str:
    """The text of run.json; "" where it cannot be read."""
    try:
        return read_bounded(path / layout.RUN_JSON).decode("utf-8", "replace")
    except (OSError, UnreadableFileError):
        return ""


def _mark(folder: Path, path: Path, users: frozenset[str]) -> str:
    """What changes with the files that a list of runs is made from, and with the names to be replaced."""
    ranks = path / layout.RANKS
    numbers = sorted((name for name in names_in(ranks) if name.isdecimal()), key=int)
    first = ranks / numbers[0] if numbers else ranks
    derived = path / layout.DERIVED
    looked_at = (
        path / layout.RUN_JSON,
        derived / VERDICT_JSON,
        derived / layout.INGEST,
        first / layout.RANK_JSON,
        first / layout.STEPS_JSONL,
        path / layout.HOSTS,
    )
    text = [path.relative_to(folder).as_posix(), str(len(numbers)), *sorted(users)]
    text += map(_state_of, looked_at)
    return hashlib.sha256("\n".join(text).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _state_of(file: Path) -> str:
    try:
        status = file.lstat()
    except OSError:
        return "-"
    return f"{status.st_mtime_ns}.{status.st_size}"


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _machine(run: ListedRun) -> str:
    """Its GPUs, or else its processors."""
    if run.gpus:
        return ", ".join(f"{number} × {name}" for name, number in sorted(Counter(run.gpus).items()))
    return ", ".join(filter(None, (run.cpu, counted(run.num_cpus, "CPU") if run.num_cpus else "")))
