"""Examples in docstrings of the API."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import matplotlib as mpl
import pytest

import perfscope
from tests.unit.cli.test_compare import recorded

TRACES = Path(__file__).parents[2] / "data" / "traces" / "cpu_gloo_2ranks"
MODULES = ("perfscope.api.run", "perfscope.api.study", "perfscope.api.plots")


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_what_they_show(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` is opened from recorded traces, `study` compares three small runs."""
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    (tmp_path / "traces").symlink_to(TRACES)
    run = perfscope.load_traces("traces", output="my-run")
    names = [recorded(Path(f"n{count}"), count, ms) for count, ms in ((1, 100.0), (2, 60.0), (4, 40.0))]
    given = {"perfscope": perfscope, "run": run, "study": perfscope.compare(names, mode="strong")}
    result = doctest.testmod(importlib.import_module(module), extraglobs=given, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0 and result.attempted > 0
