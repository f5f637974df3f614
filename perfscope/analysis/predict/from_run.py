"""One analyzed run as the figures that predictions start from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.predict.costs import algorithms
from perfscope.analysis.predict.crossings import uses_inside
from perfscope.analysis.predict.records import (
    BETWEEN_HOSTS,
    INSIDE_HOST,
    LayerOperators,
    MeasuredCall,
    MeasuredRun,
    Plan,
    PlannedCall,
)
from perfscope.analysis.rank_facts import world_size
from perfscope.analysis.results import CollectiveCall, RankResult, RunAnalysis
from perfscope.messages.predict import NOT_ENDED, few_traced_steps
from perfscope.rundir.records import RankRecord

_LEFT_OUT = 3  # first steps
_MOST_WAITING = 0.7  # of the time in calls: the skews are of other calls than those that last
_MUCH_IDLE = 0.2  # of a step
_BEGIN_EARLY = ("dp.fwd_overlap", "easgd.sync_ar")  # whose steps wait for what the step before them sent


class NotUsable(Exception):
    """The run cannot serve for predictions; the reason is one line that says what to do."""


class _CallKind(Struct, frozen=True, kw_only=True):
    """Matched calls of one kind in the traced windows."""

    collective: str
    members: tuple[int, ...] | None  # None: the run does not tell
    num_ranks: int
    bytes: int
    per_step: float  # how many a mean rank takes part in per traced step
    transfers_ns: tuple[int, ...]
    skews_ns: tuple[int, ...]


def measured_run(
    name: str, analysis: RunAnalysis, metas: Mapping[int, RankRecord], plan: Plan | None = None
) -> MeasuredRun:
    """What predictions need of a run.

    Args:
        name: for messages.
        analysis: of the run.
        metas: rank.json by rank.
        plan: what the run was, by the formulas; None: the script's own calls as recorded stand for it.

    Raises:
        NotUsable: it is not finished, lost ranks, or was never traced.
    """
    traced = _require_traced(analysis, metas)
    steps = sum(rank.num_traced_steps for rank in traced) / len(traced)
    step_ns, steps_ns = _typical_step(analysis)
    kinds = call_kinds(analysis, metas, steps)
    chosen_plan = plan or recorded_plan(analysis, kinds, _hosts(analysis))
    breakdowns = [rank.breakdown_ns for rank in traced if rank.breakdown_ns is not None]
    step_total = sum(breakdown.step for breakdown in breakdowns)
    exposed = sum(breakdown.exposed_comm for breakdown in breakdowns)
    apart = sum(
        breakdown.optimizer + breakdown.idle + breakdown.copy + breakdown.input_wait
        for breakdown in breakdowns
    )
    pace = min(1.0, step_ns * len(breakdowns) / step_total)
    in_calls = sum(rank.comm_ns or 0 for rank in traced) / len(traced) * pace
    entering = sum(kind.per_step * float(np.mean(kind.skews_ns)) / 2 for kind in kinds) * pace
    wait = min(entering, _MOST_WAITING * in_calls)
    passes = sum(result.forward_ns + result.backward_ns for result in analysis.layers)
    return MeasuredRun(
        name=name,
        plan=chosen_plan,
        model=_model(analysis),
        ranks_per_host=_ranks_per_host(analysis),
        cores_per_rank=_cores_per_rank(analysis, metas),
        threads=_threads(metas),
        step_ns=step_ns,
        steps_ns=steps_ns,
        comm_ns=max(in_calls - wait, 0.0),
        wait_ns=wait,
        overlap_ratio=_overlap(traced),
        backward_share=sum(breakdown.backward_ns for breakdown in analysis.layers) / passes
        if passes
        else 0.5,
        fixed_share=min(1.0, apart / (step_total - exposed)) if step_total > exposed else 0.0,
        layers=tuple(
            LayerOperators(
                layer=layer_result.layer,
                forward_ns=layer_result.forward_ns,
                backward_ns=layer_result.backward_ns,
            )
            for layer_result in sorted(analysis.layers, key=lambda layer: layer.order)
        ),
        calls=tuple(_measured_calls(kinds, chosen_plan, _hosts(analysis))),
        begun_before=chosen_plan.scheme.startswith(_BEGIN_EARLY)
        and sum(breakdown.idle for breakdown in breakdowns) > _MUCH_IDLE * step_total,
        problems=_problems(analysis),
    )


def _require_traced(analysis: RunAnalysis, metas: Mapping[int, RankRecord]) -> list[RankResult]:
    status = analysis.run.status
    if status not in ("", "finished"):
        raise NotUsable(f"it is {status}, not finished; record it again to the end")
    if not analysis.ranks:
        raise NotUsable("no rank was recorded; record it again")
    expected = world_size(analysis.run, metas)
    if expected is not None and expected > len(analysis.ranks):
        raise NotUsable(f"{expected - len(analysis.ranks)} of {expected} ranks are missing; record it again")
    if analysis.step_ns is None:
        raise NotUsable("it has no step; record more steps")
    if analysis.breakdown_of != "step":
        raise NotUsable("its traces have no step marks; call the profiler's step() and record again")
    traced = [rank for rank in analysis.ranks if rank.breakdown_ns is not None]
    if not traced:
        raise NotUsable("it has no traced window; record it again without --no-trace, long enough for one")
    return traced


def _typical_step(analysis: RunAnalysis) -> tuple[float, tuple[float, ...]]:
    """The slowest rank's typical step, and that rank's steps without the first."""
    if analysis.step_ns is None:
        raise NotUsable("it has no step; record more steps")
    series = {rank: values for rank, values in analysis.step_series.items() if values}
    medians = {rank: float(np.median(values[_LEFT_OUT:] or values)) for rank, values in series.items()}
    slowest = max(medians, key=lambda rank: medians[rank]) if medians else None
    steps = series[slowest][_LEFT_OUT:] or series[slowest] if slowest is not None else ()
    bench = analysis.bench
    if bench is not None and bench.samples_per_s:
        return bench.batch * 1e9 / bench.samples_per_s, tuple(map(float, steps))
    return float(analysis.step_ns.median), tuple(map(float, steps))


def call_kinds(analysis: RunAnalysis, metas: Mapping[int, RankRecord], steps: float) -> tuple[_CallKind, ...]:
    """Matched calls by collective, members and size; those of unknown size or formula are left out.

    Args:
        analysis: of the run.
        metas: rank.json by rank.
        steps: traced steps of a mean rank.
    """
    sizes = {(result.collective, result.group): result.group_size for result in analysis.collectives}
    by_kind: dict[tuple[str, str, tuple[int, ...] | None, int], list[CollectiveCall]] = defaultdict(list)
    for call in analysis.calls:
        if call.bytes is not None and call.bytes >= 0 and algorithms(call.collective):
            members = _members(metas.get(call.late_rank), call.group)
            by_kind[call.collective, call.group, members, call.bytes].append(call)
    kinds = []
    for (collective, group, members, num_bytes), calls in by_kind.items():
        size = len(members) if members else sizes.get((collective, group)) or 0
        size = 2 if collective in ("send", "recv") else size
        if size > 1 and steps:
            kinds.append(
                _CallKind(
                    collective=collective,
                    members=members,
                    num_ranks=size,
                    bytes=num_bytes,
                    per_step=len(calls) / steps * size / len(analysis.ranks),
                    transfers_ns=tuple(call.transfer_ns for call in calls),
                    skews_ns=tuple(call.start_skew_ns for call in calls),
                )
            )
    return tuple(kinds)


def _members(record: RankRecord | None, name: str) -> tuple[int, ...] | None:
    groups = record.groups if record is not None else ()
    return next((group.ranks for group in groups if group.name == name and group.ranks is not None), None)


def recorded_plan(analysis: RunAnalysis, kinds: Sequence[_CallKind], hosts: Mapping[int, str]) -> Plan:
    """A script's own calls; only those of all ranks, which say what other numbers of ranks would send."""
    num, batch = len(analysis.ranks), None
    if analysis.samples_per_step:
        batch = float(max(1, round(analysis.samples_per_step)))
    elif analysis.throughput_samples_per_s and analysis.step_ns:
        # samples/s were made from samples and the median step: whole samples come out again, rounding aside
        batch = float(max(1, round(analysis.throughput_samples_per_s * analysis.step_ns.median / 1e9)))
    if analysis.bench is not None and analysis.bench.batch:
        batch = float(analysis.bench.batch)
    where = [hosts.get(rank, "") for rank in range(num)]
    calls = tuple(
        PlannedCall(
            collective=kind.collective,
            num_ranks=num,
            bytes=float(kind.bytes),
            count=kind.per_step,
            link_class=link_class(where),
            what="as recorded",
            inside_too=uses_inside(kind.collective, where),
        )
        for kind in kinds
        if kind.num_ranks == num
    )
    work = 1.0 if batch is None else batch / num
    # a script on one rank is where its own data parallelism begins; only bench runs have a scheme "serial"
    scheme = "serial" if num == 1 and analysis.bench is not None else "dp.ddp"
    return Plan(scheme=scheme, num_ranks=num, mesh=str(num), batch=batch, work=work, ranks=(calls,))


