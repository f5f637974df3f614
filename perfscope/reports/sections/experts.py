"""Section "Experts": how many tokens the experts of each rank are given, and what unequal shares cost."""

from __future__ import annotations

from perfscope import units
from perfscope.analysis.experts.results import ExpertLayer, ExpertRank, Experts, TracedRank
from perfscope.analysis.results import RunAnalysis
from perfscope.reports.display import visible
from perfscope.reports.model import Column, Section, Table, Unit


def experts_section(analysis: RunAnalysis) -> Section | None:
    """None where no experts were traced."""
    experts = analysis.experts
    if experts is None:
        return None
    blocks = (_layers(experts), _ranks(experts)) if experts.layers else (_ranks(experts),)
    return Section(id="experts", title="Experts", lead=_lead(experts), blocks=blocks)


def _lead(experts: Experts) -> str:
    if not experts.layers:
        return "Not all ranks of the experts' process groups were traced: only the tokens of those that were."
    worst = max(experts.layers, key=lambda layer: layer.imbalance)
    wait = sum(layer.wait_ns for layer in experts.layers)
    ranks = f"In layer {visible(worst.layer)}, the" if worst.layer else "The"
    return (
        f"{ranks} most loaded rank has {worst.imbalance:.2f} times the tokens "
        f"of the mean rank. Ranks wait {units.format_ns(wait)} per step on average until the experts of the "
        f"last rank are done; with equal loads the step would be {units.format_ns(experts.saved_ns)} shorter."
    )


def _layers(experts: Experts) -> Table:
    return Table(
        id="experts-layers",
        title="Layers of experts, per step",
        columns=(
            Column(key="layer", title="Layer", unit=Unit.CODE, primary=True),
            Column(
                key="most", title="Most loaded", unit=Unit.COUNT, primary=True, hint="rank, over all steps"
            ),
            Column(
                key="imbalance", title="Load", unit=Unit.RATIO, primary=True, hint="most loaded / mean rank"
            ),
            Column(key="wait", title="Wait", unit=Unit.TIME, bar="wait", primary=True, hint="mean rank"),
            Column(
                key="saved",
                title="Saved",
                unit=Unit.TIME,
                modeled=True,
                primary=True,
                hint="with equal loads",
            ),
        ),
        rows=tuple(
            (visible(layer.layer), _most(layer), layer.imbalance, layer.wait_ns, layer.saved_ns)
            for layer in experts.layers
        ),
        terminal_rows=8,
        caption="Load: mean over forward passes. Wait and saved time: of forward and backward passes.",
    )


def _most(layer: ExpertLayer) -> int:
    return max(layer.ranks, key=lambda rank: rank.bytes).rank


def _ranks(experts: Experts) -> Table:
    ranks: list[tuple[str, ExpertRank | TracedRank]] = [
        *((layer.layer, rank) for layer in experts.layers for rank in layer.ranks),
        *((rank.layer, rank) for rank in experts.incomplete),
    ]
    return Table(
        id="experts-ranks",
        title="Experts of each rank, per step",
        columns=(
            Column(key="layer", title="Layer", unit=Unit.CODE, primary=True),
            Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
            Column(key="tokens", title="Tokens", unit=Unit.NUMBER, primary=True, bar="compute"),
            Column(key="bytes", title="Bytes", unit=Unit.BYTES),
            Column(key="compute", title="Compute", unit=Unit.TIME, primary=True),
        ),
        rows=tuple(
            (visible(layer), rank.rank, rank.tokens, rank.bytes, rank.compute_ns) for layer, rank in ranks
        ),
        terminal_rows=8,
        terminal_title=True,
        caption="Tokens of the forward passes. Compute: from their arrival until the results are sent, "
        "forward and backward.",
    )
