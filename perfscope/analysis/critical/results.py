"""What the critical path of a step is: segments that tile it, and what they add up to.

The path is walked from the step's last event backwards, so it ends where the last rank ends, and begins where
the walk meets the beginning of the step on whichever rank it is on. `CriticalPath.total_ns` is that stretch.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter

from msgspec import Struct

# What time on the path is spent on. `comm`: communication whose other ends were not traced or not matched, so
# that waiting cannot be distinguished from transfer. `host`: what the host did while a device waited for it,
# or beside communication. `launch`: from the launch call to the start on the device. `idle`: no activity in
# the trace.
PATH_KINDS = (
    "compute",
    "optimizer",
    "transfer",
    "comm",
    "copy",
    "input",
    "launch",
    "host",
    "idle",
)

_WITH_PHASE = frozenset({"compute", "copy", "host"})  # kinds of which the phase says more


class PathSegment(Struct, frozen=True, kw_only=True):
    """One stretch of the path, on one rank. Times are ns on the reference host's clock."""

    rank: int
    host: str
    device: int  # GPU index; -1 = host
    lane: int  # thread or stream; -1 = the rank's main line, whichever thread it runs on
    kind: str  # of PATH_KINDS
    layer: str | None
    phase: str | None  # of schema.PHASES
    name: str  # operator or kernel; "" = not known
    collective: str | None  # transfers
    group: str | None
    late_rank: int | None  # transfers: who entered last
    hosts: tuple[str, ...]  # transfers: hosts of the ranks that took part
    start_ns: int
    end_ns: int
    reason: str  # why what comes later had to wait for this
    uncertain: bool  # who was late lies within the uncertainty of the hosts' clocks

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.start_ns


class PathShare(Struct, frozen=True, kw_only=True):
    """Part of a path, or of several, that has something in common."""

    key: str  # rank or layer
    ns: int  # time on the critical path
    ratio: float  # of the path's total


class PathEntry(Struct, frozen=True, kw_only=True):
    """All segments of several paths that are alike."""

    rank: int | None  # None: a transfer, which belongs to its group
    kind: str  # what the time is spent on
    what: str  # collective, kernel or operator; "" = not known
    layer: str | None
    phase: str | None
    hosts: tuple[str, ...]
    ns: int  # in all of the paths together
    ratio: float  # of their total
    count: int  # segments


class CriticalPath(Struct, frozen=True, kw_only=True):
    """One step. Segments touch: from `begin_ns` to `end_ns` without gap or overlap, in time order."""

    window: int
    step: int
    begin_ns: int  # reference host's clock
    end_ns: int
    segments: tuple[PathSegment, ...]
    ranks: tuple[int, ...]  # all that traced this step, on the path or not
    complete: bool  # False: the walk ended before it met the beginning of the step

    @property
    def total_ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def off_path(self) -> tuple[int, ...]:
        """Ranks that no segment lies on: making them faster changes nothing."""
        on_path = {segment.rank for segment in self.segments}
        return tuple(rank for rank in self.ranks if rank not in on_path)

    @property
    def num_hops(self) -> int:
        """How often the path goes from one rank to another."""
        ranks = [segment.rank for segment in self.segments]
        return sum(a != b for a, b in itertools.pairwise(ranks))

    @property
    def num_uncertain(self) -> int:
        """Times the path went to a late rank that the clocks do not surely name."""
        return sum(segment.uncertain for segment in self.segments)


def total_of(paths: Iterable[CriticalPath]) -> int:
    """Duration of all paths together, ns."""
    return sum(path.total_ns for path in paths)


def shares_by_kind(paths: Sequence[CriticalPath]) -> tuple[PathShare, ...]:
    """By what the time is spent on, in the order of PATH_KINDS; they add up to the total exactly."""
    by_kind = _added(paths, attrgetter("kind"))
    return _shares({kind: by_kind[kind] for kind in PATH_KINDS if kind in by_kind}, total_of(paths))


def shares_by_rank(paths: Sequence[CriticalPath]) -> tuple[PathShare, ...]:
    """Of each rank on the path, transfers left out (they belong to a group); most first."""
    kept = _added(paths, lambda segment: None if segment.kind == "transfer" else str(segment.rank))
    return _shares(dict(sorted(kept.items(), key=lambda item: (-item[1], int(item[0])))), total_of(paths))


def shares_by_layer(paths: Sequence[CriticalPath]) -> tuple[PathShare, ...]:
    """Of each layer whose work is on the path, most first; time without a layer is left out."""
    kept = _added(paths, attrgetter("layer"))
    return _shares(dict(sorted(kept.items(), key=lambda item: (-item[1], item[0]))), total_of(paths))


def never_on_path(paths: Sequence[CriticalPath]) -> tuple[int, ...]:
    """Ranks that were traced and lie on none of the paths."""
    traced = {rank for path in paths for rank in path.ranks}
    on_path = {segment.rank for path in paths for segment in path.segments}
    return tuple(sorted(traced - on_path))


def entries(paths: Sequence[CriticalPath]) -> tuple[PathEntry, ...]:
    """Segments that are alike added up, longest first."""
    total = total_of(paths)
    sums: dict[tuple[object, ...], list[int]] = {}  # ns, count
    first: dict[tuple[object, ...], PathSegment] = {}
    for path in paths:
        for segment in path.segments:
            kind = segment.kind
            shared = kind == "transfer"
            key = (
                *(None if shared else segment.rank, kind, _what(segment), segment.layer),
                *(segment.phase if kind in _WITH_PHASE else None, segment.hosts if shared else ()),
            )
            of_key = sums.get(key)
            if of_key is None:
                of_key, first[key] = sums.setdefault(key, [0, 0]), segment
            of_key[0] += segment.end_ns - segment.start_ns
            of_key[1] += 1
    result = [
        PathEntry(
            rank=None if piece.kind == "transfer" else piece.rank,
            kind=piece.kind,
            what=_what(piece),
            layer=piece.layer,
            phase=piece.phase if piece.kind in _WITH_PHASE else None,
            hosts=piece.hosts,
            ns=sums[key][0],
            ratio=sums[key][0] / total if total else 0.0,
            count=sums[key][1],
        )
        for key, piece in first.items()
    ]
    return tuple(sorted(result, key=lambda entry: (-entry.ns, entry.kind, entry.rank or 0, entry.what)))


def _what(segment: PathSegment) -> str:
    """The collective; else nothing where a layer says more than its many kernels; else the short name."""
    if segment.collective or (segment.layer and segment.kind != "host"):
        return segment.collective or ""
    return short_name(segment.name)


@lru_cache(maxsize=4096)
def short_name(name: str) -> str:
    """A kernel's name without what it was compiled for: ``at::native::elementwise_kernel``."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    ends = [at for at in (plain.find("<"), plain.find("(")) if at > 0]
    return plain[: min(ends)].rstrip() if ends else plain


def _added(paths: Sequence[CriticalPath], key_of: Callable[[PathSegment], str | None]) -> dict[str, int]:
    added: dict[str, int] = defaultdict(int)
    for path in paths:
        for segment in path.segments:
            key = key_of(segment)
            if key is not None:
                added[key] += segment.end_ns - segment.start_ns
    return dict(added)


def _shares(added: dict[str, int], total: int) -> tuple[PathShare, ...]:
    return tuple(PathShare(key=key, ns=ns, ratio=ns / total if total else 0.0) for key, ns in added.items())
