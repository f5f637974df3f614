"""What a bench run is, for run.json: scheme, axes, mesh, who sits where, and what it is predicted to send."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfscope.runners.config import BenchConfig
from perfscope.runners.job import Job
from perfscope.runners.schemes.local import scaled_learning_rate
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.traffic import Traffic
from perfscope.volumes import backend_factor, edges

LOOPBACK, ETHERNET, INTRA_NUMA, CROSS_NUMA, PCIE = "loopback", "ethernet", "intra_numa", "cross_numa", "pcie"
_MAX_LISTED = 4096  # groups; run.json is read whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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


def planned_places(job: Job) -> tuple[Place, ...]:
    """By rank: consecutive ranks share a host; what a rank is bound to is known only when it runs."""
    return tuple(Place(host=f"host{job.host_of(rank)}") for rank in range(job.num_ranks))


def link_class(a: Place, b: Place) -> str:
    """The kind of link between two ranks, as far as their places tell."""
    if a.host != b.host:
        return ETHERNET
    if a.gpu is not None and b.gpu is not None:
        return PCIE
    if a.numa is None or b.numa is None:
        return LOOPBACK
    return INTRA_NUMA if a.numa == b.numa else CROSS_NUMA


def bytes_by_link(
    traffic: Mapping[int, Sequence[Traffic]], places: Sequence[Place], backend: str | None = None
) -> dict[str, float]:
    """Bytes per step over each link class, summed over all senders.

    Args:
        traffic: what each rank sends, by rank. A collective is listed by each of its members.
        places: by rank.
        backend: count what this backend really moves (bytes_wire); None = bytes_algorithmic.
    """
    found: dict[str, float] = defaultdict(float)
    for rank, calls in traffic.items():
        for call in calls:
            amount = call.bytes * call.count / call.every
            if backend:
                amount *= backend_factor(backend, call.collective, len(call.members), call.bytes)
            for sender, receiver, share in edges(call.collective, call.members):
                if sender == rank:  # the receiver's own entry tells what it passes on
                    found[link_class(places[sender], places[receiver])] += share * amount
    return dict(found)


def all_traffic(job: Job) -> dict[int, Sequence[Traffic]]:
    """What each rank sends in a step."""
    scheme = find_scheme(job.config.scheme)
    return {rank: scheme.traffic(job, rank) for rank in range(job.num_ranks)}


def identity(job: Job, places: Sequence[Place] | None = None, backend: str = "gloo") -> dict[str, Any]:
    """The record of a bench run's scheme; JSON values.

    Args:
        job: planned.
        places: of the ranks; None = as planned.
        backend: what carries the bytes.
    """
    config, scheme = job.config, find_scheme(job.config.scheme)
    where = planned_places(job) if places is None else tuple(places)
    traffic = all_traffic(job)
    effective = scheme.effective_batch(job)
    return {
        "name": config.scheme,
        "full_name": config.full_name,
        "modifiers": [str(one) for one in config.modifiers],
        "summary": scheme.summary,
        "axes": scheme.axes._asdict(),
        "mesh": {"data": job.mesh.data, "model": job.mesh.model, "stage": job.mesh.stage},
        "num_ranks": job.num_ranks,
        "model": config.model,
        "num_params": job.shape.num_params,
        "input_shape": list(config.input_shape),
        "num_classes": config.num_classes,
        "dtype": config.dtype,
        "data": "synthetic" if config.data == "synthetic" else "local",
        "batch": config.batch,
        "group_batch": config.batch // max(scheme.num_parts(job.mesh), 1),
        "effective_batch": effective,
        "learning_rate": _learning_rate(config, effective),
        "momentum": config.momentum,
        "steps": config.steps,
        "period": config.period,
        "deterministic": scheme.deterministic,
        "equals_serial": scheme.equals_serial and not any(one.name != "prio" for one in config.modifiers),
        "criterion": scheme.criterion,
        "backend": backend,
        "bind": config.bind,
        "groups": _groups(job, where),
        "places": [
            {"rank": rank, "host": place.host, "numa": place.numa, "cpus": list(place.cpus), "gpu": place.gpu}
            for rank, place in enumerate(where[:_MAX_LISTED])
        ],
        "layout": dict(scheme.layout(job)),
        "places_are": "planned" if places is None else "recorded",
        "predicted": {
            "bytes_algorithmic_per_step": bytes_by_link(traffic, where),
            "bytes_wire_per_step": bytes_by_link(traffic, where, backend),
            "calls_of_rank": {
                str(rank): _calls(rank, calls, where) for rank, calls in list(traffic.items())[:_MAX_LISTED]
            },
        },
    }


def _learning_rate(config: BenchConfig, effective: int) -> dict[str, Any]:
    return {
        "rule": config.lr_rule,
        "base": config.learning_rate,
        "base_batch": config.base_batch or config.batch,
        "value": scaled_learning_rate(config, effective),
    }


def _groups(job: Job, places: Sequence[Place]) -> list[dict[str, Any]]:
    found = []
    for axis, groups in find_scheme(job.config.scheme).placement_groups(job).items():
        for ranks in groups[:_MAX_LISTED]:
            own = [places[rank] for rank in ranks]
            found.append(
                {
                    "axis": axis,
                    "ranks": list(ranks),
                    "hosts": list(dict.fromkeys(place.host for place in own)),
                    "numa": sorted({place.numa for place in own if place.numa is not None}),
                    "gpus": sorted({place.gpu for place in own if place.gpu is not None}),
                }
            )
    return found


def _calls(rank: int, traffic: Sequence[Traffic], places: Sequence[Place]) -> list[dict[str, Any]]:
    """The calls of one rank, equal ones together, with the bytes of one over each link class."""
    together: dict[tuple[object, ...], int] = defaultdict(int)
    links: dict[tuple[object, ...], dict[str, float]] = {}
    for one in traffic:
        if len(one.members) < 2:
            continue
        size = one.group_size or len(one.members)
        sent: dict[str, float] = defaultdict(float)
        for sender, receiver, share in edges(one.collective, one.members):
            if sender == rank:
                sent[link_class(places[sender], places[receiver])] += share * one.bytes
        key = (one.collective, one.axis, size, one.bytes, one.every, one.what, one.by_library, *sorted(sent))
        together[key] += one.count
        links[key] = dict(sent)
    names = ("collective", "axis", "num_ranks", "bytes", "every", "what", "by_library")
    return [
        {**dict(zip(names, key, strict=False)), "count": count, "links": links[key]}
        for key, count in together.items()
    ]
