"""How a check is made. Data sources: docs/check.md; from which file: gate.config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfscope.gate.metrics import METRICS, GateMetric
from perfscope.gate.sequential import looks

PAIRS, FEWEST_RUNS, FEWEST_STEPS = 8, 5, 20
ALPHA = 0.01
EXTENDED = 2  # times `pairs`: how far a check in doubt may go


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What [tool.perfscope.check] and the command line can say; the defaults are measured ones.

    Attributes:
        name: the benchmark's name in baselines, histories and outputs; None = the training script's name.
        pairs: interleaved pairs after which the verdict is looked at, at least `fewest`.
        most_pairs: pairs to go on to where that leaves it in doubt; None = twice `pairs`.
        alpha: one-sided p value below which a difference is proven.
        fewest: runs a side (or pairs) below which nothing is judged.
        fewest_steps: counted steps below which a run is not judged.
        repeats: runs in all that may be repeated because something disturbed them.
        early_stop: end before `pairs` where the verdict is settled.
        pin_heap: train both sides with vocabulary.heap.STILL_HEAP.
        allow: fields of the fingerprint that may differ between the sides.
        metrics: id -> metric with this project's direction, threshold and severity.
        baseline, history: files that `--baseline` and `--history` mean by default; None = none.
        source: the file that this was read from; None = defaults.
    """

    name: str | None = None
    pairs: int = PAIRS
    most_pairs: int | None = None
    alpha: float = ALPHA
    fewest: int = FEWEST_RUNS
    fewest_steps: int = FEWEST_STEPS
    repeats: int = 4
    early_stop: bool = True
    pin_heap: bool = False
    allow: tuple[str, ...] = ()
    metrics: Mapping[str, GateMetric] = field(default_factory=lambda: dict(METRICS))
    baseline: Path | None = None
    history: Path | None = None
    source: Path | None = None

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of pairs after which the verdict is looked at."""
        return looks(self.pairs, self.pairs * EXTENDED if self.most_pairs is None else self.most_pairs)
