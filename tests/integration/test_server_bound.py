"""Parameter servers of which the truth is known: one whose update sleeps, and one whose workers sleep."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integration.run_support import PERFSCOPE, user_environment

SETTINGS = ("--model", "lenet", "--input", "3x32x32", "--batch", "8", "--steps", "8", "--threads", "1")
QUIET = ("--ceilings", "off", "--sample-interval", "off", "-o", "run")
# The user's own start-up module: it makes one method of the scheme slow, in the ranks only.
SLOWED = """
import importlib.machinery, sys, time


class Slowed:
    def find_spec(self, name, path=None, target=None):
        if name != "perfscope.runners.schemes.ps_async":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            plain = module.PsAsyncSgd.{method}

            def slow(self, argument):
                time.sleep(0.15)
                return plain(self, argument)

            module.PsAsyncSgd.{method} = slow

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Slowed())
"""


def findings(folder: Path, method: str) -> list[dict[str, str]]:
    """Of a run of three ranks in which each call of the scheme's `method` sleeps 150 ms."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SLOWED.format(method=method))
    environment = user_environment(PYTHONPATH=str(folder / "site"))
    for words in (
        ["bench", "run", "ps.async_sgd", "--ranks", "3", *SETTINGS, *QUIET],
        ["report", "run", "--json"],
    ):
        found = subprocess.run(
            [*PERFSCOPE, *words], cwd=folder, env=environment, capture_output=True, timeout=240, check=True
        )
    result: list[dict[str, str]] = json.loads(found.stdout)["findings"]
    return result


def test_a_server_that_is_slow_is_named_as_what_bounds_the_step(tmp_path: Path) -> None:
    first, *rest = findings(tmp_path, "apply")
    assert first["id"] == "server_bound"
    assert first["title"].startswith("The parameter server bounds the step: rank 0 is busy")
    assert "2 workers wait for it" in first["title"]
    assert "requests of 244 KiB per second" in first["detail"]
    assert "2 traced steps on 3 ranks." in first["detail"]
    assert "host_bound" not in {one["id"] for one in rest[:1]}


@pytest.mark.slow
def test_a_server_that_waits_for_slow_workers_is_not_named(tmp_path: Path) -> None:
    assert "server_bound" not in {one["id"] for one in findings(tmp_path, "step")}
