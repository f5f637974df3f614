"""Section "Parallel efficiency": POP's factors of this run."""

from __future__ import annotations

from perfscope import units
from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.results import RunAnalysis
from perfscope.reports.model import Column, Section, Table, Unit, Value

ACCEPTABLE = 0.8  # the field's usual mark
# (depth, name, attribute, what it says)
_TREE = (
    (0, "Parallel efficiency", "parallel_efficiency", "computation as a share of all ranks' time"),
    (1, "Load balance", "load_balance", "mean over most computation of a rank"),
    (2, "inside nodes", "lb_in", "between ranks of one node"),
    (2, "across nodes", "lb_out", "between nodes"),
    (1, "Communication efficiency", "comm_efficiency", "most computation of a rank over the time it took"),
    (2, "Serialisation", "serialisation", "what is lost to waiting even on an ideal network"),
    (2, "Transfer", "transfer", "what is lost because transfers take time"),
)
_LOSSES = {
    "load_balance": "uneven computation",
    "serialisation": "waiting that no network would remove (dependences, input, idle time)",
    "transfer": "transfers",
    # where waiting and transfer cannot be told apart
    "comm_efficiency": "communication and waiting (which of the two cannot be told: "
    "see what was not collected)",
}


def efficiency_section(analysis: RunAnalysis) -> Section | None:
    """None where the factors are not known; why stands with what was not collected."""
    found = analysis.efficiency
    if found is None:
        return None
    rows: list[tuple[Value, ...]] = []
    for depth, name, attribute, hint in _TREE:
        value = getattr(found, attribute)
        if value is None and depth == 2 and attribute.startswith("lb_"):
            continue  # one host
        told = "" if value is None else ("acceptable" if value >= ACCEPTABLE else "low")
        rows.append((f"{'  ' * depth}{'└ ' if depth else ''}{name}", value, told, hint))
    table = Table(
        id="pop",
        title="POP efficiencies",
        columns=(
            Column(key="factor", title="Factor", primary=True),
            Column(key="value", title="Value", unit=Unit.RATIO, bar="compute", primary=True),
            Column(key="mark", title="", primary=True),
            Column(key="what", title="What it is"),
        ),
        rows=tuple(rows),
        caption=(
            "A factor is the product of those below it. From 80 % on the field calls it acceptable. Time on "
            "an ideal network is the replay's, with every transfer instantaneous."
        ),
    )
    return Section(id="efficiency", title="Parallel efficiency", lead=_lead(found), blocks=(table,))


def _lead(found: Efficiency) -> str:
    share = units.format_ratio(found.parallel_efficiency, 0)
    split = ("serialisation", "transfer") if found.transfer is not None else ("comm_efficiency",)
    names = ("load_balance", *split)
    known = {name: value for name in names if (value := getattr(found, name)) < ACCEPTABLE}
    if not known:
        mark = units.format_ratio(ACCEPTABLE, 0)
        return f"{share} of the ranks' time is computation; none of the causes by itself is below {mark}."
    worst = min(known, key=lambda name: known[name])
    return f"{share} of the ranks' time is computation; most is lost to {_LOSSES[worst]}."
