"""What a host's folder says of the machine, as typed records: ceilings.json and the sampled stacks."""

from __future__ import annotations

from perfscope.rundir.typed import Record, WholeLists


class MeasuredCeiling(Record, frozen=True):
    """A peak that was measured.

    Attributes:
        kind: stream_triad, gemm, device_copy, device_gemm.
        device: "cpu" or "cuda:0"; None = "cpu".
        node: NUMA node; None = all of them together.
        threads: that measured it.
        value: 0 = none; in `unit`: bytes_per_s or flops_per_s.
        spread_ratio: how far apart the repetitions are, as a share.
        runs: measurements of which this is the best.
    """

    kind: str = ""
    device: str | None = None
    node: int | None = None
    threads: int | None = None
    dtype: str | None = None
    value: float = 0.0
    unit: str = ""
    spread_ratio: float | None = None
    runs: int | None = None

    @property
    def is_of_cpus(self) -> bool:
        return self.device in (None, "cpu")


class TheoreticalCeiling(Record, frozen=True):
    """A peak by the data sheet; `source` names the sheet."""

    what: str = ""
    where: str = ""
    value: float = 0.0
    unit: str = ""
    dtype: str | None = None
    source: str = ""


class MissingCeiling(Record, frozen=True):
    """A peak that was not measured, and why."""

    what: str = ""
    reason: str = ""


class Pressure(Record, frozen=True):
    """Share of the time of the measurement that something waited for CPUs."""

    cpu_some_ratio: float | None = None


class CeilingsRecord(Record, frozen=True):
    """ceilings.json.

    Attributes:
        how: what measured, in words.
        measured_unix_ns: None where an earlier version did not record it.
        cached: the figures were there from an earlier measurement.
    """

    entries: tuple[MeasuredCeiling, ...] = ()
    theoretical: tuple[TheoreticalCeiling, ...] = ()
    missing: tuple[MissingCeiling, ...] = ()
    pressure: Pressure = Pressure()
    how: str = ""
    measured_unix_ns: int | None = None
    cached: bool = False

    @property
    def is_empty(self) -> bool:
        """Nothing was measured, nor why not."""
        return self == CeilingsRecord()


class Frame(Record, frozen=True):
    """A Python frame of the stacks."""

    name: str = ""
    file: str = ""
    line: int | None = None


class Frames(WholeLists, frozen=True):
    """Frames of all profiles; samples refer to them by index."""

    frames: tuple[Frame, ...] = ()


class Profile(WholeLists, frozen=True):
    """Sampled stacks of a process: indices of frames, outermost first; weights beside them, or none."""

    type: str = ""
    samples: tuple[tuple[int, ...], ...] = ()
    weights: tuple[float, ...] = ()


class StacksRecord(WholeLists, frozen=True):
    """A host's stacks, a speedscope document."""

    shared: Frames = Frames()
    profiles: tuple[Profile, ...] = ()
