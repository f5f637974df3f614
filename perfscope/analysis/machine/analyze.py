"""Puts one run's machines together: samples, topology and ceilings, beside the training's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.machine.cpu_waits import MAIN_WAIT
from perfscope.analysis.machine.effects import with_effects
from perfscope.analysis.machine.energy import energies, joules_per_sample, why_no_energy
from perfscope.analysis.machine.host import Host, open_hosts
from perfscope.analysis.machine.links import traffic
from perfscope.analysis.machine.memory import memory_limits, missing_memory, rank_memory
from perfscope.analysis.machine.missing_sources import absent_sources, unsampled, unwatched
from perfscope.analysis.machine.oversubscription import waited_ratio
from perfscope.analysis.machine.peaks import ceilings
from perfscope.analysis.machine.placement import placements
from perfscope.analysis.machine.results import (
    Ceiling,
    CounterTrack,
    Energy,
    LinkTraffic,
    MachineAnalysis,
    MemoryLimit,
    RankMemory,
    RankPlacement,
    Roofline,
    SamplerCost,
    StoppedReading,
)
from perfscope.analysis.machine.roofline import roofline_of
from perfscope.analysis.machine.stacks import stack_tree, top_frames
from perfscope.analysis.machine.thread_states import MAIN_STATE
from perfscope.analysis.machine.tracks import tracks
from perfscope.analysis.machine.verdict import Look, judge, look
from perfscope.analysis.machine.wire import METRICS, RankHosts, TracedWindow, wire
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.results import CollectiveCall, LayerResult
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import WindowFacts
from perfscope.analysis.steps import RankSteps
from perfscope.messages.machine import NOTHING_TO_COMPARE
from perfscope.rundir.sample_facts import Gap, SamplerEnd
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.gpu import THROTTLE_TIME
from perfscope.vocabulary.memory import HOST_AVAILABLE, JOB_LIMIT, JOB_USED

_MOST_ROOFLINES = 4  # hosts of one run are usually alike
# What is still asked of a host once all hosts are known: by `wire`, by the findings and by what-ifs.
KEPT_METRICS = METRICS | {
    *(THROTTLE_TIME.name, "pressure_some", "rank_runqueue_wait", MAIN_WAIT, MAIN_STATE),
    *(HOST_AVAILABLE, JOB_USED, JOB_LIMIT),
}


class Training(Struct, frozen=True, kw_only=True):
    """What the analysis of the training found, as far as the machine is compared with it."""

    steps: Mapping[int, RankSteps]
    windows: Sequence[WindowFacts]
    layers: Sequence[LayerResult]
    calls: Sequence[CollectiveCall]
    samples_per_step: float | None  # of the whole job


class _Hosts(Struct):
    """What the hosts gave, one after the other."""

    hosts: list[Host] = []
    looks: list[Look] = []
    tracks: list[CounterTrack] = []
    ceilings: list[Ceiling] = []
    rooflines: list[Roofline] = []
    rank_memory: list[RankMemory] = []
    memory_limits: list[MemoryLimit] = []
    placements: list[RankPlacement] = []
    traffic: list[LinkTraffic] = []
    energy: list[Energy] = []
    no_energy: list[Missing] = []
    costs: list[SamplerCost] = []
    stopped: list[StoppedReading] = []
    missing: list[Missing] = []
    spans: list[tuple[int, int]] = []  # first and last reading, Unix ns
    stepped: list[tuple[int, int]] = []  # first step's start, last one's end
    pressures: dict[str, float] = {}
    sampled: list[Host] = []

    def add(self, host: Host, source: RunSource, training: Training) -> None:
        """Takes in one host, and lets go of the samples that nothing more is asked of."""
        self.hosts.append(host)
        self.ceilings += ceilings(host)
        self.placements += placements(host, source.run.environment)
        self.looks.append(look(host))
        if len(self.hosts) <= _MOST_ROOFLINES:
            roofline, reason = roofline_of(host, training.layers)
            self.rooflines += [roofline] if roofline is not None else []
            self.missing += [reason] if reason is not None else []
        if host.has_samples:
            self._add_samples(host)
        host.keep_only(KEPT_METRICS)

    def _add_samples(self, host: Host) -> None:
        self.sampled.append(host)
        self.tracks += tracks(host)
        self.rank_memory += rank_memory(host)
        self.memory_limits += memory_limits(host)
        self.traffic += traffic(host)
        energy = energies(host)
        self.energy += energy
        self.no_energy += [] if energy else why_no_energy(host)
        self.costs.append(_cost(host))
        self.stopped += _stopped(host)
        self.missing += [*unwatched(host), *absent_sources(host)]
        ratio = waited_ratio(host)
        if ratio is not None:
            self.pressures[host.name] = ratio
        span = host.span_ns
        if span is not None:
            self.spans.append((host.unix(span[0]), host.unix(span[1])))
        if host.steps_ns is not None:
            self.stepped.append((host.unix(host.steps_ns[0]), host.unix(host.steps_ns[1])))


@np.errstate(all="ignore")  # a damaged file's figures may be of any size: no warnings on the terminal
def analyze_machine(source: RunSource, training: Training) -> tuple[MachineAnalysis | None, list[Host]]:
    """Everything the reports show of the machines.

    Args:
        source: the run.
        training: of the same run.

    Returns:
        None where nothing of any machine was recorded (imports), and the hosts for the findings.
    """
    hosts = _Hosts()
    for host in open_hosts(source, training.steps):
        hosts.add(host, source, training)
    stacks = [record for name in source.hosts if (record := source.stacks(name)) is not None]
    is_described = any(host.topology.record.document or not host.ceilings.is_empty for host in hosts.hosts)
    if not (hosts.sampled or is_described or stacks):
        return None, []
    windows = _windows(training.windows)
    own_bounds = {
        host.name: tuple((window.window, *window.on(host.name)) for window in windows) for host in hosts.hosts
    }
    seen = [disturbance for look in hosts.looks for disturbance in look.disturbances]
    effects = with_effects(seen, hosts.sampled, own_bounds)
    verdict = judge(hosts.looks, effects.disturbances, len(windows))
    per_sample, no_energy = _joules_per_sample(source, training, hosts)
    on_wire = wire(hosts.sampled, training.calls, windows, _job(source))
    missing = [*hosts.missing, *_missing(source, training, hosts, no_energy, on_wire)]
    machine = MachineAnalysis(
        hosts=tuple(host.name for host in hosts.hosts),
        topologies={host.name: host.topology.record for host in hosts.hosts if host.topology.record.document},
        clean=verdict.clean,
        clean_reason=verdict.reason,
        disturbed_summary=verdict.summary,
        disturbances=verdict.disturbances,
        tracks=tuple(hosts.tracks),
        ceilings=tuple(hosts.ceilings),
        rooflines=tuple(hosts.rooflines),
        rank_memory=tuple(sorted(hosts.rank_memory, key=lambda memory: memory.rank)),
        memory_limits=tuple(hosts.memory_limits),
        placements=tuple(hosts.placements),
        traffic=tuple(hosts.traffic),
        wire=on_wire,
        energy=tuple(hosts.energy),
        joules_per_sample=per_sample,
        stacks=top_frames(stacks),
        stack_tree=stack_tree(stacks),
        costs=tuple(hosts.costs),
        stopped=tuple(hosts.stopped),
        missing=tuple(dict.fromkeys(missing)),
        start_ns=min((start for start, _ in hosts.spans), default=None),
        end_ns=max((end for _, end in hosts.spans), default=None),
        windows=tuple((window.window, window.start_ns, window.end_ns) for window in windows),
        steps_start_ns=min((start for start, _ in hosts.stepped), default=None),
        steps_end_ns=max((end for _, end in hosts.stepped), default=None),
        traced_disturbed=verdict.traced_disturbed,
        disturbed_ns=effects.lost_ns,
        disturbed_ratio=effects.lost_ratio,
        pressures=hosts.pressures,
    )
    return machine, hosts.hosts


def _windows(facts: Sequence[WindowFacts]) -> tuple[TracedWindow, ...]:
    """Each traced window over all ranks."""
    by_rank: dict[int, list[WindowFacts]] = {}
    for window in facts:
        if window.steps and not window.whole_file:
            by_rank.setdefault(window.window, []).append(window)
    return tuple(
        TracedWindow(
            window=number,
            start_ns=min(member.steps[0].start_ns for member in members),
            end_ns=max(member.steps[-1].end_ns for member in members),
            num_steps=max(len(member.steps) for member in members),
            of_host={
                host: (
                    min(member.steps[0].start_ns for member in members if member.host == host),
                    max(member.steps[-1].end_ns for member in members if member.host == host),
                )
                for host in {member.host for member in members}
            },
        )
        for number, members in sorted(by_rank.items())
    )


def _joules_per_sample(
    source: RunSource, training: Training, hosts: _Hosts
) -> tuple[float | None, Sequence[Missing]]:
    num_hosts = max(1, len({record.host for record in source.rank_records.values()}))
    return joules_per_sample(hosts.energy, num_hosts, _num_samples(training), hosts.no_energy)


def _num_samples(training: Training) -> float | None:
    steps = max((len(rank_steps.durations) for rank_steps in training.steps.values()), default=0)
    return training.samples_per_step * steps if training.samples_per_step and steps else None


def _job(source: RunSource) -> RankHosts:
    host_of: dict[int, str] = {}
    groups: dict[str, tuple[int, ...]] = {}
    on_gpu = False
    for rank, record in source.rank_records.items():
        host_of[rank] = record.host
        on_gpu = on_gpu or record.device.startswith("cuda")
        for group in record.groups:
            if group.ranks is not None:
                groups.setdefault(str(group.name), group.ranks)
    return RankHosts(host_of=host_of, groups=groups, on_gpu=on_gpu)


def _cost(host: Host) -> SamplerCost:
    """What sampling cost, by the sampler's own account; what can be counted where it was killed."""
    end = host.samples.ends[-1] if host.samples.ends else SamplerEnd()
    cost, ticks = end.cost, end.cost.ticks
    counted = max((len(series.values) for series in host.samples.series), default=0)
    return SamplerCost(
        host=host.name,
        interval_ns=host.samples.intervals[-1][1] if host.samples.intervals else 0,
        num_samples=round(ticks) if ticks else counted,
        cpu_ratio=cost.cpu_ns / cost.wall_ns if cost.cpu_ns is not None and cost.wall_ns else None,
        late_ratio=cost.late_ticks / ticks if cost.late_ticks is not None and ticks else None,
        ended=end.end,
    )


