"""The report of several runs in a real Chromium: no request, no complaint, figures by pointer and keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.reports.html import render_html
from perfscope.reports.study.build import build_study_report
from tests.unit.reports.study.test_report import everything

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from selenium.webdriver import Keys

from tests.support.browser import Browser, browser, pytestmark

__all__ = ["browser", "pytestmark"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "compare.html"
    path.write_text(render_html(build_study_report(everything())), encoding="utf-8")
    return path


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_asks_for_nothing_and_complains_of_nothing(browser: Browser, page: Path, theme: str) -> None:
    browser.open(page, theme=theme)
    assert browser.requests() == [page.as_uri()]
    assert browser.complaints() == []


def test_arrow_keys_tell_every_curves_figure(browser: Browser, page: Path) -> None:
    browser.open(page)
    figure = browser.find('[data-curves="study-speedup"]')
    browser.js("arguments[0].focus()", figure)
    for _ in range(3):
        figure.send_keys(Keys.ARROW_RIGHT)
    tip = browser.find("#tip").text
    assert tip.startswith("ranks: ")
    assert "measured" in tip
    figure.send_keys(Keys.ESCAPE)
    assert browser.js("return document.getElementById('tip').hidden")


def test_the_pointer_tells_the_figures_under_it(browser: Browser, page: Path) -> None:
    browser.open(page)
    plot = browser.find('[data-curves="study-loss-seconds"] .cv-plot')
    browser.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
    browser.actions().move_to_element(plot).perform()
    assert browser.find("#tip").text.startswith("time since the first step's start: ")


def test_nothing_is_wider_than_a_phone(browser: Browser, page: Path) -> None:
    browser.open(page, width=390, height=800)
    assert browser.js("return document.documentElement.scrollWidth") <= 390
