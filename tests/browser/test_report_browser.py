"""The HTML report in a real Chromium, opened from a file with every name lookup refused.

Needs Chromium and chromedriver (Debian packages chromium, chromium-driver) and selenium; skipped without.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from perfscope import units
from perfscope.reports.build import build_report
from perfscope.reports.html import render_html
from perfscope.reports.model import format_value
from perfscope.reports.sections.counters import UNITS
from perfscope.reports.sections.timeline import timeline_section
from tests.support.synthetic_machine import vm_machine
from tests.unit.reports.sections.test_critical_path import timeline_paths
from tests.unit.reports.test_html import HOSTILE, hostile_page
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian package: chromium)"),
    pytest.mark.skipif(DRIVER is None, reason="no chromedriver here (Debian package: chromium-driver)"),
]
pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from selenium import webdriver  # noqa: E402 - after the skip
from selenium.webdriver import ActionChains, Keys  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --force-device-scale-factor=1 "
    "--window-size=1300,900"
)


class Browser:
    """One Chromium window and what it did."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, path: Path, *, width: int = 1300, height: int = 900, theme: str = "light") -> None:
        self.log("browser")
        self.log("performance")
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(path.as_uri())
        self.until(lambda: self.js("return document.documentElement.dataset.ready") == "1")

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What Chromium logged since the last call."""
        return list(self.driver.get_log(kind))  # type: ignore[no-untyped-call]

    def js(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, holds: Callable[[], object], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "the page did not get there"
            time.sleep(0.02)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def actions(self) -> ActionChains:
        return ActionChains(self.driver, duration=20)

    def canvas(self, name: str) -> str:
        return str(self.js("return document.getElementById('tl-canvas').dataset[arguments[0]]", name))

    def view(self) -> tuple[float, float]:
        """The timeline's visible range after pending frames."""
        self.js("return new Promise(done => setTimeout(done, 160))")
        return float(self.canvas("t0")), float(self.canvas("t1"))

    def requests(self) -> list[str]:
        """Addresses asked for since `open` by the page itself (not by Chromium's own start page)."""
        found = []
        for entry in self.log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] != "Network.requestWillBeSent":
                continue
            if not message["params"]["documentURL"].startswith("chrome://"):
                found.append(message["params"]["request"]["url"])
        return found

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.log("browser")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (
        *FLAGS.split(),
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_script_timeout(120)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_html(build_report(synthetic_analysis(), synthetic_timeline())), encoding="utf-8")
    return path


def scroll_to(browser: Browser, selector: str) -> WebElement:
    found = browser.find(selector)
    browser.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", found)
    return found


@pytest.fixture
def timeline(browser: Browser, report: Path) -> WebElement:
    browser.open(report)
    return scroll_to(browser, "#tl-canvas")


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


@pytest.fixture(scope="module")
def machine_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    analysis = synthetic_analysis()
    analysis = structs.replace(analysis, machine=vm_machine(analysis.layers))
    path = tmp_path_factory.mktemp("machine") / "report.html"
    path.write_text(render_html(build_report(analysis, synthetic_timeline())), encoding="utf-8")
    return path


def test_pointing_at_a_counter_gives_its_values_and_moves_every_cursor(
    browser: Browser, machine_report: Path
) -> None:
    browser.open(machine_report)
    plot = scroll_to(browser, ".ct-chart .ct-plot")
    browser.actions().move_to_element(plot).perform()
    tip = browser.find("#tip").text
    assert tip.startswith("CPUs, at 5.7")  # the middle of 11.5 s
    assert "CPU of this run" in tip
    assert "%" in tip
    assert "Processes that are not of this run used 1.9 of 2 CPUs" in tip
    shown = (
        "return [...document.querySelectorAll('.counters .cursor')].map(c => getComputedStyle(c).visibility)"
    )
    assert "visible" in browser.js(shown)
    charts = browser.js("return document.querySelectorAll('.ct-plot').length")
    assert browser.js(shown).count("visible") == charts > 1, "every counter chart, and no other"
    browser.js("arguments[0].focus()", browser.find(".counters"))
    press(browser, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert browser.find("#tip").text.startswith("Pressure")
    press(browser, Keys.ESCAPE)
    assert set(browser.js(shown)) == {"hidden"}
    assert browser.complaints() == []


def test_pointing_at_a_layer_of_the_roofline_gives_its_figures(
    browser: Browser, machine_report: Path
) -> None:
    browser.open(machine_report)
    scroll_to(browser, ".rf-plot")
    point = browser.find('.rf-point[data-label="features.1.conv"][data-phase="forward"] .rf-forward')
    browser.actions().move_to_element(point).perform()
    tip = browser.find("#tip").text
    assert tip.startswith("features.1.conv, forward")
    assert "2.84 ms" in tip
    assert "compute" in tip
    browser.js("arguments[0].focus()", browser.find(".roofline"))
    press(browser, Keys.ARROW_RIGHT)
    assert browser.js("return document.querySelectorAll('.rf-point.active').length") == 1


def test_the_timeline_tells_counters_and_disturbances_of_its_window(
    browser: Browser, machine_report: Path
) -> None:
    browser.open(machine_report)
    canvas = scroll_to(browser, "#tl-canvas")
    browser.js(
        "const s = document.getElementById('tl-window'); s.value = '1'; s.dispatchEvent(new Event('change'));"
        "document.querySelector('.tl-scroll').scrollTop = 9999"
    )
    browser.view()
    box = canvas.size
    browser.actions().move_to_element_with_offset(canvas, 0, box["height"] // 2 - 60).perform()
    tip = browser.find("#tip").text
    assert "Disturbed by" in tip
    assert "stress-ng" in tip
    assert "Host" in tip
    assert browser.find("#tip strong").text in ("eth0 sent", "eth0 received")
    browser.actions().move_to_element_with_offset(canvas, 0, 20 - box["height"] // 2).perform()
    assert browser.find("#tip strong").text == "Disturbed"
    assert browser.complaints() == []


@pytest.mark.parametrize(("width", "shown"), [(1300, "m-wide"), (390, "m-narrow")])
def test_the_machines_picture_has_a_layout_for_the_screen(
    browser: Browser, machine_report: Path, width: int, shown: str
) -> None:
    browser.open(machine_report, width=width)
    visible = browser.js(
        "return [...document.querySelectorAll('.m-picture')].filter(p => p.getClientRects().length)"
        ".map(p => p.getAttribute('class'))"
    )
    assert visible == [f"m-picture {shown}"]
    size = browser.js("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert size[0] <= size[1]


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
    values = [0, 1, 999, 1000, 1001, 12_345, 999_999, 1_234_567, 98_765_432, 1_234_567_890, 3.2e12]
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
    assert browser.js(shown) == 20
    scroll_to(browser, "#layers-table .more").click()
    assert browser.js(shown) == 60
    browser.find('[data-filter="layers-table"]').send_keys("blocks.7.")
    assert browser.js(shown) == 1


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
