"""One host of a run: its samples, what it is, its ranks, and the time in which it trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64
from perfscope.analysis.machine.counters import Rates, rates
from perfscope.analysis.machine.topology import Topology, visible_index
from perfscope.analysis.source import RunSource
from perfscope.analysis.steps import RankSteps
from perfscope.messages import machine as texts
from perfscope.rundir.host_records import CeilingsRecord
from perfscope.rundir.metrics import GAUGE
from perfscope.rundir.records import RankRecord, RunRecord
from perfscope.rundir.samples import HostSamples, SampleSeries
from perfscope.vocabulary.gpu import PCIE_RX, PCIE_TX

_PCIE_GEN5_X16 = 63e9  # what a GPU of which the link is not known may move at most, per direction
_MOST_WATTS = 20_000.0  # a package or GPU draws less: more is a counter that started again


class HostRank(Struct, frozen=True, kw_only=True, eq=False):
    """One rank of the host."""

    rank: int
    pid: int | None
    local_rank: int | None
    num_threads: int | None
    affinity: frozenset[int]  # empty = not known
    device: str  # "cpu", "cuda:0 NVIDIA ..."
    starts: Int64  # of its steps, monotonic ns
    ends: Int64
    is_counted: NDArray[np.bool_] | None = None  # which are neither warm-up nor traced; None = all
    is_traced: NDArray[np.bool_] | None = None  # which a window traced; None = none

    @property
    def gpu(self) -> int | None:
        """Index of its GPU among those it sees."""
        return visible_index(self.device)


class Host(Struct, kw_only=True, eq=False):
    """What there is of one host. `samples` is empty where no sampler ran."""

    name: str
    samples: HostSamples
    topology: Topology
    ceilings: CeilingsRecord
    no_ceilings: str = ""  # why nothing is in `ceilings`
    ranks: Sequence[HostRank]
    steps_ns: tuple[int, int] | None  # first step's start, last step's end; monotonic
    _rates: dict[int, Rates] = {}

    @property
    def has_samples(self) -> bool:
        return bool(self.samples.series)

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """First and last reading, monotonic."""
        read = [series for series in self.samples.series if len(series.values)]
        if not read:
            return None
        return min(int(s.t_begin_ns[0]) for s in read), max(int(s.t_end_ns[-1]) for s in read)

    @property
    def counted_ns(self) -> tuple[int, int] | None:
        """The time that figures are taken over: the steps', else all of the readings'."""
        return self.steps_ns or self.span_ns

    def unix(self, monotonic_ns: int) -> int:
        return int(self.samples.unix_ns(np.array([monotonic_ns], dtype=np.int64))[0])

    def rates(self, series: SampleSeries) -> Rates:
        """Differences of one of this host's counters, computed once."""
        if id(series) not in self._rates:
            self._rates[id(series)] = rates(series, peak_per_s=self._peak(series))
        return self._rates[id(series)]

    def counters(self, metric: str, **labels: str) -> list[tuple[SampleSeries, Rates]]:
        """Counters of that name that have at least one interval."""
        counters = [
            (series, self.rates(series))
            for series in self.samples.find(metric, **labels)
            if series.kind != GAUGE
        ]
        return [(series, counted) for series, counted in counters if len(counted.delta)]

    def last(self, metric: str, **labels: str) -> float | None:
        """The last reading of a gauge."""
        for series in self.samples.find(metric, **labels):
            if len(series.values):
                return float(series.values[-1]) * series.scale
        return None

    def keep_only(self, metrics: Set[str]) -> None:
        """Let go of all other series."""
        kept = tuple(series for series in self.samples.series if series.metric in metrics)
        self.samples = replace(self.samples, series=kept, facts=())
        names = {id(series) for series in kept}
        self._rates = {key: counted for key, counted in self._rates.items() if key in names}

    def rank_of_pid(self) -> dict[str, int]:
        """Label `pid` -> rank."""
        return {str(rank.pid): rank.rank for rank in self.ranks if rank.pid is not None}

    def _peak(self, series: SampleSeries) -> float | None:
        if series.unit == "joules":
            return _MOST_WATTS
        if series.metric in (PCIE_TX.name, PCIE_RX.name):
            index = series.labels.get("gpu", "")
            gpu = self.topology.gpus.get(int(index)) if index.isdecimal() else None
            return (gpu.pcie_bytes_per_s if gpu else None) or _PCIE_GEN5_X16
        return None


def open_hosts(source: RunSource, steps: Mapping[int, RankSteps]) -> Iterator[Host]:
    """Every host the run has a folder of, by name, one at a time: samples of hours are large."""
    by_host: dict[str, list[HostRank]] = {}
    for rank in source.ranks:
        record = source.rank_records[rank]
        by_host.setdefault(record.host, []).append(_rank(rank, record, steps.get(rank)))
    for name in source.hosts:
        ranks = by_host.get(name, [])
        samples = source.samples(name)
        yield Host(
            name=name,
            samples=samples if samples is not None else _no_samples(name),
            topology=Topology.of(source.topology(name)),
            ceilings=source.ceilings(name) or CeilingsRecord(),
            no_ceilings=_why_no_ceilings(source.run, name),
            ranks=ranks,
            steps_ns=_steps_span(ranks),
        )


def _no_samples(name: str) -> HostSamples:
    return HostSamples(host=name, series=(), facts=(), anchors=(), intervals=(), ends=(), num_dropped=0)


def _rank(rank: int, record: RankRecord, steps: RankSteps | None) -> HostRank:
    none = np.empty(0, dtype=np.int64)
    return HostRank(
        rank=rank,
        pid=record.pid,
        local_rank=record.local_rank,
        num_threads=record.num_threads,
        affinity=frozenset(record.affinity),
        device=record.device,
        starts=steps.starts if steps is not None else none,
        ends=steps.starts + steps.durations if steps is not None else none,
        is_counted=_comparable(steps) if steps is not None else None,
        is_traced=steps.is_traced if steps is not None else None,
    )


def _comparable(steps: RankSteps) -> NDArray[np.bool_]:
    """Counted steps, none where a program ran ahead of its work: how long each took is not known then."""
    return steps.is_counted if steps.shared is None else np.zeros_like(steps.is_counted)


def _why_no_ceilings(run: RunRecord, host: str) -> str:
    """What to say should the host's ceilings.json not be there."""
    option = run.options.ceilings
    if option == "off":
        return texts.CEILINGS_OFF
    if run.host and host != run.host:
        return texts.NOT_STARTED_THERE
    if option is None:  # a run of before this was recorded
        return texts.CEILINGS_OFF_OR_FAILED
    return texts.CEILINGS_NOT_WRITTEN


def _steps_span(ranks: Sequence[HostRank]) -> tuple[int, int] | None:
    stepped = [rank for rank in ranks if len(rank.starts)]
    if not stepped:
        return None
    return min(int(r.starts.min()) for r in stepped), max(int(r.ends.max()) for r in stepped)
