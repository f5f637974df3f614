"""Figures of real runs for the tests of stores, and runs made like them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from perfscope.gate.records import RunFigures

RUNS = Path(__file__).parents[1] / "data" / "gate" / "runs.jsonl"
START = 1_795_296_000_000_000_000


def recorded_runs() -> list[RunFigures]:
    """Eight runs of one training on one machine, oldest first."""
    return [msgspec.json.decode(line, type=RunFigures) for line in RUNS.read_bytes().splitlines()]


def numbered(number: int, **changes: object) -> RunFigures:
    """Run `number`: a real one's figures under a name and a start of its own; `changes`: of surroundings."""
    run = recorded_runs()[number % 8]
    around = replace(run.surroundings, start_unix_ns=START + number, **changes)  # type: ignore[arg-type]
    return replace(run, name=f"run-{number:04d}", surroundings=around)


def numbers(runs: tuple[RunFigures, ...]) -> list[int]:
    """The numbers of `numbered` runs, in their order."""
    return [int(run.name.removeprefix("run-")) for run in runs]
