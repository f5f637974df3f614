"""The timeline in a real Chromium: zoom, pan, keyboard, search, windows, the critical path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from perfscope import units
from perfscope.reports.build import build_report
from perfscope.reports.html import render_html
from perfscope.reports.sections.timeline import timeline_section
from tests.unit.reports.sections.test_critical_path import timeline_paths
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from selenium.webdriver import Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support.browser import Browser, browser, pytestmark, report, scroll_to

__all__ = ["browser", "pytestmark", "report"]


@pytest.fixture
def timeline(browser: Browser, report: Path) -> WebElement:
    browser.open(report)
    return scroll_to(browser, "#tl-canvas")


def test_wheel_zooms_around_the_pointer_once_the_timeline_has_focus(
    browser: Browser, timeline: WebElement
) -> None:
    whole = browser.view()
    browser.actions().move_to_element(timeline).scroll_by_amount(0, 0).perform()
    wheel(browser, timeline, -300, ctrl=False)
    assert browser.view() == whole, "an unfocused timeline must let the page scroll"
    browser.actions().move_to_element(timeline).click().perform()
    wheel(browser, timeline, -300, ctrl=False)
    zoomed = browser.view()
    assert whole[0] < zoomed[0] < zoomed[1] < whole[1]
    wheel(browser, timeline, 3000, ctrl=False)
    wheel(browser, timeline, 3000, ctrl=False)
    assert browser.view() == pytest.approx(whole)


def wheel(browser: Browser, canvas: WebElement, amount: int, *, ctrl: bool) -> None:
    browser.js(
        "const c = arguments[0], b = c.getBoundingClientRect();"
        "c.dispatchEvent(new WheelEvent('wheel', {deltaY: arguments[1], ctrlKey: arguments[2],"
        "clientX: b.left + b.width / 2, clientY: b.top + 80, bubbles: true, cancelable: true}))",
        canvas,
        amount,
        ctrl,
    )


def test_ctrl_wheel_and_buttons_zoom_without_focus(browser: Browser, timeline: WebElement) -> None:
    whole = browser.view()
    wheel(browser, timeline, -300, ctrl=True)
    zoomed = browser.view()
    assert zoomed[1] - zoomed[0] < whole[1] - whole[0]
    browser.find('[data-act="fit"]').click()
    assert browser.view() == whole
    browser.find('[data-act="step"]').click()
    step = browser.view()
    assert step[1] - step[0] == pytest.approx((whole[1] - whole[0]) / 3, rel=0.1)


def test_dragging_pans_by_the_distance_dragged(browser: Browser, timeline: WebElement) -> None:
    for _ in range(3):
        browser.find('[data-act="in"]').click()
    before = browser.view()
    browser.actions().move_to_element(timeline).click_and_hold().move_by_offset(-200, 0).release().perform()
    after = browser.view()
    assert after[0] > before[0]
    assert after[1] - after[0] == pytest.approx(before[1] - before[0])


def test_keyboard_zooms_pans_and_walks_spans(browser: Browser, timeline: WebElement) -> None:
    whole = browser.view()
    browser.js("arguments[0].focus()", timeline)
    press(browser, "+", "+")
    zoomed = browser.view()
    assert zoomed[1] - zoomed[0] == pytest.approx((whole[1] - whole[0]) * 0.36)
    press(browser, Keys.ARROW_RIGHT)
    assert browser.view()[0] > zoomed[0]
    press(browser, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert browser.view()[0] < zoomed[0]
    press(browser, "-")
    press(browser, "0")
    assert browser.view() == whole
    press(browser, Keys.ENTER, Keys.ARROW_DOWN)
    first = browser.find("#tl-details h4").text
    press(browser, Keys.TAB)
    second = browser.find("#tl-details h4").text
    assert first != second
    assert second in str(browser.find("#tl-live").get_attribute("textContent"))
    press(browser, Keys.ENTER)
    near = browser.view()
    assert near[1] - near[0] < (whole[1] - whole[0]) / 5


def test_tab_leaves_the_timeline_unless_a_span_is_picked(browser: Browser, timeline: WebElement) -> None:
    focused = "return document.activeElement.id"
    browser.js("arguments[0].focus()", timeline)
    press(browser, Keys.ENTER, Keys.TAB)
    assert browser.js(focused) == "tl-canvas"
    press(browser, Keys.ESCAPE, Keys.TAB)
    assert browser.js(focused) != "tl-canvas"


def press(browser: Browser, *keys: str) -> None:
    for key in keys:
        browser.actions().send_keys(key).perform()


def test_pointing_at_a_span_shows_its_figures(browser: Browser, timeline: WebElement) -> None:
    x, y = span_place(browser, "gloo:all_reduce")
    browser.actions().move_to_element_with_offset(timeline, x, y).perform()
    browser.view()
    assert browser.canvas("hover").endswith("gloo:all_reduce")
    tip = browser.find("#tip").text
    assert "gloo:all_reduce" in tip
    assert "Duration" in tip
    assert "Share of step" in tip


def test_a_step_is_as_long_as_from_the_first_rank_to_the_last(browser: Browser, timeline: WebElement) -> None:
    browser.js(
        "window.written = []; const pen = CanvasRenderingContext2D.prototype; const original = pen.fillText;"
        "pen.fillText = function (...all) { window.written.push(all[0]); original.apply(this, all); };"
    )
    browser.js("document.querySelector('[data-act=\"step\"]').click()")
    start, end = browser.view()
    written = {text for text in browser.js("return window.written") if text.startswith("step ")}
    marks = [mark for mark in synthetic_timeline().windows[0].steps if mark.step == 10]
    first, last = min(mark.start_ns for mark in marks), max(mark.start_ns + mark.dur_ns for mark in marks)
    assert last - first > max(mark.dur_ns for mark in marks)
    assert f"step 10 · {units.format_ns(last - first)}" in written
    assert start <= first and last <= end


def span_place(browser: Browser, name: str) -> tuple[int, int]:
    """Offset from the canvas's center to a span of that name, found by moving along the rows."""
    box = browser.js(
        "const b = document.getElementById('tl-canvas').getBoundingClientRect(); return [b.width, b.height]"
    )
    canvas = browser.find("#tl-canvas")
    found = browser.js(
        """
        const c = document.getElementById('tl-canvas'), b = c.getBoundingClientRect();
        for (let y = 50; y < b.height - 14; y += 8) {
          for (let x = 160; x < b.width - 10; x += 6) {
            const at = {clientX: b.left + x, clientY: b.top + y, bubbles: true};
            c.dispatchEvent(new PointerEvent('pointermove', at));
            const tip = document.querySelector('#tip:not([hidden]) strong');
            if (tip && tip.textContent === arguments[0]) return [x, y];
          }
        }
        return null;
        """,
        name,
    )
    assert found, f"no {name} on the canvas"
    assert canvas
    return int(found[0] - box[0] / 2), int(found[1] - box[1] / 2)


