"""`perfscope predict`: parse, call, print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.cli.engine import Engine, engine_options
from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import print_result
from perfscope.errors import PerfscopeError, UsageError

if TYPE_CHECKING:
    from perfscope.analysis.predict.records import MeasuredRun, Plan, Refusal
    from perfscope.analysis.predict.results import PredictionReport
    from perfscope.cli.predict.runs import Loaded

MODES = ("strong", "weak")
_MOST_RANKS = 4096
_SAME_BATCH = 1.01


@click.command("predict", context_settings=HELP)
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN|STUDY...")
@click.option(
    "--world-sizes", metavar="N,N...", help="Numbers of ranks to predict, e.g. 2,4,8; required to predict."
)
@click.option(
    "--advise",
    is_flag=True,
    help="Instead: samples, workers and servers for the first RUN, by published lemmas.",
)
@click.option(
    "--ranks-per-host",
    type=click.IntRange(1),
    metavar="K",
    help="Ranks on each host of the target.  [default: as in the runs]",
)
@click.option(
    "--cores-per-rank",
    type=click.FloatRange(0, min_open=True),
    metavar="C",
    help="Cores of each rank of the target.  [default: as in the largest run]",
)
@click.option(
    "--network",
    metavar="NAME|LAT,BW",
    help="Links between hosts: edr, hdr, ndr, opa, 1gbit ..., or 2us,100Gbit.  [default: as measured]",
)
@click.option(
    "--schemes",
    metavar="NAME,NAME...",
    help="Schemes, see `perfscope bench list`.  [default: those that ran]",
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    help="strong: the batch stays; weak: the batch per rank stays.  [default: as the runs]",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    metavar="B",
    help="Samples of a step; strong: over all ranks, weak: per rank.  [default: the runs']",
)
@click.option(
    "--extrapolate", is_flag=True, help="Also beyond 4 x the ranks or the samples per rank measured."
)
@click.option("--json", "as_json", is_flag=True, help="Print the prediction as JSON.")
@engine_options
def command(
    runs: tuple[Path, ...],
    world_sizes: str | None,
    advise: bool,
    ranks_per_host: int | None,
    cores_per_rank: float | None,
    network: str | None,
    schemes: str | None,
    mode: str | None,
    batch: int | None,
    extrapolate: bool,
    as_json: bool,
    engine: Engine,
) -> None:
    """Predict step time, efficiency and the best scheme on machines not at hand.

    Compute, latency and bandwidth are fitted to the runs, volumes come from the schemes' formulas, overlap
    and stragglers are carried over as observed (docs/predict.md). What the data do not support is refused.

    \b
    Examples:
      perfscope predict my-study --world-sizes 2,4,8
      perfscope predict run-2 run-1 --world-sizes 8 --network edr --ranks-per-host 1
      perfscope predict my-study --world-sizes 8,16 --network hdr --mode strong --batch 48
      perfscope predict my-study --world-sizes 4 --schemes dp.ddp,hy.owt --network 30us,1Gbit --json
      perfscope predict --advise my-run run-of-1-rank run-of-4-ranks
    """
    if advise:
        from perfscope.cli.predict.advice import advice_of

        _refuse_beside_advise(world_sizes, ranks_per_host, cores_per_rank, network, schemes, mode, batch)
        print_result(advice_of(runs, engine, as_json))
        return
    if world_sizes is None:
        raise UsageError("--world-sizes is required; give the numbers of ranks to predict, such as 2,4,8")
    from perfscope.analysis.predict.forecast import Question, predict
    from perfscope.analysis.predict.networks import parse_network
    from perfscope.cli.predict.runs import load_runs, say_notes

    sizes = parse_sizes(world_sizes)
    link = None if network is None else parse_network(network)
    loaded = load_runs(runs, engine)
    say_notes(loaded.notes)
    settled, assumed = settle_mode(loaded.runs, mode)
    per_host = ranks_per_host or max(loaded.runs, key=lambda run: run.plan.num_ranks).ranks_per_host
    plans, refusals = _plans(loaded, _names(schemes), sizes, per_host, settled, batch)
    report = predict(
        loaded.runs,
        Question(
            plans=plans,
            refusals=refusals,
            mode=settled,
            network=link,
            links=loaded.links,
            extrapolate=extrapolate,
            cores_per_rank=cores_per_rank,
            backend=loaded.backend,
        ),
    )
    print_result(_text_of(report, per_host, loaded.notes, [assumed] if assumed else [], as_json))


def _text_of(
    report: PredictionReport, per_host: int, notes: Sequence[str], assumed: Sequence[str], as_json: bool
) -> str:
    """What the command prints. Raises PerfscopeError where nothing can be predicted."""
    from perfscope.cli.predict.text import grouped, prediction_document, prediction_text

    if not report.predictions:
        reasons = [f"{plans}: {reason}" for plans, reason in grouped(report.refusals)]
        raise PerfscopeError("nothing can be predicted: " + "; ".join(reasons))
    if as_json:
        return prediction_document(report, per_host, [*notes, *assumed])
    return prediction_text(report, per_host, assumed)


def _refuse_beside_advise(*given: object) -> None:
    if any(value is not None for value in given):
        raise UsageError("--advise takes a run, --json and nothing else; leave the other options out")


def parse_sizes(text: str) -> tuple[int, ...]:
    """`2,4,8`, sorted and without repeats.

    Raises:
        UsageError: one is no whole number from 1 to 4,096.
    """
    sizes = set()
    for word in text.split(","):
        plain = word.strip()
        if not (plain.isascii() and plain.isdigit()) or not 1 <= int(plain) <= _MOST_RANKS:
            raise UsageError(
                f"--world-sizes: {plain!r} is no number of ranks; give whole numbers from 1 to "
                f"{_MOST_RANKS:,} such as 2,4,8"
            )
        sizes.add(int(plain))
    return tuple(sorted(sizes))


def _names(text: str | None) -> tuple[str, ...]:
    """Scheme names, commas inside brackets aside. Raises UsageError for an empty one."""
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"--schemes {text!r} has an empty name; write dp.ddp,hy.owt")
    return tuple(dict.fromkeys(names))


def settle_mode(runs: Sequence[MeasuredRun], asked: str | None) -> tuple[str, str | None]:
    """(mode, what was assumed): as asked, else as the runs' batches tell."""
    if asked is not None:
        return asked, None
    from perfscope.analysis.scaling.speedup import detect_mode
    from perfscope.messages.scaling import mode_text

    of_size: dict[int, list[float]] = {}
    for run in runs:
        if run.plan.batch is None:
            return "weak", "weak scaling is taken, as the batch is not known: every rank keeps its own"
        of_size.setdefault(run.plan.num_ranks, []).append(run.plan.batch)
    alike = all(max(batches) <= _SAME_BATCH * min(batches) for batches in of_size.values())
    mode_found, reason = None, "the runs of one number of ranks have several batches"
    if len(of_size) > 1 and alike:
        samples = {num: batches[0] / num for num, batches in of_size.items()}
        mode_found, why = detect_mode(samples)
        reason = mode_text(why, samples, mode_found)
    elif alike:
        reason = "the runs have one number of ranks"
    if mode_found is not None:
        return mode_found, reason
    return "strong", f"strong scaling is assumed ({reason}); --mode weak keeps the batch per rank"


