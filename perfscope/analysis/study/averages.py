"""What stands for several repeats."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analysis.bench_bytes import LinkBytes
from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.study.repeats import center, mean
from perfscope.analysis.study.results import PARTS, Composition, StudyRun


def mean_composition(runs: Sequence[StudyRun]) -> Composition | None:
    """Mean over the runs that have one, so that the parts still add up; None where no run has."""
    compositions = [run.composition for run in runs if run.composition is not None]
    if not compositions:
        return None
    means = {
        part: mean([getattr(composition, part) for composition in compositions]) for part in ("step", *PARTS)
    }
    return Composition(num_steps=min(composition.num_steps for composition in compositions), **means)


def middle_efficiency(runs: Sequence[StudyRun]) -> Efficiency | None:
    """Of the run with the (lower) median parallel efficiency: its factors still multiply exactly."""
    efficiencies = [run.efficiency for run in runs if run.efficiency is not None]
    efficiencies.sort(key=lambda efficiency: (efficiency.parallel_efficiency, efficiency.load_balance))
    return efficiencies[(len(efficiencies) - 1) // 2] if efficiencies else None


def known_center(values: Sequence[float | None]) -> float | None:
    """Median of those that are known."""
    present = [value for value in values if value is not None]
    return center(present) if present else None


def mean_links(runs: Sequence[StudyRun]) -> tuple[LinkBytes, ...]:
    """Bytes per step by link class, mean over the runs; a kind that one run lacks is missing."""
    classes = sorted({link.link_class for run in runs for link in run.links})
    rows = []
    for name in classes:
        link_bytes = [link for run in runs for link in run.links if link.link_class == name]
        recorded = [link.recorded for link in link_bytes if link.recorded is not None]
        wire = [link.wire for link in link_bytes if link.wire is not None]
        rows.append(
            LinkBytes(
                link_class=name,
                predicted=mean([link.predicted for link in link_bytes]),
                recorded=mean(recorded) if len(recorded) == len(link_bytes) else None,
                predicted_wire=mean([link.predicted_wire for link in link_bytes]),
                wire=mean(wire) if len(wire) == len(link_bytes) else None,
                reason=next((link.reason for link in link_bytes if link.reason), ""),
            )
        )
    return tuple(rows)