def test_search_counts_dims_and_walks(browser: Browser, timeline: WebElement) -> None:
    box = browser.find("#tl-search")
    box.send_keys("features.1.conv")
    found = browser.find("#tl-found").text
    assert int(found.split()[0].replace(",", "")) > 10
    box.send_keys(Keys.ENTER)
    assert "features.1.conv" in browser.find("#tl-details").text


def test_windows_can_be_chosen(browser: Browser, timeline: WebElement) -> None:
    assert browser.canvas("window") == "0"
    browser.js(
        "const s = document.getElementById('tl-window'); s.value = '1'; s.dispatchEvent(new Event('change'))"
    )
    browser.view()
    assert browser.canvas("window") == "1"


def test_a_dense_timeline_stays_cheap_to_draw(
    browser: Browser, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """80,000 spans: a frame touches pixels, not spans. Paint and frame times are reported, not asserted."""
    dense = synthetic_timeline(num_ranks=8, num_windows=1, steps=12, ops=35)
    assert dense.num_drawn > 80_000
    path = tmp_path / "dense.html"
    path.write_text(render_html(build_report(synthetic_analysis(num_ranks=8), dense)), encoding="utf-8")
    browser.open(path)
    canvas = scroll_to(browser, "#tl-canvas")
    browser.view()
    rows = 8 * 5
    assert 0 < int(browser.canvas("drawn")) < rows * canvas.size["width"]
    paint = browser.js("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    frame = browser.js(
        "const t = performance.now(); const c = document.getElementById('tl-canvas');"
        "document.dispatchEvent(new Event('perfscope-theme'));"
        "return new Promise(done => requestAnimationFrame(() => requestAnimationFrame("
        "() => done(performance.now() - t))))"
    )
    record_property("first_contentful_paint_ms", paint)
    record_property("two_frames_ms", frame)
    print(f"first contentful paint {paint:.0f} ms, two frames {frame:.1f} ms, {dense.num_drawn} spans")


def test_the_critical_path_is_drawn_told_and_switched_off(browser: Browser, tmp_path: Path) -> None:
    extract = synthetic_timeline()
    plain = build_report(synthetic_analysis(), extract)
    section = timeline_section(extract, None, timeline_paths(extract))
    sections = tuple(section if one.id == "timeline" else one for one in plain.sections)
    path = tmp_path / "path.html"
    path.write_text(render_html(structs.replace(plain, sections=sections)), encoding="utf-8")
    browser.open(path)
    canvas = browser.driver.find_element(By.ID, "tl-canvas")
    browser.view()
    assert int(browser.canvas("path")) >= 3
    assert "Critical path" in browser.driver.find_element(By.ID, "tl-legend").text
    browser.js("arguments[0].focus()", canvas)
    canvas.send_keys(Keys.ENTER)
    assert "Critical path" in browser.driver.find_element(By.ID, "tl-details").text
    canvas.send_keys("c")
    browser.view()
    assert browser.canvas("path") == "0"
    button = browser.driver.find_element(By.CSS_SELECTOR, '[data-act="path"]')
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    browser.view()
    assert int(browser.canvas("path")) >= 3
    assert not browser.complaints()


def test_a_finding_leads_to_its_spans_and_its_layer_and_back(browser: Browser, report: Path) -> None:
    browser.open(report)
    whole = browser.view()
    link = browser.find(".finding a.jump")
    assert link.text == "Show in the timeline"
    browser.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", link)
    link.click()
    browser.until(lambda: browser.js("return location.hash").startswith("#timeline&"))
    browser.until(lambda: browser.js("return document.getElementById('tl-search').value"))
    browser.until(lambda: browser.view() != whole)
    assert browser.find("#tl-details h4").text
    cell = browser.find("td[data-layer] a")
    name = cell.text
    browser.js("arguments[0].click()", cell)
    browser.until(lambda: browser.js("return document.getElementById('tl-search').value") == name)
    browser.driver.back()
    browser.until(lambda: browser.js("return document.getElementById('tl-search').value") != name)


def test_the_address_brings_back_what_the_timeline_showed(
    browser: Browser, timeline: WebElement, report: Path
) -> None:
    for _ in range(3):
        browser.find('[data-act="in"]').click()
    shown = browser.view()
    browser.until(lambda: "t0=" in browser.js("return location.hash"))
    address = browser.js("return location.href")
    browser.driver.get("about:blank")
    browser.driver.get(address)
    browser.until(lambda: browser.js("return document.documentElement.dataset.ready") == "1")
    browser.until(lambda: browser.view() == pytest.approx(shown, abs=2))


def range_sums(browser: Browser) -> list[list[str]]:
    script = "return [...document.querySelectorAll('#tl-range tr')].map(row => [...row.cells].map(c => "
    return list(browser.js(script + "c.firstChild.textContent))"))


def test_a_dragged_range_is_summed_per_rank_and_kept_in_the_address(
    browser: Browser, report: Path, timeline: WebElement
) -> None:
    browser.find('[data-act="range"]').click()
    before = browser.view()
    browser.actions().move_to_element_with_offset(timeline, -150, 0).click_and_hold().move_by_offset(
        300, 0
    ).release().perform()
    assert browser.view() == before, "selecting must not pan"
    start, end = (float(time) for time in browser.canvas("range").split())
    assert before[0] < start < end < before[1]
    head, mean, *ranks = range_sums(browser)
    assert head[:2] == ["Rank", "Compute"]
    assert head[-1] == "Idle"
    assert mean[0] == "mean"
    extract = synthetic_timeline()
    assert [row[0] for row in ranks] == [str(r) for r in sorted({x.rank for x in extract.windows[0].lanes})]
    browser.until(lambda: "&from=" in browser.js("return location.hash"))
    address = browser.js("return location.hash")
    browser.open(report)
    browser.js("location.hash = arguments[0]", address)
    browser.until(lambda: bool(browser.canvas("range")))
    assert range_sums(browser)[1:] == [mean, *ranks]


def test_sums_of_the_whole_window_are_those_of_its_spans(browser: Browser, timeline: WebElement) -> None:
    browser.js("arguments[0].focus()", timeline)
    press(browser, "r")
    head, _, first, *_ = range_sums(browser)
    window, kinds = synthetic_timeline().windows[0], synthetic_timeline().kinds
    spans = [
        (int(start), int(start + dur))
        for lane in window.lanes
        if lane.rank == int(first[0])
        for start, dur, kind in zip(lane.start_ns, lane.dur_ns, lane.kind, strict=True)
        if kinds[kind] in ("compute", "optimizer", "comm", "copy", "input")
    ]
    busy, end = 0, 0
    for start, stop in sorted(spans):
        busy += max(stop - max(start, end), 0)
        end = max(end, stop)
    whole = browser.view()[1]
    assert first[head.index("Idle")] == units.format_ns(whole - busy)
    press(browser, "r")
    assert browser.find("#tl-range").get_attribute("hidden")
