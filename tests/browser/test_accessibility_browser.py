"""Every kind of page against axe-core's rules, in both themes, a range of the timeline selected."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.cli.main import cli
from perfscope.reports.build import build_report
from perfscope.reports.gate_history.build import build_history_report
from perfscope.reports.html import render_html
from perfscope.reports.study.build import build_study_report
from tests.support.site_runs import write_many
from tests.unit.gate.test_trend import made_history, of
from tests.unit.reports.study.test_report import everything
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from selenium.webdriver import Keys

from tests.browser.test_timeline_browser import press
from tests.support.axe import axe_script, violations
from tests.support.browser import Browser, browser, pytestmark, report

__all__ = ["browser", "pytestmark", "report"]


@pytest.fixture(scope="module")
def axe(pytestconfig: pytest.Config) -> str:
    assert pytestconfig.cache is not None
    return axe_script(pytestconfig.cache.mkdir("axe"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, report: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    compare, history = folder / "compare.html", folder / "history.html"
    study = everything()
    assert study.diff is not None
    runs = [study.run(label) for label in (study.diff.before, study.diff.after)]
    timelines = {run.name: synthetic_timeline(num_ranks=2) for run in runs}
    compare.write_text(render_html(build_study_report(study, timelines=timelines)), encoding="utf-8")
    made = build_history_report([of(made_history())], "history.sqlite")
    history.write_text(render_html(made), encoding="utf-8")
    write_many(folder / "runs", 24, num_series=4)
    arguments = ["dashboard", str(folder / "runs"), "-o", str(folder / "site")]
    CliRunner().invoke(cli, arguments, catch_exceptions=False, standalone_mode=False)
    plan = folder / "plan.html"
    arguments = ["plan", "--model", "gpt-nano", "--cluster", "1x2", "--no-calibrate", "-o", str(plan)]
    CliRunner().invoke(cli, arguments, catch_exceptions=False, standalone_mode=False)
    untraced = folder / "untraced.html"
    untraced.write_text(render_html(build_report(synthetic_analysis(), None)), encoding="utf-8")
    return {
        "report": report,
        "untraced": untraced,
        "compare": compare,
        "history": history,
        "dashboard": folder / "site" / "index.html",
        "plan": plan,
    }


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["report", "untraced", "compare", "history", "dashboard", "plan"])
@pytest.mark.parametrize("width", [1300, 390])
def test_axe_finds_nothing(
    browser: Browser, axe: str, pages: dict[str, Path], kind: str, theme: str, width: int
) -> None:
    browser.open(pages[kind], theme=theme, width=width)
    if kind == "report":
        browser.js("location.hash = '#timeline&from=1000000&to=9000000'")
        browser.until(lambda: bool(browser.canvas("range")))
        # A cell of a map is pointed at, and the timeline says that its step was not traced.
        browser.js("location.hash = '#timeline&steps=50&ranks=2'")
        browser.until(lambda: browser.find("#tl-note").text)
        browser.js("document.querySelector('[data-heat=\"steps-map\"]').focus()")
        press(browser, Keys.ARROW_RIGHT)
    assert violations(browser, axe) == []


def test_axe_finds_what_is_planted(browser: Browser, axe: str, report: Path) -> None:
    browser.open(report)
    browser.js("document.querySelector('main').append(document.createElement('button'))")
    assert [rule for rule, *_ in violations(browser, axe)] == ["button-name"]
