"""What `perfscope check` refuses before it trains anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfscope.cli.check.command import command
from perfscope.cli.check.options import CheckOptions, CommandAfterDashes
from perfscope.errors import UsageError
from perfscope.gate.sequential import fewest_pairs
from perfscope.gate.settings import ALPHA

FEWEST = fewest_pairs(ALPHA)
TRAIN = ("--base-cmd", "train a", "--", "train", "b")


def ask(*words: str) -> CheckOptions:
    """The options as the command sees them, without running anything."""
    context = command.make_context("check", list(words))
    given = {
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }
    return CheckOptions.of(context.params, tuple(context.meta.get(CommandAfterDashes.KEY, ())), given)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--pairs", "3", *TRAIN], rf"3 pairs can prove nothing .* --pairs {FEWEST}"),
        (["--pairs", str(FEWEST - 1), *TRAIN], rf"{FEWEST} pairs or more|--pairs {FEWEST}"),
        (["new", "--against"], "--against names no run"),
        (["new", "--against", "--json"], "--against names no run"),
        (["--against", "--", "train"], "--against names no run"),
        (["new", "--against="], "--against names no run"),
        (["--calibrate", "--junit", "a.xml", "--", "train"], "leave out --junit"),
        (["--calibrate", "--markdown", "a.md", "--", "train"], "leave out --markdown"),
        (["--calibrate", "--format", "bmf=a", "--", "train"], "leave out --format"),
        (["--calibrate", "--history", "a", "--", "train"], "leave out --history"),
        (["a", "--against", "b", "--timeout", "3"], "--timeout is for a command"),
        (["a", "--against", "b", "-o", "c"], "--output is for a command"),
        (["a", "--against", "b", "--seed", "1"], "--seed is for a command"),
        (["a", "--against", "b", "--windows", "4"], "--windows is for a command"),
        (["a", "--against", "b", "--json", "--format", "bmf=-"], "--json and bmf=- both go to stdout"),
        (["a", "--against", "b", "--format", "junit=-", "--format", "bmf=-"], "both go to stdout"),
        (["a", "--against", "b", "--junit", "x", "--format", "bmf=x"], "two formats"),
        (["--junit", "nowhere/a.xml", *TRAIN], "nowhere is no folder"),
        (["--markdown", ".", *TRAIN], "is a directory"),
        (["--format", "bmf=.", *TRAIN], "is a directory"),
        (["--history", ".", *TRAIN], "is a directory"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(words: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        ask(*words)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused_before_training(project: Path) -> None:
    closed = project / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(UsageError, match="no permission"):
        ask("--junit", "closed/a.xml", *TRAIN)


@pytest.mark.parametrize(
    "words",
    [
        ["--pairs", str(FEWEST), *TRAIN],
        ["--pairs", "4", "a", "--against", "b"],
        ["--calibrate", "--pairs", "4", "--json", "--", "train"],
        ["--junit", "a.xml", "--format", "bmf=-", *TRAIN],
        ["--format", "bmf=/dev/stdout", *TRAIN],
        ["a", "b", "--against", "c", "d", "--json", "e"],
    ],
)
def test_what_makes_sense_is_taken(words: list[str]) -> None:
    ask(*words)


def test_more_certainty_needs_more_pairs(project: Path) -> None:
    (project / "perfscope.toml").write_text("[check]\nalpha = 0.001\npairs = 16\n")
    assert ask(*TRAIN).settings.pairs == 16
    with pytest.raises(UsageError, match=r"10 pairs or more|--pairs 10 or more"):
        ask("--pairs", "8", *TRAIN)


def test_a_baseline_of_the_settings_was_not_given(project: Path) -> None:
    (project / "perfscope.toml").write_text('[check]\nbaseline = "b.json"\nhistory = "h.sqlite"\n')
    by_default = ask("run")
    assert by_default.baseline is not None and not by_default.baseline_given
    assert ask("run", "--baseline", "c.json").baseline_given
    assert ask("--calibrate", "--", "train").calibrate, "a history of the settings is nobody's wish here"


def test_runs_behind_against_and_others_are_told_apart() -> None:
    asked = ask("a", "b", "--against", "c", "d", "--json", "e")
    assert [str(path) for path in asked.runs] == ["a", "b", "e"]
    assert [str(path) for path in asked.against] == ["c", "d"]
