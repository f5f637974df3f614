"""Messages on stderr: one line for scripts, folded on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "perfscope", "report"]


def on_terminal(path: Path, columns: int) -> list[str]:
    ours, theirs = pty.openpty()
    try:
        environment = {**os.environ, "COLUMNS": str(columns)}
        subprocess.run(
            [*COMMAND, path], stdout=subprocess.DEVNULL, stderr=theirs, env=environment, check=False
        )
        os.close(theirs)
        theirs = -1
        text = b""
        while not text.endswith(b"\n"):
            text += os.read(ours, 65536)
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
    return text.decode().splitlines()


def test_a_message_is_one_line_for_scripts_and_folded_on_a_terminal(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("<html>404</html>")
    piped = subprocess.run([*COMMAND, trace], capture_output=True, text=True, check=False).stderr
    assert piped.count("\n") == 1 and len(piped) > 60
    folded = on_terminal(trace, 60)
    assert len(folded) > 1 and all(line.startswith("  ") for line in folded[1:])
    assert " ".join(line.strip() for line in folded) == piped.strip()
    assert all(len(line) <= 60 or " " not in line.strip() for line in folded)
