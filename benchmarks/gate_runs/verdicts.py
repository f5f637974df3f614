"""Many verdicts from runs that were really made; pairs are drawn from runs close in time, as in a check."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gate_runs.collect import cell_of
from gate_runs.peers import PEERS, Floats
from perfscope.analysis.steps import rank_steps
from perfscope.gate.decide import judge, ratio_of
from perfscope.gate.explain.explain import explain
from perfscope.gate.metrics import DECIDES
from perfscope.gate.records import RunFigures
from perfscope.gate.results import Outcome, Side
from perfscope.gate.settings import Settings
from perfscope.gate.stopping import settled
from perfscope.rundir.reader import RunReader

TRUE_CAUSE = {"layer": "compute", "loader": "input_wait", "allreduce": "exposed_comm"}
LAYER = "block2"
NEAREST = 6  # base runs by time, of which one is drawn


@dataclass(slots=True)
class Tally:
    """Verdicts on one kind of comparison."""

    verdicts: int = 0
    regressions: int = 0
    doubts: int = 0
    pairs: int = 0
    right_cause: int = 0
    right_place: int = 0  # the layer, too (layer only)
    peers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PEERS, 0))


def judged_pairs(pairs: Sequence[tuple[RunFigures, RunFigures]], settings: Settings, tally: Tally) -> bool:
    """The check's own way: early stop, then the verdict; adds to the tally. Whether it is a regression."""
    ratios = [ratio_of(pair) for pair in pairs]
    at, threshold = settings.looks, settings.metrics[DECIDES].threshold
    used = next(
        (
            done
            for done in range(1, len(pairs) + 1)
            if settled([(ratios[:done], threshold)], at, settings.alpha, settings.fewest)
        ),
        len(pairs),
    )
    base = tuple(replace(one, pair=at, side="base") for at, (one, _) in enumerate(pairs[:used], 1))
    head = tuple(replace(other, pair=at, side="head") for at, (_, other) in enumerate(pairs[:used], 1))
    result = judge(
        Side(label="base", runs=base),
        Side(label="head", runs=head),
        settings,
        name="train",
        planned=settings.pairs,
        stopped="settled" if used < settings.pairs else "",
    )
    tally.verdicts += 1
    tally.pairs += used
    regression = result.outcome is Outcome.REGRESSION
    tally.regressions += regression
    tally.doubts += result.deciding is not None and result.deciding.state == "unproven"
    if regression:
        plant = cell_of(head[0]).partition("-")[0]
        explanation = explain(base, head, result.metrics)
        tally.right_cause += explanation.cause == TRUE_CAUSE.get(plant)
        tally.right_place += bool(explanation.layers) and explanation.layers[0].what == LAYER
    return regression


def neighbours(
    base: Sequence[RunFigures], head: Sequence[RunFigures], num: int, draw: random.Random
) -> list[tuple[RunFigures, RunFigures]]:
    """`num` pairs of runs close in time, drawn at random.

    A/A: no run twice. Else a planted run is drawn twice only where there are too few, and a base run may be
    the mate of several: one from another hour would bring the machine's drift in, which pairs keep out.
    """
    if base is head:
        num = min(num, len(base) // 2)
        chosen = sorted(draw.sample(range(len(base)), 2 * num))
        couples = [(base[a], base[b]) for a, b in zip(chosen[::2], chosen[1::2], strict=True)]
        pairs = [couple if draw.random() < 0.5 else couple[::-1] for couple in couples]
    else:
        wanted = draw.sample(list(head), min(num, len(head)))
        wanted += draw.choices(list(head), k=num - len(wanted))
        pairs = []
        for other in wanted:
            nearest = sorted(base, key=lambda run: abs(_at(run) - _at(other)))[:NEAREST]
            pairs.append((draw.choice(nearest), other))
    draw.shuffle(pairs)
    return pairs


def tally_of(
    base: Sequence[RunFigures],
    head: Sequence[RunFigures],
    steps: Callable[[RunFigures], Floats],
    *,
    verdicts: int,
    seed: int,
) -> Tally:
    """Resampled verdicts of `head` against `base` (the same object: A/A), and what peers say of them."""
    settings = Settings()
    draw = random.Random(seed)
    tally = Tally()
    for _ in range(verdicts):
        pairs = neighbours(base, head, settings.looks[-1], draw)
        judged_pairs(pairs, settings, tally)
        first = [steps(one) for one, _ in pairs[: settings.pairs]]
        second = [steps(other) for _, other in pairs[: settings.pairs]]
        for name, rule in PEERS.items():
            tally.peers[name] += rule(first, second)
    return tally


def steps_reader(folder: Path) -> Callable[[RunFigures], Floats]:
    """Counted steps of a run, ns, read once."""
    known: dict[str, Floats] = {}

    def read(run: RunFigures) -> Floats:
        if run.name not in known:
            reader = RunReader(folder / run.name)
            counted = [rank_steps(reader.steps(rank)).counted for rank in reader.ranks]
            known[run.name] = np.concatenate(counted).astype(np.float64)
        return known[run.name]

    return read


def _at(run: RunFigures) -> int:
    return run.surroundings.start_unix_ns or 0
