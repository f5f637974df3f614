"""What a reader of a run's steps and waits has to know of how they were recorded and found."""

from __future__ import annotations

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.missing_reasons import remarks_of, remarks_of_windows
from perfscope.analysis.ranks import RankFiles
from perfscope.analysis.source import RunSource
from perfscope.messages.files import HANDED_OVER, ON_DEVICE, clocks_apart


def remarks_of_run(source: RunSource, ranks: RankFiles, clocks: ClockFit) -> tuple[str, ...]:
    """A sentence each."""
    every, apart = ranks.steps.values(), clocks.of_ranks
    remarks = [HANDED_OVER] if any(steps.shared is not None for steps in every) else []
    remarks += [ON_DEVICE] if any(steps.are_on_device for steps in every) else []
    if apart is not None:
        most = max(apart.ranks, key=lambda clock: abs(clock.offset_ns))
        remarks.append(clocks_apart(most.rank, most.reference, most.offset_ns, apart.residual_ns))
    records = source.rank_records
    return (*remarks, *remarks_of(records), *remarks_of_windows(source, records))
