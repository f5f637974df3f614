"""The page of all runs in a real Chromium: lists of choices, links to charts, no request, no complaint."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.cli.main import cli
from tests.support.site_runs import write_many

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from selenium.webdriver import Keys

from tests.support.browser import Browser, browser, pytestmark

__all__ = ["browser", "pytestmark"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write_many(folder / "runs", 96, num_series=4)
    arguments = ["dashboard", str(folder / "runs"), "-o", str(folder / "site")]
    CliRunner().invoke(cli, arguments, catch_exceptions=False, standalone_mode=False)
    return folder / "site" / "index.html"


def choose(browser: Browser, title: str, value: str) -> None:
    script = "const list = document.querySelector(`[data-facet='runs-table'][aria-label='${arguments[0]}']`);"
    script += "list.value = arguments[1]; list.dispatchEvent(new Event('change'));"
    browser.js(script, title, value)


def shown(browser: Browser) -> list[str]:
    script = "return [...document.querySelectorAll('[data-table=runs-table] tbody tr')]"
    script += ".filter(row => !row.hidden).map(row => row.dataset.facets)"
    return list(browser.js(script))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_asks_for_nothing_and_complains_of_nothing(browser: Browser, page: Path, theme: str) -> None:
    browser.open(page, theme=theme)
    assert browser.requests() == [page.as_uri()]
    assert browser.complaints() == []


def test_choices_narrow_the_runs_together(browser: Browser, page: Path) -> None:
    browser.open(page)
    choose(browser, "Label", "model=m1")
    assert len(shown(browser)) == 10 and all("model=m1" in row for row in shown(browser))
    assert "24 rows" in browser.find("#runs-table .more").text
    choose(browser, "Commit", "0000003")
    assert len(shown(browser)) == 1
    choose(browser, "Label", "")
    assert len(shown(browser)) == 4
    field = browser.find('[data-filter="runs-table"]')
    field.send_keys("EPYC m3 not there")
    assert shown(browser) == []


def test_the_search_shows_a_row_that_a_choice_hides(browser: Browser, page: Path) -> None:
    browser.open(page)
    choose(browser, "Label", "model=m1")
    choose(browser, "State", "finished")
    browser.find("#find").send_keys("run-0002", Keys.ENTER)
    row = "document.querySelector('tr.found')"
    assert "run-0002" in browser.js(f"return {row}.textContent")
    assert browser.js(f"return !{row}.hidden")
    chosen = "[...document.querySelectorAll('[data-facet=runs-table]')].map(list => list.value).join('')"
    assert browser.js(f"return {chosen}") == "finished"  # it fits the row


def test_hosts_that_a_cell_has_no_place_for_are_found(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.find('[data-filter="runs-table"]').send_keys("nightly-2")
    assert len(shown(browser)) == 10 and all("nightly-2" in row for row in shown(browser))


def test_a_series_leads_to_its_chart_in_a_folded_section(browser: Browser, page: Path) -> None:
    browser.open(page, width=390)
    assert browser.js("return document.getElementById('trends').classList.contains('folded')")
    browser.js("document.querySelector('#trends-table a').click()")
    browser.until(
        lambda: not browser.js("return document.getElementById('trends').classList.contains('folded')")
    )
    browser.until(lambda: browser.js("return scrollY > 300"))
    assert browser.js("return document.documentElement.scrollWidth") <= 390
