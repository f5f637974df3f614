"""What can be measured on this machine, and why not: every collector's answer, and the machine around them.

Data only; `perfscope doctor` prints it. Nothing here raises for a collector's fault: other packages bring
their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from perfscope.collectors import registry
from perfscope.collectors.base import Capability, Collector
from perfscope.collectors.context import Context
from perfscope.collectors.machine.environment import read_surroundings
from perfscope.vocabulary.disturbances import NEIGHBORS

SCHEMA_VERSION = 1
CEILINGS_BUDGET_S, TORCH_BUDGET_S = 8.0, 20.0  # a user waits for them, and no training does

# What they tell is of processes while these live; a picture of some says nothing about any.
_OF_LIVING_PROCESSES = ("numa.placement", "cpu.tasks", NEIGHBORS)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """One collector's answer.

    Attributes:
        capability: what it said; for one that raised, "not available" with the fault as reason.
        slow: it gets a thread of its own.
        foreign: another package brings it.
    """

    capability: Capability
    slow: bool
    foreign: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One machine as perfscope sees it.

    Attributes:
        host: its name.
        captured: where the captured tree came from; "" for the machine we run on.
        taken_unix_ns: when.
        sources: every collector's answer, in the order of the registry.
        surroundings: see surroundings.read_surroundings.
        topology: as in topology.json; empty where it cannot be read.
        ceilings: as in ceilings.json; None where not measured.
        problems: what went wrong while asking, one line each.
    """

    host: str
    captured: str
    taken_unix_ns: int
    sources: tuple[SourceStatus, ...]
    surroundings: dict[str, object] = field(default_factory=dict)
    topology: dict[str, object] = field(default_factory=dict)
    ceilings: dict[str, object] | None = None
    problems: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """As `perfscope doctor --json` prints it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "host": self.host,
            "captured": self.captured or None,
            "taken_unix_ns": self.taken_unix_ns,
            "num_sources": len(self.sources),
            "num_available": sum(source.capability.available for source in self.sources),
            "sources": [_source_as_dict(source) for source in self.sources],
            "topology": self.topology or None,
            "ceilings": self.ceilings,
            "surroundings": self.surroundings,
            "problems": list(self.problems),
        }


def survey(ctx: Context, host: str, *, captured: str = "", measure_ceilings: bool = False) -> Survey:
    """Ask every collector what it can do here, and read what the machine is.

    Ceilings that were measured before are always listed; they are measured anew (at most CEILINGS_BUDGET_S +
    TORCH_BUDGET_S) only for `measure_ceilings`, and never for a captured tree.
    """
    problems: list[str] = []
    host_collectors, foreign = all_collectors(problems)
    answers = [_ask(collector, ctx, False) for collector in host_collectors]
    answers += [_ask(collector, ctx, True) for collector in foreign]
    return Survey(
        host=host,
        captured=captured,
        taken_unix_ns=time.time_ns(),
        sources=tuple(answers),
        surroundings=_try("the surroundings", lambda: read_surroundings(ctx), problems) or {},
        topology=_try("the topology", lambda: _topology(ctx, host), problems) or {},
        ceilings=_try("the ceilings", lambda: _ceilings(ctx, host, measure_ceilings), problems),
        problems=tuple(problems),
    )


def all_collectors(problems: list[str]) -> tuple[Sequence[Collector], Sequence[Collector]]:
    """Our collectors and those of other packages; what cannot be loaded goes into `problems`."""
    host_collectors = _try("the collectors", registry.own_collectors, problems) or []
    foreign, refused = registry.foreign_collectors()
    problems += refused
    return host_collectors, foreign


def _ask(collector: Collector, ctx: Context, foreign: bool) -> SourceStatus:
    name = str(getattr(collector, "name", "") or type(collector).__name__)
    try:
        capability = collector.probe(ctx)
        if not isinstance(capability, Capability):
            raise TypeError(f"probe() gave {type(capability).__name__}, not a Capability")
    except Exception as error:  # noqa: BLE001 - foreign code, and the doctor is there to tell such faults
        capability = Capability(
            collector=name,
            available=False,
            reason=f"the collector failed: {type(error).__name__}: {error}",
            remedy="report this to those who made the collector"
            if foreign
            else "report this, with the lines at the end",
        )
    if not ctx.live and capability.available and capability.collector in _OF_LIVING_PROCESSES:
        capability = replace(
            capability, available=False, absent=(), reason="a captured tree has no living processes"
        )
    return SourceStatus(capability=capability, slow=bool(getattr(collector, "slow", False)), foreign=foreign)


def _source_as_dict(source: SourceStatus) -> dict[str, object]:
    document: dict[str, object] = msgspec.to_builtins(source.capability)
    return {**document, "slow": source.slow, "foreign": source.foreign}


def _topology(ctx: Context, host: str) -> dict[str, object]:
    from perfscope.collectors.machine.topology import read_topology

    return read_topology(ctx, host)


def _ceilings(ctx: Context, host: str, measure: bool) -> dict[str, object] | None:
    if not ctx.live:
        return None
    from perfscope.collectors.ceilings.measure import is_cached, read_or_measure, torch_python

    if not measure:
        return read_or_measure(ctx, host) if is_cached(ctx, host) else None
    return read_or_measure(
        ctx,
        host,
        refresh=True,
        budget_s=CEILINGS_BUDGET_S,
        torch_python=torch_python(),
        torch_budget_s=TORCH_BUDGET_S,
    )


def _try(what: str, call: Callable[[], _T], problems: list[str]) -> _T | None:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - one part of the survey; the rest is still worth telling
        problems.append(f"{what} cannot be read: {type(error).__name__}: {error}")
        return None
