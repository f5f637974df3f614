"""From the options of `perfscope plan` to its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perfscope.analysis.plan.ranking import planned, ranked
from perfscope.analysis.plan.records import Basis, Candidate, Excluded, Planned, Trial, Unfit
from perfscope.cli.plan.calibrating import Calibrated, calibrated_machine
from perfscope.cli.plan.joining import explore, joined
from perfscope.cli.plan.machine import Machine, machine_of, parse_size
from perfscope.cli.plan.text import heading_of, plan_document, plan_text, verified_text
from perfscope.errors import UsageError
from perfscope.messages.lists import counted
from perfscope.messages.plan import excluded_by_scheme, no_fit
from perfscope.reports.model import Report
from perfscope.reports.plan.build import PlanPage, build_plan_report
from perfscope.runners.cluster.spec import ClusterSpec, parse_cluster
from perfscope.runners.config import DTYPES, BenchConfig
from perfscope.runners.models.registry import find_model
from perfscope.runners.planning import plan
from perfscope.runners.plans.space import Space, Way, way_of
from perfscope.runners.plans.trials import command_of, measured_step
from perfscope.runners.sweep.settings import config_of

_MOST_RANKS = 64
_FRONT = 6  # rows of the Pareto front in a terminal
_BASE_ASSUMED = (
    "memory: what tensors hold, compared with real steps of serial runs and of one axis of 2 ranks; not "
    "counted are the framework itself, communication libraries, held-out samples and gaps of the allocator",
    "layers are divided (tp, sp) inside one host only; at most three axes of a mesh exceed 1",
)


class MadePlan(NamedTuple):
    """A plan in each form: its page, and the text of a terminal."""

    report: Report
    text: str


def make_plan(model: str, cluster: str, *, top: int, verify: int, asked: Mapping[str, Any]) -> MadePlan:
    """What `perfscope plan` prints and writes.

    Raises:
        UsageError: an option cannot be used, or nothing fits; one line.
    """
    spec = _cluster(cluster)
    space = _space(model, spec, asked)
    machine = _machine(spec, space, asked, sharing=spec.ranks_per_host)
    ways, excluded = explore(space)
    if not ways:
        raise UsageError(_nothing(excluded, space))
    used = Calibrated(None, machine, "")
    if asked["flops"] is None and asked["calibrate"]:
        used = calibrated_machine(ways, space, machine)
    choices = _ranked(ways, space, used, asked)
    plans = [choice.plan for choice in choices]
    assumed = _assumed(space, used, asked)
    trials = _verified(choices[:verify], spec, space, asked) if verify else []
    best, front = plans[:top], [option for option in plans if option.is_pareto]
    counts = {"num_ways": len(ways) + len(excluded), "num_fit": len(ways)}
    described = {
        "model": model,
        "input_shape": list(space.like.input_shape),
        "cluster": str(spec),
        "device_memory_bytes": space.memory_limit,
        "basis": best[0].basis.value,
    }
    heading = heading_of(model, "x".join(map(str, space.like.input_shape)), str(spec), **counts)
    command = command_of(choices[0].config)
    page = PlanPage(
        heading=heading,
        plans=plans,
        command=command,
        excluded=excluded,
        memory_limit=space.memory_limit,
        assumed=assumed,
        trials=trials,
        document=plan_document({**described, **counts}, best, front, excluded, assumed, trials),
    )
    text = plan_text(heading, plans, top, command, front[:_FRONT], excluded, assumed, space.memory_limit)
    return MadePlan(build_plan_report(page), text + (verified_text(trials) if trials else ""))


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


class _Chosen(NamedTuple):
    plan: Planned
    config: BenchConfig


def _ranked(ways: Sequence[Way], space: Space, used: Calibrated, asked: Mapping[str, Any]) -> list[_Chosen]:
    choices = [joined(way, space, used.machine, used.speeds) for way in ways]
    order, front = ranked([_planned(choice.candidate, used, asked) for choice in choices])
    return [_Chosen(plan, choices[index].config) for plan, index in zip(front, order, strict=True)]


def _planned(candidate: Candidate, used: Calibrated, asked: Mapping[str, Any]) -> Planned:
    return planned(
        candidate,
        Basis.RATES if used.speeds is None else Basis.CALIBRATED,
        used.machine.paces[candidate.dtype].flops_per_s,
        asked["overlap"],
        asked["price_per_hour"],
    )


def _assumed(space: Space, used: Calibrated, asked: Mapping[str, Any]) -> list[str]:
    hidden = asked["overlap"]
    return [
        *((used.sentence,) if used.sentence else ()),
        *used.machine.assumed,
        used.machine.about_inside,
        *_BASE_ASSUMED,
        f"DDP and FSDP hide {100 * hidden:.0f} % of the communication that their passes can hide, other "
        "schemes none (--overlap)",
        "activations are recomputed in serial and DDP alone: the other schemes do not take activation "
        "checkpointing",
        f"collectives as {space.backend} does them; no rank is late",
    ]


def _verified(
    chosen: Sequence[_Chosen], spec: ClusterSpec, space: Space, asked: Mapping[str, Any]
) -> list[Trial]:
    """Computed again for this machine, whose cores all ranks share, and measured."""
    here = replace(
        space,
        ranks=tuple(sorted({choice.config.num_ranks for choice in chosen})),
        dtypes=tuple(dict.fromkeys(choice.config.dtype for choice in chosen)),
        backend="gloo",
        like=replace(space.like, device="cpu"),
    )
    machine = _machine(spec, here, {**asked, "flops": None, "memory_bandwidth": None}, sharing=spec.num_ranks)
    ways = [way_of(choice.config, here) for choice in chosen]
    used = calibrated_machine(ways, here, machine, for_trials=True)
    trials = []
    for way in ways:
        plan = _planned(joined(way, here, used.machine, used.speeds).candidate, used, asked)
        measured, problem = measured_step(way.job.config, str(spec) if spec.num_hosts > 1 else None)
        trials.append(
            Trial(
                plan=plan,
                measured_step_s=measured,
                measured_to_computed=None if measured is None else measured / plan.step_s,
                problem=problem,
            )
        )
    return trials
