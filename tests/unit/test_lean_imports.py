"""perfscope's own processes run as if pandas and the file systems of clouds were not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from perfscope.rundir.number_lists import numpy_dtype

HIDDEN = """
from perfscope.lean_imports import hide_unused
hide_unused()
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


LOCAL = """
from perfscope.lean_imports import hide_unused
hide_unused()
import sys
import pyarrow, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), sys.argv[1])
assert pyarrow.parquet.read_table(sys.argv[1], use_threads=False).num_rows == 1
print(sorted(name for name in sys.modules if name in ("ssl", "pyarrow._s3fs", "pyarrow._gcsfs")))
import ssl
print(ssl.create_default_context().check_hostname)
"""


def test_parquet_needs_neither_openssl_nor_file_systems_of_clouds(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOCAL, str(tmp_path / "a.parquet")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout.split("\n")[:2]) == (0, ["[]", "True"]), ran.stderr


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64", "bool"]
)
def test_types_of_numbers_are_known_without_asking_arrow_for_those_of_pandas(dtype: str) -> None:
    assert numpy_dtype(pa.from_numpy_dtype(np.dtype(dtype))) == np.dtype(dtype)