def _plans(
    loaded: Loaded, names: tuple[str, ...], sizes: Sequence[int], per_host: int, mode: str, batch: int | None
) -> tuple[list[Plan], list[Refusal]]:
    if loaded.configs and _has_torch(loaded, names):
        from perfscope.cli.predict.plans import bench_plans

        scheme_names = names or tuple(
            name for name in loaded.configs if name != "serial" or set(sizes) == {1}
        )
        return bench_plans(
            loaded.configs,
            scheme_names or ("dp.ddp",),
            sizes,
            per_host,
            _batches(loaded.runs, sizes, mode, batch),
            weak=mode == "weak",
        )
    return _script_plans(loaded, names, sizes, per_host, mode, batch)


def _has_torch(loaded: Loaded, names: tuple[str, ...]) -> bool:
    """Without it only torch's own data parallelism is left; raises for anything else."""
    from importlib.util import find_spec

    from perfscope.analysis.predict.scripts import DDP
    from perfscope.cli.bench.options import require_torch

    if find_spec("torch") is not None:
        return True
    if set(names or loaded.configs) - {DDP, "serial"}:
        require_torch()
    return False


def _script_plans(
    loaded: Loaded, names: tuple[str, ...], sizes: Sequence[int], per_host: int, mode: str, batch: int | None
) -> tuple[list[Plan], list[Refusal]]:
    from perfscope.analysis.predict.records import Refusal
    from perfscope.analysis.predict.scripts import DDP, script_plan

    if set(names) - {DDP}:
        raise UsageError(
            f"runs of a script only show {DDP}, its own scheme; other schemes are predicted from runs of "
            f"`perfscope bench run`"
        )
    have_batch = all(run.plan.batch is not None for run in loaded.runs)
    if batch is not None and not have_batch:
        raise UsageError(
            "--batch needs runs whose batch is known; record them with --samples-per-step, or leave it out"
        )
    batches = _batches(loaded.runs, sizes, mode, batch) if have_batch else {}
    plans, refusals = [], []
    for size in sizes:
        try:
            if size % min(per_host, size):
                raise ValueError(
                    f"{size} ranks do not divide into hosts of {per_host}; change --ranks-per-host"
                )
            of_size = float(batches[size]) if have_batch else None
            plans.append(script_plan(loaded.runs, loaded.buckets, size, min(per_host, size), of_size))
        except ValueError as error:  # noqa: PERF203 - each size is refused by itself
            refusals.append(Refusal(scheme=DDP, num_ranks=size, reason=str(error)))
    return plans, refusals


def _batches(
    runs: Sequence[MeasuredRun], sizes: Sequence[int], mode: str, batch: int | None
) -> dict[int, int]:
    """World size -> B.

    Raises:
        UsageError: the runs have several batches, and none was asked for.
    """
    weak = mode == "weak"
    if batch is None:
        batches = {
            round((run.plan.batch or 0) / (run.plan.num_ranks if weak else 1))
            for run in runs
            if run.plan.batch
        }
        if len(batches) != 1:
            raise UsageError(
                f"the runs have several batches{' per rank' if weak else ''} "
                f"({', '.join(map(str, sorted(batches)))}); say which with --batch"
            )
        batch = batches.pop()
    return {size: batch * size if weak else batch for size in sizes}
