"""Really trained runs for the gate's statistics, in random order: what drifts hits all kinds alike."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from perfscope.gate.measure import measure_run
from perfscope.gate.records import RunFigures
from perfscope.ingest.run import ingest_run

TRAIN = Path(__file__).parent / "train.py"
PERFSCOPE = (sys.executable, "-m", "perfscope")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
RECORDING = ("--ceilings", "off", "--overhead", "50%", "--windows", "4")  # as `perfscope check` records
TRIED = {"layer": (6, 11), "loader": (60, 150), "allreduce": (2200, 4800)}  # amounts whose cost is measured
FIGURES = "figures.jsonl"


@dataclass(frozen=True, slots=True)
class Cell:
    """A training with one slowdown, or none. `size` is the slowdown aimed at, as a share of the p10 step."""

    plant: str = "nothing"
    size: float = 0.0
    amount: int = 0

    @property
    def name(self) -> str:
        return f"{self.plant}-{100 * self.size:.0f}" if self.size else self.plant

    def command(self, steps: int | None = None) -> list[str]:
        longer = [] if steps is None else ["--steps", str(steps)]
        return [*TORCHRUN, str(TRAIN), "--plant", self.plant, "--amount", str(self.amount), *longer]


BASE = Cell()
PLANTED = tuple(Cell(plant, size) for plant in TRIED for size in (0.10, 0.20))


def tuned(folder: Path, repeats: int) -> tuple[Cell, ...]:
    """The planted cells with amounts that cost what they are to cost here, by interleaved trial runs."""
    file = folder / "amounts.json"
    if file.exists():
        amounts = json.loads(file.read_text())
        return tuple(replace(cell, amount=amounts[cell.name]) for cell in PLANTED)
    tried = [Cell(plant, 1.0, amount) for plant, both in TRIED.items() for amount in both]
    steps: dict[Cell, list[float]] = {cell: [] for cell in (BASE, *tried)}
    draw = random.Random(0)
    for repeat in range(3 * repeats):
        for cell in draw.sample(list(steps), len(steps)):
            if len(steps[cell]) < repeats:
                run = train(cell, folder / "trials" / f"{repeat}-{cell.plant}-{cell.amount}")
                if run.clean is not False:
                    steps[cell].append(run.metrics["step_p10"])
                    print(f"sizing: {cell.plant} {cell.amount}", file=sys.stderr, flush=True)
    if min(map(len, steps.values())) < repeats:
        raise RuntimeError("this machine is too disturbed: too few of the trial runs had it to themselves")
    base = statistics.median(steps[BASE])
    slower = {cell: statistics.median(steps[cell]) / base - 1 for cell in tried}
    amounts = {cell.name: amount_for(cell, slower) for cell in PLANTED}
    file.write_text(json.dumps(amounts, indent=1))
    return tuple(replace(cell, amount=amounts[cell.name]) for cell in PLANTED)


def amount_for(cell: Cell, slower: Mapping[Cell, float]) -> int:
    """The amount that makes the step slower by `cell.size`: on the line through the nearest tried amounts."""
    known = sorted((one.amount, cost) for one, cost in slower.items() if one.plant == cell.plant)
    (low, its), (high, their) = known if cell.size > known[0][1] else ((0, 0.0), known[0])
    if their <= its:
        raise RuntimeError(
            f"{high} of {cell.plant} cost no more than {low}: the machine is too noisy to size"
        )
    return max(1, round(low + (cell.size - its) * (high - low) / (their - its)))


def planned(cells: Sequence[Cell], num_base: int, num_planted: int, seed: int) -> list[Cell]:
    """Every cell as often as wanted, shuffled in blocks so that each kind spreads over the whole time."""
    draw = random.Random(seed)
    order: list[Cell] = []
    blocks = max(num_planted, 1)
    for block in range(blocks):
        base = num_base * (block + 1) // blocks - num_base * block // blocks
        block_cells = [BASE] * base + list(cells if num_planted else ())
        draw.shuffle(block_cells)
        order += block_cells
    return order


def collect(
    folder: Path, order: Sequence[Cell], steps: int | None = None
) -> Iterator[tuple[int, Cell, RunFigures, float]]:
    """Trains what is not there yet; yields (number, cell, figures, seconds), also of what is there.

    Args:
        steps: of each run; None: as many as the training makes by itself.

    Raises:
        CalledProcessError: a training failed.
    """
    known = {run.name: run for run in read_figures(folder)}
    for number, cell in enumerate(order):
        name = f"{number:03d}-{cell.name}"
        began = time.monotonic()
        if name not in known:
            known[name] = train(cell, folder / name, steps)
            with (folder / FIGURES).open("ab") as file:
                file.write(msgspec.json.encode(known[name]) + b"\n")
        yield number, cell, known[name], time.monotonic() - began


def train(cell: Cell, place: Path, steps: int | None = None) -> RunFigures:
    """One run under `perfscope run`."""
    place.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            *PERFSCOPE,
            "run",
            "--no-verdict",
            "-o",
            str(place),
            "--force",
            *RECORDING,
            "--",
            *cell.command(steps),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ingest_run(place)
    return measure_run(place, place.name)


def read_figures(folder: Path) -> list[RunFigures]:
    """What was collected so far, in the order of time."""
    file = folder / FIGURES
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=RunFigures) for line in lines]


def cell_of(run: RunFigures) -> str:
    return run.name.partition("-")[2]
