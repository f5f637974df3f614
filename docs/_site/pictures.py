"""`make pictures`: every picture of README and docs/, made of the kept runs.

python docs/_site/pictures.py

Terminals are drawn by rich. Pages are photographed by Chromium; without it (or without selenium) those
pictures stay as they are, and a line says so. docs/images/pictures.json holds of what each picture was made.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from kept_runs import COMPARED, fingerprint, first_screen, unpack

IMAGES = Path(__file__).parents[1] / "images"
RECORD = IMAGES / "pictures.json"
COLUMNS = 100


class Shot(NamedTuple):
    """A picture of a page. `fragment`: place and theme, as in links; `crop`: the element it begins with."""

    name: str
    run: str
    width: int = 1280
    height: int = 760
    fragment: str = ""
    crop: str = ""
    script: str = ""


MARKS = """
const marks = [['.run-line', 1], ['#verdict h1', 2], ['#verdict .action', 3], ['#verdict .saving', 4],
  ['.notice', 5], ['.overview', 6], ['#kpi-step', 7], ['#kpi-throughput', 8], ['#kpi-exposed_comm', 9],
  ['#kpi-ranks', 10], ['#kpi-memory', 11], ['#kpi-machine', 12], ['#kpi-overhead', 13], ['.trend', 14],
  ['header nav', 15]];
for (const [selector, number] of marks) {
  const found = document.querySelector(selector);
  if (!found) continue;
  const box = found.getBoundingClientRect();
  const mark = document.createElement('div');
  mark.textContent = number;
  mark.style.cssText = 'position:absolute;z-index:99;background:#111;color:#fff;border:2px solid #fff;' +
    'border-radius:50%;width:24px;height:24px;font:700 13px/24px sans-serif;text-align:center;' +
    (found.matches('.kpi') ? `left:${box.left}px;top:${box.bottom - 10 + scrollY}px`
      : `left:${found.matches('nav') ? 160 : box.left - 26}px;top:${box.top + scrollY}px`);
  document.body.append(mark);
}
"""
ZOOMED = "timeline&group=host"
SHOTS = (
    Shot("report.png", "two-hosts"),
    Shot("report-marked.png", "two-hosts", height=800, script=MARKS),
    Shot("report-dark.png", "gpt2", fragment="&theme=dark"),
    Shot("timeline.png", "two-hosts", fragment=ZOOMED, crop="#timeline", height=620),
    Shot("layers.png", "gpt2", crop="#layers", height=640),
    Shot("memory.png", "cnn", crop="[id^=memory-allocator]", height=380),
    Shot("counters.png", "cnn", crop="#counters", height=470),
    Shot("compare.png", "study", height=760),
    Shot("compare-timelines.png", "study", crop="#timeline", height=640),
)


def main() -> None:
    """Makes all pictures that can be made here."""
    made: dict[str, dict[str, Any]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        runs = {name: unpack(name, folder) for name in ("two-hosts", "gpt2", "cnn", *COMPARED)}
        for name, run, arguments in (
            ("terminal.svg", "two-hosts", ("report",)),
            ("top.svg", "two-hosts", ("top", "--once")),
        ):
            text = _output(arguments[0], str(runs[run]), *arguments[1:], "--color", "always")
            (IMAGES / name).write_text(_terminal(text, f"perfscope {arguments[0]}"), encoding="utf-8")
            made[name] = {"runs": {run: fingerprint(run)}}
        for name, run in _photographed(folder, runs):
            kept = COMPARED if run == "study" else (run,)
            made[name] = {"runs": {one: fingerprint(one) for one in kept}}
        for name in ("two-hosts", "gpt2", "cnn"):
            says = first_screen(_output("report", str(runs[name]), "--json"))
            for picture in made.values():
                if list(picture.get("runs", {})) == [name]:
                    picture["says"] = says
    RECORD.write_text(json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _output(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "perfscope", *arguments],
        env={**os.environ, "COLUMNS": str(COLUMNS), "TZ": "UTC"},
        check=True,
        capture_output=True,
        text=True,
    )
    # Where the runs lie while pictures are made says nothing to a reader.
    return re.sub(r"/\S*/(?=(?:two-hosts|gpt2|cnn)\b)", "", done.stdout)


def _terminal(text: str, title: str) -> str:
    """Colored text as an SVG that loads nothing."""
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME
    from rich.text import Text

    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(text.rstrip("\n")), soft_wrap=True)
        svg = console.export_svg(title=title, theme=SVG_EXPORT_THEME, unique_id=title.replace(" ", "-"))
    return without_fonts(svg)


def without_fonts(svg: str) -> str:
    """Rich names a font that would be fetched."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")


def _photographed(folder: Path, runs: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """(picture, run) of each picture that Chromium made."""
    browser = _browser(folder)
    if browser is None:
        print("no Chromium, chromedriver or selenium: pictures of pages stay as they are", file=sys.stderr)
        return
    pages = {}
    for name in ("two-hosts", "gpt2", "cnn"):
        pages[name] = folder / f"{name}.html"
        _output("report", str(runs[name]), "--html", str(pages[name]))
    _output("compare", *(str(runs[name]) for name in COMPARED), "-o", str(folder / "study"))
    pages["study"] = folder / "study" / "compare.html"
    try:
        for shot in SHOTS:
            _shoot(browser, shot, pages[shot.run])
            yield shot.name, shot.run
    finally:
        browser.quit()


def _browser(folder: Path) -> Any:
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        return None
    if binary is None or driver is None:
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'chromium'}"),
    ):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(driver))


def _shoot(browser: Any, shot: Shot, page: Path) -> None:
    size = {"width": shot.width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    light = [{"name": "prefers-color-scheme", "value": "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": light})
    browser.get("about:blank")
    browser.get(page.as_uri() + (f"#{shot.fragment}" if shot.fragment else ""))
    wait = "const done = arguments[0]; setTimeout(done, 900)"
    browser.execute_async_script(wait)
    if shot.script:
        browser.execute_script(shot.script)
    top = 0.0
    if shot.crop:
        find = "const e = document.querySelector(arguments[0]); e.scrollIntoView({behavior: 'instant'});"
        browser.execute_script(find, shot.crop)
        browser.execute_async_script(wait)
        place = (
            "const e = document.querySelector(arguments[0]);"
            "return (e.querySelector('.section-head') ?? e).getBoundingClientRect().top + scrollY"
        )
        top = max(0.0, browser.execute_script(place, shot.crop) - 12)
    left = 226 if shot.crop else 0  # without the table of contents
    clip = {"x": left, "y": top, "width": shot.width - left, "height": shot.height, "scale": 1}
    options = {"format": "png", "clip": clip, "captureBeyondViewport": bool(shot.crop)}
    data = browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
    (IMAGES / shot.name).write_bytes(base64.b64decode(data))


if __name__ == "__main__":
    main()
