"""Section "Parallel efficiency": POP's factors of this run."""

from __future__ import annotations

from perfscope import units
from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.efficiency import TITLES
from perfscope.reports.model import Column, KeyFigure, Section, Table, Unit, Value
from perfscope.vocabulary.efficiency import ACCEPTABLE, SPLIT_BY_HOST, PopFactor

# (depth, factor, what it says)
_TREE = (
    (0, PopFactor.PARALLEL, "compute time / (ranks × elapsed time)"),
    (1, PopFactor.LOAD_BALANCE, "mean / max compute time over ranks"),
    (2, PopFactor.LB_IN, "between ranks of one host"),
    (2, PopFactor.LB_OUT, "between hosts"),
    (1, PopFactor.COMMUNICATION, "max compute time of a rank / elapsed time"),
    (2, PopFactor.SERIALISATION, "dependency loss (remains on an ideal network)"),
    (2, PopFactor.TRANSFER, "loss due to data transfer"),
)
_MARK = units.format_ratio(ACCEPTABLE, 0)
_LOSSES = {
    PopFactor.LOAD_BALANCE: "uneven computation",
    PopFactor.SERIALISATION: "serialization (dependencies, input, idle time; remains on an ideal network)",
    PopFactor.TRANSFER: "transfers",
    # where waiting and transfer cannot be distinguished
    PopFactor.COMMUNICATION: "communication and waiting (not distinguishable: see “Not collected”)",
}


def efficiency_section(analysis: RunAnalysis) -> Section | None:
    """None where the factors are not known; why is listed with “Not collected”."""
    efficiency = analysis.efficiency
    if efficiency is None:
        return None
    rows: list[tuple[Value, ...]] = []
    for depth, factor, hint in _TREE:
        value = efficiency.value(factor)
        if value is None and factor in SPLIT_BY_HOST:
            continue  # one host
        assessment = "" if value is None else ("acceptable" if value >= ACCEPTABLE else "low")
        rows.append((f"{'  ' * depth}{'└ ' if depth else ''}{TITLES[factor]}", value, assessment, hint))
    table = Table(
        id="pop",
        terminal_rows=8,
        title="POP efficiencies",
        columns=(
            Column(key="factor", title="Factor", primary=True),
            Column(key="value", title="Value", unit=Unit.RATIO, bar="compute", primary=True),
            Column(key="mark", title="", primary=True),
            Column(key="what", title="Definition"),
        ),
        rows=tuple(rows),
        caption=(
            f"A factor is the product of those below it. POP convention: {_MARK} or more is acceptable. "
            "Time on an ideal network comes from the replay with zero-cost transfers."
        ),
    )
    return Section(id="efficiency", title="Parallel efficiency", lead=_lead(efficiency), blocks=(table,))


def efficiency_figures(analysis: RunAnalysis) -> tuple[KeyFigure, ...]:
    """The tile of the whole; none for a lone rank."""
    efficiency = analysis.efficiency
    if efficiency is None or len(efficiency.useful_ns) < 2:
        return ()
    value = units.format_ratio(efficiency.parallel_efficiency, 0)
    note = f"of the ranks' time is compute; load balance {units.format_ratio(efficiency.load_balance, 0)}"
    return (KeyFigure(id="efficiency", title="Parallel efficiency", value=value, note=note),)


def _lead(efficiency: Efficiency) -> str:
    share = units.format_ratio(efficiency.parallel_efficiency, 0)
    split = (
        (PopFactor.SERIALISATION, PopFactor.TRANSFER)
        if efficiency.transfer is not None
        else (PopFactor.COMMUNICATION,)
    )
    values = {factor: efficiency.value(factor) for factor in (PopFactor.LOAD_BALANCE, *split)}
    low_factors = {
        factor: value for factor, value in values.items() if value is not None and value < ACCEPTABLE
    }
    if not low_factors:
        return f"{share} of rank time is compute; no single factor is below {_MARK}."
    worst = min(low_factors, key=lambda factor: low_factors[factor])
    return f"{share} of rank time is compute; the largest loss is {_LOSSES[worst]}."
