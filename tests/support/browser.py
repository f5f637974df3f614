"""A real Chromium that opens pages from files, with every name lookup refused."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.reports.build import build_report
from perfscope.reports.html import render_html
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline, with_maps

pytest.importorskip("selenium", reason="the browser tests drive Chromium through selenium")

from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian package: chromium)"),
    pytest.mark.skipif(DRIVER is None, reason="no chromedriver here (Debian package: chromium-driver)"),
]

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
    made = build_report(with_maps(synthetic_analysis()), synthetic_timeline())
    path.write_text(render_html(made), encoding="utf-8")
    return path


def scroll_to(browser: Browser, selector: str) -> WebElement:
    found = browser.find(selector)
    browser.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", found)
    return found
