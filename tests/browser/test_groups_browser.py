"""Lanes in groups, and the timelines of two runs one above the other, in a real Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest
from msgspec import structs

from perfscope.analysis.rank_groupings import HOST, RankGrouping
from perfscope.analysis.timeline_extract import LaneExtract, StepMark, TimelineExtract
from perfscope.reports.build import build_report
from perfscope.reports.html import render_html
from perfscope.reports.study.build import build_study_report
from tests.support.synthetic_study import diff_study
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from selenium.webdriver import Keys
from selenium.webdriver.support.ui import Select

from tests.support.browser import Browser, browser, pytestmark, report, scroll_to

__all__ = ["browser", "pytestmark", "report"]

Part = TypeVar("Part", LaneExtract, StepMark)
STAGES = RankGrouping(by="pp", group_of={0: 0, 1: 1, 2: 0, 3: 1})
HOSTS = RankGrouping(by=HOST, group_of={0: 0, 1: 0, 2: 1, 3: 1}, names=("node7", "node8"))


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grouped") / "report.html"
    timeline = structs.replace(synthetic_timeline(), groupings=(HOSTS, STAGES))
    path.write_text(render_html(build_report(synthetic_analysis(), timeline)), encoding="utf-8")
    return path


def twice_as_slow(extract: TimelineExtract) -> TimelineExtract:
    def slow(part: Part) -> Part:
        return structs.replace(part, start_ns=2 * part.start_ns, dur_ns=2 * part.dur_ns)

    windows = tuple(
        structs.replace(window, lanes=tuple(map(slow, window.lanes)), steps=tuple(map(slow, window.steps)))
        for window in extract.windows
    )
    return structs.replace(extract, windows=windows)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compared") / "compare.html"
    study = diff_study()
    assert study.diff is not None
    names = [study.run(label).name for label in (study.diff.before, study.diff.after)]
    pair = (synthetic_timeline(num_ranks=2), twice_as_slow(synthetic_timeline(num_ranks=2)))
    page = build_study_report(study, timelines=dict(zip(names, pair, strict=True)))
    path.write_text(render_html(page), encoding="utf-8")
    return path


def shown(browser: Browser) -> tuple[str, str]:
    """Headings, and ranks from top to bottom, after pending frames."""
    browser.view()
    return browser.canvas("groups"), browser.canvas("ranks")


def test_lanes_are_grouped_by_what_is_chosen_and_the_address_keeps_it(
    browser: Browser, grouped: Path
) -> None:
    browser.open(grouped)
    scroll_to(browser, "#tl-canvas")
    assert shown(browser) == ("", "0 1 2 3")
    Select(browser.find("#tl-group")).select_by_visible_text("By pipeline stage (pp)")
    assert shown(browser) == ("stage 0 (pp)|stage 1 (pp)", "0 2 1 3")
    browser.until(lambda: "group=pp" in browser.driver.current_url)
    link = browser.driver.current_url
    browser.driver.get("about:blank")
    browser.driver.get(link)
    browser.until(lambda: browser.js("return document.documentElement.dataset.ready") == "1")
    assert shown(browser) == ("stage 0 (pp)|stage 1 (pp)", "0 2 1 3")
    assert browser.js("return document.getElementById('tl-group').value") == "pp"


def test_g_goes_through_the_groupings_and_pinned_ranks_stay_on_top(browser: Browser, grouped: Path) -> None:
    browser.open(grouped)
    canvas = scroll_to(browser, "#tl-canvas")
    browser.js("arguments[0].focus()", canvas)
    canvas.send_keys("g")
    assert shown(browser) == ("host node7|host node8", "0 1 2 3")
    assert browser.find("#tl-live").get_attribute("textContent") == "Lanes are grouped by host."
    browser.js("location.hash = '#timeline&pin=3'")
    browser.until(lambda: browser.canvas("ranks").startswith("3"))
    assert shown(browser) == ("pinned|host node7|host node8", "3 0 1 2")
    canvas.send_keys("g", "g")
    assert shown(browser) == ("", "3 0 1 2")


def test_there_is_nothing_to_choose_where_ranks_have_no_groups(browser: Browser, report: Path) -> None:
    browser.open(report)
    assert not browser.find("#tl-group").is_displayed()
    canvas = scroll_to(browser, "#tl-canvas")
    browser.js("arguments[0].focus()", canvas)
    canvas.send_keys("g")
    assert shown(browser)[0] == ""


def test_two_runs_share_the_axis_and_zoom_together(browser: Browser, compared: Path) -> None:
    browser.open(compared)
    canvas = scroll_to(browser, "#tl-canvas")
    before, after = shown(browser)[0].split("|")
    assert before.startswith("before: step ") and after.startswith("after: step ")
    assert not browser.find("#tl-group").is_displayed()
    whole = browser.view()
    assert whole[0] == 0
    browser.js("arguments[0].focus()", canvas)
    canvas.send_keys("+")
    zoomed = browser.view()
    assert zoomed[1] - zoomed[0] == pytest.approx((whole[1] - whole[0]) * 0.6)
    browser.until(lambda: f"t0={round(zoomed[0])}" in browser.driver.current_url)
    options = [option.text for option in Select(browser.find("#tl-window")).options]
    assert len(options) > 1 and all(option.startswith("Steps ") for option in options)


def test_a_span_names_the_same_work_in_the_other_run(browser: Browser, compared: Path) -> None:
    browser.open(compared)
    canvas = scroll_to(browser, "#tl-canvas")
    browser.js("arguments[0].focus()", canvas)
    canvas.send_keys(Keys.ENTER)
    facts = [fact.text for fact in browser.driver.find_elements("css selector", "#tl-details dl > div")]
    [other] = [fact for fact in facts if fact.startswith("In after, rank 0")]
    assert other.endswith(" less")
    assert any(fact.startswith("Where\nbefore · rank 0") for fact in facts)
    assert browser.canvas("picked").startswith("rank 0 ")


def test_both_pages_ask_for_nothing_and_fit_a_phone(browser: Browser, grouped: Path, compared: Path) -> None:
    for page in (grouped, compared):
        browser.open(page, width=390, height=844)
        assert browser.requests() == [page.as_uri()]
        assert browser.complaints() == []
        assert browser.js("return document.documentElement.scrollWidth") <= 390
