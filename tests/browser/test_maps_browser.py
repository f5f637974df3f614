"""Cells of maps and points of step times lead to the timeline, by pointer and by keyboard, in Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.reports.build import build_report
from perfscope.reports.html import render_html
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline, with_maps

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from selenium.webdriver import Keys

from tests.browser.test_links_browser import FOUND, SEARCHED, ranks
from tests.browser.test_timeline_browser import press
from tests.support.browser import Browser, browser, pytestmark, report, scroll_to

__all__ = ["browser", "pytestmark", "report"]

NOTE = "const note = document.getElementById('tl-note'); return note.hidden ? '' : note.textContent"
WINDOW = "return document.getElementById('tl-window').value"
LIVE = "return document.querySelector('#steps-map [aria-live]').textContent"


def click_cell(browser: Browser, chart: str, column: float, row: float) -> None:
    """Clicks at shares of the map's width and height."""
    plot = scroll_to(browser, f"#{chart} svg.plot")
    size = plot.size
    place = (round((column - 0.5) * size["width"]), round((row - 0.5) * size["height"]))
    browser.actions().move_to_element_with_offset(plot, *place).click().perform()


def shown_step(browser: Browser) -> tuple[float, float]:
    """What the timeline shows, over the step that the address asked for: 0 to 1 is the whole of it."""
    start, end = browser.view()
    step = int(browser.js("return new URLSearchParams(location.hash).get('steps').split('-')[0]"))
    first = 10 if step < 100 else 110
    marks = {mark.step: mark for mark in synthetic_timeline().windows[first == 110].steps if mark.rank == 2}
    mark = marks[step]
    return (start - mark.start_ns) / mark.dur_ns, (end - mark.start_ns) / mark.dur_ns


def test_a_traced_cell_shows_its_step_with_its_rank_on_top(browser: Browser, report: Path) -> None:
    browser.open(report)
    click_cell(browser, "waits-map", 4.5 / 6, 2.5 / 4)  # step 111, rank 2
    browser.until(lambda: ranks(browser) == [2, 0, 1, 3])
    assert browser.js(WINDOW) == "1"
    assert browser.js("return location.hash") == "#timeline&steps=111&ranks=2"
    assert shown_step(browser) == pytest.approx((-0.02, 1.02), abs=0.01)
    assert browser.js(NOTE) == ""
    assert browser.complaints() == []


def test_a_cell_that_was_not_traced_shows_the_nearest_traced_step_and_says_so(
    browser: Browser, report: Path
) -> None:
    browser.open(report)
    click_cell(browser, "steps-map", 45.5 / 120, 1.5 / 4)  # steps 90 and 91, rank 1
    browser.until(lambda: ranks(browser) == [1, 0, 2, 3])
    assert browser.js(WINDOW) == "1"
    assert browser.js(NOTE) == "Steps 90 to 91 were not traced: this is step 110, the nearest traced one."
    # A link to something that is traced takes the sentence away.
    browser.js("location.hash = '#timeline&steps=11&ranks=2'")
    browser.until(lambda: browser.js(WINDOW) == "0")
    assert browser.js(NOTE) == ""
    browser.js("location.hash = '#timeline&steps=11&ranks=70-79'")
    browser.until(lambda: browser.js(NOTE) == "Ranks 70 to 79 have no lanes here.")


def test_the_same_cell_leads_there_again(browser: Browser, report: Path) -> None:
    browser.open(report)
    top = "return document.getElementById('timeline').getBoundingClientRect().top"
    for _ in range(2):
        click_cell(browser, "waits-map", 0.5 / 6, 0.5 / 4)
        browser.until(lambda: abs(browser.js(top)) < 200)


def test_maps_and_step_times_are_reached_and_followed_by_keyboard(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.js("document.querySelector('[data-heat=\"steps-map\"]').focus()")
    press(browser, *[Keys.ARROW_RIGHT] * 6, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert browser.js(LIVE).startswith("rank 3, step 10 to 11, time ")
    press(browser, Keys.ENTER)
    browser.until(lambda: ranks(browser) == [3, 0, 1, 2])
    assert browser.js("return location.hash") == "#timeline&steps=10-11&ranks=3"
    browser.js("document.querySelector('[data-series=\"trend-steps\"]').focus()")
    press(browser, *[Keys.PAGE_DOWN] * 5, *[Keys.ARROW_RIGHT] * 7, Keys.ENTER)
    browser.until(lambda: "steps=112-113" in browser.js("return location.hash"))
    browser.until(lambda: browser.js(WINDOW) == "1")
    assert browser.js("return location.hash").endswith(f"&ranks={ranks(browser)[0]}")


def test_a_point_of_step_times_shows_the_step_of_its_rank(browser: Browser, report: Path) -> None:
    browser.open(report)
    plot = scroll_to(browser, "#steps-chart .row:nth-of-type(3) svg.plot")
    x = round((111 / 239 - 0.5) * plot.size["width"])
    browser.actions().move_to_element_with_offset(plot, x, 0).click().perform()
    browser.until(lambda: browser.js(WINDOW) == "1")
    assert ranks(browser)[0] == 2
    assert "ranks=2" in browser.js("return location.hash")


def test_a_cell_of_the_map_of_layers_shows_the_layer_on_its_rank(browser: Browser, report: Path) -> None:
    browser.open(report)
    click_cell(browser, "layers-map", 2.5 / 4, 3.5 / 12)
    browser.until(lambda: browser.canvas("picked").startswith("rank 2 "))
    assert browser.js(SEARCHED) == "features.1.conv"
    assert ranks(browser) == [2, 0, 1, 3]


def test_without_a_timeline_cells_lead_to_rows(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "untraced.html"
    path.write_text(render_html(build_report(with_maps(synthetic_analysis()), None)), encoding="utf-8")
    browser.open(path)
    click_cell(browser, "steps-map", 0.5, 3.5 / 4)
    browser.until(lambda: browser.js(FOUND).startswith("3"))
    assert (
        browser.js("return document.querySelector('tr.found').closest('table').dataset.table")
        == "steps-table"
    )
    click_cell(browser, "layers-map", 0.5 / 4, 3.5 / 12)
    browser.until(lambda: "features.1.conv" in browser.js(FOUND))
    assert browser.complaints() == []


@pytest.mark.parametrize(
    "fragment", ["timeline&steps=x&ranks=y", "timeline&steps=5-1&ranks=9-0", "timeline&steps=-"]
)
def test_a_broken_range_opens_the_page(browser: Browser, report: Path, fragment: str) -> None:
    browser.driver.get("about:blank")
    browser.driver.get(f"{report.as_uri()}#{fragment}")
    browser.until(lambda: browser.js("return document.documentElement.dataset.ready") == "1")
    assert sorted(ranks(browser)) == [0, 1, 2, 3]
    assert browser.complaints() == []
