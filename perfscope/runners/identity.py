"""What a bench run is, for run.json: scheme, axes, mesh, who sits where, and what it is predicted to send."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfscope.runners.compression.registry import find_compression, kinds_of
from perfscope.runners.config import BenchConfig
from perfscope.runners.data.registry import data_id, input_workers, label_noise
from perfscope.runners.job import Job
from perfscope.runners.models.registry import find_model
from perfscope.runners.schemes.base import UPDATE_SETTINGS
from perfscope.runners.schemes.local import scaled_learning_rate
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.links import LinkClass
from perfscope.volumes import backend_factor, edges_from

_AS_ASKED = (
    *("momentum", "seed", "steps", "period", "held_out", "moving_rate", "dropout"),
    *("target", "evaluate_every", "noise_every", "price_per_hour"),
    *("accumulate", "activation_checkpointing", "compile"),
)
_MAX_LISTED, _MAX_CALLS = 4096, 1 << 16  # groups and ranks, and calls of them; run.json is read whole


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLocation:
    """Where one rank is.

    Attributes:
        host: name, or a number while it is only planned.
        numa: domain its CPUs are bound to; None = not bound, or not known.
        cpus: it is bound to; empty = not bound.
        gpu: index on its host; None = none.
    """

    host: str
    numa: int | None = None
    cpus: tuple[int, ...] = ()
    gpu: int | None = None


def planned_places(job: Job) -> tuple[RankLocation, ...]:
    """By rank: consecutive ranks share a host; what a rank is bound to is known only when it runs."""
    return tuple(RankLocation(host=f"host{job.host_of(rank)}") for rank in range(job.num_ranks))


def link_class(a: RankLocation, b: RankLocation) -> LinkClass:
    """The kind of link between two ranks, as far as their places tell."""
    if a.host != b.host:
        return LinkClass.ETHERNET
    if a.gpu is not None and b.gpu is not None:
        return LinkClass.PCIE
    if a.numa is None or b.numa is None:
        return LinkClass.LOOPBACK
    return LinkClass.INTRA_NUMA if a.numa == b.numa else LinkClass.CROSS_NUMA


def bytes_by_link(
    traffic: Mapping[int, Sequence[Traffic]],
    placements: Sequence[RankLocation],
    backend: str | None = None,
    steps: int | None = None,
) -> dict[str, float]:
    """Bytes per step over each link class, summed over all senders.

    Args:
        traffic: what each rank sends, by rank. A collective is listed by each of its members.
        placements: by rank.
        backend: count what this backend really moves (bytes_wire); None = bytes_algorithmic.
        steps: mean over a run of so many; None = over whole periods.
    """
    by_class: dict[str, float] = defaultdict(float)
    for rank, calls in traffic.items():
        _add_bytes(by_class, rank, calls, placements, backend, steps)
    return dict(by_class)


def _add_bytes(
    by_class: dict[str, float],
    rank: int,
    calls: Sequence[Traffic],
    placements: Sequence[RankLocation],
    backend: str | None,
    steps: int | None,
) -> None:
    """What one rank sends, added to `by_class`; see `bytes_by_link`."""
    position = _PlaceIn(rank)
    for call in calls:
        if len(call.members) < 2:
            continue
        per_step = call.count / call.every if steps is None else call.calls_in(steps) / steps
        amount = call.bytes * per_step
        if backend:
            amount *= backend_factor(backend, call.collective, len(call.members), call.bytes)
        # the receiver's own entry tells what it passes on
        for receiver, share in edges_from(call.collective, call.members, position.of(call)):
            by_class[link_class(placements[rank], placements[receiver])] += share * amount


class _PlaceIn:
    """A rank's index among the members of its calls; most of them share one tuple, which is searched once."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._members: tuple[int, ...] = ()
        self._index = 0

    def of(self, call: Traffic) -> int:
        """The rank is a member."""
        if call.members is not self._members:
            self._members, self._index = call.members, call.members.index(self._rank)
        return self._index


def all_traffic(job: Job) -> dict[int, Sequence[Traffic]]:
    """What each rank sends in a step."""
    scheme = find_scheme(job.config.scheme)
    return {rank: scheme.traffic(job, rank) for rank in range(job.num_ranks)}


def identity(
    job: Job, placements: Sequence[RankLocation] | None = None, backend: str = "gloo"
) -> dict[str, Any]:
    """The record of a bench run's scheme; JSON values.

    Args:
        job: planned.
        placements: of the ranks; None = as planned.
        backend: what carries the bytes.
    """
    config, scheme = job.config, find_scheme(job.config.scheme)
    where = planned_places(job) if placements is None else tuple(placements)
    effective = scheme.effective_batch(job)
    equal, criterion = equality(job)
    return {
        "name": config.scheme,
        "full_name": config.full_name,
        "modifiers": [str(modifier) for modifier in config.modifiers],
        "summary": scheme.summary,
        "axes": scheme.axes.record(kinds_of(modifier.name for modifier in config.modifiers)),
        "mesh": {str(axis): size for axis, size in job.mesh.axes.items()},
        "num_ranks": job.num_ranks,
        "model": config.model,
        "num_params": job.shape.num_params,
        "input": str(find_model(config.model).input),
        "input_shape": list(config.input_shape),
        "num_classes": config.num_classes,
        "dtype": config.dtype,
        "data": "synthetic" if config.data == "synthetic" else "local",
        "data_id": data_id(config),
        "label_noise": label_noise(config),
        "input_workers": input_workers(config),
        "batch": config.batch,
        "group_batch": config.batch // max(scheme.num_parts(job.mesh, config.servers), 1),
        "effective_batch": effective,
        "learning_rate": _learning_rate(config, effective),
        **{name: getattr(config, name) for name in (*UPDATE_SETTINGS, *_AS_ASKED)},
        "deterministic": scheme.deterministic,
        "equals_serial": equal,
        "criterion": criterion,
        "backend": backend,
        "bind": config.bind,
        "threads": config.threads,
        "groups": _groups(job, where),
        "places": [
            {
                "rank": rank,
                "host": placement.host,
                "numa": placement.numa,
                "cpus": list(placement.cpus),
                "gpu": placement.gpu,
            }
            for rank, placement in enumerate(where[:_MAX_LISTED])
        ],
        "layout": dict(scheme.layout(job)),
        "places_are": "planned" if placements is None else "recorded",
        "predicted": _predicted(job, where, backend),
    }


