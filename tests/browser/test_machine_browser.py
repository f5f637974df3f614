"""The machine's charts and its picture in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from perfscope.reports.build import build_report
from perfscope.reports.html import render_html
from tests.browser.test_timeline_browser import press
from tests.support.synthetic_machine import vm_machine
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from selenium.webdriver import Keys

from tests.support.browser import (
    Browser,
    browser,
    pytestmark,
    scroll_to,
)

__all__ = ["browser", "pytestmark"]


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
    plot = scroll_to(browser, "#counters .ct-chart .ct-plot")
    browser.actions().move_to_element(plot).perform()
    tip = browser.find("#tip").text
    assert tip.startswith("CPUs, at 5.7")  # the middle of 11.5 s
    assert "CPU of this run" in tip
    assert "%" in tip
    assert "Processes that are not of this run used 1.9 of 2 CPUs" in tip
    shown = (
        "return [...document.querySelectorAll('#counters .counters .cursor')]"
        ".map(c => getComputedStyle(c).visibility)"
    )
    assert "visible" in browser.js(shown)
    charts = browser.js("return document.querySelectorAll('#counters .ct-plot').length")
    assert browser.js(shown).count("visible") == charts > 1, "every counter chart, and no other"
    browser.js("arguments[0].focus()", browser.find("#counters .counters"))
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
    browser.js("location.hash = '#machine'")  # folded on a phone
    browser.until(lambda: not browser.js("return document.querySelector('#machine.folded')"))
    visible = browser.js(
        "return [...document.querySelectorAll('.m-picture')].filter(p => p.getClientRects().length)"
        ".map(p => p.getAttribute('class'))"
    )
    assert visible == [f"m-picture {shown}"]
    size = browser.js("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert size[0] <= size[1]
