"""perfscope's own processes run as if pandas were not installed."""

from __future__ import annotations

import subprocess
import sys

HIDDEN = """
from perfscope.no_pandas import hide_pandas
hide_pandas()
import importlib.util, sys
import pyarrow
assert pyarrow.array([1, 2]).to_pylist() == [1, 2]
assert importlib.util.find_spec("pandas") is None  # torch._dynamo asks; `perfscope bench` imports it
assert not any(name.startswith("pandas.") for name in sys.modules)
try:
    import pandas
except ModuleNotFoundError:
    print("hidden")
"""


def test_hidden_pandas_is_like_pandas_that_is_not_installed() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", HIDDEN], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "hidden"), ran.stderr