def link_class(hosts: Sequence[object]) -> str:
    """Of a call among ranks on these hosts."""
    return BETWEEN_HOSTS if len(set(hosts)) > 1 else INSIDE_HOST


def _measured_calls(kinds: Sequence[_CallKind], plan: Plan, hosts: Mapping[int, str]) -> list[MeasuredCall]:
    planned = {
        (call.collective, call.num_ranks, round(call.bytes)): call for calls in plan.ranks for call in calls
    }
    measured = []
    for kind in kinds:
        row = planned.get((kind.collective, kind.num_ranks, kind.bytes))
        if kind.members is not None:
            of_links = link_class([hosts.get(rank, "") for rank in kind.members])
        elif row is not None:
            of_links = row.link_class
        elif len(set(hosts.values())) == 1:
            of_links = INSIDE_HOST
        elif kind.num_ranks == len(hosts):
            of_links = BETWEEN_HOSTS
        else:
            continue
        measured += [
            MeasuredCall(
                collective=kind.collective,
                num_ranks=kind.num_ranks,
                bytes=float(kind.bytes),
                link_class=of_links,
                transfer_ns=float(transfer),
                sharing=row.sharing if row is not None else 1.0,
            )
            for transfer in kind.transfers_ns
        ]
    return measured


def _overlap(traced: Sequence[RankResult]) -> float | None:
    ratios = [
        (rank.overlap_ratio, rank.comm_ns)
        for rank in traced
        if rank.overlap_ratio is not None and rank.comm_ns
    ]
    total = sum(comm for _, comm in ratios)
    return sum(ratio * comm for ratio, comm in ratios) / total if total else None