def equality(job: Job) -> tuple[bool, str]:
    """Whether this run's weights are those of serial training, and what is to be said about that."""
    scheme, config = find_scheme(job.config.scheme), job.config
    cuts = []
    if scheme.num_parts(job.mesh, job.config.servers) > 1:
        cuts.append("replica")
    if scheme.num_microbatches(job) > 1:
        cuts.append("microbatch")
    reasons = []
    if squeezing := [f"+{modifier}" for modifier in config.modifiers if find_compression(modifier.name)]:
        reasons.append(f"{' and '.join(squeezing)} changes the gradients")
    if cuts and any(layer.kind == "norm" for layer in job.shape.layers):
        reasons.append(f"per-{' and per-'.join(cuts)} batch statistics")
    if config.dropout > 0 and (cuts or job.num_ranks > 1):
        reasons.append(f"dropout draws per {'rank' if job.num_ranks > 1 else 'microbatch'}")
    if not reasons or not scheme.equals_serial:
        return scheme.equals_serial, scheme.criterion
    return False, f"Not the weights of serial training: {'; '.join(reasons)}."


def _predicted(job: Job, placements: Sequence[RankLocation], backend: str) -> dict[str, Any]:
    """Rank by rank: what thousands of ranks send is not held at once."""
    scheme, steps = find_scheme(job.config.scheme), job.config.steps
    exact: dict[str, float] = defaultdict(float)
    wire: dict[str, float] = defaultdict(float)
    calls_of: dict[str, list[dict[str, Any]]] = {}
    num_calls = 0
    for rank in range(job.num_ranks):
        traffic = scheme.traffic(job, rank)
        _add_bytes(exact, rank, traffic, placements, None, steps)
        _add_bytes(wire, rank, traffic, placements, backend, steps)
        if rank < _MAX_LISTED and num_calls < _MAX_CALLS:
            calls_of[str(rank)] = _calls(rank, traffic, placements, steps)
            num_calls += len(calls_of[str(rank)])
    return {
        "bytes_algorithmic_per_step": dict(exact),
        "bytes_wire_per_step": dict(wire),
        "calls_of_rank": calls_of,
    }


def _learning_rate(config: BenchConfig, effective: int) -> dict[str, Any]:
    return {
        "rule": config.lr_rule,
        "base": config.learning_rate,
        "base_batch": config.base_batch or config.batch,
        "value": scaled_learning_rate(config, effective),
    }


def _groups(job: Job, placements: Sequence[RankLocation]) -> list[dict[str, Any]]:
    rows = []
    for axis, groups in find_scheme(job.config.scheme).placement_groups(job).items():
        for ranks in groups[:_MAX_LISTED]:
            group_placements = [placements[rank] for rank in ranks]
            rows.append(
                {
                    "axis": axis,
                    "ranks": list(ranks),
                    "hosts": list(dict.fromkeys(placement.host for placement in group_placements)),
                    "numa": sorted(
                        {placement.numa for placement in group_placements if placement.numa is not None}
                    ),
                    "gpus": sorted(
                        {placement.gpu for placement in group_placements if placement.gpu is not None}
                    ),
                }
            )
    return rows


def _calls(
    rank: int, traffic: Sequence[Traffic], placements: Sequence[RankLocation], steps: int
) -> list[dict[str, Any]]:
    """The calls of one rank, equal ones together, with the bytes of one over each link class.

    `count` are those of a step in which they happen, `calls` those of the whole run.
    """
    together: dict[tuple[object, ...], float] = defaultdict(int)
    in_run: dict[tuple[object, ...], int] = defaultdict(int)
    position = _PlaceIn(rank)
    links: dict[tuple[object, ...], dict[str, float]] = {}
    for call in traffic:
        if len(call.members) < 2:
            continue
        size = call.group_size or len(call.members)
        sent: dict[str, float] = defaultdict(float)
        for receiver, share in edges_from(call.collective, call.members, position.of(call)):
            sent[link_class(placements[rank], placements[receiver])] += share * call.bytes
        kind = (call.collective, call.axis, size, call.bytes, call.every, call.what, call.by_library)
        key = (*kind, call.scales_with.value, *sorted(sent))
        together[key] += call.count
        in_run[key] += call.calls_in(steps)
        links[key] = dict(sent)
    names = ("collective", "axis", "num_ranks", "bytes", "every", "what", "by_library", "scales_with")
    return [
        {
            **dict(zip(names, key, strict=False)),
            "count": count,
            "calls": in_run[key],
            "links": links[key],
        }
        for key, count in together.items()
    ]
