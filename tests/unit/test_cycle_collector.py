"""The cycle collector is off during an analysis; in a program that ends with its command, also afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys

from perfscope.cycle_collector import collector_off

_COMMAND = """
import atexit, gc
from perfscope.cycle_collector import collector_off, in_one_command
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # runs last
in_one_command()
with collector_off():
    pass
print(gc.isenabled())
"""


def test_a_library_leaves_the_collector_as_it_was() -> None:
    assert gc.isenabled()
    with collector_off():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_program_does_not_collect_what_an_analysis_made_not_even_at_its_end() -> None:
    result = subprocess.run([sys.executable, "-c", _COMMAND], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True"]
