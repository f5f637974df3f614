"""The terminal report: verdict first, within the width, no color unless asked, nothing active in it."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from perfscope.reports.build import build_report
from perfscope.reports.text import bar_columns, cells, fit, pad, render_text, wants_color
from tests.support.records import run_record
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", [20, 80, 100, 120, 400])
def test_lines_stay_within_80_to_120_columns(width: int) -> None:
    text = render_text(build_report(synthetic_analysis(), synthetic_timeline()), width=width)
    limit = max(80, min(width, 120))
    assert max(cells(line) for line in text.splitlines()) <= limit


def test_verdict_comes_before_any_other_figure() -> None:
    analysis = synthetic_analysis()
    lines = render_text(build_report(analysis, synthetic_timeline()), width=120).splitlines()
    assert lines[3] == analysis.findings[0].text.title
    assert not any(character.isdigit() for character in lines[0])


def test_plain_text_has_no_escape_and_color_changes_nothing_else() -> None:
    report = build_report(synthetic_analysis(), synthetic_timeline())
    plain, colored = render_text(report), render_text(report, color=True)
    assert "\x1b" not in plain
    assert "\x1b[" in colored
    assert ANSI.sub("", colored) == plain


def test_names_cannot_drive_the_terminal() -> None:
    analysis = synthetic_analysis()
    run = analysis.run.document | {
        "name": "x\x1b]0;owned\x07",
        "command": ["a\nb", "\x1b[2J", "\u202egnp.exe"],
    }
    layers = (structs.replace(analysis.layers[3], layer="evil\x1b[31m\x9b2J"), *analysis.layers[:3])
    text = render_text(build_report(structs.replace(analysis, run=run_record(run), layers=layers), None))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "\\x1b[31m" in text


def test_a_layer_name_of_100_000_characters_does_not_break_the_table() -> None:
    analysis = synthetic_analysis()
    layers = (structs.replace(analysis.layers[3], layer="x" * 100_000), *analysis.layers[:3])
    text = render_text(build_report(structs.replace(analysis, layers=layers), None), width=80)
    assert max(cells(line) for line in text.splitlines()) <= 80


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=6), st.integers(10, 100))
def test_bar_pieces_fill_exactly_the_bar(values: list[int], room: int) -> None:
    longest = max(sum(values), 1)
    columns = bar_columns(tuple(values), longest, room)
    assert sum(columns) == round(room * sum(values) / longest)
    assert min(columns) >= 0


def test_wide_characters_take_two_columns() -> None:
    assert cells("層") == 2
    assert cells(pad("層.conv", 10)) == 10
    assert cells(fit("層" * 50, 11)) <= 11


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_color_and_dumb_terminals_are_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_color(Terminal())
    assert not wants_color(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color(Terminal())
