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
from perfscope.rundir.inventory import take_inventory  # noqa: E402
from perfscope.rundir.seal import FILES, damage, is_intact  # noqa: E402

MADE = json.loads((IMAGES / "pictures.json").read_text(encoding="utf-8"))


# What tells of the machine: docs/_site/keep.py replaces it.
OF_MACHINES = re.compile(
    r"/(?:home|opt|root)/|/work\b|/tmp/pytest|-fc-v|GPU-(?!0{8}-0{4}-0{4}-0{4}-)[0-9a-f]{8}-"
    r"|\b(?!02:00:)(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b|\"commit\": ?\"",
)


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


@pytest.mark.parametrize("run", sorted(path.name[:-7] for path in KEPT.iterdir()))
def test_a_kept_run_tells_nothing_of_the_machine_and_is_whole(run: str, tmp_path: Path) -> None:
    """Every checksum is right, and the inventory names what is there."""
    folder = unpack(run, tmp_path)
    for path in (path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        assert not OF_MACHINES.findall(data.decode()), path.name
        if path.suffix != ".json":
            continue
        assert is_intact(data, path.name) in (True, None), path.name
        for name, seal in json.loads(data).get(FILES, {}).items():
            assert damage(seal, (path.parent / name).read_bytes()) is None, name
    inventory = json.loads((folder / "run.json").read_text("utf-8"))["inventory"]
    assert inventory == take_inventory(folder, is_still=True)


@pytest.mark.parametrize("name", ["recording.cast", "recording.svg", "terminal.svg", "top.svg"])
def test_a_terminal_that_is_shown_tells_nothing_of_the_machine(name: str) -> None:
    assert not OF_MACHINES.findall((IMAGES / name).read_text(encoding="utf-8"))


SLOW = [pytest.param(run, marks=pytest.mark.slow) for run in ("gpt2", "cnn")]


@pytest.mark.parametrize("run", ["two-hosts", *SLOW])
def test_a_picture_says_what_the_report_says_today(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another verdict, action or step: `make pictures`."""
    says = {tuple(made["says"]) for made in MADE.values() if list(made["runs"]) == [run]}
    cli.main(["report", str(unpack(run, tmp_path)), "--json"], standalone_mode=False)
    text = capsys.readouterr().out
    assert says == {tuple(first_screen(text))}
    assert "damaged" not in text


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
