"""TCP over loopback: what is said where nothing could be measured."""

from __future__ import annotations

import json
import subprocess
import sys


def test_without_time_the_reason_is_said() -> None:
    plan = json.dumps({"deadline": 0.0, "seconds": 0.01})
    program = f"from perfscope.collectors.links.kernels_tcp import main; main({plan!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"missing": "every size", "reason": "no time was left"}
    ]
