"""The command group. Commands are imported only when they are asked for, so `--help` stays fast."""

from __future__ import annotations

import sys
import traceback

import click

from perfscope import __version__
from perfscope.cli.lazy_group import HELP, LazyGroup
from perfscope.cli.name_collision import collision_here
from perfscope.cli.output import discard_stdout, notice
from perfscope.errors import EXIT_BUG, EXIT_OWN_FAILURE, EXIT_USER, PerfscopeError

# name -> (module, one-line help). The help stands here so that listing commands imports none of them.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("perfscope.cli.run", "Run a training command and record where its steps go."),
    "import": ("perfscope.cli.import_", "Turn traces of any profiler into a run directory."),
    "report": ("perfscope.cli.report", "Write the report of a run: text, HTML, PDF or JSON."),
    "top": ("perfscope.cli.top", "Watch a run while it trains: steps, slowest ranks, hangs."),
    "list": ("perfscope.cli.list_", "List runs, the latest first: step time and verdict."),
    "dashboard": ("perfscope.cli.dashboard", "Write a static site of all runs below a folder."),
    "open": ("perfscope.cli.open_", "Open the HTML report of a run in the browser."),
    "compare": ("perfscope.cli.compare", "Compare runs: scaling, schemes, differences."),
    "check": ("perfscope.cli.check.command", "Has training become slower? A gate for CI on noisy machines."),
    "baseline": ("perfscope.cli.baseline", "Keep the runs that later checks compare with."),
    "history": ("perfscope.cli.history", "Step times over many commits, and where they changed."),
    "export": ("perfscope.cli.export", "Write a run's timeline as Perfetto, Parquet or CSV."),
    "collect": ("perfscope.cli.collect", "Make one run of the directories that single nodes wrote."),
    "slurm": ("perfscope.cli.slurm.group", "Write, submit and follow batch jobs that record themselves."),
    "bench": (
        "perfscope.cli.bench.group",
        "Train a model under one of many parallel schemes, or compare them.",
    ),
    "predict": (
        "perfscope.cli.predict.command",
        "Predict step time and efficiency for machines not at hand.",
    ),
    "plan": (
        "perfscope.cli.plan.command",
        "Find the fastest way to train a model under a limit of memory.",
    ),
    "doctor": ("perfscope.cli.doctor.command", "Show what can be measured on this machine, and why not."),
    "completion": ("perfscope.cli.completion", "Print the script that makes a shell complete commands."),
}


SECTIONS = {
    "Record": ("run", "import", "collect", "slurm"),
    "Look": ("top", "list", "dashboard", "report", "open", "export"),
    "Compare": ("compare", "predict", "plan"),
    "CI": ("check", "baseline", "history"),
    "Schemes and machines": ("bench", "doctor"),
    "Shell": ("completion",),
}


@click.group(cls=LazyGroup, table=COMMANDS, sections=SECTIONS, context_settings=HELP)
@click.version_option(__version__, prog_name="perfscope")
@click.option("--debug", is_flag=True, help="Show the stack trace of an error.")
def cli(debug: bool) -> None:
    """Where does a training step go, and why does it not scale?

    \b
    Examples:
      perfscope run -- torchrun --standalone --nproc-per-node 4 train.py
      perfscope report perfscope-runs/latest
      perfscope import trace_rank*.json.gz -o my-run
    """


def main() -> None:
    """Entry point: typed errors become one line and an exit code, anything else is a bug (70)."""
    debug = "--debug" in sys.argv[1:2]
    _warn_of_collision()
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        click.echo("perfscope: interrupted", err=True)
        code = 130
    except PerfscopeError as error:
        if debug:
            traceback.print_exc()
        notice(str(error))
        code = error.exit_code
    except OSError as error:  # a full disk, a closed stdout: the user's machine, not a bug
        if debug:
            traceback.print_exc()
        discard_stdout()
        file_prefix = f"{error.filename}: " if error.filename else "cannot write the output: "
        notice(f"{file_prefix}{error.strerror or error}")
        code = EXIT_OWN_FAILURE if "run" in sys.argv[1:3] else EXIT_USER
    except Exception as error:  # noqa: BLE001 - the outermost boundary: say it is ours, keep the exit code
        if debug:
            traceback.print_exc()
        notice(
            f"internal error: {type(error).__name__}: {error} "
            "(run again as `perfscope --debug ...` and report the stack trace)"
        )
        code = EXIT_BUG
    sys.exit(code if isinstance(code, int) else 0)


def _warn_of_collision() -> None:
    if line := collision_here():
        notice(f"warning: {line}")
