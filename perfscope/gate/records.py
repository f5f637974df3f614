"""What the gate keeps of a run: small enough for a file that is committed, whole enough to explain a verdict.

Times are nanoseconds, sizes bytes, shares ratios. `None` means not known; the reason is in
`RunFigures.absent` where it is a metric. Everything here goes through msgspec as it is: to JSON and back
without loss.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field, fields

import msgspec

from perfscope.analysis.study.results import PARTS as PARTS
from perfscope.analysis.study.results import Composition as Composition

BASE, HEAD = "base", "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What must be the same of two runs before their speeds may be compared. "" or None: not recorded."""

    cpu: str = ""
    num_cpus: int | None = None
    gpus: tuple[str, ...] = ()
    num_hosts: int | None = None
    torch: str = ""
    perfscope: str = ""
    world_size: int | None = None
    batch: int | None = None  # samples in a step over all ranks
    scheme: str = ""

    @property
    def key(self) -> str:
        """12 hexadecimal digits that name this fingerprint in files and tables."""
        try:
            text = msgspec.json.encode(self)
        except UnicodeEncodeError:  # half a surrogate in a name
            text = repr(self).encode("utf-8", "backslashreplace")
        return hashlib.sha256(text).hexdigest()[:12]

    def differences(
        self, other: Fingerprint, allowed: Collection[str] = ()
    ) -> tuple[tuple[str, object, object], ...]:
        """(field, own value, other's) of what differs, but for fields that are `allowed` to."""
        return tuple(
            (item.name, mine, theirs)
            for item in fields(self)
            if (mine := getattr(self, item.name)) != (theirs := getattr(other, item.name))
            and item.name not in allowed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Medians over the counted, untraced steps, mean over ranks: what the always-on probe knows."""

    step: float
    input_wait: float | None = None
    backward: float | None = None  # with the communication inside
    optimizer: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Mean per traced step, averaged over ranks."""

    layer: str
    forward_ns: float
    backward_ns: float
    module_type: str = ""  # the class, where the run says it


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveUse:
    """One kind of collective on groups of one size, per traced step of a rank."""

    name: str  # "all_reduce over 2 ranks"
    calls: float
    bytes: float | None
    duration_ns: float
    transfer_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What was around the run: to be looked at before code is blamed."""

    start_unix_ns: int | None = None
    commit: str = ""
    dirty: bool | None = None
    command: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    kernel: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    cpu_hz: float | None = None  # mean over CPUs and the steps' time
    gpu_hz: float | None = None
    throttled_ratio: float | None = None  # share of the steps' time under thermal, power or quota throttling
    pressure_ratio: float | None = None  # share of the steps' time in which some task waited for a CPU
    neighbour_cpus: float | None = None  # CPUs that other processes took, mean over the steps' time
    steal_ratio: float | None = None
    faults_per_step: float | None = None  # minor page faults, of the rank with most
    fault_ratio: float | None = None  # share of the step that they cost at most, of the same rank


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """One run as the gate sees it.

    Attributes:
        name: the path as the user knows it.
        metrics: id of gate.metrics -> value in its unit.
        absent: id -> why it is not in `metrics`.
        num_steps: counted steps of the rank with fewest.
        clean: nothing from outside disturbed the steps for long enough to move their p10 (a quarter of their
            time); None = not known.
        problem: why this run cannot be judged at all ("" = it can).
        side, pair: which side of which pair `perfscope check` made it for.
    """

    name: str
    fingerprint: Fingerprint
    metrics: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    num_steps: int = 0
    phases: Phases | None = None
    composition: Composition | None = None
    layers: tuple[LayerTime, ...] = ()
    collectives: tuple[CollectiveUse, ...] = ()
    surroundings: Surroundings = field(default_factory=Surroundings)
    clean: bool | None = None
    clean_reason: str = ""
    disturbed_ratio: float | None = None
    problem: str = ""
    side: str = ""
    pair: int | None = None
