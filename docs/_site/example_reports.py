"""The example reports of the site: HTML that perfscope writes of the kept runs when the site is built."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from kept_runs import COMPARED, unpack

REPORTS = ("two-hosts", "gpt2", "cnn")


def example_reports() -> dict[str, str]:
    """Name of the page -> HTML. Raises CalledProcessError: a report could not be written."""
    pages = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in REPORTS:
            page = folder / f"{name}.html"
            _perfscope("report", str(unpack(name, folder)), "--html", str(page))
            pages[page.name] = page.read_text(encoding="utf-8")
        runs = [str(unpack(name, folder)) for name in COMPARED]
        _perfscope("compare", *runs, "-o", str(folder / "study"))
        pages["compare.html"] = (folder / "study" / "compare.html").read_text(encoding="utf-8")
    return pages


def with_links(markdown: str) -> str:
    """A page whose `examples/gpt2.html` are links: those reports are in the site alone."""
    return re.sub(r"`(examples/[\w-]+\.html)`", r"[`\1`](\1)", markdown)


def _perfscope(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "perfscope", *arguments], check=True, capture_output=True)
