"""How far long work is: a line on a terminal, few lines in a log, nothing for short work."""

from __future__ import annotations

import io
import sys

import pytest

from perfscope.cli.progress_bar import counting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_goes_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with counting("reading ranks") as progress:
        progress(1000, 2000)
        assert terminal.getvalue().endswith("reading ranks: 1,000 of 2,000")
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(("interval_s", "num_lines"), [(0.0, 2), (60.0, 0)])
def test_a_log_has_a_line_now_and_then(
    interval_s: float,
    num_lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("perfscope.cli.progress_bar.PLAIN_S", interval_s)
    with counting("reading ranks") as progress:
        for done in (1, 2, 3):
            progress(done, 3)
    lines = ["perfscope: reading ranks: 1 of 3", "perfscope: reading ranks: 2 of 3"]
    assert capsys.readouterr().err.splitlines() == lines[:num_lines]
