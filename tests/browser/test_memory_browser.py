"""The memory curves by the allocator's events in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.cli.main import cli

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from tests.support.browser import Browser, browser, pytestmark, scroll_to

__all__ = ["browser", "pytestmark"]

TRACE = Path(__file__).parents[1] / "data" / "traces" / "h100_memory" / "trace.json.gz"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "report.html"
    cli.main(["report", str(TRACE), "--html", str(path)], standalone_mode=False)
    return path


@pytest.mark.parametrize(("width", "theme"), [(1300, "light"), (1000, "dark")])
def test_the_allocators_curves_have_axes_with_units_and_answer_the_pointer(
    browser: Browser, page: Path, width: int, theme: str
) -> None:
    browser.open(page, width=width, theme=theme)
    plot = scroll_to(browser, "[id^=memory-allocator] .ct-chart .ct-plot")
    browser.actions().move_to_element(plot).perform()
    tip = browser.find("#tip").text
    assert "allocated" in tip and "reserved" in tip
    assert "MiB" in tip or "GiB" in tip
    chart = browser.find("[id^=memory-allocator]").text
    assert "peak of allocated memory" in chart and "MiB" in chart
    assert browser.js("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.complaints() == []
