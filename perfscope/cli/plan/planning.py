"""From the options of `perfscope plan` to its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfscope.analysis.plan.ranking import order_agreement, planned, ranked
from perfscope.analysis.plan.records import Candidate, Excluded, Planned, Unfit
from perfscope.cli.plan.candidates import Space, candidate, config_of_candidate, explore
from perfscope.cli.plan.machine import Machine, machine_of, parse_size
from perfscope.cli.plan.text import heading_of, plan_document, plan_text, verified_text
from perfscope.cli.plan.verify import verify as verify_runs
from perfscope.errors import UsageError
from perfscope.messages.lists import counted
from perfscope.messages.plan import excluded_by_scheme, no_fit
from perfscope.runners.cluster.spec import ClusterSpec, parse_cluster
from perfscope.runners.config import DTYPES, BenchConfig
from perfscope.runners.models.registry import find_model
from perfscope.runners.planning import plan
from perfscope.runners.sweep.settings import config_of

_MOST_RANKS = 64
_FRONT = 6  # rows of the Pareto front in a terminal
_BASE_ASSUMED = (
    "memory: what tensors hold, compared with real steps of serial runs and of one axis of 2 ranks; not "
    "counted are the framework itself, communication libraries, held-out samples and gaps of the allocator",
    "layers are divided (tp, sp) inside one host only; at most three axes of a mesh exceed 1; pipelines run "
    "1F1B",
)


def make_plan(
    model: str, cluster: str, *, as_json: bool, top: int, verify: int, asked: Mapping[str, Any]
) -> str:
    """What `perfscope plan` prints.

    Raises:
        UsageError: an option cannot be used, or nothing fits; one line.
    """
    spec = _cluster(cluster)
    space = _space(model, spec, asked)
    machine = _machine(spec, space, asked, sharing=spec.ranks_per_host)
    candidates, excluded = explore(space, machine)
    if not candidates:
        raise UsageError(_nothing(excluded, space))
    plans = _ranked(candidates, machine, asked)
    best, front = plans[:top], [option for option in plans if option.is_pareto]
    heading = {
        "model": model,
        "input_shape": list(space.like.input_shape),
        "cluster": str(spec),
        "device_memory_bytes": space.memory_limit,
        "num_ways": len(candidates) + len(excluded),
        "num_fit": len(candidates),
    }
    assumed = [*_assumed(space, asked), *machine.assumed]
    rows, agreement = _verified(best[:verify], spec, space, asked) if verify else ([], None)
    if as_json:
        return plan_document({**heading, "order_agreement": agreement}, best, front, excluded, assumed, rows)
    size = "x".join(map(str, space.like.input_shape))
    text = plan_text(
        heading_of(model, size, str(spec), len(candidates) + len(excluded), len(candidates)),
        best,
        config_of_candidate(best[0].candidate, space),
        front[:_FRONT],
        excluded,
        assumed,
        space.memory_limit,
    )
    return text + (verified_text(rows, agreement) if rows else "")


def _cluster(text: str) -> ClusterSpec:
    spec = parse_cluster(text)
    if spec.num_ranks > _MOST_RANKS:
        raise UsageError(
            f"--cluster {text}: {counted(spec.num_ranks, 'rank')} are more than the {_MOST_RANKS} that can "
            f"be planned for; plan for a part of the machine"
        )
    return spec


def _space(model: str, spec: ClusterSpec, asked: Mapping[str, Any]) -> Space:
    find_model(model)
    dtypes: tuple[Any, ...] = tuple(dict.fromkeys(word.strip() for word in asked["dtype"].split(",")))
    for name in dtypes:
        if name not in DTYPES:
            raise UsageError(f"--dtype {name!r} is none of {', '.join(DTYPES)}")
    settings = {
        "model": model,
        "input": asked["input_shape"],
        "classes": asked["classes"],
        "optimizer": asked["optimizer"],
        "momentum": asked["momentum"] or None,
        "device": "cpu" if asked["flops"] is None else "cuda",
    }
    like = config_of(
        "serial",
        settings,
        default_input=lambda name: find_model(name).default_input,
        default_classes=lambda name: find_model(name).default_classes,
    )
    plan(like, writes=False)  # what no candidate can have is an error before the search
    ranks: tuple[int, ...] = (spec.num_ranks,)
    if asked["price_per_hour"] is not None:
        ranks = tuple(num for num in range(1, spec.num_ranks + 1) if _fills(num, spec))
    limit = asked["device_memory"]
    return Space(
        like=like,
        ranks=ranks,
        ranks_per_host=spec.ranks_per_host,
        batches=_batches(asked["batch"]),
        dtypes=dtypes,
        memory_limit=None if limit is None else parse_size(limit),
        backend="gloo" if asked["flops"] is None else "nccl",
    )


def _fills(num: int, spec: ClusterSpec) -> bool:
    """Whether so many ranks fill whole hosts, or divide one."""
    if num < spec.ranks_per_host:
        return spec.ranks_per_host % num == 0
    return num % spec.ranks_per_host == 0 and spec.num_hosts % (num // spec.ranks_per_host) == 0


def _batches(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    terms = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) <= 1 << 24 for word in terms):
        raise UsageError(f"--batch {text!r}: give numbers of samples above 0, such as 64 or 64,128")
    return tuple(sorted({int(word) for word in terms}))


def _machine(spec: ClusterSpec, space: Space, asked: Mapping[str, Any], *, sharing: int) -> Machine:
    return machine_of(
        spec,
        space.dtypes,
        flops=asked["flops"],
        memory_bandwidth=asked["memory_bandwidth"],
        network=asked["network"],
        inside=asked["inside"],
        sharing=sharing,
    )


def _nothing(excluded: Sequence[Excluded], space: Space) -> str:
    full = [option for option in excluded if option.why is Unfit.MEMORY]
    if full and space.memory_limit is not None:
        return no_fit(full, space.memory_limit)
    return "nothing can be planned: " + excluded_by_scheme(excluded)[0]


def _ranked(
    candidates: Sequence[Candidate], machine: Machine, asked: Mapping[str, Any]
) -> tuple[Planned, ...]:
    return ranked(
        [
            planned(
                option, machine.paces[option.dtype].flops_per_s, asked["overlap"], asked["price_per_hour"]
            )
            for option in candidates
        ]
    )


def _assumed(space: Space, asked: Mapping[str, Any]) -> list[str]:
    hidden = asked["overlap"]
    return [
        *_BASE_ASSUMED,
        f"DDP and FSDP hide {100 * hidden:.0f} % of their communication, other schemes none (--overlap)",
        f"collectives as {space.backend} does them; no rank is late",
    ]


def _verified(
    best: Sequence[Planned], spec: ClusterSpec, space: Space, asked: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], float | None]:
    """Predicted again for this machine, whose cores all ranks share, and measured."""
    configs: list[BenchConfig] = [config_of_candidate(option.candidate, space) for option in best]
    space = replace(space, dtypes=tuple(dict.fromkeys(config.dtype for config in configs)))
    here = _machine(spec, space, {**asked, "flops": None, "memory_bandwidth": None}, sharing=spec.num_ranks)
    again = [
        candidate(plan(config, writes=False), space, here, option.candidate.memory)
        for config, option in zip(configs, best, strict=True)
    ]
    plans = [
        planned(option, here.paces[option.dtype].flops_per_s, asked["overlap"], asked["price_per_hour"])
        for option in again
    ]
    rows = verify_runs(plans, configs, str(spec) if spec.num_hosts > 1 else None)
    measured = [row for row in rows if row["measured_step_s"] is not None]
    agreement = order_agreement(
        [row["min_step_s"] / row["batch"] for row in measured],
        [row["measured_step_s"] / row["batch"] for row in measured],
    )
    return rows, agreement
