"""Plans of the bench runners as pure rows for predictions: where runners meet `analysis/predict`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm

from msgspec import structs

from perfscope.analysis.predict.crossings import sharing, uses_inside
from perfscope.analysis.predict.from_run import link_class
from perfscope.analysis.predict.records import BETWEEN_HOSTS, Plan, PlannedCall, Refusal
from perfscope.runners.config import BatchError, BenchConfig, BenchError, parse_scheme
from perfscope.runners.identity import all_traffic
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.planning import plan
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis

_Kind = tuple[str, str, int, str]


def plan_of(config: BenchConfig, hosts: Sequence[int]) -> Plan:
    """A bench run as predictions see it.

    Args:
        config: of the run.
        hosts: of each rank, any numbers.

    Raises:
        BenchError: it cannot be.
    """
    job = plan(config, writes=False)
    scheme = find_scheme(config.scheme)
    traffic = all_traffic(job)
    shared = _sharing(traffic, hosts)
    lists: dict[int, list[PlannedCall]] = {rank: [] for rank in traffic}
    for rank, calls in traffic.items():
        for call in calls:
            if len(call.members) < 2 or not call.count:
                continue
            row = _row(call, hosts, shared)
            lists[rank].append(row)
            if call.collective == "send":  # its receiver lists nothing, and is as long in it
                lists[call.members[1]].append(row)
    mesh = job.mesh
    pieces = min(
        max(scheme.num_parts(mesh, config.servers), 1) * mesh.num_ranks // mesh.num_data_parts,
        mesh.num_ranks,
    )
    return Plan(
        scheme=config.full_name,
        num_ranks=config.num_ranks,
        mesh=" x ".join(map(str, mesh.axes.values())) or "1",
        batch=float(config.batch),
        work=config.batch / pieces * _bubble(job),
        whole=_whole(config, traffic),
        ranks=tuple(dict.fromkeys(tuple(calls) for calls in lists.values())),
        notes=_notes(scheme.axes.synchrony),
    )


def _whole(config: BenchConfig, traffic: Mapping[int, Sequence[Traffic]]) -> float | None:
    """Samples of a group that divides layers; None where none does."""
    sizes = [len(call.members) for calls in traffic.values() for call in calls if call.axis == Axis.TP]
    return config.batch * max(sizes) / config.num_ranks if max(sizes, default=1) > 1 else None


def _bubble(job: Job) -> float:
    """(m+S-1)/m: how much longer a pipeline of S stages takes over m microbatches than its work alone."""
    stages = job.mesh.size(Axis.PP)
    pieces = find_scheme(job.config.scheme).num_microbatches(job)
    return (pieces + stages - 1) / pieces if stages > 1 else 1.0


def _notes(synchrony: str) -> tuple[str, ...]:
    notes = []
    if synchrony == "asynchronous":
        notes.append(
            "its workers step by themselves: waiting at the server is not modeled, only its traffic is"
        )
    return tuple(notes)


def _kind(call: Traffic) -> _Kind:
    return call.collective, call.axis, call.bytes, call.what


def _sharing(traffic: Mapping[int, Sequence[Traffic]], hosts: Sequence[int]) -> dict[_Kind, float]:
    """Of each kind of call: groups of one axis make the same call at the same time."""
    groups: dict[_Kind, set[tuple[int, ...]]] = defaultdict(set)
    for calls in traffic.values():
        for call in calls:
            if len(call.members) > 1 and call.collective != "send":
                groups[_kind(call)].add(call.members)
    return {
        kind: sharing(kind[0], [[hosts[rank] for rank in members] for members in group])
        for kind, group in groups.items()
    }


def _row(call: Traffic, hosts: Sequence[int], shared: Mapping[_Kind, float]) -> PlannedCall:
    hosts_of_members = [hosts[rank] for rank in call.members]
    where = link_class(hosts_of_members)
    return PlannedCall(
        collective=call.collective,
        num_ranks=len(call.members),
        bytes=float(call.bytes),
        count=call.count / call.every,
        link_class=where,
        sharing=shared.get(_kind(call), 1.0) if where == BETWEEN_HOSTS else 1.0,
        what=call.what,
        inside_too=uses_inside(call.collective, hosts_of_members),
    )


def bench_plans(
    configs: Mapping[str, BenchConfig],
    schemes: Sequence[str],
    sizes: Sequence[int],
    ranks_per_host: int,
    batch_of: Mapping[int, int],
    weak: bool = False,
) -> tuple[list[Plan], list[Refusal]]:
    """Every scheme on every world size.

    Args:
        configs: of the measured runs by scheme; the first stands for schemes that did not run.
        schemes: with modifiers.
        sizes: world sizes.
        ranks_per_host: of the target; fewer ranks share one host.
        batch_of: world size -> B.
        weak: the user gives batches per rank.

    Returns:
        What is possible, and why the others are not.

    Raises:
        BenchError: an unknown scheme.
    """
    plans: list[Plan] = []
    refusals: list[Refusal] = []
    cut: dict[int, BatchError] = {}  # number of the refusal -> the planner's error
    for scheme in schemes:
        name, _ = parse_scheme(scheme)
        find_scheme(name)
        for size in sizes:
            if name == "serial" and size > 1:
                continue
            try:
                plans.append(_planned(configs, scheme, size, ranks_per_host, batch_of[size]))
            except BenchError as error:
                if isinstance(error, BatchError):
                    cut[len(refusals)] = error
                refusals.append(Refusal(scheme=scheme, num_ranks=size, reason=str(error)))
    if not cut:
        return plans, refusals
    refused = [refusals[number] for number in cut]
    batch = batch_of[refused[0].num_ranks]
    common_batch = None if weak else _batch_for_all(configs, refused, sizes, ranks_per_host, batch)
    for number, batch_error in cut.items():
        refusals[number] = structs.replace(
            refusals[number], reason=_say_batch(batch_error, common_batch, weak)
        )
    return plans, refusals


def _planned(
    configs: Mapping[str, BenchConfig], scheme: str, size: int, ranks_per_host: int, batch: int
) -> Plan:
    """One scheme on one world size. Raises BenchError: it cannot be."""
    name, modifiers = parse_scheme(scheme)
    like = configs.get(scheme) or next(iter(configs.values()))
    per_host = min(ranks_per_host, size)
    if size % per_host:
        raise BenchError(f"{size} ranks do not divide into hosts of {per_host}; change --ranks-per-host")
    config = replace(
        like,
        scheme=name,
        modifiers=modifiers,
        num_ranks=size,
        num_hosts=size // per_host,
        mesh=_mesh(configs.get(scheme), size),
        batch=batch,
        save_weights=None,
    )
    return plan_of(config, [rank // per_host for rank in range(size)])


def _batch_for_all(
    configs: Mapping[str, BenchConfig],
    refused: Sequence[Refusal],
    sizes: Sequence[int],
    ranks_per_host: int,
    batch: int,
) -> int | None:
    """The smallest multiple of the batch and of all sizes that what was refused can be planned with."""
    base = lcm(batch, *sizes)
    for asked in (base * times for times in (1, 2, 3)):
        try:
            for refusal in refused:
                _planned(configs, refusal.scheme, refusal.num_ranks, ranks_per_host, asked)
        except BenchError:
            continue
        return asked
    return None


def _say_batch(error: BatchError, common_batch: int | None, weak: bool) -> str:
    """A planner's "; use 42, or other ranks" in this command's options: its number is of one size only."""
    fact = error.fact
    if common_batch is not None:
        return f"{fact}; --batch {common_batch} can be cut for all sizes asked for"
    if weak:
        return f"{fact}; choose another batch per rank with --batch, or other --world-sizes"
    return f"{fact}; --batch {error.usable} can, or choose other --world-sizes"


def _mesh(measured: BenchConfig | None, size: int) -> Mesh | None:
    """The measured run's tensor and pipeline parts, with more data parts; None: the scheme's default.

    Raises:
        BenchError: they do not divide the ranks.
    """
    if measured is None or measured.mesh is None or len(find_scheme(measured.scheme).splits) < 2:
        return None
    kept: dict[Axis, int] = {axis: parts for axis, parts in measured.mesh.axes.items() if axis != Axis.DP}
    if size % (inside := Mesh(kept).num_ranks):
        raise BenchError(f"{size} ranks do not hold a mesh of {Mesh(kept)}; choose another world size")
    return Mesh({**kept, Axis.DP: size // inside})
