"""`%%perfscope`: a notebook's cell as a training of its own, recorded. Loaded by `%load_ext perfscope`."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from perfscope.api.run import Run, open_run
from perfscope.errors import PerfscopeError, UsageError

_RANKS = "--ranks"
_NAMES_RUN = "perfscope: run directory: "


def record_cell(line: str, cell: str) -> Run:
    """Runs a cell as a script of its own under ``perfscope run``, and opens what was recorded.

    The script starts in the notebook's working directory and shares no variables with the notebook. The
    `Run` is the cell's result: the notebook shows it, and ``_`` is it in the next cell.

    Args:
        line: ``[--ranks N]`` starts N processes by torchrun; the rest are options of ``perfscope run``.
        cell: the training.

    Raises:
        UsageError: the number of ranks is no number.
        PerfscopeError: the script failed, or no rank was recorded.
    """
    options = shlex.split(line)
    launcher = [sys.executable]
    if _RANKS in options:
        at = options.index(_RANKS)
        number = "".join(options[at + 1 : at + 2])
        if not number.isdecimal():
            raise UsageError(f"{_RANKS} needs a number of processes")
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", number]
        del options[at : at + 2]
    with tempfile.TemporaryDirectory(prefix="perfscope-") as folder:
        script = Path(folder) / "cell.py"
        script.write_text(cell, encoding="utf-8")
        recorded = [sys.executable, "-m", "perfscope", "run", "--no-verdict", *options]
        run = _recorded([*recorded, "--", *launcher, str(script)])
    return open_run(run)


def _recorded(command: list[str]) -> Path:
    """Shows what `perfscope run` prints, line by line; Ctrl-C ends it. The run directory that it names."""
    run = None
    path = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                run = line.removeprefix(_NAMES_RUN).strip() if line.startswith(_NAMES_RUN) else run
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            raise
    if process.returncode:
        where = f"; what was recorded is in {run}" if run is not None else ""
        raise PerfscopeError(f"the cell ended with exit code {process.returncode}{where}")
    if run is None:
        raise PerfscopeError("perfscope run named no run directory")
    return Path(run)
