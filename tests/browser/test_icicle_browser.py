"""The icicle in a real Chromium: zoom by click and keys, links from layers, the address."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.reports.html import render_html
from perfscope.reports.icicle import Icicle, Step, icicle_boxes
from perfscope.reports.model import Report
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from msgspec import structs
from selenium.webdriver import Keys

from perfscope import units
from perfscope.reports.build import build_report
from tests.browser.test_timeline_browser import press
from tests.support.axe import axe_script, violations
from tests.support.browser import Browser, browser, pytestmark, scroll_to

__all__ = ["browser", "pytestmark"]

ZOOMED = "return document.querySelector('[data-icicle]').dataset.zoomed"
HASH = "return decodeURIComponent(location.hash)"


def with_icicle() -> Report:
    report = build_report(synthetic_analysis(), synthetic_timeline())
    paths = [
        (
            (
                Step("features", "features", "outline"),
                Step(str(number), f"features.{number}", "outline"),
                Step("conv", f"features.{number}.conv", "outline"),
                Step("aten::conv2d", "aten::conv2d", "forward"),
            ),
            float(1000 * (number + 1)),
        )
        for number in range(3)
    ]
    boxes = icicle_boxes(Step("all operators", "all operators", "outline"), paths)
    chart = Icicle(id="module-icicle", title="Modules and operators", boxes=boxes, text=units.format_ns)
    layers = report.section("layers")
    changed = structs.replace(layers, blocks=(chart, *layers.blocks))
    sections = tuple(changed if one is layers else one for one in report.sections)
    return structs.replace(report, sections=sections)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("icicle") / "report.html"
    path.write_text(render_html(with_icicle()), encoding="utf-8")
    return path


def width(browser: Browser, path: str) -> float:
    script = "return document.querySelector(`g.ic[data-path='${arguments[0]}'] rect`).getAttribute('width')"
    return float(str(browser.js(script, path)).rstrip("%"))


def test_a_click_zooms_and_the_button_zooms_out(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert width(browser, "features/1") == pytest.approx(100 / 3, abs=0.1)
    scroll_to(browser, "g.ic[data-path='features/1'] rect").click()
    assert browser.js(ZOOMED) == "features/1"
    assert width(browser, "features/1") == width(browser, "features") == 100
    assert not browser.find("g.ic[data-path='features/0']").is_displayed()
    browser.until(lambda: "zoom.module-icicle=features/1" in browser.js(HASH))
    address = browser.js("return location.hash")
    browser.find("#module-icicle .more").click()
    assert browser.js(ZOOMED) == "features"
    browser.open(page)
    browser.js("location.hash = arguments[0]", address)
    browser.until(lambda: browser.js(ZOOMED) == "features/1")
    assert browser.complaints() == []


def test_keys_walk_zoom_and_tell(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.js("arguments[0].focus()", scroll_to(browser, "[data-icicle]"))
    press(browser, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    said = "return document.querySelector('#module-icicle [aria-live]').textContent"
    assert browser.js(said) == "features.1: 2.00 µs, 33.3 %"
    press(browser, Keys.ENTER)
    assert browser.js(ZOOMED) == "features/1"
    press(browser, Keys.ESCAPE, Keys.ESCAPE)
    assert browser.js(ZOOMED) == ""


def test_a_layer_leads_to_its_operators_and_back(browser: Browser, page: Path) -> None:
    browser.open(page)
    row = "#layers-table td[data-v='features.1.conv']"
    scroll_to(browser, f"{row} .places-open").click()
    browser.find("#places a[href*='module-icicle']").click()
    browser.until(lambda: browser.js(ZOOMED) == "features/1/conv")
    assert browser.find("g.ic[data-path='features/1/conv/aten::conv2d:forward']").is_displayed()
    browser.driver.back()
    browser.until(lambda: "zoom" not in browser.js(HASH))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [1300, 390])
def test_axe_finds_nothing(
    browser: Browser, pytestconfig: pytest.Config, page: Path, theme: str, size: int
) -> None:
    assert pytestconfig.cache is not None
    axe = axe_script(pytestconfig.cache.mkdir("axe"))
    browser.open(page, theme=theme, width=size)
    browser.js("location.hash = '#module-icicle&zoom.module-icicle=features/1'")
    browser.until(lambda: browser.js(ZOOMED) == "features/1")
    assert violations(browser, axe) == []
