"""Pictures of README and docs: they exist, are small, and are of the runs that are kept."""

from __future__ import annotations

import itertools
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = {"frameworks.png", "recording.svg"}  # of measurements in many frameworks; `make recording`
MOST_BYTES, MOST_TOGETHER = 300_000, 2_000_000

sys.path.insert(0, str(ROOT / "docs" / "_site"))

from kept_runs import KEPT, fingerprint, first_screen, unpack  # noqa: E402

from perfscope.cli.main import cli  # noqa: E402

MADE = json.loads((IMAGES / "pictures.json").read_text(encoding="utf-8"))


def referenced() -> set[str]:
    return {
        name for page in PAGES for name in re.findall(r"\(\S*?images/([\w.-]+)\)", page.read_text("utf-8"))
    }


def test_each_picture_that_a_page_shows_is_there_and_small() -> None:
    names = referenced()
    assert {"report.png", "report-marked.png", "recording.svg", "recording.cast"} <= names
    sizes = {name: (IMAGES / name).stat().st_size for name in names}
    assert max(sizes.values()) < MOST_BYTES, sizes
    assert sum(path.stat().st_size for path in IMAGES.iterdir()) < MOST_TOGETHER


def test_each_picture_is_made_of_kept_runs_as_they_are() -> None:
    """Another run, or another version of one: `make pictures`."""
    shown = {name for name in referenced() if not name.endswith(".cast")} - ELSEWHERE
    assert shown == set(MADE)
    recorded = {run: digest for made in MADE.values() for run, digest in made["runs"].items()}
    assert recorded == {
        path.name.removesuffix(".tar.xz"): fingerprint(path.name[:-7]) for path in KEPT.iterdir()
    }
    for made in MADE.values():
        assert all(recorded[run] == digest for run, digest in made["runs"].items())


@pytest.mark.parametrize("run", ["two-hosts", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_a_picture_says_what_the_report_says_today(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another verdict, action or step: `make pictures`."""
    says = {tuple(made["says"]) for made in MADE.values() if list(made["runs"]) == [run]}
    cli.main(["report", str(unpack(run, tmp_path)), "--json"], standalone_mode=False)
    assert says == {tuple(first_screen(capsys.readouterr().out))}


@pytest.mark.parametrize("name", ["recording.svg", "terminal.svg", "top.svg"])
def test_a_drawn_terminal_loads_nothing(name: str) -> None:
    text = (IMAGES / name).read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert not re.search(r"(?:src|href)\s*=|url\((?!#)|@import|@font-face|<script", text)


def test_the_recording_stands_still_where_motion_is_not_wanted_and_is_what_the_cast_holds() -> None:
    text = (IMAGES / "recording.svg").read_text(encoding="utf-8")
    assert "@media(prefers-reduced-motion:reduce)" in text
    head, *pieces = [json.loads(line) for line in (IMAGES / "recording.cast").read_text("utf-8").splitlines()]
    assert head["version"] == 2
    assert all(later[0] >= earlier[0] for earlier, later in itertools.pairwise(pieces))
    printed = "".join(piece[2] for piece in pieces)
    for command in ("perfscope run", "perfscope report", "perfscope compare"):
        assert command in printed and command in text
    assert pieces[-1][0] <= 65
