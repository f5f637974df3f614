"""Links of the page in a real Chromium: finding, timeline, layer and back, ranks, and the copied address."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from perfscope.reports.asset_files import asset
from perfscope.reports.build import build_report
from perfscope.reports.html import render_html
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from selenium.webdriver import Keys

from tests.browser.test_timeline_browser import press
from tests.support.browser import Browser, browser, pytestmark, report, scroll_to

__all__ = ["browser", "pytestmark", "report"]

SEARCHED = "return document.getElementById('tl-search').value"
FOUND = "return (document.querySelector('tr.found') || {textContent: ''}).textContent"


def ranks(browser: Browser) -> list[int]:
    """Ranks in the timeline, from the top."""
    browser.view()
    return [int(rank) for rank in browser.canvas("ranks").split()]


def picked_ns(browser: Browser) -> tuple[float, float]:
    """Duration of the picked span as written, in ns, and the length of what is shown."""
    start, end = browser.view()
    value, unit = browser.find("#tl-details dd").text.split()
    return float(value) * {"ns": 1, "µs": 1e3, "ms": 1e6}[unit], end - start


def test_a_finding_shows_the_longest_of_its_spans_with_its_rank_on_top(
    browser: Browser, report: Path
) -> None:
    browser.open(report)
    whole = browser.view()
    scroll_to(browser, '.finding a.jump[href*="rank=3"]').click()
    browser.until(lambda: browser.view() != whole)
    assert ranks(browser) == [3, 0, 1, 2]
    assert browser.canvas("picked").startswith("rank 3 ")
    dur, shown = picked_ns(browser)
    assert dur < shown < 6 * dur


def test_finding_to_timeline_to_layer_to_its_other_places_and_back(browser: Browser, report: Path) -> None:
    browser.open(report)
    whole = browser.view()
    scroll_to(browser, '.finding a.jump[href*="find=features"]').click()
    browser.until(lambda: browser.view() != whole)
    layer = browser.js(SEARCHED)
    scroll_to(browser, '#tl-details .jumps a[href*="layers-table"]').click()
    browser.until(lambda: layer in browser.js(FOUND))
    # From the row to the layer's other places, and from there to its spans.
    scroll_to(browser, "tr.found .places-open").click()
    assert browser.js("return document.activeElement.closest('#places') !== null")
    places = browser.js("return [...document.querySelectorAll('#places a')].map(a => a.hash)")
    others = "return [...document.querySelectorAll('[data-table]')].filter(t => [...t.querySelectorAll("
    others += "'td[data-layer]')].some(c => c.dataset.v === arguments[0])).map(t => t.dataset.table)"
    tables = [place[1:].split("&")[0] for place in places[1:]]
    assert tables == [name for name in browser.js(others, layer) if name != "layers-table"]
    assert places[0].startswith("#timeline&find=")
    press(browser, Keys.ESCAPE)
    assert browser.js("return document.activeElement.className") == "places-open"
    browser.driver.back()
    browser.until(lambda: "find=" in browser.js("return location.hash"))
    assert browser.js(SEARCHED) == layer
    assert browser.complaints() == []


def test_a_rank_in_a_table_or_chart_leads_to_its_lanes(browser: Browser, report: Path) -> None:
    browser.open(report)
    assert ranks(browser) == [0, 1, 2, 3]
    cell = browser.find("td[data-rank][data-v='2'] a")
    browser.js("arguments[0].click()", cell)
    browser.until(lambda: ranks(browser) == [2, 0, 1, 3])
    label = browser.find(".row[data-label='rank 3'] .bar-label a")
    browser.js("arguments[0].click()", label)
    browser.until(lambda: ranks(browser) == [3, 0, 1, 2])
    canvas = scroll_to(browser, "#tl-canvas")
    browser.js("arguments[0].focus()", canvas)
    press(browser, Keys.ENTER, "p")
    assert ranks(browser) == [0, 1, 2, 3]


def test_a_copied_link_brings_back_place_zoom_filter_and_theme(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "long.html"
    path.write_text(long_page(), encoding="utf-8")
    browser.open(path)
    browser.js(
        "const writeText = async (text) => { window.text = text; };"
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText}})"
    )
    for _ in range(3):
        browser.js("document.querySelector('[data-act=\"in\"]').click()")
    shown = browser.view()
    field = scroll_to(browser, '[data-filter="layers-table"]')
    field.send_keys("blocks.5")
    browser.find("#theme").click()
    theme = browser.js("return document.documentElement.dataset.theme")
    browser.find("#copy-link").click()
    browser.until(lambda: browser.js("return window.text"))
    assert browser.find("#copy-link").text == "Link copied"
    address = browser.js("return window.text")
    browser.js("localStorage.clear()")
    browser.driver.get("about:blank")
    browser.driver.get(address)
    browser.until(lambda: browser.js("return document.documentElement.dataset.ready") == "1")
    rows = "return [...document.querySelectorAll('#layers-table tbody tr')].filter(r => !r.hidden).length"
    assert browser.js(rows) == 11
    assert browser.js("return document.documentElement.dataset.theme") == theme
    assert browser.view() == pytest.approx(shown, abs=2)
    top = "return document.getElementById('layers-table').getBoundingClientRect().top"
    browser.until(lambda: -50 < browser.js(top) < 900)


@pytest.mark.parametrize("allowed", [True, False])
def test_commands_of_actions_are_copied_by_keyboard(browser: Browser, tmp_path: Path, allowed: bool) -> None:
    made = build_report(synthetic_analysis(), synthetic_timeline())
    verdict = structs.replace(made.verdict, action="Run `perfscope run --stacks` or set `A=1` first.")
    path = tmp_path / "commands.html"
    path.write_text(render_html(structs.replace(made, verdict=verdict)), encoding="utf-8")
    browser.open(path)
    browser.js(
        "const writeText = async (text) => { if (!arguments[0]) throw new Error(); window.text = text; };"
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText}});"
        "document.addEventListener('copy', () => { window.text = String(getSelection()) || "
        "document.activeElement.value; });",
        allowed,
    )
    buttons = browser.driver.find_elements("css selector", ".verdict .copy")
    assert [button.get_attribute("title") for button in buttons] == [
        "Copy perfscope run --stacks",
        "Copy A=1",
    ]
    browser.js("arguments[0].focus()", buttons[0])
    press(browser, Keys.ENTER)
    browser.until(lambda: buttons[0].text == "Copied")
    assert browser.js("return window.text") == "perfscope run --stacks"
    assert browser.js("return document.activeElement === arguments[0]", buttons[0])
    browser.until(lambda: buttons[0].text == "Copy")


def test_paper_has_no_copy_buttons() -> None:
    printed = asset("report.css").partition("@media print {\n  .paper")[2]
    assert ".copy" in printed.partition("display: none")[0]


def test_a_shared_theme_is_not_kept_for_other_reports(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.js("localStorage.clear(); location.hash = '#layers&theme=dark'")
    browser.until(lambda: browser.js("return document.documentElement.dataset.theme") == "dark")
    assert browser.js("return localStorage.getItem('perfscope-theme')") is None


@pytest.mark.parametrize(
    "fragment",
    [
        "timeline&pin=99,x&rank=7&window=12&t0=a",
        "layers-table&row=nothing&f.nothing=1&c.9.nothing=2&theme=pink",
        "no-such-place&t0=1&t1=2",
        "layers&f.%22%5D=x",
    ],
)
def test_a_broken_link_opens_the_page(browser: Browser, report: Path, fragment: str) -> None:
    browser.driver.get("about:blank")
    browser.driver.get(f"{report.as_uri()}#{fragment}")
    browser.until(lambda: browser.js("return document.documentElement.dataset.ready") == "1")
    assert ranks(browser) == [0, 1, 2, 3]
    assert browser.complaints() == []


def long_page() -> str:
    """A report with 60 layers, whose table has a filter."""
    analysis = synthetic_analysis()
    layers = tuple(
        structs.replace(analysis.layers[i % 12], layer=f"blocks.{i}.conv", order=i) for i in range(60)
    )
    return render_html(build_report(structs.replace(analysis, layers=layers), synthetic_timeline()))
