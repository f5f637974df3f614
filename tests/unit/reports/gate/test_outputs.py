"""A check as people read it: text and Markdown.

Update after a wanted change:  PERFSCOPE_UPDATE_GOLDEN=1 python -m pytest THIS_FILE
and read the diff.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from perfscope.gate.results import CheckResult, Difference, Explanation, Outcome
from perfscope.reports.gate.markdown import MOST_BYTES, render_markdown
from perfscope.reports.gate.registry import FORMATS
from perfscope.reports.gate.text import fold, render_check
from perfscope.reports.terminal import cells
from tests.support import synthetic_check
from tests.support.synthetic_check import SAMPLES, hostile, passed, regression

GOLDEN = Path(__file__).parents[3] / "golden" / "gate"
ACTUAL = Path(__file__).parents[3] / "golden" / "actual"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def check(name: str, actual: str) -> None:
    path = GOLDEN / name
    if os.environ.get("PERFSCOPE_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(actual, encoding="utf-8")
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if actual != expected:
        ACTUAL.mkdir(parents=True, exist_ok=True)
        (ACTUAL / f"gate-{name}").write_text(actual, encoding="utf-8")
        pytest.fail(f"{path} differs from {ACTUAL / f'gate-{name}'}; see this file's docstring")


def html(result: CheckResult) -> str:
    """As a reader of GitHub-flavoured Markdown renders it; raw HTML goes through."""
    return str(MarkdownIt("commonmark").enable("table").render(render_markdown(result)))


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_text(name: str) -> None:
    check(f"{name}.txt", render_check(SAMPLES[name](), width=100, color=False))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["regression", "pass", "warnings-only"])
def test_golden_text_by_width_of_the_terminal(name: str, width: int) -> None:
    check(f"{name}-{width}.txt", render_check(SAMPLES[name](), width=width, color=False))


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_markdown(name: str) -> None:
    check(f"{name}.md", render_markdown(SAMPLES[name]()))


@pytest.mark.parametrize("width", [20, 60, 100, 160, 500])
@pytest.mark.parametrize("name", SAMPLES)
def test_text_stays_within_its_width_between_60_and_200(name: str, width: int) -> None:
    most = max(60, min(width, 200))
    text = render_check(SAMPLES[name](), width=width, color=False)
    assert max(cells(line) for line in text.splitlines()) <= most
    assert text.endswith("\n") and not text.endswith("\n\n")


@pytest.mark.parametrize("name", synthetic_check.HOSTILE)
def test_text_stays_within_its_width_whatever_the_names(name: str) -> None:
    for width in (60, 100):
        text = render_check(hostile(name), width=width, color=False)
        assert max(cells(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("name", SAMPLES)
def test_color_adds_nothing_but_escapes(name: str) -> None:
    result = SAMPLES[name]()
    colored = render_check(result, width=100, color=True)
    assert "\x1b[" in colored
    assert ESCAPE.sub("", colored) == render_check(result, width=100, color=False)


def test_colors_are_not_red_against_green() -> None:
    used = set()
    for make in SAMPLES.values():
        used |= set(re.findall(r"\x1b\[([0-9;]+)m", render_check(make(), width=100, color=True)))
    orange, blue, yellow = "38;5;166", "38;5;33", "38;5;136"
    bold = {f"1;{one}" for one in (orange, blue, yellow)}
    assert used <= {"0", "1", "2", orange, blue, yellow} | bold


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("pass", "Pass: "),
        ("regression", "Regression: "),
        ("other-fingerprint", "Inconclusive: "),
        ("no-baseline", "No baseline: "),
        ("failed", "Measurement failed: "),
    ],
)
def test_the_verdict_comes_first_and_in_a_word(name: str, word: str) -> None:
    assert render_check(SAMPLES[name](), width=100, color=False).startswith(word)
    heading = render_markdown(SAMPLES[name]()).splitlines()[0]
    assert re.fullmatch(rf"### (✅|❌|⚠️) {word}.*", heading)


def test_a_verdict_is_not_said_twice() -> None:
    text = render_check(regression(), width=200, color=False)
    assert text.count("Regression") == 1
    assert text.count("Peak memory is worse by") == 0
    warned = render_check(SAMPLES["warnings-only"](), width=200, color=False)
    assert warned.count("Peak memory is worse by") == 1


def test_cause_action_and_warnings_stand_before_the_table() -> None:
    made = replace(regression(), warnings=("3 runs say nothing of the commit.",))
    text = render_check(made, width=100, color=False)
    order = [
        "Regression:",
        "Computation takes 2.41 ms longer",
        "→ Look at what changed in block2",
        "Warning: 3 runs",
        "Metric ",
        "Pairs:",
        "Left out:",
        "What differed",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places) and places[0] == 0


def test_a_weighty_difference_stands_before_the_advice_and_is_not_repeated() -> None:
    made = regression()
    slower = Difference(
        what="clock", base="2.45 GHz", head="1.9 GHz", weighty=True, text="CPU clock: 2.45 → 1.90 GHz."
    )
    explanation = Explanation(
        cause="surroundings", headline="the clock was lower", action="Repeat.", surroundings=(slower,)
    )
    for text in (
        render_check(replace(made, explanation=explanation), width=100, color=False),
        render_markdown(replace(made, explanation=explanation)),
    ):
        assert text.count("CPU clock") == 1
        assert text.index("The clock was lower") < text.index("CPU clock") < text.index("Repeat")


def test_a_quiet_pass_is_not_explained_but_tells_what_differed() -> None:
    slower = Difference(what="clock", base="", head="", weighty=True, text="CPU clock: 2.45 → 1.90 GHz.")
    explanation = Explanation(cause="unknown", headline="nothing moved", surroundings=(slower,))
    text = render_check(replace(passed(), explanation=explanation), width=100, color=False)
    assert "othing moved" not in text
    assert "What differed" in text and "CPU clock" in text


def test_only_what_certainly_moved_is_shown() -> None:
    text = render_check(regression(), width=100, color=False)
    assert "Computation" in text and "block2" in text
    assert "Idle" not in text and "stem" not in text


@pytest.mark.parametrize(
    ("state", "severity", "words"),
    [
        ("ok", "error", "ok"),
        ("worse", "error", "worse: fails"),
        ("worse", "warn", "worse: warns"),
        ("unproven", "error", "not proven"),
        ("better", "warn", "better"),
        ("unknown", "error", "unknown"),
    ],
)
def test_states_stand_in_words(state: str, severity: str, words: str) -> None:
    one = synthetic_check.verdict(
        "step_p10",
        state,  # type: ignore[arg-type]
        (26.2e6, 28.9e6),
        (0.1, 0.05, 0.2),
        0.01,
        severity=severity,
    )
    text = render_check(replace(passed(), metrics=(one,)), width=100, color=False)
    assert re.search(rf"Step time, p10 .*  {words}$", text, re.MULTILINE)


def test_metrics_switched_off_are_not_shown() -> None:
    off = synthetic_check.verdict("peak_memory", "worse", (1e8, 2e8), (1.0, 0.9, 1.1), 0.01, severity="off")
    made = replace(passed(), metrics=(passed().metrics[0], off))
    assert "Peak memory" not in render_check(made, width=100, color=False)
    assert "Peak memory" not in render_markdown(made)


def test_markdown_of_hostile_names_stays_below_its_limit_and_holds_no_foreign_tag() -> None:
    own = {"h3", "p", "em", "strong", "code", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}
    own |= {"details", "summary", "br"}
    for name in synthetic_check.HOSTILE:
        made = hostile(name)
        assert len(render_markdown(made).encode()) <= MOST_BYTES + 60
        drawn = html(made)
        tags = set(re.findall(r"</?([a-zA-Z][\w-]*)", drawn))
        assert tags <= own, (name, tags - own)
        assert "href" not in drawn and "src=" not in drawn and "<img" not in drawn


@pytest.mark.parametrize("name", synthetic_check.HOSTILE)
def test_no_name_breaks_a_markdown_table(name: str) -> None:
    for table in re.findall(r"<table>.*?</table>", html(hostile(name)), re.DOTALL):
        rows = [len(re.findall(r"<t[hd]", row)) for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)]
        assert len(rows) > 1 and len(set(rows)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "@octocat",
        "#12",
        "https://example.org",
        "www.example.org",
        "a\\|b|c",
        "`x`",
        "<b>",
        "*x*_y_~z~",
        "1. a",
        "- a",
        "::a",
    ],
)
def test_markdown_reads_as_the_name_was(text: str) -> None:
    """What a reader sees is the name itself; what the sanitiser sees is never a mention, a link or a tag."""
    made = replace(passed(), name=text, outcome=Outcome.PASS)
    seen = re.sub(r"<!--.*?-->|<[^>]+>", "", html(made))
    shown = seen.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert f"{text}: head against base" in shown
    source = render_markdown(made)
    assert "@octocat" not in source and "https://" not in source and "www.e" not in source


def test_long_results_are_cut_to_the_limit_and_say_so() -> None:
    made = regression()
    many = synthetic_check.runs("head", [28.0] * 400)
    result = replace(made, head=replace(made.head, runs=many), reasons=("@" * 390,) * 12)
    text = render_markdown(result)
    assert len(text.encode()) <= MOST_BYTES + 60
    assert text.startswith("### ❌ Regression")
    assert "did not fit" in text


def test_a_slower_step_is_not_warned_of_twice() -> None:
    text = render_check(regression(), width=100, color=False)
    assert "Warning" not in text
    assert text.count("worse: warns") == 2


def test_a_figure_is_not_cut_off_from_its_unit() -> None:
    assert fold("it took 26.5 ms and p = 0.004 of 5 %", 15, "") == [
        "it took 26.5 ms",
        "and p = 0.004",
        "of 5 %",
    ]


def test_a_pass_with_doubt_looks_like_a_warning() -> None:
    one = synthetic_check.verdict("step_p10", "unproven", (26.2e6, 28.5e6), (0.086, -0.032, 0.142), 0.078)
    made = replace(passed(), headline="Pass, with doubt: a step takes 8.6 % longer.", metrics=(one,))
    assert render_markdown(made).startswith("### ⚠️ Pass, with doubt")
    assert FORMATS["annotations"](made).startswith("::warning ")
    assert render_check(made, width=80, color=True).startswith("\x1b[1;38;5;136mPass, with doubt")


def test_an_interval_with_an_end_missing_is_no_interval() -> None:
    one = synthetic_check.verdict("step_p10", "ok", (26.2e6, 26.3e6), (0.004, math.nan, 0.02), 0.4)
    text = render_check(replace(passed(), metrics=(one,)), width=100, color=False)
    assert re.search(r"\+0\.4 %  +– +5 %  ok$", text, re.MULTILINE) and "nan" not in text


def test_folding_counts_columns_not_characters() -> None:
    assert fold("宽宽宽宽宽 abc", 6, "") == ["宽宽宽", "宽宽", "abc"]
    assert fold("", 10, "") == []
    assert fold("one two", 80, "  ", "- ") == ["- one two"]
