"""What a dashboard publishes of a run and of a study: the records of its index.json."""

from __future__ import annotations

import msgspec
from msgspec import Struct

INDEX_VERSION = 2


class SiteRun(Struct, frozen=True, kw_only=True):
    """One run, as it may be published.

    Attributes:
        mark: of the files that it was read from; another one: they changed.
        path: below the folder, users' names replaced.
        state: as of api.listing.ListedRun.
        step_ns: median of the first rank's steps; None: it recorded none.
        samples_per_s: None: no report of it says.
        labels: `key=value` each.
        machine: processors or GPUs of its first host, in words; "" where that was not recorded.
        report: address of its report from the page; "": there is none, or it must not be linked.
    """

    mark: str
    path: str
    name: str
    started_unix_ns: int | None = None
    state: str = "unreadable"
    ranks: int = 0
    expected: int | None = None
    step_ns: int | None = None
    samples_per_s: float | None = None
    verdict: str = ""
    command: str = ""
    labels: tuple[str, ...] = ()
    commit: str = ""
    hosts: tuple[str, ...] = ()
    machine: str = ""
    framework: str = ""
    report: str = ""

    @property
    def series_key(self) -> tuple[str, ...]:
        """What runs of one series have in common."""
        what = self.command or self.name
        return (what, ", ".join(self.labels), self.machine, f"{len(self.hosts)}", f"{self.ranks}")


class SiteStudy(Struct, frozen=True, kw_only=True):
    """A study of `perfscope bench`; `done` of `total` runs have ended well. `report`: as of SiteRun."""

    path: str
    title: str
    done: int
    total: int
    report: str = ""


class SiteIndex(Struct, frozen=True, kw_only=True):
    """index.json. `settings`: with others, every run is read again."""

    schema_version: int = INDEX_VERSION
    kind: str = "dashboard"
    perfscope_version: str = ""
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    runs: tuple[SiteRun, ...] = ()
    studies: tuple[SiteStudy, ...] = ()
