"""The summary that a terminal gets: what it says first, and that it always fits."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from msgspec import structs

from perfscope.cli.main import COMMANDS, SECTIONS, cli
from perfscope.reports.build import build_report
from perfscope.reports.model import FindingList, Note, Report
from perfscope.reports.summary import MOST_LINES, render_summary
from perfscope.reports.terminal import cells
from perfscope.reports.text import render_sections
from tests.unit.reports.test_golden import check
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_thirty_lines_of_the_terminal(width: int) -> None:
    text = render_summary(build_report(synthetic_analysis(), synthetic_timeline()), width=width)
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(cells(line) for line in lines) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_its_text_is_as_kept(width: int) -> None:
    report = build_report(synthetic_analysis(), synthetic_timeline())
    check(f"summary-{width}.txt", render_summary(report, width=width))


def doubtful_report() -> Report:
    """With a verdict of medium confidence, a symptom below it, and a warning."""
    report = build_report(synthetic_analysis(), synthetic_timeline())
    sections = []
    for section in report.sections:
        blocks = tuple(
            structs.replace(block, cards=(structs.replace(block.cards[0], symptoms=block.cards[1:]),))
            if isinstance(block, FindingList)
            else block
            for block in section.blocks
        )
        sections.append(structs.replace(section, blocks=blocks))
    return structs.replace(
        report,
        sections=tuple(sections),
        verdict=structs.replace(report.verdict, confidence="Confidence medium: 7 traced steps."),
        notices=(Note(text="Other processes used 31 % of the CPUs while this run was recorded."),),
    )


@pytest.mark.parametrize("width", [80, 120])
def test_a_doubtful_verdict_with_symptoms_and_a_warning_is_as_kept(width: int) -> None:
    check(f"summary-doubtful-{width}.txt", render_summary(doubtful_report(), width=width))


def test_the_verdict_comes_before_every_figure() -> None:
    report = build_report(synthetic_analysis(), synthetic_timeline())
    text = " ".join(render_summary(report, width=120).split())
    assert text.index(report.verdict.headline[:40]) < text.index("Step ")
    assert text.index(report.verdict.action[:40]) < text.index("Step ")


def test_what_else_would_help_does_not_repeat_the_verdict() -> None:
    report = build_report(synthetic_analysis(), synthetic_timeline())
    text = render_summary(report, width=120)
    assert text.count("Saves at most") == 1
    assert report.verdict.headline[:24] not in text[text.index("What else would help") :]


def test_what_does_not_fit_is_in_the_whole_text_and_the_summary_says_so() -> None:
    report = build_report(synthetic_analysis(), synthetic_timeline())
    notices = tuple(Note(text=f"{number} " + "words " * 40) for number in range(9))
    long = structs.replace(
        report, notices=notices, verdict=structs.replace(report.verdict, headline="words " * 90)
    )
    lines = render_summary(long, width=60).splitlines()
    assert len(lines) <= MOST_LINES
    assert any(line.endswith("the whole text: --full") for line in lines) == (len(lines) == MOST_LINES)


def test_a_section_alone_is_that_of_the_whole_text() -> None:
    report = build_report(synthetic_analysis(), synthetic_timeline())
    assert render_sections(report, ["layers"]).startswith("Layers\n")
    assert "Name" in render_sections(report, ["run"])


def test_an_unknown_command_gets_a_suggestion() -> None:
    result = CliRunner().invoke(cli, ["reprot"])
    assert result.exit_code == 2
    assert "Did you mean 'report'?" in result.output


def test_every_command_has_one_place_in_the_help() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_their_completion(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert "_PERFSCOPE_COMPLETE" in result.output
