"""What the training programs of all frameworks share: their settings, their batches, their record.

Loaded by path, beside the program, under a Python that may have no perfscope: standard library and numpy
only, Python >= 3.8.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import numpy as np

_FAREWELL_S = 60.0  # rank 0 outlives the others, but not for ever
_LOOK_S = 0.01
_FAILED = 1


class CellProcess:
    """One process of one run.

    Args:
        path: of config.json, as preparation.py writes it.

    Attributes:
        rank, size: of this process, and how many there are.
        layers: of the network, see structure.py.
        num_steps, batch: updates; samples of one over all processes.
        share: samples of one for this process.
        learning_rate, momentum: of plain SGD.
        num_classes, input_shape, threads: as they say.
        device: "cpu", or "cuda": the only GPU that this process sees, but for Horovod's, which see all.
    """

    def __init__(self, path: str) -> None:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - like the rest of a plain program
            config: dict[str, Any] = json.load(file)
        self.rank = int(os.environ.get("RANK") or 0)
        self.size = int(os.environ.get("WORLD_SIZE") or 1)
        self.layers: list[dict[str, Any]] = config["layers"]
        self.num_steps: int = config["steps"]
        self.batch: int = config["batch"]
        self.share = self.batch // self.size
        self.learning_rate: float = config["learning_rate"]
        self.momentum: float = config["momentum"]
        self.num_classes: int = config["num_classes"]
        self.input_shape: tuple[int, ...] = tuple(config["input_shape"])
        self.threads: int = config["threads"]
        self.device: str = config["device"]
        self._config = config
        self._inputs = np.load(config["inputs"], mmap_mode="r")
        self._labels = np.load(config["labels"])
        self._losses: list[float] = []
        self._ends: list[int] = []
        self._details: dict[str, Any] = {"framework": config["framework"]}

    def weights(self) -> dict[str, Any]:
        """Initial weights by name, in torch's layout, float32."""
        with np.load(self._config["weights"]) as file:
            return {name: file[name] for name in file.files}

    def batch_of(self, step: int) -> tuple[Any, Any]:
        """This process's part of a step: inputs (share, C, H, W) float32, labels (share,) int32.

        Where the framework keeps channels last, inputs are (share, H, W, C).
        """
        first = self.rank * self.share
        part = slice(first, first + self.share)
        return np.array(self._inputs[step, part]), np.array(self._labels[step, part])

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """`batch_of` every step, in order."""
        for step in range(self.num_steps):
            yield self.batch_of(step)

    def tell(self, **details: Any) -> None:
        """Kept with the record: versions and the like."""
        self._details.update(details)

    def begin(self) -> None:
        """The first step begins."""
        self._ends = [time.monotonic_ns()]

    def step_done(self, loss: float) -> None:
        """A step has ended, its update too; `loss` is the mean over this process's samples before it."""
        self._losses.append(float(loss))
        self._ends.append(time.monotonic_ns())

    def end(self) -> None:
        """Write the record; rank 0 then waits until the others have ended: some frameworks need it alive."""
        self._write()
        other_ends = self._config.get("others_ended")
        if self.rank or self.size == 1 or not other_ends:
            return
        until = time.monotonic() + _FAREWELL_S
        while not os.path.exists(other_ends) and time.monotonic() < until:  # noqa: PTH110
            time.sleep(_LOOK_S)

    def _write(self) -> None:
        run_dir = os.environ.get("PERFSCOPE_RUN_DIR") or self._config["folder"]
        folder = os.path.join(run_dir, "ranks", str(self.rank))  # noqa: PTH118
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        record = {
            "losses": [loss if loss - loss == 0 else None for loss in self._losses],  # JSON has no NaN
            "step_ends_ns": self._ends,
            "calls": [],
            "interfaces": {},
            "details": self._details,
            "held_out_loss": None,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        path = os.path.join(folder, "bench.json")  # noqa: PTH118
        with open(path + ".part", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(_seal().sealed(json.dumps(record), "bench.json"))
        os.replace(path + ".part", path)  # noqa: PTH105


def _seal() -> Any:
    """rundir/seal.py, by its path: the Python of a framework does not have perfscope."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    spec = spec_from_file_location("perfscope_seal", os.path.join(package, "rundir", "seal.py"))  # noqa: PTH118
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(train: Callable[[CellProcess], None], arguments: Sequence[str] | None = None) -> int:
    """Run `train` on the cell that the command line names; the code to exit with."""
    argv = sys.argv[1:] if arguments is None else list(arguments)
    if len(argv) != 1:
        sys.stderr.write("usage: train_FRAMEWORK.py CONFIG.json\n")
        return 2
    try:
        cell = CellProcess(argv[0])
        train(cell)
        cell.end()
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the process's outermost boundary: one line, a code
        if os.environ.get("PERFSCOPE_BENCH_TRACE"):
            traceback.print_exc()
        text = " ".join(str(error).split())[:400]
        rank = os.environ.get("RANK") or "0"
        sys.stderr.write(
            f"perfscope bench: rank {rank}: {type(error).__name__}: {text} "
            "(set PERFSCOPE_BENCH_TRACE=1 for the stack trace)\n"
        )
        sys.stderr.flush()
        return _FAILED
    return 0
