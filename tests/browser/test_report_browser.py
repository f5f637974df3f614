"""The HTML report in a real Chromium, opened from a file with every name lookup refused.

Needs Chromium and chromedriver (Debian packages chromium, chromium-driver) and selenium; skipped without.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from perfscope import units
from perfscope.reports.build import build_report
from perfscope.reports.html import render_html
from perfscope.reports.model import format_value
from perfscope.reports.sections.counters import UNITS
from tests.browser.test_timeline_browser import press
from tests.unit.reports.test_html import HOSTILE, hostile_page
from tests.unit.reports.test_synthetic import synthetic_analysis

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from selenium.webdriver import Keys

from tests.support.browser import Browser, browser, pytestmark, report, scroll_to

__all__ = ["browser", "pytestmark", "report"]


def test_opens_offline_without_a_request_or_a_complaint(browser: Browser, report: Path) -> None:
    browser.open(report)
    scroll_to(browser, "#tl-canvas")
    browser.view()
    assert browser.requests() == [report.as_uri()]
    assert browser.complaints() == []


def test_policy_is_in_force(browser: Browser, report: Path) -> None:
    """A script that gets into the page after all is refused, and so is a request."""
    browser.open(report)
    browser.js(
        "const s = document.createElement('script'); s.textContent = 'window.owned = 1';"
        "document.body.append(s);"
        "const i = new Image(); i.src = 'file:///etc/hostname'; document.body.append(i);"
    )
    assert browser.js("return window.owned === undefined")
    browser.until(lambda: any("Content Security Policy" in line for line in browser.complaints()))


def column(browser: Browser, table: str, index: int) -> list[str]:
    script = (
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
        ".map(r => r.cells[arguments[1]].dataset.v)"
    )
    return list(browser.js(script, table, index))


def test_tables_sort_by_click_and_by_keyboard(browser: Browser, report: Path) -> None:
    browser.open(report)
    forward = scroll_to(browser, "#layers-table th:nth-child(4) button")
    forward.click()
    values = [int(value) for value in column(browser, "layers-table", 3)]
    assert values == sorted(values, reverse=True)
    header = browser.find("#layers-table th:nth-child(4)")
    assert header.get_attribute("aria-sort") == "descending"
    browser.js("arguments[0].focus()", forward)
    press(browser, Keys.ENTER)
    assert [int(value) for value in column(browser, "layers-table", 3)] == sorted(values)
    assert header.get_attribute("aria-sort") == "ascending"
    name = browser.find("#layers-table th:nth-child(1) button")
    browser.js("arguments[0].focus()", name)
    press(browser, Keys.SPACE)
    names = column(browser, "layers-table", 0)
    assert names == sorted(names)
    assert header.get_attribute("aria-sort") == "none"


def test_missing_figures_sort_last_both_ways(browser: Browser, report: Path) -> None:
    browser.open(report)
    button = scroll_to(browser, "#collectives-table th:nth-child(6) button")
    for _ in range(2):
        button.click()
        assert column(browser, "collectives-table", 5)[-1] == ""


def test_theme_follows_the_system_and_the_toggle_wins(browser: Browser, report: Path) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    browser.open(report, theme="dark")
    dark = browser.js(ground)
    browser.find("#theme").click()
    light = browser.js(ground)
    browser.open(report, theme="light")
    assert browser.js(ground) == light != dark
    browser.find("#theme").click()
    assert browser.js(ground) == dark


@pytest.mark.parametrize("width", [360, 390, 768])
def test_narrow_screens_do_not_scroll_sideways(browser: Browser, report: Path, width: int) -> None:
    browser.open(report, width=width, height=780)
    size = browser.js("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert size[0] <= size[1] == width


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no pdftotext here (Debian: poppler-utils)")
def test_no_printed_page_is_empty(browser: Browser, report: Path, tmp_path: Path) -> None:
    browser.open(report)
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    file = tmp_path / "printed.pdf"
    file.write_bytes(base64.b64decode(printed))
    text = subprocess.run(["pdftotext", file, "-"], capture_output=True, text=True, check=True).stdout
    pages = text.removesuffix("\f").split("\f")
    assert len(pages) > 3 and min(len(page.split()) for page in pages[:-1]) > 20
    assert pages[-1].split()


def test_a_phone_and_a_screen_are_scrolled_a_few_times_only(browser: Browser, report: Path) -> None:
    """Twelve screens of a phone; on a screen no section is longer than three."""
    browser.open(report, width=390, height=844)
    assert browser.js("return document.documentElement.scrollHeight") <= 12 * 844
    browser.open(report, width=1440, height=900)
    sections = "[...document.querySelectorAll('main > section')]"
    heights = browser.js(f"return {sections}.map((section) => [section.id, section.scrollHeight])")
    assert [entry for entry in heights if entry[1] > 3 * 900] == []


@pytest.mark.parametrize("width", [390, 900, 1280])
def test_no_word_of_a_header_reaches_into_the_next_column(browser: Browser, report: Path, width: int) -> None:
    browser.open(report, width=width)
    script = """return [...document.querySelectorAll("th button")].filter((button) => {
      const range = document.createRange();
      range.selectNodeContents(button);
      return range.getBoundingClientRect().right > button.closest("th").getBoundingClientRect().right + 1;
    }).map((button) => button.textContent)"""
    assert browser.js(script) == []


def test_on_a_phone_tables_become_cards_that_name_every_cell(browser: Browser, report: Path) -> None:
    browser.open(report, width=390, height=780)
    wide = """return [...document.querySelectorAll(".table-scroll")].filter(
      (box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.firstElementChild.dataset.table)"""
    assert browser.js(wide) == []
    unnamed = """return [...document.querySelectorAll(".cards td")].filter((cell) => {
      const header = cell.closest("table").tHead.rows[0].cells[cell.cellIndex];
      return cell.dataset.title !== header.querySelector("button").textContent;
    }).length"""
    assert browser.js("return document.querySelectorAll('#layers-table .cards').length") == 1
    assert browser.js(unnamed) == 0


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path, text: str) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(hostile_page(text), encoding="utf-8")
    browser.open(path)
    canvas = scroll_to(browser, "#tl-canvas")
    browser.js("arguments[0].focus()", canvas)
    press(browser, Keys.ENTER, Keys.TAB, Keys.ARROW_DOWN)
    browser.actions().move_to_element(canvas).perform()
    counts = "return ['script','img','iframe','object'].map(t => document.getElementsByTagName(t).length)"
    assert browser.js(counts) == [2, 0, 0, 0]
    assert browser.requests() == [path.as_uri()]
    assert browser.complaints() == []
    size = browser.js("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert size[0] <= size[1]


def test_figures_read_as_in_python(browser: Browser, report: Path) -> None:
    browser.open(report)
    values = [0, 1, 9.996, 99.96, 999, 1000, 1001, 12_345, 999_999, 1_048_400, 1_234_567, 98_765_432, 3.2e12]
    values += [-0.001, -0.4, -9.996, -1001, -12_345]
    script = (
        "const f = window.perfscopeFormat; return arguments[0].map(v => "
        "[f.formatNs(v), f.formatBytes(v), f.formatSi(v, 'B/s'), f.formatCount(v)])"
    )
    expected = [
        [units.format_ns(v), units.format_bytes(v), units.format_si(v, "B/s"), units.format_count(v)]
        for v in values
    ]
    assert browser.js(script, values) == expected
    for unit in UNITS.values():
        script = "return arguments[0].map(v => window.perfscopeFormat.formatUnit(arguments[1], v))"
        assert browser.js(script, values, unit.value) == [format_value(unit, v) for v in values], unit


def test_verdict_is_painted_before_the_timeline_is_unpacked(browser: Browser, report: Path) -> None:
    browser.open(report)
    marks = browser.js(
        "return [performance.getEntriesByName('first-contentful-paint')[0]?.startTime,"
        "performance.getEntriesByName('perfscope-timeline')[0]?.startTime]"
    )
    assert None not in marks
    assert marks[0] < marks[1]


def test_long_tables_fold_filter_and_unfold(browser: Browser, tmp_path: Path) -> None:
    analysis = synthetic_analysis()
    layers = tuple(
        structs.replace(analysis.layers[i % 12], layer=f"blocks.{i}.conv", order=i) for i in range(60)
    )
    path = tmp_path / "layers.html"
    report = build_report(structs.replace(analysis, layers=layers), None)
    path.write_text(render_html(report), encoding="utf-8")
    browser.open(path)
    shown = "return [...document.querySelectorAll('#layers-table tbody tr')].filter(r => !r.hidden).length"
    assert browser.js(shown) == 10
    scroll_to(browser, "#layers-table .more").click()
    assert browser.js(shown) == 60
    browser.find('[data-filter="layers-table"]').send_keys("blocks.7.")
    assert browser.js(shown) == 1
    browser.js("location.hash = '#layers&filter=blocks.5'")  # a link in a recommendation
    browser.until(lambda: browser.js(shown) == 11)


def test_sections_fold_and_links_open_them(browser: Browser, report: Path) -> None:
    browser.open(report)
    shown = "return document.querySelector('#layers .block').offsetParent !== null"
    assert browser.js(shown)
    browser.js("document.querySelector('#layers .fold').click()")
    assert not browser.js(shown)
    assert (
        browser.js("return document.querySelector('#layers .fold').getAttribute('aria-expanded')") == "false"
    )
    browser.js("location.hash = '#layers'")
    browser.until(lambda: bool(browser.js(shown)))


def test_the_chosen_theme_is_kept(browser: Browser, report: Path) -> None:
    browser.open(report)
    before = browser.js("return document.getElementById('theme').textContent")
    browser.js("document.getElementById('theme').click()")
    browser.open(report)
    after = browser.js("return document.getElementById('theme').textContent")
    browser.js("localStorage.removeItem('perfscope-theme')")
    assert {before, after} == {"Dark theme", "Light theme"}


def test_a_layer_is_found_from_the_keyboard_and_its_row_is_marked(browser: Browser, report: Path) -> None:
    browser.open(report, width=390)
    browser.js("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))")
    assert browser.js("return document.activeElement.id") == "find"
    field = browser.find("#find")
    field.send_keys("features.2")
    first = browser.find("#find-list [aria-selected=true]").text
    assert first.startswith("features.2")
    field.send_keys(Keys.ENTER)
    row = "document.querySelector('tr.found')"
    assert "features.2" in browser.js(f"return {row}.textContent")
    assert browser.js(f"return !{row}.hidden && !{row}.closest('section').classList.contains('folded')")
    assert browser.js("return document.getElementById('find-list').hidden")
    assert browser.complaints() == []
