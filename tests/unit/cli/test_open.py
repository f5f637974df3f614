"""`perfscope open`: the report is there, current, and shown where something can show it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.cli.main import cli
from perfscope.cli.open_ import has_display, is_outdated
from tests.support.synthetic_run import SyntheticRun


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    made = SyntheticRun(tmp_path / "run")
    made.rank(0)
    made.steps(0, [10_000_000] * 20)
    return tmp_path / "run"


def test_without_a_display_the_path_is_printed(run: Path) -> None:
    result = CliRunner().invoke(cli, ["open", str(run)])
    assert result.exit_code == 0
    page = run / "report.html"
    assert result.stdout == f"{page}\n" and page.read_text("utf-8").startswith("<!")
    assert "scp " in result.stderr


def test_a_browser_gets_the_page(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    opened: list[str] = []

    def show(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", show)
    result = CliRunner().invoke(cli, ["open", str(run)])
    assert result.exit_code == 0 and result.stdout == ""
    assert opened == [(run / "report.html").resolve().as_uri()]


def test_only_an_old_report_is_written_again(run: Path) -> None:
    page = run / "report.html"
    assert is_outdated(page, run)
    CliRunner().invoke(cli, ["open", str(run)])
    assert not is_outdated(page, run)
    page.write_text("kept")
    os.utime(page, ns=(page.stat().st_atime_ns, page.stat().st_mtime_ns + 10**9))
    CliRunner().invoke(cli, ["open", str(run)])
    assert page.read_text("utf-8") == "kept"
    CliRunner().invoke(cli, ["open", str(run), "--refresh"])
    assert page.read_text("utf-8") != "kept"
    os.utime(page, (0, 0))
    assert is_outdated(page, run)


def test_a_display_is_what_the_desktop_names() -> None:
    assert has_display({"DISPLAY": ":0"}) and has_display({"BROWSER": "firefox"})
    assert not has_display({"DISPLAY": ""})
