"""The probes load in a Python that has no perfscope: that of a TensorFlow, JAX or MXNet environment."""

from __future__ import annotations

import subprocess
import sys

import perfscope.probes.bootstrap.agent as agent

LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("agent", sys.argv[1])
agent = importlib.util.module_from_spec(spec)
spec.loader.exec_module(agent)
assert importlib.util.find_spec("perfscope") is None
print(agent._load_room())
"""


def test_the_agent_loads_the_probes_where_perfscope_is_not_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LOAD, agent.__file__], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "_perfscope.probes", done.stderr
