"""Workers of a data loader in the timeline, in a real Chromium: a few of many, all of them on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.api.run import Run
from tests.support.loaded_run import loaded_run

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from tests.support.browser import Browser, browser, pytestmark, scroll_to

__all__ = ["browser", "pytestmark"]


def test_of_sixteen_workers_a_few_are_drawn_and_a_key_draws_all(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    run = loaded_run(tmp_path / "run", num_workers=16, slow=11, ranks=(0,))
    Run(run.read()).report("html", page)
    browser.open(page)
    scroll_to(browser, "#tl-canvas")
    browser.view()
    few = browser.canvas("lanes").split("|")
    assert few[1] == "loader queue" and few[-1] == "13 more workers" and "loader worker 11" in few
    browser.find('[data-act="workers"]').click()
    browser.view()
    every = browser.canvas("lanes").split("|")
    assert every[2:] == [f"loader worker {number}" for number in range(16)]
    browser.find("#tl-search").send_keys("wait for batch 4\n")
    browser.view()
    facts = browser.find("#tl-details").text
    assert "Batch was finished" in facts and "before the training asked" in facts
    assert not browser.complaints()
