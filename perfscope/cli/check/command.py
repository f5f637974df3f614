"""`perfscope check`: parse, measure or read, judge, print."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from perfscope.cli.check.options import CheckOptions, CommandAfterDashes
from perfscope.cli.check.output import mute_dead_stderr
from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import discard_stdout
from perfscope.errors import EXIT_USER, PerfscopeError, UsageError
from perfscope.vocabulary.defaults import CHECK

_F = TypeVar("_F", bound=Callable[..., Any])
EXIT_FAILED = 5
_PATH = click.Path(path_type=Path)


def _never_one(function: _F) -> _F:
    """1 means regression: what goes wrong in other ways must not be taken for one."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except PerfscopeError as error:
            if error.exit_code == EXIT_USER:
                error.exit_code = EXIT_FAILED
            mute_dead_stderr()
            raise
        except OSError as error:
            discard_stdout()
            mute_dead_stderr()
            failure = PerfscopeError(f"{error.filename or 'output'}: {error.strerror or error}")
            failure.exit_code = EXIT_FAILED
            raise failure from error

    return wrapped  # type: ignore[return-value]


@click.command(
    "check",
    cls=CommandAfterDashes,
    groups={
        "Compare with": ("base_cmd", "base_ref", "links", "against", "baseline"),
        "Judgment": ("calibrate", "pairs", "threshold", "metric_options", "allow", "all_pairs", "seed"),
        "Runs": (
            *("output", "timeout", "windows", "no_trace", "samples_per_step", "sample_interval", "pin_heap"),
        ),
        "Output": ("as_json", "markdown", "junit", "formats", "history"),
    },
    context_settings=HELP,
    options_metavar="[OPTIONS]",
)
@click.argument("runs", nargs=-1, type=_PATH, metavar="[RUN...] [-- COMMAND...]")
@click.option("--base-cmd", metavar="TEXT", help="The command to compare with, as one quoted word.")
@click.option("--base-ref", metavar="GIT_REF", help="Run the same command on this commit, in a worktree.")
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="PATH",
    help="With --base-ref: link this untracked path (data) into the worktree; repeatable.",
)
@click.option(
    "--against",
    multiple=True,
    type=_PATH,
    metavar="RUN",
    help="A run to compare with; repeatable, or a shell pattern right behind it.",
)
@click.option(
    "--baseline", type=_PATH, metavar="FILE", help="Compare with runs stored by `perfscope baseline`."
)
@click.option("--calibrate", is_flag=True, help="Measure the noise here; suggest pairs and a threshold.")
@click.option(
    "--pairs",
    type=click.IntRange(1, 200),
    metavar="N",
    help="Interleaved pairs [default: 8; to calibrate 20].",
)
@click.option("--threshold", metavar="SHARE", help="Slow-down of the p10 step that fails [default: 5%].")
@click.option(
    "--metric",
    "metric_options",
    multiple=True,
    metavar="ID=WHAT",
    help="Severity, threshold or both of a metric: peak_memory=error:10%, stalls=off; repeatable.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="FIELD",
    help="A fact of the fingerprint that may differ: torch, perfscope, batch ...; repeatable.",
)
@click.option("--name", metavar="TEXT", help="The benchmark's name [default: the script's].")
@click.option(
    "--config", type=_PATH, metavar="FILE", help="Settings [default: perfscope.toml, pyproject.toml]."
)
@click.option("--history", type=_PATH, metavar="FILE", help="Add the judged runs to this history.")
@click.option(
    "-o", "--output", type=_PATH, metavar="DIR", help="Where the runs go [default: perfscope-runs/...]."
)
@click.option("--seed", type=int, metavar="N", help="Of the order within pairs [default: random].")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="A run may take this long."
)
@click.option("--all-pairs", is_flag=True, help="Run all pairs even where the verdict is settled early.")
@click.option(
    "--pin-heap",
    is_flag=True,
    help="Keep freed memory in the process on both sides, so that glibc's heap does not decide the step.",
)
@click.option(
    "--windows",
    type=click.IntRange(0, 1000),
    default=CHECK.windows,
    show_default=True,
    help="Windows to trace.",
)
@click.option("--no-trace", is_flag=True, help="Trace nothing: no layers and collectives in the explanation.")
@click.option("--samples-per-step", type=click.IntRange(1), metavar="N", help="Same as in `perfscope run`.")
@click.option(
    "--sample-interval",
    default="100ms",
    show_default=True,
    metavar="TIME",
    help="Same as in `perfscope run`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--markdown", type=_PATH, metavar="FILE", help="Write Markdown to FILE.")
@click.option("--junit", type=_PATH, metavar="FILE", help="Write JUnit XML to FILE.")
@click.option(
    "--format",
    "formats",
    multiple=True,
    metavar="NAME=FILE",
    help="json, markdown, junit, annotations, bmf, benchmark-action, openmetrics; - is stdout.",
)
@click.pass_context
@_never_one
def command(context: click.Context, /, **options: Any) -> None:
    """Has training become slower? A verdict for CI that can be trusted on noisy machines.

    The command behind `--` is trained in pairs with the base: one after the other, in random order, as often
    as it takes. Runs are judged by their p10 step time with an exact one-sided test on the pairs; a
    regression must be proven and larger than the threshold. Disturbed runs are repeated, not judged.

    \b
    Examples:
      perfscope check --base-ref origin/main -- torchrun --nproc-per-node 2 train.py
      perfscope check --base-cmd "python train.py" -- python train.py --fused
      perfscope check --baseline perfscope-baseline.json -- python train.py
      perfscope check runs/new-* --against runs/old-* --junit check.xml
      perfscope check --calibrate -- python train.py

    \b
    Exit codes:
      0 pass          no slow-down beyond the threshold is proven
      1 regression    a metric of severity error is proven worse
      2 usage         the command line or the settings are wrong
      3 inconclusive  too few runs, disturbed, in doubt to the end, or not comparable
      4 no baseline   the baseline is missing, or of another machine
      5 failed        the training failed, or could not be measured
    """
    given = {name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    asked = CheckOptions.of(options, tuple(context.meta.get(CommandAfterDashes.KEY, ())), given)
    from perfscope.cli.check.modes import calibrate, judge_runs, measure

    if asked.calibrate:
        try:
            code = calibrate(asked)
        except BrokenPipeError:  # the one who reads the table has read enough
            discard_stdout()
            code = 0
    elif asked.argv:
        code = measure(asked)
    elif asked.runs:
        code = judge_runs(asked)
    else:
        raise UsageError(
            "nothing to check: put the training command behind `--`, or name runs "
            f"(see `{context.command_path} --help`)"
        )
    context.exit(code)
