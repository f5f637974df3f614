"""perfscope's own processes run as if pandas were not installed."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from perfscope.rundir.number_lists import numpy_dtype

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


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64", "bool"]
)
def test_types_of_numbers_are_known_without_asking_arrow_for_those_of_pandas(dtype: str) -> None:
    assert numpy_dtype(pa.from_numpy_dtype(np.dtype(dtype))) == np.dtype(dtype)