def _stopped(host: Host) -> list[StoppedReading]:
    return [
        StoppedReading(
            host=host.name,
            what=_what(fact.value.what, fact.labels),
            at_ns=host.unix(fact.t_ns) if fact.t_ns else None,
            reason=fact.value.reason or "no reason was given",
        )
        for fact in host.samples.facts
        if fact.name == "stopped" and isinstance(fact.value, Gap)
    ]


def _what(what: str, labels: Mapping[str, str]) -> str:
    of = ", ".join(f"{name} {value}" for name, value in labels.items())
    reading = what or "a reading"
    return f"{reading} ({of})" if of else reading


def _missing(
    source: RunSource,
    training: Training,
    hosts: _Hosts,
    no_energy: Sequence[Missing],
    on_wire: Sequence[object],
) -> list[Missing]:
    """What of the machine is not known, with the reason."""
    missing = unsampled(source, [host.name for host in hosts.hosts], [host.name for host in hosts.sampled])
    sizeless = [host.name for host in hosts.sampled if not host.topology.num_cpus]
    if sizeless:
        entry = missing_figure(Figure.OTHERS_CPU_TIME, Cause.CPU_COUNT_NOT_KNOWN, hosts=tuple(sizeless))
        missing.append(entry)
    if hosts.sampled:
        missing += no_energy
        missing += missing_memory(hosts.sampled, hosts.rank_memory)
    if training.calls and hosts.sampled and not on_wire:
        missing.append(missing_figure(Figure.WIRE_BYTES, Cause.NOTHING_ON_WIRE, reason=NOTHING_TO_COMPARE))
    if not training.layers:  # else the rooflines say it
        missing += _no_ceilings(hosts.hosts)
    return missing


def _no_ceilings(hosts: Sequence[Host]) -> list[Missing]:
    """Hosts of ranks without ceilings.json, by reason."""
    by_reason: dict[str, list[str]] = {}
    for host in hosts:
        if host.ranks and host.ceilings.is_empty:
            by_reason.setdefault(host.no_ceilings, []).append(host.name)
    return [
        missing_figure(Figure.CEILINGS, Cause.NO_CEILINGS, hosts=tuple(names), reason=reason)
        for reason, names in by_reason.items()
    ]
