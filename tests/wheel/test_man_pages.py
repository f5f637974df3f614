"""Man pages: one per command and subcommand, with every option, and nothing that man complains about."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from perfscope.cli.main import COMMANDS

SOURCE = Path(__file__).parents[2] / "docs" / "_site" / "man_pages.py"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("man_pages", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[str, str] = module.man_pages()
    return made


def test_every_command_has_a_page_with_its_one_line_help(pages: dict[str, str]) -> None:
    assert {"perfscope", "perfscope-bench-env-create"} < set(pages)
    for name, (_, summary) in COMMANDS.items():
        shown = pages[f"perfscope-{name}"].replace("\\-", "-").replace("\\(aq", "'")
        assert f"perfscope-{name} - {summary.rstrip('.')}\n" in shown
        assert f"perfscope\\-{name}\n" in pages["perfscope"]


def test_options_and_examples_are_in_the_page(pages: dict[str, str]) -> None:
    run = pages["perfscope-run"]
    assert ".B \\-\\-steps\\-per\\-window INTEGER RANGE\n" in run
    assert "perfscope run \\-\\- python train.py \\-\\-epochs 3\n" in run


def test_no_page_has_control_characters(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        assert all(one == "\n" or one.isprintable() for one in text), name


@pytest.mark.parametrize(
    "linter",
    [["mandoc", "-T", "lint", "-W", "warning"], ["man", "--warnings", "--local-file", "--troff-device=utf8"]],
    ids=["mandoc", "man"],
)
def test_linters_have_nothing_to_say(linter: list[str], pages: dict[str, str], tmp_path: Path) -> None:
    if shutil.which(linter[0]) is None:
        pytest.skip(f"{linter[0]} is not installed")
    for name, text in pages.items():
        page = tmp_path / f"{name}.1"
        page.write_text(text, encoding="utf-8")
        done = subprocess.run([*linter, str(page)], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), name
        if linter[0] == "mandoc":
            assert done.stdout == "", name
