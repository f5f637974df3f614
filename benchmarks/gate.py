"""Can `perfscope check` be trusted? False alarms, power, and the named cause, on really trained runs.

Trains benchmarks/gate_runs/train.py (a small CNN, two ranks) many times: as it is, and with real slowdowns
planted (more work in a layer, a slower loader, a further all_reduce), sized by trial to +10 % and +20 % of
the p10 step. Then: verdicts by resampling those runs, each a whole check with early stop; the same runs
judged by the rules of other tools; and whole checks end to end.

    python benchmarks/gate.py                               # about an hour on two CPUs
    python benchmarks/gate.py --folder runs --verdicts 0    # goes on where it was stopped; only resampling
    python benchmarks/gate.py --folder runs --json

Needs torch and two CPUs with nobody else on them. Disturbed runs are left out, as the check repeats them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gate_runs.collect import BASE, PERFSCOPE, Cell, cell_of, collect, planned, tuned
from gate_runs.peers import PEERS
from gate_runs.verdicts import LAYER, TRUE_CAUSE, Tally, steps_reader, tally_of

from perfscope.gate.metrics import DECIDES
from perfscope.gate.records import RunFigures
from perfscope.gate.settings import FEWEST_RUNS
from perfscope.gate.simulated_checks import wilson
from perfscope.gate.statistics import robust_spread

FALSE_ALARMS = 0.02  # budgets
POWER = {0.10: 0.80, 0.20: 0.97}
RIGHT = 0.90
CHECKED_STEPS = 60  # of each run of a whole check: ten checks of 150 would take an hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """One check end to end."""

    cell: str
    exit_code: int
    pairs: int
    worse: float | None
    cause: str
    place: str
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.exit_code == (0 if self.cell == BASE.name else 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, help="where the runs go; kept, and used again (default: temporary)"
    )
    parser.add_argument("--base", type=int, default=48, help="runs as it is (default: 48)")
    parser.add_argument("--planted", type=int, default=10, help="runs of each slowdown (default: 10)")
    parser.add_argument("--trials", type=int, default=5, help="runs of each kind to size the slowdowns")
    parser.add_argument("--resamples", type=int, default=1000, help="verdicts per comparison (default: 1000)")
    parser.add_argument("--verdicts", type=int, default=10, help="whole checks (default: 10)")
    parser.add_argument("--steps", type=int, help="of each run (default: 150)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        runs, cells = trained(folder, args)
        document: dict[str, Any] = {"runs": described(runs), "resampled": resampled(runs, folder, args)}
        document["whole"] = [asdict(one) for one in wholes(folder, cells, args.verdicts)]
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        print(text_of(document))
    if missed(document):
        sys.exit(1)


def trained(folder: Path, args: argparse.Namespace) -> tuple[list[RunFigures], Sequence[Cell]]:
    cells = tuned(folder, args.trials) if args.planted else ()
    order = planned(cells, args.base, args.planted, args.seed)
    runs = []
    for number, cell, run, seconds in collect(folder, order, args.steps):
        runs.append(run)
        if seconds > 1:
            print(f"[{number + 1}/{len(order)}] {cell.name}: {seconds:.0f} s", file=sys.stderr, flush=True)
    alone = len(pools(runs).get(BASE.name, []))
    if alone < 2 * FEWEST_RUNS:
        sys.exit(f"{alone} undisturbed runs of at least {2 * FEWEST_RUNS}: is the machine alone?")
    return runs, cells


def pools(runs: Sequence[RunFigures]) -> dict[str, list[RunFigures]]:
    """Undisturbed runs by cell."""
    found: dict[str, list[RunFigures]] = {}
    for run in runs:
        if run.clean is not False and not run.problem:
            found.setdefault(cell_of(run), []).append(run)
    return found


def described(runs: Sequence[RunFigures]) -> dict[str, Any]:
    """How many, how noisy, and what the slowdowns really cost."""
    by_cell = pools(runs)
    base = statistics.median(run.metrics[DECIDES] for run in by_cell[BASE.name])
    return {
        cell: {
            "num_runs": len(own),
            "num_disturbed": sum(cell_of(run) == cell for run in runs) - len(own),
            "step_p10_ns": statistics.median(run.metrics[DECIDES] for run in own),
            "slower": statistics.median(run.metrics[DECIDES] for run in own) / base - 1,
            "spread": robust_spread([run.metrics[DECIDES] for run in own]) / base,
        }
        for cell, own in sorted(by_cell.items())
    }


def resampled(runs: Sequence[RunFigures], folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    by_cell, read = pools(runs), steps_reader(folder)
    base = by_cell[BASE.name]
    tallies = {BASE.name: tally_of(base, base, read, verdicts=args.resamples, seed=args.seed)}
    for cell, own in sorted(by_cell.items()):
        if cell != BASE.name:
            tallies[cell] = tally_of(base, own, read, verdicts=args.resamples, seed=args.seed)
    return {cell: asdict(tally) for cell, tally in tallies.items()}


def wholes(folder: Path, cells: Sequence[Cell], num: int) -> Iterator[Whole]:
    """Checks end to end: the training against itself and against each slowdown; each kept once made."""
    kinds = [BASE, *cells[:2], BASE, *cells[2:4], BASE, *cells[4:], BASE]
    for number in range(num):
        cell = kinds[number % len(kinds)]
        place = folder / "checks" / f"{number:02d}-{cell.name}"
        file = place.with_suffix(".json")
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            began = time.monotonic()
            done = subprocess.run(
                [
                    *(*PERFSCOPE, "check", "--json", "-o", str(place), "--seed", str(number)),
                    *("--name", "cnn", "--base-cmd", shlex.join(BASE.command(CHECKED_STEPS))),
                    *("--", *cell.command(CHECKED_STEPS)),
                ],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            if not done.stdout.strip():
                raise RuntimeError(f"the check printed nothing: {done.stderr[-500:]}")
            kept = {"exit_code": done.returncode, "seconds": time.monotonic() - began}
            file.write_text(json.dumps({**kept, "result": json.loads(done.stdout)}))
            print(
                f"check {number + 1}/{num}: {cell.name}: exit {done.returncode}", file=sys.stderr, flush=True
            )
        yield whole_of(cell, json.loads(file.read_text()))


def whole_of(cell: Cell, kept: Mapping[str, Any]) -> Whole:
    result = kept["result"]
    explanation = result.get("explanation") or {}
    deciding: dict[str, Any] = next((one for one in result["metrics"] if one["id"] == DECIDES), {})
    layers = explanation.get("layers") or [{}]
    return Whole(
        cell=cell.name,
        exit_code=kept["exit_code"],
        pairs=len(result["pairs"]),
        worse=deciding.get("worse"),
        cause=explanation.get("cause", ""),
        place=layers[0].get("what", ""),
        seconds=kept["seconds"],
    )


def missed(document: Mapping[str, Any]) -> bool:
    """Whether a budget is missed by the resampled verdicts."""
    tallies = {cell: Tally(**one) for cell, one in document["resampled"].items()}
    same = tallies[BASE.name]
    if same.regressions > FALSE_ALARMS * same.verdicts:
        return True
    return any(
        share(own) < budget for own, budget in ((by_size(tallies, s), b) for s, b in POWER.items()) if own
    )


def by_size(tallies: Mapping[str, Tally], size: float) -> list[Tally]:
    return [tally for cell, tally in tallies.items() if cell.endswith(f"-{100 * size:.0f}")]


def share(tallies: Sequence[Tally]) -> float:
    return sum(t.regressions for t in tallies) / sum(t.verdicts for t in tallies)


def text_of(document: Mapping[str, Any]) -> str:
    tallies = {cell: Tally(**one) for cell, one in document["resampled"].items()}
    lines = [*_verdict(document, tallies), "", *_runs_table(document["runs"]), "", *_tallies_table(tallies)]
    lines += ["", *_peers_table(tallies)]
    if document["whole"]:
        lines += ["", *_wholes_table([Whole(**one) for one in document["whole"]])]
    return "\n".join(lines)


def _verdict(document: Mapping[str, Any], tallies: Mapping[str, Tally]) -> list[str]:
    same = tallies[BASE.name]
    low, high = wilson(same.regressions, same.verdicts)
    lines = [
        f"False alarms: {same.regressions} of {same.verdicts} ({same.regressions / same.verdicts:.1%}, "
        f"95 % interval of the resampling {low:.1%} to {high:.1%}; budget {FALSE_ALARMS:.0%}), "
        f"{same.pairs / same.verdicts:.1f} pairs each."
    ]
    for size, budget in POWER.items():
        own = by_size(tallies, size)
        if own:
            lines.append(f"Found at +{size:.0%}: {share(own):.1%} (budget {budget:.0%}).")
    planted = [tally for cell, tally in tallies.items() if cell != BASE.name]
    found = sum(tally.regressions for tally in planted)
    if found:
        right = sum(tally.right_cause for tally in planted)
        lines.append(f"Named cause right: {right / found:.1%} of the regressions found (budget {RIGHT:.0%}).")
    whole = [Whole(**one) for one in document["whole"]]
    if whole:
        named = [one for one in whole if one.exit_code == 1 and one.cell != BASE.name]
        right = sum(one.cause == TRUE_CAUSE[one.cell.partition("-")[0]] for one in named)
        lines.append(
            f"End to end: {sum(one.is_right for one in whole)} of {len(whole)} verdicts right, "
            f"cause right in {right} of {len(named)}."
        )
    return lines


def _runs_table(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = [f"{'training':14} {'runs':>5} {'left out':>9} {'p10 step':>10} {'slower':>8} {'spread':>8}"]
    for cell, own in runs.items():
        lines.append(
            f"{cell:14} {own['num_runs']:>5} {own['num_disturbed']:>9} {own['step_p10_ns'] / 1e6:>7.2f} ms "
            f"{own['slower']:>8.1%} {own['spread']:>8.1%}"
        )
    return lines


def _tallies_table(tallies: Mapping[str, Tally]) -> list[str]:
    heads = f"{'verdicts':>9} {'regression':>11} {'in doubt':>9} {'pairs':>6} {'cause':>7} {LAYER:>7}"
    lines = [f"{'resampled':14} {heads}"]
    for cell, tally in tallies.items():
        found = tally.regressions if cell != BASE.name else 0
        cause = f"{tally.right_cause / found:.1%}" if found else ""
        place = f"{tally.right_place / found:.1%}" if found and cell.startswith("layer") else ""
        lines.append(
            f"{cell:14} {tally.verdicts:>9} {tally.regressions / tally.verdicts:>11.1%} "
            f"{tally.doubts / tally.verdicts:>9.1%} {tally.pairs / tally.verdicts:>6.1f} "
            f"{cause:>7} {place:>7}"
        )
    return lines


def _peers_table(tallies: Mapping[str, Tally]) -> list[str]:
    lines = ["Regressions by the rules of others, on the same runs:"]
    lines.append(f"{'':14}" + "".join(f"{name:>20}" for name in PEERS))
    for cell, tally in tallies.items():
        lines.append(f"{cell:14}" + "".join(f"{tally.peers[name] / tally.verdicts:>20.1%}" for name in PEERS))
    return lines


def _wholes_table(whole: Sequence[Whole]) -> list[str]:
    lines = [
        f"{'end to end':14} {'exit':>5} {'pairs':>6} {'worse':>7} {'cause':>14} {'layer':>10} {'time':>7}"
    ]
    for one in whole:
        worse = "" if one.worse is None else f"{one.worse:.1%}"
        lines.append(
            f"{one.cell:14} {one.exit_code:>5} {one.pairs:>6} {worse:>7} {one.cause:>14} {one.place:>10} "
            f"{one.seconds:>5.0f} s"
        )
    return lines


if __name__ == "__main__":
    main()
