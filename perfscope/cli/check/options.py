"""What `perfscope check` was asked, checked for sense before anything runs."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from perfscope.cli.lazy_group import GroupedCommand
from perfscope.errors import UsageError
from perfscope.gate.sequential import fewest_pairs
from perfscope.gate.settings import Settings

# What only means something while runs are made, by click's name.
_OF_RUNNING = {
    "output": "--output",
    "seed": "--seed",
    "timeout": "--timeout",
    "windows": "--windows",
    "no_trace": "--no-trace",
    "samples_per_step": "--samples-per-step",
    "sample_interval": "--sample-interval",
    "all_pairs": "--all-pairs",
    "pin_heap": "--pin-heap",
}
_AS_GIVEN = (
    *("runs", "base_ref", "links", "against", "calibrate", "output", "seed", "timeout", "windows"),
    *("no_trace", "samples_per_step", "sample_interval", "as_json"),
)
_OF_VERDICTS = {
    "junit": "--junit",
    "markdown": "--markdown",
    "formats": "--format",
    "history": "--history",
}
STDOUT = "-"


class CommandAfterDashes(GroupedCommand):
    """Keeps what follows the first `--` apart from the arguments before it."""

    KEY = "perfscope.command"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[self.KEY] = tuple(args[at + 1 :])
            if not ctx.meta[self.KEY]:
                raise UsageError("nothing behind `--`: put the training command there")
            args = args[:at]
        return super().parse_args(ctx, _spread(args))


def _spread(args: list[str]) -> list[str]:
    """`--against A B C`, as a shell makes of `--against old-*`: each up to the next option belongs to it."""
    spread: list[str] = []
    against = lacks = False
    for word in [*args, "--"]:  # the end, which parse_args has cut off
        if word.startswith("-") and word != "-":
            if lacks or word == "--against=":
                raise UsageError("--against names no run: the shell pattern behind it may match nothing")
            against = lacks = word == "--against"
            if not against:
                spread.append(word)
        elif against:
            spread += ["--against", word]
            lacks = False
        else:
            spread.append(word)
    return spread[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """The options of one call."""

    argv: tuple[str, ...]
    runs: tuple[Path, ...]
    base_words: tuple[str, ...]
    base_ref: str | None
    links: tuple[str, ...]
    against: tuple[Path, ...]
    baseline: Path | None
    baseline_given: bool  # as an option, not only by the settings
    calibrate: bool
    pairs_given: bool
    history: Path | None
    output: Path | None
    seed: int | None
    timeout: float | None
    windows: int
    no_trace: bool
    samples_per_step: int | None
    sample_interval: str
    as_json: bool
    formats: tuple[tuple[str, Path], ...]
    settings: Settings

    @classmethod
    def of(cls, options: Mapping[str, Any], argv: tuple[str, ...], given: Collection[str]) -> CheckOptions:
        """From click's options.

        Args:
            argv: the command behind `--`.
            given: names of the options that stand on the command line.

        Raises:
            UsageError: they make no sense together, or an output cannot be written.
        """
        from perfscope.gate.config import load_settings, with_overrides

        settings = with_overrides(
            load_settings(Path.cwd(), options["config"]),
            pairs=options["pairs"],
            threshold=options["threshold"],
            name=options["name"],
            metric_options=options["metric_options"],
            allow=options["allow"],
        )
        settings = replace(
            settings,
            early_stop=settings.early_stop and not options["all_pairs"],
            pin_heap=settings.pin_heap or options["pin_heap"],
        )
        asked = cls(
            **{name: options[name] for name in _AS_GIVEN},
            argv=argv,
            base_words=_split(options["base_cmd"]),
            baseline=options["baseline"],
            baseline_given=options["baseline"] is not None,
            pairs_given=options["pairs"] is not None,
            history=options["history"] or settings.history,
            formats=_formats(options),
            settings=settings,
        )
        asked._check()
        asked._refuse_idle(given)
        asked._check_outputs()
        if asked.needs_default_baseline:
            asked = replace(asked, baseline=settings.baseline)
        if asked.argv and not asked.has_base and not asked.calibrate:
            raise UsageError(
                "no base to compare with: give --base-ref, --base-cmd, --baseline or --against "
                "(or --calibrate to measure the noise)"
            )
        if asked.argv and not asked.calibrate:
            _check_pairs(settings)
        return asked

    @property
    def needs_default_baseline(self) -> bool:
        return not self.has_base and not self.calibrate

    @property
    def has_base(self) -> bool:
        return bool(self.base_words or self.base_ref or self.against or self.baseline)

    def _check(self) -> None:
        bases = {
            "--base-cmd": bool(self.base_words),
            "--base-ref": self.base_ref is not None,
            "--against": bool(self.against),
            "--baseline": self.baseline is not None,
        }
        given = [name for name, is_given in bases.items() if is_given]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} both name a base; give one")
        if self.calibrate and given:
            raise UsageError(f"--calibrate compares the command with itself; leave out {given[0]}")
        if self.argv and self.runs:
            raise UsageError(
                f"both a command and runs ({self.runs[0]} ...); what is to be judged goes in one of them"
            )
        if self.runs and (self.base_words or self.base_ref):
            raise UsageError(f"{given[0]} needs a command behind `--`, not runs")
        if self.links and self.base_ref is None:
            raise UsageError("--link only means something with --base-ref")
        if self.settings.pin_heap and self.argv and platform.libc_ver()[0] != "glibc":
            raise UsageError("--pin-heap is for glibc's malloc, which this Python does not use; leave it out")

    def _refuse_idle(self, given: Collection[str]) -> None:
        """Options that would do nothing. Raises UsageError."""
        if self.calibrate:
            for name, option in _OF_VERDICTS.items():
                if name in given:
                    raise UsageError(f"--calibrate gives no verdict: leave out {option} (--json works)")
        if self.runs:
            for name, option in _OF_RUNNING.items():
                if name in given:
                    raise UsageError(
                        f"{option} is for a command behind `--`; runs that are there are only read"
                    )

    def _check_outputs(self) -> None:
        """Before anything is trained. Raises UsageError: an output could not be written afterwards."""
        files = [path for _, path in self.formats]
        on_stdout = [f"{name}={STDOUT}" for name, path in self.formats if str(path) == STDOUT]
        taking = ["--json"] * self.as_json + on_stdout
        if len(taking) > 1:
            raise UsageError(f"{' and '.join(taking)} both go to stdout; write all but one to files")
        files = [path for path in files if str(path) != STDOUT]
        for path in files:
            if files.count(path) > 1:
                raise UsageError(f"two formats are to be written to {path}; name two files")
            _check_writable(path)
        if self.history is not None and self.history.is_dir():
            raise UsageError(f"cannot write {self.history}: it is a directory; name a file in it")


def _check_writable(path: Path) -> None:
    """Raises UsageError: rundir.files.write_aside could not write it."""
    target = path.resolve()
    if target.is_dir():
        raise UsageError(f"cannot write {path}: it is a directory; name a file in it")
    if not target.parent.is_dir():
        raise UsageError(f"cannot write {path}: {path.parent} is no folder; make it first")
    # A regular file is replaced by one that is written beside it.
    written = target if target.exists() and not target.is_file() else target.parent
    if not os.access(written, os.W_OK):
        raise UsageError(f"cannot write {path}: no permission to write {written}")


def _check_pairs(settings: Settings) -> None:
    """Raises UsageError: so few pairs could prove nothing, however slow the head is."""
    needed = max(settings.fewest, fewest_pairs(settings.alpha))
    if settings.pairs < needed:
        raise UsageError(
            f"{settings.pairs} pairs can prove nothing (alpha is {settings.alpha:g}): give --pairs {needed} "
            "or more"
        )


def _split(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    try:
        parts = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--base-cmd {text!r} cannot be split into words: {error}") from None
    if not parts:
        raise UsageError("--base-cmd is empty")
    return parts


def _formats(options: Mapping[str, Any]) -> tuple[tuple[str, Path], ...]:
    from perfscope.reports.gate.registry import FORMATS

    wanted = [(name, options[name]) for name in ("markdown", "junit") if options[name] is not None]
    for word in options["formats"]:
        name, equals, file = word.partition("=")
        if name not in FORMATS or not equals or not file:
            raise UsageError(f"--format {word!r}: write NAME=FILE, with one of {', '.join(FORMATS)}")
        wanted.append((name, Path(file)))
    return tuple(wanted)
