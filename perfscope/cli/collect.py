"""`perfscope collect`: parse, merge, say what was gathered and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import notice, print_result
from perfscope.messages.lists import first_of, plural

if TYPE_CHECKING:
    from perfscope.launch.merging import Collected

JSON_SCHEMA_VERSION = 1
EXIT_RANKS_MISSING = 3
_MOST_NAMED = 16


@click.command("collect", context_settings=HELP)
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR...")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Run directory to make, or one collected before, to add to.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was gathered as JSON.")
def command(run_dirs: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Make one run of the directories that the nodes of a job wrote each for itself.

    Where nodes share no file system, every node has a run directory of its own, of the same run. Copy them
    to one place (under names of their own) and collect them; DIR stays as it is. Collecting again changes
    nothing, a DIR that came later is added, and a rank that was copied half is replaced by a fuller copy.

    \b
    Examples:
      srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 \\
          sh -c 'cp -r /scratch/run "$SLURM_SUBMIT_DIR/parts/$SLURMD_NODENAME"'
      perfscope collect parts/* -o my-run
      perfscope collect my-laptop/late-node -o my-run --json | jq .missing

    \b
    Exit codes:
      0 every expected rank is there; 3 gathered, but ranks are missing; 1 the directories
      are not parts of one run, or cannot be read or written; 2 wrong options.
    """
    from perfscope.launch.merging import collect

    collected = collect(run_dirs, output)
    if as_json:
        print_result(json.dumps(_document(collected), indent=1, ensure_ascii=False) + "\n")
    else:
        print_result(_text(collected))
    for note in collected.notes:
        notice(note)
    if collected.missing:
        click.get_current_context().exit(EXIT_RANKS_MISSING)


def _text(collected: Collected) -> str:
    lines = []
    for tally in collected.tallies:
        done = [
            f"{count} {word}"
            for count, word in (
                (tally.num_copied, "copied"),
                (tally.num_replaced, "replaced by a fuller copy"),
                (tally.num_kept, "there already"),
            )
            if count
        ]
        ranks = f"ranks {_listed(tally.ranks)}" if tally.ranks else "no rank"
        lines.append(f"{tally.path}: {ranks}{': ' if done else ''}{', '.join(done)}")
    of = f" of {collected.expected}" if collected.expected is not None else ""
    noun = plural("rank", len(collected.attached) if collected.expected is None else collected.expected)
    state = "" if collected.changed else ", unchanged"
    lines.append(f"{collected.run_dir}: {len(collected.attached)}{of} {noun}{state}")
    return "\n".join(lines) + "\n"


def _document(collected: Collected) -> dict[str, object]:
    return {
        "schema_version": JSON_SCHEMA_VERSION,
        "run": str(collected.run_dir),
        "expected_ranks": collected.expected,
        "ranks": list(collected.attached),
        "missing": list(collected.missing),
        "changed": collected.changed,
        "sources": [
            {
                "path": str(tally.path),
                "ranks": list(tally.ranks),
                "copied": tally.num_copied,
                "replaced": tally.num_replaced,
                "kept": tally.num_kept,
            }
            for tally in collected.tallies
        ],
        "notes": list(collected.notes),
    }


def _listed(ranks: tuple[int, ...]) -> str:
    return first_of(ranks, _MOST_NAMED)
