"""What `perfscope check` was asked, checked for sense before anything runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from perfscope.errors import UsageError
from perfscope.gate.settings import Settings


class CommandAfterDashes(click.Command):
    """Keeps what stands behind the first `--` apart from the arguments before it."""

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
    against = False
    for word in args:
        if word.startswith("-") and word != "-":
            against = word == "--against"
            if not against:
                spread.append(word)
        elif against:
            spread += ["--against", word]
        else:
            spread.append(word)
    return spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of one call."""

    words: tuple[str, ...]
    runs: tuple[Path, ...]
    base_words: tuple[str, ...]
    base_ref: str | None
    links: tuple[str, ...]
    against: tuple[Path, ...]
    baseline: Path | None
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
    def of(cls, options: Mapping[str, Any], words: tuple[str, ...]) -> Asked:
        """From click's options. Raises UsageError: they make no sense together."""
        from perfscope.gate.config import load_settings, with_overrides

        settings = with_overrides(
            load_settings(Path.cwd(), options["config"]),
            pairs=options["pairs"],
            threshold=options["threshold"],
            name=options["name"],
            metric_options=options["metric_options"],
            allow=options["allow"],
        )
        if options["all_pairs"]:
            settings = replace(settings, early_stop=False)
        asked = cls(
            words=words,
            runs=options["runs"],
            base_words=_split(options["base_cmd"]),
            base_ref=options["base_ref"],
            links=options["links"],
            against=options["against"],
            baseline=options["baseline"],
            calibrate=options["calibrate"],
            pairs_given=options["pairs"] is not None,
            history=options["history"] or settings.history,
            output=options["output"],
            seed=options["seed"],
            timeout=options["timeout"],
            windows=options["windows"],
            no_trace=options["no_trace"],
            samples_per_step=options["samples_per_step"],
            sample_interval=options["sample_interval"],
            as_json=options["as_json"],
            formats=_formats(options),
            settings=settings,
        )
        asked._check()
        if asked.needs_default_baseline:
            asked = replace(asked, baseline=settings.baseline)
        if asked.words and not asked.has_base and not asked.calibrate:
            raise UsageError(
                "no base to compare with: give --base-ref, --base-cmd, --baseline or --against "
                "(or --calibrate to measure the noise)"
            )
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
        if self.words and self.runs:
            raise UsageError(
                f"both a command and runs ({self.runs[0]} ...); what is to be judged goes in one of them"
            )
        if self.runs and (self.base_words or self.base_ref):
            raise UsageError(f"{given[0]} needs a command behind `--`, not runs")
        if self.links and self.base_ref is None:
            raise UsageError("--link only means something with --base-ref")


def _split(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--base-cmd {text!r} cannot be split into words: {error}") from None
    if not words:
        raise UsageError("--base-cmd is empty")
    return words


def _formats(options: Mapping[str, Any]) -> tuple[tuple[str, Path], ...]:
    from perfscope.reports.gate.registry import FORMATS

    wanted = [(name, options[name]) for name in ("markdown", "junit") if options[name] is not None]
    for word in options["formats"]:
        name, equals, file = word.partition("=")
        if name not in FORMATS or not equals or not file:
            raise UsageError(f"--format {word!r}: write NAME=FILE, with one of {', '.join(FORMATS)}")
        wanted.append((name, Path(file)))
    return tuple(wanted)