def _hosts(analysis: RunAnalysis) -> dict[int, str]:
    return {rank.rank: rank.host for rank in analysis.ranks}


def _ranks_per_host(analysis: RunAnalysis) -> int:
    hosts = [rank.host for rank in analysis.ranks]
    return max(hosts.count(host) for host in set(hosts))


def _cores_per_rank(analysis: RunAnalysis, metas: Mapping[int, RankRecord]) -> float | None:
    """Usable CPUs of a host over its ranks; the hosts of an emulated cluster are one machine."""
    one_machine = bool(analysis.run.options.cluster)
    cpus: dict[str, set[int]] = defaultdict(set)
    ranks: dict[str, int] = defaultdict(int)
    for rank in analysis.ranks:
        record = metas.get(rank.rank)
        if record is None or not record.affinity:
            return None
        host = "" if one_machine else rank.host
        cpus[host].update(record.affinity)
        ranks[host] += 1
    return min(len(cpus[host]) / ranks[host] for host in ranks) if ranks else None


def _threads(metas: Mapping[int, RankRecord]) -> int | None:
    return max((meta.num_threads for meta in metas.values() if meta.num_threads is not None), default=None)


def _model(analysis: RunAnalysis) -> str:
    """What must not differ among the runs that one prediction is made of."""
    scheme = analysis.run.scheme
    if scheme is not None and scheme.model:
        return f"{scheme.model} at {scheme.size_of_sample} in {scheme.dtype}, {scheme.num_classes} classes"
    params = sum(layer.num_params or 0 for layer in analysis.layers)
    return f"{len(analysis.layers)} layers with {params:,} parameters"


def _problems(analysis: RunAnalysis) -> tuple[str, ...]:
    problems = []
    if analysis.machine is not None and analysis.machine.clean is False:
        kinds = sorted(
            {
                disturbance.kind.value
                for disturbance in analysis.machine.disturbances
                if disturbance.within_steps
            }
        )
        problems.append(f"disturbed ({', '.join(kinds) or 'see its report'})")
    if any(rank.finished is False for rank in analysis.ranks):
        problems.append(NOT_ENDED)
    traced = min((rank.num_traced_steps for rank in analysis.ranks), default=0)
    if traced < 4:
        problems.append(few_traced_steps(traced))
    return tuple(problems)
